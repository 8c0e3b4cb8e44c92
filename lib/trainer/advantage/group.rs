//! Advantages relative to the other samples of a group.

/// Added to the standard deviation, as in the public slime implementation.
const EPSILON: f64 = 1e-6;

/// GRPO (arXiv 2402.03300, section 4.1.2): each reward minus the mean of its group and, with `std_normalization`, over
/// the group's standard deviation (n - 1) plus 1e-6; without it, Dr. GRPO (arXiv 2503.20783, section 3.2).
///
/// `rewards` are those of one group; equal rewards give exact zeros. Every token of a sample has the sample's advantage.
pub fn grpo(rewards: &[f32], std_normalization: bool) -> Vec<f32> {
    let num = rewards.len() as f64;
    let mean = rewards.iter().map(|reward| f64::from(*reward)).sum::<f64>() / num;
    let centered = rewards.iter().map(|reward| f64::from(*reward) - mean);
    let variance = centered.clone().map(|x| x * x).sum::<f64>() / (num - 1.0).max(1.0);
    let scale = if std_normalization { 1.0 / (variance.sqrt() + EPSILON) } else { 1.0 };
    let is_constant = rewards.iter().all(|reward| Some(reward) == rewards.first());
    centered.map(|x| if is_constant { 0.0 } else { (x * scale) as f32 }).collect()
}

/// GRPO with process supervision (arXiv 2402.03300, section 4.1.3): the rewards of all steps of a group's samples are
/// normalised together as in [`grpo`]; a token's advantage is the sum of its sample's normalised rewards from it on.
///
/// `token_rewards` are one list for each sample of the group, one number for each trained token, 0 where no step ends.
pub fn grpo_process(token_rewards: &[Vec<f32>], std_normalization: bool) -> Vec<Vec<f32>> {
    let steps: Vec<f32> = token_rewards.iter().flatten().copied().filter(|reward| *reward != 0.0).collect();
    let mut normalized = grpo(&steps, std_normalization).into_iter();
    token_rewards
        .iter()
        .map(|rewards| {
            let mut advantages: Vec<f32> = rewards
                .iter()
                .map(|reward| if *reward == 0.0 { 0.0 } else { normalized.next().unwrap_or_default() })
                .collect();
            let mut later = 0.0_f64;
            for advantage in advantages.iter_mut().rev() {
                later += f64::from(*advantage);
                *advantage = later as f32;
            }
            advantages
        })
        .collect()
}

/// RLOO (arXiv 2402.14740): each reward minus the mean of the group's other n - 1 rewards.
///
/// `rewards` are those of one group of at least two; equal rewards give exact zeros.
pub fn rloo(rewards: &[f32]) -> Vec<f32> {
    let num = rewards.len() as f64;
    let scale = num / (num - 1.0).max(1.0);
    grpo(rewards, false).into_iter().map(|centered| (f64::from(centered) * scale) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::close;

    #[test]
    fn equal_rewards_give_exact_zeros() {
        assert_eq!(grpo(&[0.1, 0.1, 0.1], true), [0.0; 3]);
        assert_eq!(rloo(&[0.7; 5]), [0.0; 5]);
        assert!(grpo(&[], true).is_empty());
    }

    #[test]
    fn vectors_of_the_reference() {
        for (rewards, expected) in [
            ([1.0, 0.0, 0.0, 1.0], [0.866_023_9, -0.866_023_9, -0.866_023_9, 0.866_023_9]),
            ([1.0, 0.0, 0.0, 0.0], [1.499_997, -0.499_999, -0.499_999, -0.499_999]),
        ] {
            close(&grpo(&rewards, true), &expected);
        }
    }

    #[test]
    fn rloo_compares_with_the_others() {
        close(&rloo(&[1.0, 0.0, 0.5]), &[1.0 - 0.25, -0.75, 0.0]);
        close(&rloo(&[2.0, 1.0]), &[1.0, -1.0]);
    }

    #[test]
    fn process_rewards_are_normalised_together_and_summed_to_the_end() {
        let rewards = [vec![0.0, 1.0, 0.0, 2.0], vec![3.0, 0.0]];
        close(&grpo_process(&rewards, false).concat(), &[-1.0, -1.0, 0.0, 0.0, 1.0, 0.0]);
        close(&grpo_process(&rewards, true).concat(), &[-1.0, -1.0, 0.0, 0.0, 1.0, 0.0]);
        // One reward, at the end of each sample: the outcome's advantage on every token.
        let outcomes = [vec![0.0, 0.0, 1.0], vec![0.0, 3.0]];
        assert_eq!(grpo_process(&outcomes, true).concat(), {
            let [a, b] = grpo(&[1.0, 3.0], true)[..] else { unreachable!() };
            [a, a, a, b, b]
        });
    }
}
