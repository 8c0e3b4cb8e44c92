//! Advantages of REINFORCE with the KL penalty in the reward of each token.

/// REINFORCE++ (arXiv 2501.03262; slime, `get_reinforce_plus_plus_returns`): the discounted sum of
/// `-kl_coef * kl_t` and token rewards from each token on, with `reward` at the last trained token.
///
/// `positions` are the trained tokens' places in the response: a later reward is discounted by `gamma` for every place
/// between, masked ones too. `kl` and `token_rewards` have one number for each trained token, or are empty for zeros.
pub fn reinforce_plus_plus(
    reward: f32,
    positions: &[usize],
    kl: &[f32],
    token_rewards: &[f32],
    kl_coef: f64,
    gamma: f64,
) -> Vec<f32> {
    let mut returns = vec![0.0; positions.len()];
    let (mut later, mut next) = (0.0_f64, None);
    for at in (0..positions.len()).rev() {
        let own = token_rewards.get(at).map_or(0.0, |reward| f64::from(*reward))
            - kl_coef * kl.get(at).map_or(0.0, |kl| f64::from(*kl));
        later = match next {
            None => f64::from(reward),
            Some(next) => later * gamma.powi((next - positions[at]) as i32),
        } + own;
        next = Some(positions[at]);
        returns[at] = later as f32;
    }
    returns
}

/// REINFORCE++ with a baseline (arXiv 2501.03262; slime,
/// `get_reinforce_plus_plus_baseline_advantages`): `centered`, the reward minus its group's mean, minus `kl_coef * kl_t`.
///
/// `kl` has one number for each of the `num` trained tokens, or is empty for zeros.
pub fn reinforce_plus_plus_baseline(centered: f32, num: usize, kl: &[f32], kl_coef: f64) -> Vec<f32> {
    let penalty = |at: usize| kl_coef * kl.get(at).map_or(0.0, |kl| f64::from(*kl));
    (0..num).map(|at| (f64::from(centered) - penalty(at)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::close;

    #[test]
    fn vectors_of_the_reference() {
        let kl = [0.1, 0.2, 0.3];
        close(&reinforce_plus_plus(1.0, &[0, 1, 2], &kl, &[], 0.1, 1.0), &[0.94, 0.95, 0.97]);
        close(&reinforce_plus_plus(1.0, &[0, 1, 2], &kl, &[], 0.1, 0.9), &[0.7577, 0.853, 0.97]);
    }

    #[test]
    fn token_rewards_are_added_where_they_fall() {
        let got = reinforce_plus_plus(1.0, &[0, 2, 3], &[], &[0.5, 0.0, -0.5], 0.0, 0.5);
        close(&got, &[0.5 + 0.25 * 0.25, 0.25, 0.5]);
        assert!(reinforce_plus_plus(1.0, &[], &[], &[], 0.1, 1.0).is_empty());
    }
}
