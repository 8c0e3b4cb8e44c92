//! Attention of few new tokens per sequence over keys and values in host blocks, split over tokens and heads.
#![expect(clippy::inline_always, reason = "compiled for every vector unit")]

use rayon::prelude::*;
use slime_torch::Rows;
use slime_torch::simd::{Kernel, dispatch, exp};

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

    /// Writes the keys and values of the new tokens into their blocks.
    pub fn keep(&self, (keys, values): (&mut [f32], &mut [f32]), k: Rows<'_>, v: Rows<'_>) {
        let (size, dim) = (self.shape.block_size, self.shape.head_dim);
        for (at, slot) in self.slots().into_iter().enumerate() {
            let (block, slot) = (slot as usize / size, slot as usize % size);
            let heads = k.row(at).chunks_exact(dim).zip(v.row(at).chunks_exact(dim));
            for (head, (key, value)) in heads.enumerate() {
                let start = self.shape.head_start(block as u32, head);
                let column = keys[start + slot..start + size * dim].iter_mut().step_by(size);
                column.zip(key).for_each(|(kept, key)| *kept = *key);
                values[start + slot * dim..][..dim].copy_from_slice(value);
            }
        }
    }

    /// Keys and values of the first `len` positions of sequence `seq`, both `[len, num_kv_heads, head_dim]`.
    pub fn gather(&self, (keys, values): (&[f32], &[f32]), seq: usize, len: usize) -> (Vec<f32>, Vec<f32>) {
        let (size, dim) = (self.shape.block_size, self.shape.head_dim);
        let rows = || Vec::with_capacity(len * self.shape.num_kv_heads * dim);
        let (mut k, mut v) = (rows(), rows());
        for at in 0..len {
            let (block, slot) = self.place(seq, at);
            for head in 0..self.shape.num_kv_heads {
                let start = self.shape.head_start(block, head);
                k.extend(keys[start + slot..start + size * dim].iter().step_by(size));
                v.extend_from_slice(&values[start + slot * dim..][..dim]);
            }
        }
        (k, v)
    }

    /// Sequence and number of visible positions of every new token.
    fn tokens(&self) -> Vec<(usize, usize)> {
        let visible = |seq: usize, at: usize| (seq, self.context_lens[seq] - self.q_lens[seq] + at + 1);
        (0..self.q_lens.len()).flat_map(|seq| (0..self.q_lens[seq]).map(move |at| visible(seq, at))).collect()
    }
}

/// Writes the output `[t, num_heads * head_dim]` of queries of the same shape; scores, softmax and sums in f32. The rows of
/// sequences with `max_len` new tokens or more stay as they are.
pub(crate) fn serve(
    batch: &Batch<'_>,
    max_len: usize,
    q: Rows<'_>,
    (keys, values): (&[f32], &[f32]),
    out: &mut [f32],
) {
    let kv_heads = batch.shape.num_kv_heads;
    let group_len = q.width() / kv_heads;
    let tokens = batch.tokens();
    out.par_chunks_mut(group_len).enumerate().for_each_init(Vec::new, |scores, (item, out)| {
        let (at, head) = (item / kv_heads, item % kv_heads);
        let (seq, visible) = tokens[at];
        if batch.q_lens[seq] < max_len {
            let q = &q.row(at)[head * group_len..][..group_len];
            let blocks = &batch.block_tables[seq][..visible.div_ceil(batch.shape.block_size)];
            dispatch(HeadGroup { shape: batch.shape, blocks, visible, head, q, keys, values, scores, out });
        }
    });
}

/// The query heads that share one key-value head, for one token.
struct HeadGroup<'a> {
    shape: BlockShape,
    blocks: &'a [u32],
    visible: usize,
    head: usize,
    q: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    /// Scratch.
    scores: &'a mut Vec<f32>,
    out: &'a mut [f32],
}

impl<'a> Kernel for HeadGroup<'a> {
    #[inline(always)]
    fn run(self) {
        let BlockShape { block_size: size, head_dim: dim, .. } = self.shape;
        let block = |all: &'a [f32], block: u32| -> &'a [f32] {
            &all[self.shape.head_start(block, self.head)..][..size * dim]
        };
        let width = self.blocks.len() * size;
        let scale = 1.0 / (dim as f32).sqrt();
        self.scores.clear();
        self.scores.resize(self.q.len() / dim * width, 0.0);
        for (at, number) in self.blocks.iter().enumerate() {
            let keys = block(self.keys, *number);
            for (q, scores) in self.q.chunks_exact(dim).zip(self.scores.chunks_exact_mut(width)) {
                score_block(q, keys, scale, &mut scores[at * size..][..size]);
            }
        }
        self.out.fill(0.0);
        for (out, scores) in self.out.chunks_exact_mut(dim).zip(self.scores.chunks_exact_mut(width)) {
            let scores = &mut scores[..self.visible];
            let total = exp_shifted(scores);
            for (scores, number) in scores.chunks(size).zip(self.blocks) {
                add_values(scores, block(self.values, *number), out);
            }
            for out in out.iter_mut() {
                *out /= total;
            }
        }
    }
}

/// Slots of a block that has a loop of its own in [`score_block`].
const USUAL_SIZE: usize = 16;

