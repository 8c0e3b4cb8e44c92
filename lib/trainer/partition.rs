//! Sharing work: equal loads over ranks, packing into bins of a fixed size, halving a bin.
//!
//! Where several answers are as good, the choice is that of slime's `seqlen_balancing` and `dp_schedule`, so every rank
//! computes the same.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How many items the parts have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// As it comes.
    Any,
    /// All the same; the items are a multiple of the parts.
    Equal,
}

/// Items with their load; in the order of loads, then of numbers of items, then of the items.
type Part = (u64, usize, Vec<usize>);

/// The parts so far by falling load. The heap takes the widest spread first, then the heaviest first part.
type Parts = (u64, Vec<Part>);

/// Distributes items over `num_parts` so that the largest load is small: the largest differencing method of Karmarkar and
/// Karp (1982) for several parts. Returns the items of each part in increasing order.
pub fn balance(costs: &[u64], num_parts: usize, sizes: Sizes) -> Vec<Vec<usize>> {
    let num_parts = num_parts.max(1);
    let mut ascending: Vec<usize> = (0..costs.len()).collect();
    ascending.sort_by_key(|item| (costs[*item], *item));
    let first = match sizes {
        Sizes::Any => 1,
        Sizes::Equal => num_parts,
    };
    let begin = |items: &[usize]| {
        let empty = std::iter::repeat((0, 0, Vec::new()));
        let parts = items.iter().map(|item| (costs[*item], 1, vec![*item])).chain(empty);
        by_load(parts.take(num_parts).collect())
    };
    let mut heap: BinaryHeap<Parts> = ascending.chunks(first).map(begin).collect();
    while let Some((_, mut parts)) = heap.pop() {
        let Some((_, other)) = heap.pop() else {
            let sorted = |(_, _, mut items): Part| {
                items.sort_unstable();
                items
            };
            return parts.into_iter().map(sorted).collect();
        };
        // The heaviest part of one joins the lightest of the other.
        for ((load, num, items), (more, num_more, others)) in parts.iter_mut().zip(other.into_iter().rev()) {
            *load += more;
            *num += num_more;
            items.extend(others);
        }
        heap.push(by_load(parts));
    }
    vec![Vec::new(); num_parts]
}

fn by_load(mut parts: Vec<Part>) -> Parts {
    parts.sort_by(|a, b| b.cmp(a));
    (parts.first().map_or(0, |part| part.0) - parts.last().map_or(0, |part| part.0), parts)
}

/// Puts each item, in order, into the first bin that still has room; an item above the capacity has a bin of its own.
pub fn first_fit(costs: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
    for (item, cost) in costs.iter().enumerate() {
        match bins.iter_mut().find(|(load, _)| load + cost <= capacity) {
            Some((load, items)) => {
                *load += cost;
                items.push(item);
            }
            None => bins.push((*cost, vec![item])),
        }
    }
    bins.into_iter().map(|(_, items)| items).collect()
}

/// Parts at least two items in two, neither of them empty: the dearest first, each to the lighter half.
pub fn halves(costs: &[usize]) -> [Vec<usize>; 2] {
    let mut falling: Vec<usize> = (0..costs.len()).collect();
    falling.sort_by_key(|item| Reverse(costs[*item]));
    let (mut loads, mut halves) = ([0, 0], [Vec::new(), Vec::new()]);
    for item in falling {
        // Items that cost nothing leave the loads as they are.
        let is_second_due = halves[1].is_empty() && !halves[0].is_empty();
        let lighter = usize::from(is_second_due || loads[1] < loads[0]);
        loads[lighter] += costs[item];
        halves[lighter].push(item);
    }
    halves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{cases, floats};

    /// V10 of the reference.
    const LENGTHS: [u64; 8] = [1, 2, 3, 4, 5, 7, 9, 10];

    fn lengths(case: &serde_json::Value) -> Vec<usize> {
        floats(&case["input"]["lengths"]).iter().map(|x| *x as usize).collect()
    }

    #[test]
    fn loads_are_no_worse_than_those_of_the_public_implementation() {
        let cases = cases("balanced_partitions");
        assert_eq!(cases.len(), 4);
        for case in cases {
            let costs: Vec<u64> = lengths(&case).into_iter().map(|length| length as u64).collect();
            let num_parts = case["params"]["k_partitions"].as_u64().unwrap() as usize;
            let parts = balance(&costs, num_parts, Sizes::Any);
            let loads = parts.iter().map(|part| part.iter().map(|item| costs[*item]).sum::<u64>());
            assert!(loads.max().unwrap() <= case["output"]["max_load"].as_u64().unwrap());
            let mut all = parts.concat();
            all.sort_unstable();
            assert_eq!(all, (0..costs.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn parts_are_those_of_the_public_implementation() {
        assert_eq!(balance(&LENGTHS, 2, Sizes::Equal), [[1, 3, 4, 7], [0, 2, 5, 6]]);
        assert_eq!(balance(&LENGTHS, 3, Sizes::Any), [vec![0, 3, 6], vec![1, 4, 5], vec![2, 7]]);
        assert_eq!(balance(&[8, 7, 6, 5, 4], 2, Sizes::Any), [vec![1, 3, 4], vec![0, 2]]);
        assert_eq!(halves(&[8, 1, 1, 6]), [vec![0], vec![3, 1, 2]]);
        assert_eq!(halves(&[5, 5, 5, 5]), [[0, 2], [1, 3]]);
        assert_eq!((halves(&[0, 0]), halves(&[0, 0, 0])), ([vec![0], vec![1]], [vec![0, 2], vec![1]]));
    }

    #[test]
    fn golden_vectors_of_first_fit() {
        let cases = cases("first_fit_pack");
        assert_eq!(cases.len(), 2);
        for case in cases {
            let expected: Vec<Vec<usize>> = serde_json::from_value(case["output"]["bins"].clone()).unwrap();
            let capacity = case["params"]["max_tokens_per_bin"].as_u64().unwrap() as usize;
            assert_eq!(first_fit(&lengths(&case), capacity), expected);
        }
        assert_eq!(
            first_fit(&LENGTHS.map(|length| length as usize), 10),
            [vec![0, 1, 2, 3], vec![4], vec![5], vec![6], vec![7]]
        );
    }

    #[test]
    fn fewer_items_than_parts_leave_empty_parts() {
        assert_eq!(balance(&[], 2, Sizes::Any), [vec![], vec![]] as [Vec<usize>; 2]);
        assert_eq!(balance(&[], 2, Sizes::Equal), [vec![], vec![]] as [Vec<usize>; 2]);
        assert_eq!(balance(&[5, 3], 3, Sizes::Any), [vec![0], vec![1], vec![]]);
    }
}
