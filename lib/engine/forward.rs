//! What the engine asks of a model: one forward pass over a batch of chunks against the paged KV cache.

pub use slime_model::RowDraw;

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
    /// Whether the experts of the tokens are wanted, see [`ForwardModel::routed_experts`].
    pub wants_routes: bool,
    /// Rows of `tokens` whose token is the one that a row of the step before draws: `(row, row of its draws)`. What stands in
    /// `tokens` is of no account.
    pub late: Vec<(u32, u32)>,
}

impl Batch {
    /// Adds a chunk: positions `start..start + q_len` of a sequence and of the guesses behind it, whose slots follow from its
    /// blocks; a token beyond the last one is to be made late.
    pub fn push(
        &mut self,
        (tokens, draft): (&[u32], &[u32]),
        start: usize,
        q_len: usize,
        table: &[u32],
        block_size: usize,
    ) {
        for position in start..start + q_len {
            let guess = || draft.get(position - tokens.len());
            self.tokens.push(tokens.get(position).or_else(guess).copied().unwrap_or(0));
            self.positions.push(position as u32);
            self.slots
                .push(table[position / block_size] * block_size as u32 + (position % block_size) as u32);
        }
        self.q_lens.push(q_len as u32);
        self.context_lens.push((start + q_len) as u32);
        self.block_tables.push(table.to_vec());
    }

    /// Makes the last token pushed the one that row `row` of the step before draws.
    pub fn make_last_late(&mut self, row: u32) {
        self.late.push((self.tokens.len() as u32 - 1, row));
    }

    /// Asks for the logits of the last `num` tokens pushed.
    pub fn want_last(&mut self, num: usize) {
        let end = self.tokens.len();
        self.logit_rows.extend((end - num..end).map(|row| row as u32));
    }
}

/// A model with a paged KV cache of its own.
pub trait ForwardModel {
    /// Entries of one row of logits.
    fn vocab_size(&self) -> usize;

    /// Tokens of the longest sequence the model was made for.
    fn context_len(&self) -> usize;

    /// Makes room for `num_blocks` blocks of `block_size` tokens, of up to `max_num_seqs` sequences in a batch; the old contents
    /// are gone.
    fn allocate(&mut self, num_blocks: usize, block_size: usize, max_num_seqs: usize) -> Result<()>;

    /// Runs `batch`, which has no late tokens, and leaves the wanted logits in `logits`, f32, `[logit_rows, vocab_size]`.
    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<()>;

    /// The experts of every token of the last batch, `[t, layers with experts, experts of a token]` row-major, if they were
    /// wanted; a model without experts has none.
    fn routed_experts(&mut self) -> Vec<u16> {
        Vec::new()
    }

    /// The model as one that draws tokens itself while the host goes on; `None` where it cannot.
    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        None
    }
}

/// A model whose steps run while the host prepares the next one.
pub trait RunsAhead {
    /// Queues a step that draws a token from the logits of each of `batch.logit_rows` as `draws` says. At most two steps may be
    /// on their way.
    fn launch(&mut self, batch: &Batch, draws: &[RowDraw]) -> Result<()>;

    /// What the oldest step on its way drew, once it has ended: tokens with their log-probs, `None` where the logits were no
    /// numbers.
    fn collect(&mut self) -> Result<Vec<Option<(u32, f32)>>>;
}
