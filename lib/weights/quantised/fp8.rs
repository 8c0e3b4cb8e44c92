//! Matrices as [`float8`] with a scale for each block of rows and columns: `value = scale * code`.
//!
//! With blocks of 128 x 128 this is the form of DeepSeek-V3, Qwen3-FP8 and GLM-5-FP8; with one block for the matrix, or for
//! each row, that of compressed-tensors.

use rayon::prelude::*;

use super::float8;
use super::rows::bf16_rows;

/// Rows and columns of a matrix, or of its blocks.
pub type Size = [usize; 2];

/// Scales along rows and columns; blocks at the edges may be smaller.
pub fn num_blocks(shape: Size, block: Size) -> Size {
    [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])]
}

/// Codes `[n, k]` and scales (row-major over blocks) of the matrix `values` `[n, k]`.
///
/// A scale is the largest magnitude of its block over that of the format, so nothing is cut off; a block of zeros, or of
/// values so small that their scale is none, has scale 1.
pub fn quantise(values: &[f32], shape: Size, block: Size) -> (Vec<u8>, Vec<f32>) {
    let columns = shape[1];
    let band_len = block[0] * columns;
    let band = |band: &[f32]| {
        let scales: Vec<f32> =
            (0..columns).step_by(block[1]).map(|left| scale(band, columns, left, block[1])).collect();
        let code = |(at, value): (usize, &f32)| float8::encode(value / scales[at % columns / block[1]]);
        let codes: Vec<u8> = band.iter().enumerate().map(code).collect();
        (codes, scales)
    };
    let bands: Vec<_> = values.par_chunks(band_len.max(1)).map(band).collect();
    let (mut codes, mut scales) = (Vec::with_capacity(values.len()), Vec::new());
    for (of_codes, of_scales) in bands {
        codes.extend(of_codes);
        scales.extend(of_scales);
    }
    (codes, scales)
}

/// The scale of the columns from `left` of a band of rows.
fn scale(band: &[f32], columns: usize, left: usize, width: usize) -> f32 {
    let right = (left + width).min(columns);
    let rows = band.chunks_exact(columns).map(|row| &row[left..right]);
    let largest = rows.flatten().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let scale = largest / float8::MAX;
    if scale.is_normal() { scale } else { 1.0 }
}

/// The matrix `[n, k]` as bf16 bytes, rounded to nearest even.
pub fn dequantise(codes: &[u8], scales: &[f32], shape: Size, block: Size) -> Vec<u8> {
    let table = float8::table();
    let [num_rows, columns] = shape;
    let scales_of_row = num_blocks(shape, block)[1];
    bf16_rows(num_rows, columns, |row, values| {
        let scales = &scales[row / block[0] * scales_of_row..][..scales_of_row];
        let codes = codes[row * columns..][..columns].chunks(block[1]);
        for ((codes, scale), values) in codes.zip(scales).zip(values.chunks_mut(block[1])) {
            for (code, value) in codes.iter().zip(values) {
                *value = table[usize::from(*code)] * scale;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn drawn(len: usize) -> Vec<f32> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        (0..len).map(|_| bf16::from_f32(next() * next() * next()).to_f32()).collect()
    }

    /// Element by element, as the definition says.
    fn reference(codes: &[u8], scales: &[f32], shape: Size, block: Size) -> Vec<u8> {
        let width = num_blocks(shape, block)[1];
        let value = |i: usize| {
            let (row, column) = (i / shape[1], i % shape[1]);
            float8::decode(codes[i]) * scales[row / block[0] * width + column / block[1]]
        };
        (0..codes.len()).flat_map(|i| bf16::from_f32(value(i)).to_le_bytes()).collect()
    }

    #[test]
    fn errors_are_within_half_a_step_for_every_shape() {
        for (shape, block) in [
            ([128, 128], [128, 128]),
            ([130, 300], [128, 128]),
            ([1, 5], [128, 128]),
            ([77, 64], [77, 64]),
            ([9, 33], [1, 33]),
        ] {
            let values = drawn(shape[0] * shape[1]);
            let (codes, scales) = quantise(&values, shape, block);
            assert_eq!(scales.len(), num_blocks(shape, block).iter().product::<usize>());
            let bytes = dequantise(&codes, &scales, shape, block);
            assert_eq!(bytes, reference(&codes, &scales, shape, block), "{shape:?}");
            let width = num_blocks(shape, block)[1];
            for (i, (value, got)) in values.iter().zip(bytes.chunks_exact(2)).enumerate() {
                let got = bf16::from_le_bytes([got[0], got[1]]).to_f32();
                let scale = scales[i / shape[1] / block[0] * width + i % shape[1] / block[1]];
                // Half a step of three bits of mantissa, or of the subnormal values; then the rounding to bf16.
                let bound =
                    (value.abs() / 16.0).max(scale * float8::SUBNORMAL_STEP / 2.0) + got.abs() / 256.0;
                assert!((value - got).abs() <= bound, "{shape:?} {i}: {value} became {got}");
            }
        }
    }

    #[test]
    fn zero_blocks_are_zeros_and_never_nan() {
        let mut values = drawn(256 * 128);
        values[..128 * 128].fill(0.0);
        values[0] = -0.0;
        values[128 * 128] = f32::MIN_POSITIVE;
        let (codes, scales) = quantise(&values, [256, 128], [128, 128]);
        assert!((scales[0] - 1.0).abs() < f32::EPSILON && codes[1..128 * 128].iter().all(|code| *code == 0));
        let tiny = vec![f32::from_bits(1); 128];
        let (codes, scales) = quantise(&tiny, [1, 128], [128, 128]);
        let bytes = dequantise(&codes, &scales, [1, 128], [128, 128]);
        assert!(bytes.iter().all(|byte| *byte == 0), "values that no scale reaches become zeros");
    }
}
