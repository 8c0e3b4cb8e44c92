//! Attention of few new tokens per sequence over keys and values in host blocks, split over tokens and heads.

use rayon::prelude::*;

use crate::kv_cache::BlockShape;

/// Which tokens a paged batch holds and where their keys and values are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub block_tables: &'a [Vec<u32>],
    pub q_lens: &'a [usize],
    pub context_lens: &'a [usize],
    pub shape: BlockShape,
}

impl Batch<'_> {
    /// Block and slot of position `at` of sequence `seq`.
    fn place(&self, seq: usize, at: usize) -> (u32, usize) {
        (self.block_tables[seq][at / self.shape.block_size], at % self.shape.block_size)
    }

    /// Flat slots (`block * block_size + slot`) of the positions `range` of sequence `seq`.
    pub fn slots_of(&self, seq: usize, range: std::ops::Range<usize>) -> Vec<i64> {
        range
            .map(|at| {
                let (block, slot) = self.place(seq, at);
                i64::from(block) * self.shape.block_size as i64 + slot as i64
            })
            .collect()
    }

    /// Flat slots of all new tokens.
    pub fn slots(&self) -> Vec<i64> {
        (0..self.q_lens.len())
            .flat_map(|seq| {
                self.slots_of(seq, self.context_lens[seq] - self.q_lens[seq]..self.context_lens[seq])
            })
            .collect()
    }

    /// Writes the rows of the new tokens (`[t, num_kv_heads, head_dim]`) into their blocks.
    pub fn keep(&self, blocks: &mut [f32], rows: &[f32]) {
        let (size, dim) = (self.shape.block_size, self.shape.head_dim);
        for (slot, row) in self.slots().into_iter().zip(rows.chunks_exact(self.shape.num_kv_heads * dim)) {
            let (block, slot) = (slot as usize / size, slot as usize % size);
            for (head, values) in row.chunks_exact(dim).enumerate() {
                let start = self.shape.head_start(block as u32, head) + slot * dim;
                blocks[start..start + dim].copy_from_slice(values);
            }
        }
    }

    /// The rows of the first `len` positions of sequence `seq`, `[len, num_kv_heads, head_dim]`.
    pub fn gather(&self, blocks: &[f32], seq: usize, len: usize) -> Vec<f32> {
        let dim = self.shape.head_dim;
        let mut rows = Vec::with_capacity(len * self.shape.num_kv_heads * dim);
        for at in 0..len {
            let (block, slot) = self.place(seq, at);
            for head in 0..self.shape.num_kv_heads {
                let start = self.shape.head_start(block, head) + slot * dim;
                rows.extend_from_slice(&blocks[start..start + dim]);
            }
        }
        rows
    }

    /// Sequence and number of visible positions of every new token.
    fn tokens(&self) -> Vec<(usize, usize)> {
        let visible = |seq: usize, at: usize| (seq, self.context_lens[seq] - self.q_lens[seq] + at + 1);
        (0..self.q_lens.len()).flat_map(|seq| (0..self.q_lens[seq]).map(move |at| visible(seq, at))).collect()
    }
}

/// Output `[t, num_heads * head_dim]` of queries of the same shape; scores, softmax and sums in f32. The rows of sequences
/// with `max_len` new tokens or more stay zero.
pub(crate) fn serve(
    batch: &Batch<'_>,
    max_len: usize,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    num_heads: usize,
) -> Vec<f32> {
    let (kv_heads, dim) = (batch.shape.num_kv_heads, batch.shape.head_dim);
    let group_len = num_heads / kv_heads * dim;
    let tokens = batch.tokens();
    let mut out = vec![0.0; q.len()];
    out.par_chunks_mut(group_len).zip(q.par_chunks(group_len)).enumerate().for_each(|(item, (out, q))| {
        let (seq, visible) = tokens[item / kv_heads];
        if batch.q_lens[seq] < max_len {
            head_group(batch, (seq, visible, item % kv_heads), q, k, v, out);
        }
    });
    out
}

/// The query heads that share one key-value head, for one token.
fn head_group(
    batch: &Batch<'_>,
    (seq, visible, head): (usize, usize, usize),
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
) {
    let shape = batch.shape;
    let (size, dim) = (shape.block_size, shape.head_dim);
    let scale = 1.0 / (dim as f32).sqrt();
    let mut scores = vec![0.0f32; q.len() / dim * visible];
    let blocks = || batch.block_tables[seq].iter().enumerate().take(visible.div_ceil(size));
    for (at, block) in blocks() {
        let (first, len) = (at * size, size.min(visible - at * size));
        let start = shape.head_start(*block, head);
        for (slot, key) in k[start..start + len * dim].chunks_exact(dim).enumerate() {
            for (q, scores) in q.chunks_exact(dim).zip(scores.chunks_exact_mut(visible)) {
                scores[first + slot] = dot(q, key) * scale;
            }
        }
    }
    scores.chunks_exact_mut(visible).for_each(softmax);
    for (at, block) in blocks() {
        let (first, len) = (at * size, size.min(visible - at * size));
        let start = shape.head_start(*block, head);
        for (slot, value) in v[start..start + len * dim].chunks_exact(dim).enumerate() {
            for (out, scores) in out.chunks_exact_mut(dim).zip(scores.chunks_exact(visible)) {
                let weight = scores[first + slot];
                out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
            }
        }
    }
}

/// The sum of products, in sixteen lanes so it vectorises.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (a_chunks, b_chunks) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..16 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    lanes.iter().sum::<f32>() + rest
}

fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        sum += *score;
    }
    for score in scores.iter_mut() {
        *score /= sum;
    }
}
