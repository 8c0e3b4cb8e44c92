//! A tiny model for tests: logits depend on every token of the sequence, read back through the cache, in integers,
//! so any slip in slots, tables, copies or positions changes what is generated.

use crate::{Batch, ForwardModel, Result};

/// Size of the vocabulary.
pub const VOCAB: usize = 29;

/// Remembers the token and position of every slot; its "attention" hashes what the block table shows.
#[derive(Debug, Default)]
pub struct NaiveModel {
    cache: Vec<Option<(u32, u32)>>,
    block_size: usize,
    /// Stands for the weights: another one, other logits.
    pub salt: u64,
    /// Tokens that went through the model.
    pub num_tokens: usize,
    /// Tokens of the largest batch.
    pub max_batch: usize,
}

impl NaiveModel {
    /// Logits after `sequence`, as the model defines them.
    pub fn logits(salt: u64, sequence: impl Iterator<Item = u32>) -> Vec<f32> {
        let hash = sequence.fold(salt ^ 0x9E37_79B9_7F4A_7C15, |h, token| {
            (h ^ u64::from(token)).wrapping_mul(0x0100_0000_01B3).rotate_left(17)
        });
        (0..VOCAB as u64)
            .map(|v| {
                ((hash ^ v.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_mul(hash | 1) >> 40) as f32 / 5e6
            })
            .collect()
    }
}

impl ForwardModel for NaiveModel {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_len(&self) -> usize {
        64
    }

    fn allocate(&mut self, num_blocks: usize, block_size: usize) -> Result<()> {
        self.block_size = block_size;
        self.cache = vec![None; num_blocks * block_size];
        Ok(())
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<()> {
        let size = self.block_size;
        for copy in &batch.copies {
            let from = copy.from as usize * size;
            self.cache.copy_within(from..from + size, copy.to as usize * size);
        }
        let mut written = std::collections::HashSet::new();
        for (i, &slot) in batch.slots.iter().enumerate() {
            assert!(written.insert(slot), "two tokens of one batch share slot {slot}");
            self.cache[slot as usize] = Some((batch.tokens[i], batch.positions[i]));
        }
        self.num_tokens += batch.tokens.len();
        self.max_batch = self.max_batch.max(batch.tokens.len());
        logits.clear();
        let mut end = 0;
        for (i, &q_len) in batch.q_lens.iter().enumerate() {
            let start = end;
            end += q_len as usize;
            for row in batch.logit_rows.iter().map(|&r| r as usize).filter(|r| (start..end).contains(r)) {
                let len = batch.context_lens[i] as usize - (end - 1 - row);
                let sequence = (0..len).map(|position| {
                    let slot = batch.block_tables[i][position / size] as usize * size + position % size;
                    let (token, at) = self.cache[slot].expect("a slot that was written");
                    assert_eq!(at as usize, position, "slot {slot} holds another position");
                    token
                });
                logits.extend(Self::logits(self.salt, sequence));
            }
        }
        Ok(())
    }
}
