//! Which blocks of the KV cache hold which tokens after which others: a tree of whole blocks, so that a prompt that begins like
//! an earlier one is not computed again.

use std::collections::{BTreeMap, HashMap};

/// A place in the tree: the tokens from its root to there. Places are never used again, so one that is gone has no children
/// any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place(u64);

/// A block below a place, by its tokens.
type Key = (Place, Box<[u32]>);

/// The tree, and the blocks in it that nobody references, oldest first.
#[derive(Debug)]
pub(crate) struct RadixCache {
    children: HashMap<Key, (Place, u32)>,
    keys: HashMap<u32, Key>,
    idle: BTreeMap<u64, u32>,
    idle_since: HashMap<u32, u64>,
    root: Place,
    /// Counts places and releases.
    next: u64,
}

impl RadixCache {
    /// An empty tree.
    pub fn new() -> Self {
        Self {
            children: HashMap::new(),
            keys: HashMap::new(),
            idle: BTreeMap::new(),
            idle_since: HashMap::new(),
            root: Place(0),
            next: 1,
        }
    }

    /// Where every text begins.
    pub fn root(&self) -> Place {
        self.root
    }

    /// The block with `tokens` below `place`, and the place behind it.
    pub fn child(&self, place: Place, tokens: &[u32]) -> Option<(Place, u32)> {
        self.children.get(&(place, tokens.into())).copied()
    }

    /// Remembers that `block` holds `tokens` below `place`; the place behind it. Another block that holds the same stays.
    pub fn insert(&mut self, place: Place, tokens: &[u32], block: u32) -> Place {
        if let Some((behind, _)) = self.child(place, tokens) {
            return behind;
        }
        let behind = Place(self.count());
        if !self.keys.contains_key(&block) {
            let key: Key = (place, tokens.into());
            self.children.insert(key.clone(), (behind, block));
            self.keys.insert(block, key);
        }
        behind
    }

    /// Nobody references `block` any more; whether it stays, because it is in the tree.
    pub fn retire(&mut self, block: u32) -> bool {
        let is_kept = self.keys.contains_key(&block);
        if is_kept {
            let now = self.count();
            self.idle.insert(now, block);
            self.idle_since.insert(block, now);
        }
        is_kept
    }

    /// Somebody references `block` again.
    pub fn revive(&mut self, block: u32) {
        if let Some(since) = self.idle_since.remove(&block) {
            self.idle.remove(&since);
        }
    }

    /// Blocks that nobody references.
    pub fn num_idle(&self) -> usize {
        self.idle.len()
    }

    /// Takes the block that nobody has referenced for longest out of the tree.
    pub fn evict(&mut self) -> Option<u32> {
        let (_, block) = self.idle.pop_first()?;
        self.idle_since.remove(&block);
        if let Some(key) = self.keys.remove(&block) {
            self.children.remove(&key);
        }
        Some(block)
    }

    /// Forgets everything; the blocks that nobody references. What is inserted below places of before is never found.
    pub fn clear(&mut self) -> Vec<u32> {
        self.children.clear();
        self.keys.clear();
        self.idle_since.clear();
        self.root = Place(self.count());
        std::mem::take(&mut self.idle).into_values().collect()
    }

    fn count(&mut self) -> u64 {
        let count = self.next;
        self.next += 1;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_behind_their_own_beginning_only() {
        let mut cache = RadixCache::new();
        let root = cache.root();
        let after_a = cache.insert(root, &[1, 2], 7);
        let after_b = cache.insert(after_a, &[3, 4], 8);
        assert_eq!(cache.child(root, &[1, 2]), Some((after_a, 7)));
        assert_eq!(cache.child(after_a, &[3, 4]), Some((after_b, 8)));
        assert_eq!((cache.child(root, &[3, 4]), cache.child(after_a, &[3, 5])), (None, None));
        assert_eq!(cache.insert(root, &[1, 2], 9), after_a, "the first block stays");
        assert!(!cache.retire(9) && cache.retire(8));
    }

    #[test]
    fn the_longest_unused_goes_first_and_what_is_used_again_stays() {
        let mut cache = RadixCache::new();
        let root = cache.root();
        for block in 0..3 {
            cache.insert(root, &[block], block);
            assert!(cache.retire(block));
        }
        cache.revive(0);
        assert_eq!((cache.evict(), cache.num_idle()), (Some(1), 1));
        assert_eq!((cache.child(root, &[1]), cache.child(root, &[0]).map(|child| child.1)), (None, Some(0)));
        assert!(cache.retire(0));
        assert_eq!([cache.evict(), cache.evict(), cache.evict()], [Some(2), Some(0), None]);
    }

    #[test]
    fn a_forgotten_tree_gives_nothing_back_even_to_those_who_still_know_it() {
        let mut cache = RadixCache::new();
        let old = cache.root();
        let place = cache.insert(old, &[1], 5);
        cache.retire(5);
        assert_eq!(cache.clear(), [5]);
        cache.insert(place, &[2], 6);
        cache.insert(old, &[1], 4);
        assert_eq!(cache.child(cache.root(), &[1]), None);
    }
}
