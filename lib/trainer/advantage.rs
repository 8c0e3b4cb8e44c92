//! Advantages of a group's samples from their rewards.

/// Added to the standard deviation, as in the public slime implementation.
const EPSILON: f64 = 1e-6;

/// GRPO (arXiv 2402.03300, section 4.1): each reward minus the mean of its group and, with `std_normalization`, over
/// the group's standard deviation (n - 1) plus 1e-6; without it, Dr. GRPO (arXiv 2503.20783).
///
/// A group of one sample, or of equal rewards, gives zeros. Every token of a sample has the sample's advantage.
pub fn grpo(rewards: &[f32], std_normalization: bool) -> Vec<f32> {
    let num = rewards.len() as f64;
    let mean = rewards.iter().map(|reward| f64::from(*reward)).sum::<f64>() / num;
    let centered = rewards.iter().map(|reward| f64::from(*reward) - mean);
    let variance = centered.clone().map(|x| x * x).sum::<f64>() / (num - 1.0).max(1.0);
    let scale = if std_normalization { 1.0 / (variance.sqrt() + EPSILON) } else { 1.0 };
    let is_constant = rewards.iter().all(|reward| Some(reward) == rewards.first());
    centered.map(|x| if is_constant { 0.0 } else { (x * scale) as f32 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{cases, close, floats};

    #[test]
    fn golden_vectors_of_group_normalized_rewards() {
        let mut checked = 0;
        for case in cases("group_normalized_rewards") {
            let groups = case["input"]["rewards"].as_array().unwrap();
            for (i, group) in groups.iter().enumerate() {
                let rewards = floats(group);
                close(&grpo(&rewards, false), &floats(&case["output"]["centered"][i]));
                close(&grpo(&rewards, true), &floats(&case["output"]["std_normalized"][i]));
                checked += 1;
            }
        }
        assert!(checked > 0);
    }

    #[test]
    fn equal_rewards_and_groups_of_one_give_exact_zeros() {
        assert_eq!(grpo(&[0.1, 0.1, 0.1], true), [0.0; 3]);
        assert_eq!(grpo(&[1.0], true), [0.0]);
        assert!(grpo(&[], true).is_empty());
    }
}
