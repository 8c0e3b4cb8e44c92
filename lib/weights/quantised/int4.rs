//! Matrices as codes of four bits with a scale and a zero for each group of columns of a row:
//! `value = scale * (code - zero)`.

use half::{bf16, f16};
use rayon::prelude::*;

use super::rows::bf16_rows;
use crate::Dtype;

/// The largest code.
const MAX_CODE: f32 = 15.0;
/// The zero of symmetric groups.
pub const MIDDLE: u8 = 8;

/// A matrix `[n, k]` of codes, before they are packed.
#[derive(Debug, Clone, PartialEq)]
pub struct Int4 {
    /// Rows and columns: outputs and inputs of the layer.
    pub shape: [usize; 2],
    /// Codes from 0 to 15, row-major.
    pub codes: Vec<u8>,
    /// Scales `[n, num_groups]`.
    pub scales: Vec<f32>,
    /// Zeros `[n, num_groups]`, codes too.
    pub zeros: Vec<u8>,
    /// The group of every column.
    pub groups: Vec<usize>,
    /// How many groups a row has.
    pub num_groups: usize,
}

/// Groups of `group_size` neighbours, for every column.
pub fn neighbours(columns: usize, group_size: usize) -> Vec<usize> {
    (0..columns).map(|column| column / group_size).collect()
}

/// How groups are fitted.
#[derive(Debug, Clone, Copy)]
pub struct Fit {
    /// Columns of a group, which divide those of the matrix.
    pub group_size: usize,
    /// The zero is the middle of the codes and stays there.
    pub is_symmetric: bool,
    /// The type that holds the scales (F16 or BF16).
    pub scale_dtype: Dtype,
}

/// The matrix `values` `[n, k]` in codes, rounded to nearest.
///
/// A scale is the range of its group over 15 steps, or twice its largest magnitude when symmetric, rounded up in the type that
/// will hold it: every value is then within half a step of its code. The range always contains 0, which is exact.
pub fn quantise(values: &[f32], shape: [usize; 2], fit: Fit) -> Int4 {
    let (columns, group_size) = (shape[1], fit.group_size);
    let num_groups = columns / group_size;
    let group = |values: &[f32]| {
        let low = values.iter().fold(0.0_f32, |low, value| low.min(*value));
        let high = values.iter().fold(0.0_f32, |high, value| high.max(*value));
        let range = if fit.is_symmetric { 2.0 * high.max(-low) } else { high - low };
        let scale = round_up(range / MAX_CODE, fit.scale_dtype);
        let zero =
            if fit.is_symmetric { f32::from(MIDDLE) } else { (-low / scale).round().clamp(0.0, MAX_CODE) };
        let code = |value: &f32| (value / scale + zero).round().clamp(0.0, MAX_CODE) as u8;
        (values.iter().map(code).collect::<Vec<u8>>(), scale, zero as u8)
    };
    let groups: Vec<_> = values.par_chunks(group_size).map(group).collect();
    let mut int4 = Int4 {
        shape,
        codes: Vec::with_capacity(values.len()),
        scales: Vec::with_capacity(groups.len()),
        zeros: Vec::with_capacity(groups.len()),
        groups: neighbours(columns, group_size),
        num_groups,
    };
    for (codes, scale, zero) in groups {
        int4.codes.extend(codes);
        int4.scales.push(scale);
        int4.zeros.push(zero);
    }
    int4
}

/// The smallest positive value of F16 or BF16 that is at least `value`, or the largest where there is none.
fn round_up(value: f32, dtype: Dtype) -> f32 {
    let (bits, to_f32): (u16, fn(u16) -> f32) = match dtype {
        Dtype::F16 => (f16::from_f32(value).to_bits(), |bits| f16::from_bits(bits).to_f32()),
        _ => (bf16::from_f32(value).to_bits(), |bits| bf16::from_bits(bits).to_f32()),
    };
    // Division by a subnormal bf16 overflows; f16 has none that are subnormal in f32.
    let (least, most) = if dtype == Dtype::F16 { (1, 0x7bff) } else { (0x0080, 0x7f7f) };
    let nearest = bits.clamp(least, most);
    to_f32(if to_f32(nearest) < value { (nearest + 1).min(most) } else { nearest })
}

impl Int4 {
    /// The matrix `[n, k]` as bf16 bytes, rounded to nearest even.
    pub fn dequantise(&self) -> Vec<u8> {
        let [num_rows, columns] = self.shape;
        bf16_rows(num_rows, columns, |row, values| {
            let codes = &self.codes[row * columns..][..columns];
            let scales = &self.scales[row * self.num_groups..][..self.num_groups];
            let zeros = &self.zeros[row * self.num_groups..][..self.num_groups];
            for ((value, code), group) in values.iter_mut().zip(codes).zip(&self.groups) {
                *value = scales[*group] * (f32::from(*code) - f32::from(zeros[*group]));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(len: usize, middle: f32) -> Vec<f32> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..len).map(|_| bf16::from_f32(middle + next() * next()).to_f32()).collect()
    }

    fn values_of(int4: &Int4) -> Vec<f32> {
        let bytes = int4.dequantise();
        bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    }

    #[test]
    fn errors_are_within_half_a_step_of_the_group() {
        for (is_symmetric, scale_dtype) in
            [(true, Dtype::F16), (false, Dtype::F16), (true, Dtype::BF16), (false, Dtype::BF16)]
        {
            for middle in [0.0, 0.7, -30.0] {
                let shape = [6, 64];
                let values = drawn(6 * 64, middle);
                let fit = Fit { group_size: 32, is_symmetric, scale_dtype };
                let int4 = quantise(&values, shape, fit);
                for (i, (value, got)) in values.iter().zip(values_of(&int4)).enumerate() {
                    let step = int4.scales[i / 32];
                    // Then the rounding to bf16.
                    let bound = step * 0.5001 + got.abs() / 256.0;
                    assert!((value - got).abs() <= bound, "{fit:?} {middle} {i}: {value} became {got}");
                }
            }
        }
    }

    #[test]
    fn zero_groups_are_zeros_and_large_values_saturate() {
        for scale_dtype in [Dtype::F16, Dtype::BF16] {
            for is_symmetric in [true, false] {
                let fit = Fit { group_size: 8, is_symmetric, scale_dtype };
                let int4 = quantise(&[0.0; 16], [2, 8], fit);
                assert!(values_of(&int4).iter().all(|value| *value == 0.0));
                let int4 = quantise(&[1e30, -1e30, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [1, 8], fit);
                assert!(values_of(&int4).iter().all(|value| value.is_finite()));
                assert!(int4.codes[0] >= 14 && int4.codes[1] <= 1);
            }
        }
    }

    #[test]
    fn scales_are_rounded_up() {
        assert_eq!(round_up(1.0, Dtype::F16).to_bits(), 1.0_f32.to_bits());
        for dtype in [Dtype::F16, Dtype::BF16] {
            for value in [1.000_1, 3.3e-4, 0.999, 12.345] {
                let rounded = round_up(value, dtype);
                assert!(rounded >= value && rounded < value * 1.01, "{dtype} {value} {rounded}");
            }
            assert!(round_up(0.0, dtype) > 0.0 && round_up(f32::MAX, dtype).is_finite());
        }
    }
}
