//! Sharing work: equal loads over ranks, and packing into bins of a fixed size.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Distributes items over `num_parts` so that the largest load is small (the largest differencing method of Karmarkar
/// and Karp for several parts). Returns the items of each part in increasing order; ties are broken by item number, so
/// every rank computes the same.
pub fn balance(costs: &[usize], num_parts: usize) -> Vec<Vec<usize>> {
    /// Parts by falling load; the heap takes the state with the widest spread, then the earliest.
    type State = (usize, Reverse<usize>, Vec<(usize, Vec<usize>)>);
    let state = |parts: Vec<(usize, Vec<usize>)>, at: usize| -> State {
        let spread = parts.first().map_or(0, |p| p.0) - parts.last().map_or(0, |p| p.0);
        (spread, Reverse(at), parts)
    };
    let mut heap: BinaryHeap<State> = costs
        .iter()
        .enumerate()
        .map(|(item, cost)| {
            let mut parts = vec![(0, Vec::new()); num_parts.max(1)];
            parts[0] = (*cost, vec![item]);
            state(parts, item)
        })
        .collect();
    let mut made = costs.len();
    while let Some((_, _, mut parts)) = heap.pop() {
        let Some((_, _, other)) = heap.pop() else {
            return parts
                .into_iter()
                .map(|(_, mut items)| {
                    items.sort_unstable();
                    items
                })
                .collect();
        };
        // The heaviest part of one joins the lightest of the other.
        for (part, (load, items)) in parts.iter_mut().zip(other.into_iter().rev()) {
            part.0 += load;
            part.1.extend(items);
        }
        parts.sort_by_key(|(load, items)| (Reverse(*load), items.iter().min().copied()));
        heap.push(state(parts, made));
        made += 1;
    }
    vec![Vec::new(); num_parts.max(1)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{cases, floats};

    fn lengths(case: &serde_json::Value) -> Vec<usize> {
        floats(&case["input"]["lengths"]).iter().map(|x| *x as usize).collect()
    }

    #[test]
    fn loads_are_no_worse_than_those_of_the_public_implementation() {
        let cases = cases("balanced_partitions");
        assert_eq!(cases.len(), 4);
        for case in cases {
            let costs = lengths(&case);
            let num_parts = case["params"]["k_partitions"].as_u64().unwrap() as usize;
            let parts = balance(&costs, num_parts);
            let loads = parts.iter().map(|part| part.iter().map(|item| costs[*item]).sum::<usize>());
            assert!(loads.max().unwrap() as u64 <= case["output"]["max_load"].as_u64().unwrap());
            let mut all = parts.concat();
            all.sort_unstable();
            assert_eq!(all, (0..costs.len()).collect::<Vec<_>>());
        }
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
    }

    #[test]
    fn fewer_items_than_parts_leave_empty_parts() {
        assert_eq!(balance(&[], 2), [vec![], vec![]] as [Vec<usize>; 2]);
        let mut parts = balance(&[5, 3], 3);
        parts.sort();
        assert_eq!(parts, [vec![], vec![0], vec![1]]);
    }
}
