//! What the engine asks of a model: one forward pass over a batch of chunks against the paged KV cache.

use crate::{BlockCopy, Result};

/// Chunks of several sequences, packed: chunk i has `q_lens[i]` tokens, which end position `context_lens[i]`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Batch {
    /// Tokens of all chunks, one after the other (`t` in all).
    pub tokens: Vec<u32>,
    /// Position of each token in its sequence.
    pub positions: Vec<u32>,
    /// Cache slot each token's key and value go to.
    pub slots: Vec<u32>,
    /// Tokens of each chunk.
    pub q_lens: Vec<u32>,
    /// Length of each sequence up to and including its chunk.
    pub context_lens: Vec<u32>,
    /// Blocks of each sequence.
    pub block_tables: Vec<Vec<u32>>,
    /// Rows of `tokens` whose logits are wanted.
    pub logit_rows: Vec<u32>,
    /// Copies to make, in order, before anything is written.
    pub copies: Vec<BlockCopy>,
}

impl Batch {
    /// Adds a chunk: `tokens[start..start + q_len]` of a sequence, whose slots follow from its blocks.
    pub fn push(&mut self, tokens: &[u32], start: usize, q_len: usize, table: &[u32], block_size: usize) {
        for (position, &token) in tokens.iter().enumerate().skip(start).take(q_len) {
            self.tokens.push(token);
            self.positions.push(position as u32);
            self.slots
                .push(table[position / block_size] * block_size as u32 + (position % block_size) as u32);
        }
        self.q_lens.push(q_len as u32);
        self.context_lens.push((start + q_len) as u32);
        self.block_tables.push(table.to_vec());
    }

    /// Asks for the logits of the last token pushed.
    pub fn want_last(&mut self) {
        self.logit_rows.push(self.tokens.len() as u32 - 1);
    }
}

/// A model with a paged KV cache of its own.
pub trait ForwardModel {
    /// Entries of one row of logits.
    fn vocab_size(&self) -> usize;

    /// Tokens of the longest sequence the model was made for.
    fn context_len(&self) -> usize;

    /// Makes room for `num_blocks` blocks of `block_size` tokens; the old contents are gone.
    fn allocate(&mut self, num_blocks: usize, block_size: usize) -> Result<()>;

    /// Runs `batch` and leaves the wanted logits in `logits`, f32, `[logit_rows, vocab_size]`.
    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<()>;
}
