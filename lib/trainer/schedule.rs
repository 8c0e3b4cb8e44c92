//! The learning rate of an optimizer step.

use slime_config::{Schedule, Train};

/// The learning rate of step `step` (from 0) of `num_steps`: linear warm-up over `warmup_steps` that ends at `lr`, then
/// constant, or falling to `min_lr` at the last step, straight or along half a cosine.
pub fn learning_rate(train: &Train, step: u64, num_steps: u64) -> f64 {
    if step < train.warmup_steps {
        return train.lr * (step + 1) as f64 / train.warmup_steps as f64;
    }
    let span = num_steps.saturating_sub(train.warmup_steps + 1);
    let done = if span == 0 { 0.0 } else { ((step - train.warmup_steps) as f64 / span as f64).min(1.0) };
    let left = match train.schedule {
        Schedule::Constant => return train.lr,
        Schedule::Linear => 1.0 - done,
        Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
    };
    train.min_lr + (train.lr - train.min_lr) * left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: Schedule) -> Vec<f64> {
        let train = Train { lr: 1.0, min_lr: 0.2, warmup_steps: 2, schedule, ..Train::default() };
        (0..8).map(|step| learning_rate(&train, step, 7)).collect()
    }

    fn assert_close(got: &[f64], expected: &[f64]) {
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?}");
    }

    #[test]
    fn warm_up_is_linear_and_constant_stays() {
        assert_close(&rates(Schedule::Constant), &[0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn decay_begins_at_lr_and_ends_at_min_lr_with_the_last_step() {
        assert_close(&rates(Schedule::Linear), &[0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]);
        let half = 0.5f64.sqrt();
        let cosine = [0.5, 1.0, 1.0, 0.6 + 0.4 * half, 0.6, 0.6 - 0.4 * half, 0.2, 0.2];
        assert_close(&rates(Schedule::Cosine), &cosine);
    }
}
