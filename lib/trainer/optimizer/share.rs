//! Which elements of every storage each data-parallel rank updates (`ZeRO` stage 1, arXiv 1910.02054).

use slime_weights::StorageSpec;
use tch::Tensor;

use crate::gradient_groups::GradientGroups;

/// Elements that stay together, 4 KiB of f32: the gradient norm is summed block by block and every block is updated by one
/// rank in the same steps, so neither depends on how many ranks share.
pub const BLOCK: usize = 1024;

/// How many elements each of `num_ranks` ranks has of every storage, in the order of `lens`. A rank's elements lie side by
/// side, behind those of the ranks below it. Blocks are dealt out evenly; what is left over of a storage goes to the ranks
/// that have the fewest elements so far.
pub fn shares(lens: impl IntoIterator<Item = usize>, num_ranks: usize) -> Vec<Vec<usize>> {
    let mut loads = vec![0; num_ranks];
    let mut share = |len: usize| {
        let num_blocks = len.div_ceil(BLOCK);
        let mut blocks = vec![num_blocks / num_ranks; num_ranks];
        let mut by_load: Vec<usize> = (0..num_ranks).collect();
        by_load.sort_by_key(|rank| (loads[*rank], *rank));
        for rank in &by_load[..num_blocks % num_ranks] {
            blocks[*rank] += 1;
        }
        let mut start = 0;
        let mut count = |(rank, blocks): (usize, usize)| {
            let count = (start + blocks * BLOCK).min(len) - start;
            start += count;
            loads[rank] += count;
            count
        };
        blocks.into_iter().enumerate().map(&mut count).collect()
    };
    lens.into_iter().map(&mut share).collect()
}

/// [`shares`] of storages: those of experts over the ranks that hold the same experts.
pub(super) fn counts<'a>(
    storages: impl Iterator<Item = (&'a StorageSpec, &'a Tensor)>,
    groups: &GradientGroups,
) -> Vec<Vec<usize>> {
    let storages: Vec<_> = storages.collect();
    let mut counts = vec![Vec::new(); storages.len()];
    for of_experts in [false, true] {
        let own = storages.iter().enumerate().filter(|(_, (spec, _))| spec.is_expert == of_experts);
        let places: Vec<usize> = own.map(|(at, _)| at).collect();
        let Some(first) = places.first() else { continue };
        let lens = places.iter().map(|at| storages[*at].1.numel());
        let of_storages = shares(lens, groups.of(storages[*first].0).size());
        for (at, of_storage) in places.iter().zip(of_storages) {
            counts[*at] = of_storage;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_blocks_and_ranks_have_about_as_many() {
        let lens = [1, 0, 1024, 5000, 70_001, 3 * 1024, 7, 8, 9, 123_456];
        for num_ranks in 1..=5 {
            let shares = shares(lens, num_ranks);
            let mut loads = vec![0; num_ranks];
            for (counts, len) in shares.iter().zip(lens) {
                assert_eq!(counts.iter().sum::<usize>(), len);
                let mut start = 0;
                for (rank, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                    assert_eq!(start % BLOCK, 0);
                    loads[rank] += count;
                    start += count;
                }
            }
            assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 2 * BLOCK, "{loads:?}");
        }
    }
}
