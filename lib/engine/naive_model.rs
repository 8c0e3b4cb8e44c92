//! A tiny model for tests: logits depend on every token of the sequence, read back through the cache, in integers,
//! so any slip in slots, tables, copies or positions changes what is generated.

use crate::{Batch, ForwardModel, Result, RowDraw, RunsAhead, SamplingParams, Scratch, sample};

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

    fn allocate(&mut self, num_blocks: usize, block_size: usize, _max_num_seqs: usize) -> Result<()> {
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

/// The same as a model that runs ahead: tokens are drawn when a step is queued and handed out when they are collected, and late
/// tokens are known to it alone.
#[derive(Debug, Default)]
pub struct AheadModel {
    /// What computes.
    pub naive: NaiveModel,
    newest: Vec<u32>,
    on_the_way: std::collections::VecDeque<Vec<Option<(u32, f32)>>>,
}

impl ForwardModel for AheadModel {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_len(&self) -> usize {
        self.naive.context_len()
    }

    fn allocate(&mut self, num_blocks: usize, block_size: usize, max_num_seqs: usize) -> Result<()> {
        self.naive.allocate(num_blocks, block_size, max_num_seqs)
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<()> {
        assert!(batch.late.is_empty() && self.on_the_way.is_empty(), "logits are asked for too early");
        self.naive.forward(batch, logits)
    }

    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        Some(self)
    }
}

impl RunsAhead for AheadModel {
    fn launch(&mut self, batch: &Batch, draws: &[RowDraw]) -> Result<()> {
        assert!(self.on_the_way.len() < 2, "a third step on its way");
        let mut batch = batch.clone();
        for (row, before) in std::mem::take(&mut batch.late) {
            batch.tokens[row as usize] = self.newest[before as usize];
        }
        let mut logits = Vec::new();
        self.naive.forward(&batch, &mut logits)?;
        assert_eq!(logits.len(), draws.len() * VOCAB);
        let drawn: Vec<Option<(u32, f32)>> = logits
            .chunks_exact(VOCAB)
            .zip(draws)
            .map(|(row, draw)| {
                let inverse = f64::from(draw.inverse_temperature);
                let params = SamplingParams {
                    temperature: if inverse > 0.0 { 1.0 / inverse } else { 0.0 },
                    top_k: draw.top_k as usize,
                    top_p: f64::from(draw.top_p),
                    min_p: f64::from(draw.min_p),
                    ..SamplingParams::default()
                };
                let sampled = sample(row, &params, draw.uniform, &mut Scratch::default())?;
                Some((sampled.token, sampled.log_prob))
            })
            .collect();
        self.newest = drawn.iter().map(|drawn| drawn.map_or(0, |(token, _)| token)).collect();
        self.on_the_way.push_back(drawn);
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Option<(u32, f32)>>> {
        Ok(self.on_the_way.pop_front().expect("a step on its way"))
    }
}
