//! Owns the blocks of the paged KV cache: reference counts, sharing and copy-on-write. It never sees their contents.

/// A block whose contents must be copied before the next forward pass; copies run in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Block read.
    pub from: u32,
    /// Block written.
    pub to: u32,
}

/// Blocks of `block_size` token slots, each free or referenced by one or more block tables.
#[derive(Debug)]
pub struct BlockManager {
    block_size: usize,
    free: Vec<u32>,
    ref_counts: Vec<u32>,
}

impl BlockManager {
    /// `num_blocks` free blocks of `block_size` slots.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self { block_size, free: (0..num_blocks as u32).rev().collect(), ref_counts: vec![0; num_blocks] }
    }

    /// Blocks nobody references.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// All blocks.
    pub fn num_blocks(&self) -> usize {
        self.ref_counts.len()
    }

    /// Token slots of one block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks that `len` tokens occupy.
    pub fn blocks_for(&self, len: usize) -> usize {
        len.div_ceil(self.block_size)
    }

    /// Slot in the cache where position `position` of a sequence with this table lies.
    pub fn slot(&self, table: &[u32], position: usize) -> u32 {
        table[position / self.block_size] * self.block_size as u32 + (position % self.block_size) as u32
    }

    /// References the blocks that hold the first `len` tokens of `table` once more and returns them as a table.
    pub fn share(&mut self, table: &[u32], len: usize) -> Vec<u32> {
        let shared = table[..self.blocks_for(len)].to_vec();
        for &block in &shared {
            self.ref_counts[block as usize] += 1;
        }
        shared
    }

    /// New blocks needed before positions `start..end` of `table` can be written.
    pub fn num_needed(&self, table: &[u32], start: usize, end: usize) -> usize {
        (start / self.block_size..self.blocks_for(end))
            .filter(|&i| table.get(i).is_none_or(|&b| self.ref_counts[b as usize] > 1))
            .count()
    }

    /// Makes positions `start..end` of `table` writable: appends blocks and replaces shared ones by private copies.
    /// All or nothing: `None` and nothing changed when there are too few free blocks.
    pub fn reserve(&mut self, table: &mut Vec<u32>, start: usize, end: usize) -> Option<Vec<BlockCopy>> {
        if self.num_needed(table, start, end) > self.free.len() {
            return None;
        }
        let mut copies = Vec::new();
        for i in start / self.block_size..self.blocks_for(end) {
            match table.get(i).copied() {
                None => table.push(self.allocate()),
                Some(from) if self.ref_counts[from as usize] > 1 => {
                    let to = self.allocate();
                    self.ref_counts[from as usize] -= 1;
                    table[i] = to;
                    // Nothing before `start` in this block means nothing worth copying.
                    if start > i * self.block_size {
                        copies.push(BlockCopy { from, to });
                    }
                }
                Some(_) => {}
            }
        }
        Some(copies)
    }

    /// Gives back every block of `table` and empties it.
    ///
    /// # Panics
    /// A block is given back more often than it was referenced: two sequences would write into it.
    pub fn release(&mut self, table: &mut Vec<u32>) {
        for block in table.drain(..) {
            let count = &mut self.ref_counts[block as usize];
            assert!(*count > 0, "block {block} released more often than it was referenced");
            *count -= 1;
            if *count == 0 {
                self.free.push(block);
            }
        }
    }

    fn allocate(&mut self) -> u32 {
        let block = self.free.pop().expect("reserve checked the number of free blocks");
        self.ref_counts[block as usize] = 1;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    /// Every block is either free once or referenced exactly as often as tables name it.
    fn check(manager: &BlockManager, tables: &[(Vec<u32>, usize)]) {
        let mut counts = vec![0; manager.num_blocks()];
        for (table, _) in tables {
            for &block in table {
                counts[block as usize] += 1;
            }
        }
        assert_eq!(counts, manager.ref_counts);
        let mut free = manager.free.clone();
        free.sort_unstable();
        let unreferenced: Vec<u32> = (0..counts.len() as u32).filter(|&b| counts[b as usize] == 0).collect();
        assert_eq!(free, unreferenced);
    }

    #[test]
    fn random_use_never_leaks_nor_frees_twice() {
        for seed in 0..50 {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let mut manager = BlockManager::new(24, 4);
            let mut tables: Vec<(Vec<u32>, usize)> = Vec::new();
            for _ in 0..500 {
                match rng.random_range(0..4) {
                    0 => tables.push((Vec::new(), 0)),
                    1 if !tables.is_empty() => {
                        let (table, len) = &tables[rng.random_range(0..tables.len())];
                        let shared_len = rng.random_range(0..=*len);
                        let shared = manager.share(&table.clone(), shared_len);
                        tables.push((shared, shared_len));
                    }
                    2 if !tables.is_empty() => {
                        let (mut table, _) = tables.swap_remove(rng.random_range(0..tables.len()));
                        manager.release(&mut table);
                    }
                    _ if !tables.is_empty() => {
                        let i = rng.random_range(0..tables.len());
                        let (table, len) = &mut tables[i];
                        let end = *len + rng.random_range(1..9);
                        let before = table.clone();
                        if manager.reserve(table, *len, end).is_some() {
                            *len = end;
                            let writable = *len / 4..table.len();
                            assert!(table[writable].iter().all(|&b| manager.ref_counts[b as usize] == 1));
                        } else {
                            assert_eq!(*table, before, "a refused reservation changes nothing");
                        }
                    }
                    _ => {}
                }
                check(&manager, &tables);
            }
            for (mut table, _) in tables.drain(..) {
                manager.release(&mut table);
            }
            assert_eq!(manager.num_free(), 24);
        }
    }

    #[test]
    fn writing_into_a_shared_partial_block_copies_it_once() {
        let mut manager = BlockManager::new(8, 4);
        let mut first = Vec::new();
        assert_eq!(manager.reserve(&mut first, 0, 6).unwrap(), vec![]);
        let mut second = manager.share(&first, 6);
        let copies = manager.reserve(&mut second, 6, 7).unwrap();
        assert_eq!(copies, vec![BlockCopy { from: first[1], to: second[1] }]);
        assert_eq!(first[0], second[0], "full blocks stay shared");
        assert_eq!(manager.reserve(&mut first, 6, 7).unwrap(), vec![], "the last owner writes in place");
    }
}
