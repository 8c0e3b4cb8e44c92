//! Which ranks hang on slow links, by the bandwidth each measured to its neighbours on the ring.

use super::check::Check;

/// Bandwidth to both neighbours, bytes per second; on a ring of two they are the same link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Links {
    /// To the rank before.
    pub left: f64,
    /// To the rank after.
    pub right: f64,
}

const NAME: &str = "link_bandwidth";

/// The check of every rank, in order. A rank is bad when both of its links are slow: a slow link is seen from both of
/// its ends, and one end alone has another slow one. The median is that of the ranks' better links, so that one bad
/// rank, whose neighbours measure it too, cannot pull it down. A link below `min_share` of it is slow; with 0 none is.
pub fn judge(ranks: &[Links], min_share: f64) -> Vec<Check> {
    let best: Vec<f64> = ranks.iter().map(|links| links.left.max(links.right)).collect();
    let limit = min_share * median(&mut best.clone());
    let is_bad: Vec<bool> = best.iter().map(|best| *best < limit).collect();
    let size = ranks.len();
    let check = |rank: usize, links: &Links| {
        let got = format!("{} to the left, {} to the right", gb(links.left), gb(links.right));
        let expected = format!("at least {}, {min_share} of the median", gb(limit));
        let hint = "look at cables, ports and counters of the node (ibstat, ethtool -S), or lower --min-share (SLIME_MIN_LINK_SHARE of the job scripts)";
        let before = (rank + size - 1) % size;
        // A slow link to a bad rank is that rank's.
        let is_slow = |rate: f64, peer: usize| rate < limit && !is_bad[peer];
        if is_bad[rank] {
            Check::bad(NAME, got, expected, hint)
        } else if is_slow(links.left, before) || is_slow(links.right, (rank + 1) % size) {
            Check::warn(NAME, got, expected, hint)
        } else {
            Check::ok(NAME, got)
        }
    };
    ranks.iter().enumerate().map(|(rank, links)| check(rank, links)).collect()
}

/// The middle value, the mean of both where there are two; 0 of nothing.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, values.get(middle)) {
        (_, None) => 0.0,
        (1, Some(value)) => *value,
        (_, Some(value)) => f64::midpoint(values[middle - 1], *value),
    }
}

fn gb(rate: f64) -> String {
    format!("{:.2} GB/s", rate / 1e9)
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    /// The verdicts of a ring whose link behind rank i has `rates[i]`.
    fn verdicts(rates: &[f64]) -> Vec<Verdict> {
        let size = rates.len();
        let links: Vec<Links> = (0..size)
            .map(|rank| Links { left: rates[(rank + size - 1) % size] * 1e9, right: rates[rank] * 1e9 })
            .collect();
        judge(&links, 0.5).iter().map(|check| check.verdict).collect()
    }

    #[test]
    fn rank_between_two_slow_links_is_bad_and_its_neighbours_are_not() {
        use Verdict::{Bad, Ok};
        assert_eq!(verdicts(&[1.0, 1.0, 10.0]), [Ok, Bad, Ok]);
        assert_eq!(verdicts(&[1.0, 10.0, 10.0, 1.2]), [Bad, Ok, Ok, Ok]);
        assert_eq!(verdicts(&[10.0, 12.0, 9.0, 11.0]), [Ok; 4]);
    }

    #[test]
    fn one_slow_link_is_a_warning_at_both_ends() {
        use Verdict::{Ok, Warn};
        assert_eq!(verdicts(&[10.0, 1.0, 10.0, 10.0, 10.0]), [Ok, Warn, Warn, Ok, Ok]);
    }

    #[test]
    fn two_ranks_have_nobody_to_be_compared_with() {
        assert_eq!(verdicts(&[1.0, 1.0]), [Verdict::Ok; 2]);
        assert!(judge(&[], 0.5).is_empty());
    }

    #[test]
    fn where_speed_is_no_matter_no_link_is_slow() {
        let links = [
            Links { left: 1.0, right: 1.0 },
            Links { left: 1.0, right: 1e9 },
            Links { left: 1e9, right: 1.0 },
        ];
        assert!(judge(&links, 0.0).iter().all(|check| check.verdict == Verdict::Ok));
    }

    #[test]
    fn median_of_an_even_number_lies_between() {
        assert_eq!(median(&mut [4.0, 1.0, 3.0]).to_bits(), 3.0_f64.to_bits());
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]).to_bits(), 2.5_f64.to_bits());
    }
}
