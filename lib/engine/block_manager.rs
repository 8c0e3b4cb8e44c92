//! Owns the blocks of the paged KV cache: reference counts, sharing, copy-on-write, and what whole blocks may be found again
//! by. It never sees their contents.

use crate::radix_cache::{Place, RadixCache};

/// A block whose contents must be copied before the next forward pass; copies run in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Block read.
    pub from: u32,
    /// Block written.
    pub to: u32,
}

/// Blocks of `block_size` token slots, each free (some of them with contents that may be found again) or referenced by one or
/// more block tables.
#[derive(Debug)]
pub struct BlockManager {
    block_size: usize,
    free: Vec<u32>,
    ref_counts: Vec<u32>,
    /// None where contents are not found again.
    cache: Option<RadixCache>,
}

/// How far the blocks of a sequence were told to the cache.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told {
    num_blocks: usize,
    /// Behind them; none before the first look.
    place: Option<Place>,
}

impl BlockManager {
    /// `num_blocks` free blocks of `block_size` slots.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        let free = (0..num_blocks as u32).rev().collect();
        Self { block_size, free, ref_counts: vec![0; num_blocks], cache: None }
    }

    /// From now on whole blocks are found again until others need their place.
    #[must_use]
    pub fn with_cache(mut self) -> Self {
        self.cache = Some(RadixCache::new());
        self
    }

    /// Blocks nobody references.
    pub fn num_free(&self) -> usize {
        self.free.len() + self.cache.as_ref().map_or(0, RadixCache::num_idle)
    }

    /// Forgets what blocks hold.
    pub fn forget(&mut self) {
        if let Some(cache) = &mut self.cache {
            self.free.extend(cache.clear());
        }
    }

    /// References the whole blocks at the beginning of `tokens` that are there, but for the last token, as a table.
    pub(crate) fn find(&mut self, tokens: &[u32]) -> (Vec<u32>, Told) {
        let mut table = Vec::new();
        let Some(cache) = &mut self.cache else { return (table, Told::default()) };
        let mut place = cache.root();
        let whole = &tokens[..tokens.len().saturating_sub(1)];
        for chunk in whole.chunks_exact(self.block_size) {
            let Some((behind, block)) = cache.child(place, chunk) else { break };
            cache.revive(block);
            self.ref_counts[block as usize] += 1;
            table.push(block);
            place = behind;
        }
        let told = Told { num_blocks: table.len(), place: Some(place) };
        (table, told)
    }

    /// How far the cache knows the whole blocks of `tokens`.
    pub(crate) fn told(&self, tokens: &[u32]) -> Told {
        let Some(cache) = &self.cache else { return Told::default() };
        let (mut place, mut num_blocks) = (cache.root(), 0);
        for chunk in tokens.chunks_exact(self.block_size) {
            let Some((behind, _)) = cache.child(place, chunk) else { break };
            (place, num_blocks) = (behind, num_blocks + 1);
        }
        Told { num_blocks, place: Some(place) }
    }

    /// Lets the whole blocks of a sequence be found again whose first `len` tokens are computed.
    pub(crate) fn tell(&mut self, told: &mut Told, table: &[u32], tokens: &[u32], len: usize) {
        let (Some(cache), Some(mut place)) = (&mut self.cache, told.place) else { return };
        let chunks = tokens[..len.min(tokens.len())].chunks_exact(self.block_size);
        for (chunk, block) in chunks.zip(table).skip(told.num_blocks) {
            place = cache.insert(place, chunk, *block);
            told.num_blocks += 1;
        }
        told.place = Some(place);
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
            debug_assert!(self.ref_counts[block as usize] > 0, "block {block} is nobody's");
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
        if self.num_needed(table, start, end) > self.num_free() {
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
        // The last block first: the beginning of a text stays longest.
        for block in table.drain(..).rev() {
            let count = &mut self.ref_counts[block as usize];
            assert!(*count > 0, "block {block} released more often than it was referenced");
            *count -= 1;
            if *count == 0 && !self.cache.as_mut().is_some_and(|cache| cache.retire(block)) {
                self.free.push(block);
            }
        }
    }

    fn allocate(&mut self) -> u32 {
        let block = self.free.pop().or_else(|| self.cache.as_mut().and_then(RadixCache::evict));
        let block = block.expect("reserve checked the number of free blocks");
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
