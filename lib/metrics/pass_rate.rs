//! pass@k: how likely one of k samples solves a prompt (Chen et al., arXiv 2107.03374, equation 1).

use crate::Row;

/// The unbiased estimate from `num_right` of `num` samples: `1 - prod_{j=n-c+1}^{n} (1 - k/j)`, and 1 when fewer than k
/// are wrong (slime, `compute_pass_rate`).
pub fn pass_at(num: usize, num_right: usize, k: usize) -> f64 {
    if num - num_right.min(num) < k {
        return 1.0;
    }
    1.0 - (num - num_right + 1..=num).map(|j| 1.0 - k as f64 / j as f64).product::<f64>()
}

/// Adds `<prefix>pass@k` for k = 1, 2, 4, ... up to the size of the smallest group, the means over groups; a sample is
/// right when its reward is 1. Groups of one sample have no pass rate.
pub fn add_pass_rates(row: &mut Row, prefix: &str, groups: &[Vec<f32>]) {
    let num = groups.iter().map(Vec::len).min().unwrap_or(0);
    if num < 2 {
        return;
    }
    let is_right = |reward: &&f32| reward.total_cmp(&1.0).is_eq();
    for k in (0..usize::BITS).map(|power| 1_usize << power).take_while(|k| *k <= num) {
        let of = |group: &Vec<f32>| pass_at(group.len(), group.iter().filter(is_right).count(), k);
        row.set(format!("{prefix}pass@{k}"), groups.iter().map(of).sum::<f64>() / groups.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binomial(n: usize, k: usize) -> f64 {
        (0..k).map(|i| (n - i) as f64 / (k - i) as f64).product()
    }

    #[test]
    fn estimate_is_one_minus_the_chance_of_k_wrong_ones() {
        for num in 1..=8 {
            for right in 0..=num {
                for k in 1..=num {
                    let wrong = num - right;
                    let expected = if wrong < k { 1.0 } else { 1.0 - binomial(wrong, k) / binomial(num, k) };
                    let got = pass_at(num, right, k);
                    assert!((got - expected).abs() < 1e-12, "{num} {right} {k}: {got} and {expected}");
                }
            }
        }
    }

    #[test]
    fn rates_are_means_over_groups_and_groups_of_one_have_none() {
        let mut row = Row::default();
        add_pass_rates(&mut row, "passrate/", &[vec![1.0, 0.0, 0.0], vec![0.0, 0.5, 0.0]]);
        let close = |k: &str, expected: f64| (row.number(k).unwrap() - expected).abs() < 1e-12;
        assert!(close("passrate/pass@1", 1.0 / 6.0) && close("passrate/pass@2", 1.0 / 3.0), "{row:?}");
        assert_eq!(row.number("passrate/pass@4"), None);
        let mut row = Row::default();
        add_pass_rates(&mut row, "", &[vec![1.0], vec![0.0]]);
        assert_eq!(row, Row::default());
    }
}
