//! When a series of numbers is worth a warning. Pure functions; a series is (step, value) in the order of steps, and
//! what is judged is its last point.

/// A series of a run so far.
pub type Series = [(u64, f64)];

/// Points that a level is averaged over: one odd step is no trend.
const LEVEL_POINTS: usize = 3;
/// Points before the last that say where it came from.
const BASE_POINTS: usize = 3;
/// Below this difference of log-probs, in nats, training and generation agree: f32 differs by a hundredth of it.
const MISMATCH_FLOOR: f64 = 1e-4;

/// A rule that holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What was compared with the threshold.
    pub value: f64,
    /// In words.
    pub message: String,
}

fn split(series: &Series) -> Option<((u64, f64), &Series)> {
    let (last, before) = series.split_last()?;
    last.1.is_finite().then_some((*last, before))
}

/// `what` lies at least `threshold` (a share) below its highest value of the `window` points before.
pub fn fell(what: &str, series: &Series, window: usize, threshold: f64) -> Option<Finding> {
    let ((step, now), before) = split(series)?;
    let recent = &before[before.len().saturating_sub(window)..];
    // Of equal heights the latest, so that the fall is told as short as it was.
    let (from_step, from) =
        *recent.iter().filter(|(_, value)| value.is_finite()).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let value = 1.0 - now / from;
    (from > 0.0 && value >= threshold).then(|| Finding {
        value,
        message: format!(
            "{what} fell by {:.0} % in {} (from {from:.2} to {now:.2})",
            100.0 * value,
            steps(step - from_step)
        ),
    })
}

/// The mean of the last three points of a share is at least `threshold`.
pub fn stays_above(what: &str, series: &Series, threshold: f64) -> Option<Finding> {
    let last = series.len().checked_sub(LEVEL_POINTS).map(|first| &series[first..])?;
    let value = mean(last);
    (value >= threshold).then(|| Finding {
        value,
        message: format!("{:.0} % of {what} over {LEVEL_POINTS} steps", 100.0 * value),
    })
}

/// The last point is at least `threshold` times the median of the first `window` points, and no rounding.
pub fn rose(what: &str, series: &Series, window: usize, threshold: f64) -> Option<Finding> {
    let ((_, now), before) = split(series)?;
    let first = &before[..before.len().min(window)];
    if first.len() < BASE_POINTS || now < MISMATCH_FLOOR {
        return None;
    }
    // A base of 0, as in deterministic runs, is one that cannot be told from rounding.
    let base = median(first).max(MISMATCH_FLOOR / 10.0);
    let value = now / base;
    (value >= threshold).then(|| Finding {
        value,
        message: format!("{what} is {now:.2e}, {value:.1} times what it was at first ({base:.2e})"),
    })
}

/// The mean reward lies `threshold` standard deviations of the samples' rewards (`stds`, of the same steps) above the
/// median of the three points before.
pub fn jumped(rewards: &Series, stds: &Series, threshold: f64) -> Option<Finding> {
    let ((_, now), before) = split(rewards)?;
    let base = before.len().checked_sub(BASE_POINTS).map(|first| &before[first..])?;
    let from = median(base);
    let recent = &stds[stds.len().saturating_sub(BASE_POINTS + 1)..];
    let scale = recent.iter().map(|(_, std)| *std).fold(0.0, f64::max);
    let rise = now - from;
    // Rewards without any spread have no scale of their own: then every rise counts.
    let value = if scale > 0.0 { rise / scale } else { rise.signum() * f64::MAX };
    (rise > 0.0 && value >= threshold).then(|| Finding {
        value,
        message: format!(
            "the mean reward jumped from {from:.2} to {now:.2} in one step, the standard deviation of samples being \
             {scale:.2}: look at answers before believing it"
        ),
    })
}

/// At least `threshold` of a step's numbers are not finite.
pub fn not_finite<'a>(numbers: impl Iterator<Item = &'a str>, threshold: f64) -> Option<Finding> {
    let names: Vec<&str> = numbers.collect();
    (!names.is_empty() && names.len() as f64 >= threshold)
        .then(|| Finding { value: names.len() as f64, message: format!("not finite: {}", names.join(", ")) })
}

/// For at least `threshold` steps in a row, the last of them `step`, every reward of `source` was `reward`.
pub fn dead(source: &str, reward: f64, num_steps: u64, step: u64, threshold: f64) -> Option<Finding> {
    (num_steps as f64 >= threshold).then(|| Finding {
        value: num_steps as f64,
        message: format!(
            "source {source}: every reward was {reward} for {} up to step {step}",
            steps(num_steps)
        ),
    })
}

