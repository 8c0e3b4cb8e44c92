//! Generalised advantage estimation.

/// GAE (arXiv 1506.02438, equation 16): `(advantages, returns)` of one sample with
/// `delta_t = rewards_t + gamma * values_(t+1) - values_t`, `advantage_t = delta_t + gamma * lambda * advantage_(t+1)`,
/// `return_t = advantage_t + values_t`; beyond the last trained token values are 0.
///
/// `rewards` and `values` have one number for each trained token. Masked tokens are no steps of the process: a value
/// is followed by that of the next trained token, so what a tool answered neither discounts nor predicts.
pub fn gae(rewards: &[f32], values: &[f32], gamma: f64, lambda: f64) -> (Vec<f32>, Vec<f32>) {
    let num = rewards.len().min(values.len());
    let (mut advantages, mut returns) = (vec![0.0; num], vec![0.0; num]);
    let (mut later, mut next_value) = (0.0_f64, 0.0_f64);
    for at in (0..num).rev() {
        let value = f64::from(values[at]);
        later = f64::from(rewards[at]) + gamma * next_value - value + gamma * lambda * later;
        next_value = value;
        (advantages[at], returns[at]) = (later as f32, (later + value) as f32);
    }
    (advantages, returns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::close;

    #[test]
    fn vectors_of_the_reference() {
        let (rewards, values) = ([0.0, 0.0, 1.0], [0.5, 0.6, 0.7]);
        let (advantages, returns) = gae(&rewards, &values, 1.0, 1.0);
        close(&advantages, &[0.5, 0.4, 0.3]);
        close(&returns, &[1.0; 3]);
        let (advantages, returns) = gae(&rewards, &values, 0.9, 0.95);
        close(&advantages, &[0.284_957_5, 0.2865, 0.3]);
        close(&returns, &[0.784_957_5, 0.8865, 1.0]);
    }
}
