//! The two passes over a chunk of f32 logits in a CPU's memory: what `slime_kernel::head_loss` defines, in vector code.
#![expect(clippy::inline_always, reason = "compiled for every vector unit")]

use rayon::prelude::*;
use slime_kernel::head_loss::{Columns, ROW, STATE};
use slime_torch::simd::{Kernel, dispatch, exp};
use slime_torch::{floats, floats_mut};
use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::ops::each_row;

/// Logits that are taken relative to one largest of them; they stay in the first level of cache.
const BLOCK: usize = 1024;
/// Sums side by side, so that they vectorise and an addition need not wait for the one before it.
const LANES: usize = 32;

/// Whether these passes take logits of this kind on this device.
pub(super) fn is_supported(kind: Kind, device: Device) -> bool {
    kind == Kind::Float && device == Device::Cpu
}

/// As `slime_kernel::head_loss::absorb`.
pub(super) fn absorb(
    state_r4: &Tensor,
    logits_rn: &Tensor,
    targets_r: &Tensor,
    columns: Columns,
) -> Result<()> {
    let width = logits_rn.size2()?.1 as usize;
    let targets = Vec::<i64>::try_from(targets_r)?;
    let logits = floats(logits_rn)?;
    let mut state_r4 = state_r4.shallow_clone();
    let states = floats_mut(&mut state_r4)?.par_chunks_exact_mut(STATE as usize);
    let scale = (1.0 / columns.temperature) as f32;
    let rows = states.zip(logits.par_chunks_exact(width)).zip(&targets);
    rows.for_each(|((state, logits), target)| {
        let [largest, sum, weighted, picked] = state else { return };
        if let Some(logit) = usize::try_from(target - columns.first).ok().and_then(|at| logits.get(at)) {
            *picked = logit * scale;
        }
        dispatch(Absorb { logits, scale, softmax: [largest, sum, weighted] });
    });
    Ok(())
}

struct Absorb<'a> {
    logits: &'a [f32],
    scale: f32,
    /// Largest, sum, weighted sum.
    softmax: [&'a mut f32; 3],
}

impl Kernel for Absorb<'_> {
    #[inline(always)]
    fn run(self) {
        let [largest, sum, weighted] = self.softmax;
        for block in self.logits.chunks(BLOCK) {
            let (whole, rest) = block.as_chunks::<LANES>();
            let mut tops = [f32::NEG_INFINITY; LANES];
            for x in whole {
                for (top, x) in tops.iter_mut().zip(x) {
                    *top = if *x > *top { *x } else { *top };
                }
            }
            let top = tops.iter().chain(rest).fold(f32::NEG_INFINITY, |top, x| top.max(*x)) * self.scale;
            if top > *largest {
                let shift = *largest - top;
                let keep = exp(shift);
                *weighted = (*weighted + *sum * shift) * keep;
                *sum *= keep;
                *largest = top;
            }
            let (mut sums, mut weights) = ([0.0f32; LANES], [0.0f32; LANES]);
            for x in whole {
                for ((x, sum), weight) in x.iter().zip(&mut sums).zip(&mut weights) {
                    let shift = x * self.scale - *largest;
                    let e = exp(shift);
                    *sum += e;
                    *weight += e * shift;
                }
            }
            for x in rest {
                let shift = x * self.scale - *largest;
                let e = exp(shift);
                *sum += e;
                *weighted += e * shift;
            }
            *sum += sums.iter().sum::<f32>();
            *weighted += weights.iter().sum::<f32>();
        }
    }
}

/// As `slime_kernel::head_loss::slope` for f32.
pub(super) fn slope(
    logits_rn: &Tensor,
    targets_r: &Tensor,
    rows_r5: &Tensor,
    columns: Columns,
) -> Result<Tensor> {
    let width = logits_rn.size2()?.1 as usize;
    let targets = Vec::<i64>::try_from(targets_r)?;
    let of_rows = rows_r5.f_contiguous()?;
    let (of_rows, _) = floats(&of_rows)?.as_chunks::<{ ROW as usize }>();
    let scale = (1.0 / columns.temperature) as f32;
    let mut grad_rn = logits_rn.shallow_clone();
    each_row(floats_mut(&mut grad_rn)?, width, |at, logits| {
        let target = usize::try_from(targets[at] - columns.first).ok();
        Slope { logits, scale, of_row: of_rows[at], target }
    });
    Ok(grad_rn)
}

struct Slope<'a> {
    logits: &'a mut [f32],
    scale: f32,
    of_row: [f32; ROW as usize],
    target: Option<usize>,
}

impl Kernel for Slope<'_> {
    #[inline(always)]
    fn run(self) {
        let [lse, entropy, dense, picked, slope] = self.of_row;
        for x in self.logits.iter_mut() {
            let log_prob = *x * self.scale - lse;
            *x = -self.scale * exp(log_prob) * (dense + slope * (log_prob + entropy));
        }
        if let Some(x) = self.target.and_then(|at| self.logits.get_mut(at)) {
            *x += self.scale * picked;
        }
    }
}

#[cfg(test)]
mod tests {
    use slime_kernel::head_loss::{absorb_reference, fresh_state, slope_reference};

    use super::*;

    #[test]
    fn passes_are_those_of_the_definition() {
        for width in [1, 31, 1024, 5000] {
            let wave =
                |len: i64, step: f64| (Tensor::arange(len, (Kind::Double, Device::Cpu)) * step).sin() * 9.0;
            let logits = wave(3 * width, 12.9898).view((3, width));
            let targets = Tensor::from_slice(&[5, 5 + width - 1, 2]);
            let columns = Columns { first: 5, temperature: 0.8 };
            let expected = fresh_state(3, (Kind::Double, Device::Cpu)).unwrap();
            let got = fresh_state(3, (Kind::Float, Device::Cpu)).unwrap();
            for _ in 0..2 {
                absorb_reference(&expected, &logits, &targets, columns).unwrap();
                absorb(&got, &logits.to_kind(Kind::Float), &targets, columns).unwrap();
            }
            let differ = |got: &Tensor, expected: &Tensor| {
                let scale = expected.abs().max().double_value(&[]);
                (got.to_kind(Kind::Double) - expected).abs().max().double_value(&[]) / scale
            };
            assert!(differ(&got, &expected) < 1e-6, "{width}: {got} {expected}");
            let lse = expected.select(1, 0) + expected.select(1, 1).log();
            let rows = Tensor::cat(&[lse.unsqueeze(1), wave(12, 0.7).view((3, 4)) * 0.1], 1);
            let want = slope_reference(&logits, &targets, &rows, columns).unwrap();
            let rows = rows.to_kind(Kind::Float);
            let got = slope(&logits.to_kind(Kind::Float), &targets, &rows, columns).unwrap();
            assert!(differ(&got, &want) < 1e-5, "{width}");
        }
    }
}