fn steps(num: u64) -> String {
    if num == 1 { "1 step".to_owned() } else { format!("{num} steps") }
}

fn mean(series: &Series) -> f64 {
    series.iter().map(|(_, value)| value).sum::<f64>() / series.len() as f64
}

fn median(series: &Series) -> f64 {
    let mut values: Vec<f64> = series.iter().map(|(_, value)| *value).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Vec<(u64, f64)> {
        (0..).zip(values.iter().copied()).collect()
    }

    #[test]
    fn collapse_fires_at_its_share_and_tells_from_where() {
        let mut values = vec![2.41; 11];
        values.push(0.48);
        let finding = fell("entropy", &series(&values), 10, 0.8).unwrap();
        assert_eq!(finding.message, "entropy fell by 80 % in 1 step (from 2.41 to 0.48)");
        let slow: Vec<f64> = (0..=10).map(|step| 2.41 - 0.193 * f64::from(step)).collect();
        let finding = fell("entropy", &series(&slow), 10, 0.8).unwrap();
        assert_eq!(finding.message, "entropy fell by 80 % in 10 steps (from 2.41 to 0.48)");
        // Near misses: less of a fall, the same fall over more steps, a rise, a first point.
        values[11] = 0.49;
        assert_eq!(fell("entropy", &series(&values), 10, 0.8), None);
        assert_eq!(fell("entropy", &series(&slow), 9, 0.8), None);
        assert_eq!(fell("entropy", &series(&[1.0, 5.0]), 10, 0.8), None);
        assert_eq!(fell("entropy", &series(&[1.0]), 10, 0.8), None);
        assert_eq!(fell("entropy", &series(&[0.0, 0.0]), 10, 0.8), None);
    }

    #[test]
    fn level_needs_three_steps() {
        let finding = stays_above("responses are cut off", &series(&[0.0, 0.5, 0.6, 0.7]), 0.5).unwrap();
        assert_eq!(finding.message, "60 % of responses are cut off over 3 steps");
        assert_eq!(stays_above("x", &series(&[1.0, 1.0]), 0.5), None);
        assert_eq!(stays_above("x", &series(&[1.0, 0.4, 0.4, 0.69]), 0.5), None);
    }

    #[test]
    fn mismatch_is_measured_against_the_beginning_and_rounding_is_none() {
        let rising = [0.01, 0.012, 0.009, 0.011, 0.02, 0.035];
        let finding = rose("the mismatch", &series(&rising), 4, 3.0).unwrap();
        assert!((finding.value - 0.035 / 0.011).abs() < 1e-9, "{finding:?}");
        assert_eq!(rose("x", &series(&rising[..5]), 4, 3.0), None);
        assert_eq!(rose("x", &series(&[1e-7, 1e-7, 1e-7, 5e-6]), 4, 3.0), None, "f32 rounds");
        assert_eq!(rose("x", &series(&[0.01, 0.01, 0.1]), 4, 3.0), None, "too few to compare with");
        assert!(rose("x", &series(&[0.0, 0.0, 0.0, 2e-4]), 4, 3.0).is_some(), "deterministic no more");
    }

    #[test]
    fn jump_is_measured_in_deviations_of_samples() {
        let stds = series(&[0.4; 4]);
        let finding = jumped(&series(&[0.2, 0.3, 0.25, 0.95]), &stds, 1.5).unwrap();
        assert!(finding.message.starts_with("the mean reward jumped from 0.25 to 0.95"), "{finding:?}");
        assert_eq!(jumped(&series(&[0.2, 0.3, 0.25, 0.8]), &stds, 1.5), None);
        assert_eq!(jumped(&series(&[0.9, 0.9, 0.9, 0.1]), &stds, 1.5), None, "a fall");
        assert_eq!(jumped(&series(&[0.2, 0.3, 0.95]), &stds[..3], 1.5), None, "too few to compare with");
        assert!(jumped(&series(&[0.0, 0.0, 0.0, 1.0]), &series(&[0.0; 4]), 1.5).is_some());
    }

    #[test]
    fn not_finite_and_dead_count() {
        assert_eq!(not_finite(["train/loss"].into_iter(), 1.0).unwrap().message, "not finite: train/loss");
        assert_eq!(not_finite(["train/loss"].into_iter(), 2.0), None);
        assert_eq!(not_finite([].into_iter(), 1.0), None);
        let finding = dead("arithmetic", 0.0, 10, 29, 10.0).unwrap();
        assert_eq!(finding.message, "source arithmetic: every reward was 0 for 10 steps up to step 29");
        assert_eq!(dead("arithmetic", 0.0, 9, 28, 10.0), None);
    }
}
