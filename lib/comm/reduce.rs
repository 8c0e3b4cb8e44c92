//! The one reduction of every backend: contributions of all ranks, combined in rank order, so the bits of a result
//! depend on neither backend, message size nor timing.

use crate::{Element, Op};

/// `out[i] = ((r0[i] op r1[i]) op r2[i]) ...`, in the accumulator type, rounded once at the end.
/// Every contribution has the length of `out`.
pub(crate) fn in_rank_order<T: Element>(op: Op, contributions: &[&[T]], out: &mut [T]) {
    // Blocks of accumulators keep every contribution's pass in cache.
    const BLOCK: usize = 4096;
    let Some((first, rest)) = contributions.split_first() else { return };
    let mut accumulators: Vec<T::Accumulator> = Vec::with_capacity(BLOCK.min(out.len()));
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let range = block * BLOCK..block * BLOCK + out.len();
        accumulators.clear();
        accumulators.extend(first[range.clone()].iter().map(|&x| x.widen()));
        for contribution in rest {
            for (left, &right) in accumulators.iter_mut().zip(&contribution[range.clone()]) {
                *left = T::combine(op, *left, right.widen());
            }
        }
        for (to, &value) in out.iter_mut().zip(&accumulators) {
            *to = T::narrow(value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the claim is about bits")]

    use super::*;
    use half::bf16;

    #[test]
    fn sum_runs_in_rank_order() {
        let ranks: [&[f32]; 3] = [&[1.0e8], &[-1.0e8], &[1.0]];
        let mut out = [0.0];
        in_rank_order(Op::Sum, &ranks, &mut out);
        assert_eq!(out, [1.0]);
        in_rank_order(Op::Sum, &[ranks[0], ranks[2], ranks[1]], &mut out);
        assert_eq!(out, [0.0], "another order gives other bits, so the order is part of the contract");
    }

    #[test]
    fn bf16_is_rounded_once() {
        // 256 + 1 rounds to 256 in bf16, so a reduction in bf16 would lose both ones.
        let values = [256.0, 1.0, 1.0].map(bf16::from_f32);
        let ranks: Vec<&[bf16]> = values.iter().map(std::slice::from_ref).collect();
        let mut out = [bf16::ZERO];
        in_rank_order(Op::Sum, &ranks, &mut out);
        assert_eq!(out[0].to_f32(), 258.0);
    }
}