/// `scale * q . key` of every slot of a block, keys `[head_dim, slot]`; of slots not yet written it is of no account.
#[inline(always)]
fn score_block(q: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
    if scores.len() == USUAL_SIZE {
        // Two sums for each slot, so that an addition need not wait for the one before it.
        let (mut even, mut odd) = ([0.0f32; USUAL_SIZE], [0.0f32; USUAL_SIZE]);
        for (q, keys) in q.chunks(2).zip(keys.chunks(2 * USUAL_SIZE)) {
            let (first, second) = keys.split_at(USUAL_SIZE);
            even.iter_mut().zip(first).for_each(|(sum, key)| *sum += q[0] * key);
            odd.iter_mut().zip(second).for_each(|(sum, key)| *sum += q[q.len() - 1] * key);
        }
        for ((score, even), odd) in scores.iter_mut().zip(even).zip(odd) {
            *score = (even + odd) * scale;
        }
    } else {
        scores.fill(0.0);
        for (q, keys) in q.iter().zip(keys.chunks_exact(scores.len())) {
            scores.iter_mut().zip(keys).for_each(|(score, key)| *score += q * scale * key);
        }
    }
}

/// Replaces scores by `exp(score - max)` and returns their sum.
#[inline(always)]
fn exp_shifted(scores: &mut [f32]) -> f32 {
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, score| if *score > max { *score } else { max });
    for score in scores.iter_mut() {
        *score = exp(*score - max);
    }
    scores.iter().sum()
}

/// Adds the values `[slot, head_dim]` of a block to `out`, each times its weight; four at a time.
#[inline(always)]
fn add_values(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let dim = out.len();
    let (fours, rest) = weights.as_chunks::<4>();
    let (four_values, rest_values) = values.split_at(fours.len() * 4 * dim);
    for ([w, x, y, z], values) in fours.iter().zip(four_values.chunks_exact(4 * dim)) {
        let (ab, cd) = values.split_at(2 * dim);
        let ((a, b), (c, d)) = (ab.split_at(dim), cd.split_at(dim));
        for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *out += (w * a + x * b) + (y * c + z * d);
        }
    }
    for (weight, value) in rest.iter().zip(rest_values.chunks_exact(dim)) {
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
    }
}

#[cfg(test)]
mod tests {
    use slime_torch::rows_of;
    use tch::{Device, Kind, Tensor};

    use super::*;

    /// The definition: each query over the keys and values gathered for it.
    fn reference(batch: &Batch<'_>, q_thk: &Tensor, keys: &[f32], values: &[f32]) -> Tensor {
        let (_, heads, dim) = q_thk.size3().unwrap();
        let kv_heads = batch.shape.num_kv_heads as i64;
        let outputs: Vec<Tensor> = batch
            .tokens()
            .into_iter()
            .enumerate()
            .map(|(at, (seq, visible))| {
                let (k, v) = batch.gather((keys, values), seq, visible);
                let wide = |rows: &[f32]| {
                    let rows = Tensor::from_slice(rows).view((visible as i64, kv_heads, 1, dim));
                    let rows = rows.expand([-1, -1, heads / kv_heads, -1], false).reshape([-1, heads, dim]);
                    rows.to_kind(Kind::Double)
                };
                let q = q_thk.get(at as i64).to_kind(Kind::Double);
                let scores = (wide(&k) * &q).sum_dim_intlist(-1, false, None::<Kind>) / (dim as f64).sqrt();
                let weights = scores.softmax(0, None::<Kind>).unsqueeze(-1);
                (weights * wide(&v)).sum_dim_intlist(0, false, None::<Kind>).view([-1])
            })
            .collect();
        Tensor::stack(&outputs, 0)
    }

    #[test]
    fn blocks_of_any_size_give_the_numbers_of_the_definition() {
        for (block_size, head_dim) in [(16, 64), (4, 8), (3, 20), (16, 7)] {
            let shape = BlockShape { block_size, num_kv_heads: 2, head_dim };
            let (q_lens, context_lens) = ([1, 3, 1], [3 * block_size + 1, 2 * block_size, 1]);
            let block_tables = vec![vec![4, 0, 6, 2], vec![4, 5], vec![1]];
            let batch =
                Batch { block_tables: &block_tables, q_lens: &q_lens, context_lens: &context_lens, shape };
            // Not libtorch's generator, which tests that run beside this one share.
            let random = |size: &[i64]| {
                let count: i64 = size.iter().product();
                (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 12.9898).sin().view(size) * 2.0
            };
            let mut keys: Vec<f32> = Vec::try_from(random(&[7 * shape.block_len() as i64])).unwrap();
            let mut values: Vec<f32> = Vec::try_from(random(&[7 * shape.block_len() as i64])).unwrap();
            let (k, v) = (random(&[5, 2, head_dim as i64]), random(&[5, 2, head_dim as i64]));
            batch.keep((&mut keys, &mut values), rows_of(&k).unwrap(), rows_of(&v).unwrap());
            let last = batch.gather((&keys, &values), 1, context_lens[1]);
            let tail = last.0.len() - 6 * head_dim..;
            assert_eq!(last.0[tail.clone()], Vec::<f32>::try_from(k.narrow(0, 1, 3).reshape([-1])).unwrap());
            assert_eq!(last.1[tail], Vec::<f32>::try_from(v.narrow(0, 1, 3).reshape([-1])).unwrap());

            let q = random(&[5, 6, head_dim as i64]);
            let mut out = vec![f32::NAN; 5 * 6 * head_dim];
            serve(&batch, 9, rows_of(&q).unwrap(), (&keys, &values), &mut out);
            let want = reference(&batch, &q, &keys, &values);
            let got = Tensor::from_slice(&out).view_as(&want);
            assert!((got - want).abs().max().double_value(&[]) < 1e-5, "{block_size} slots of {head_dim}");
        }
    }
}
