//! The K types of GGUF: blocks of 256 values in runs of 16 or 32, whose scales are quantised themselves.
//!
//! Definition: `block_q2_K` .. `block_q8_K` of `ggml-common.h` and `dequantize_row_*` of `ggml-quants.c` in llama.cpp.
//! Layouts in bytes, in file order (`d` and `dmin` are f16 that multiply all scales and all minima):
//!
//! | type | layout |
//! |---|---|
//! | `Q2_K` | scales 16 (scale low nibble, minimum high), codes 64, d, dmin |
//! | `Q3_K` | third bits 32, codes 64, scales 12 (16 of 6 bits), d |
//! | `Q4_K` | d, dmin, scales 12 (8 scales and 8 minima of 6 bits), codes 128 |
//! | `Q5_K` | d, dmin, scales 12 (the same), fifth bits 32, codes 128 |
//! | `Q6_K` | low nibbles 128, upper two bits 64, scales 16 (i8), d |
//! | `Q8_K` | d (f32), codes 256 (i8), sums 32 (for products, not needed here) |

use crate::gguf_block::half;

/// Values of one block.
pub(crate) const LEN: usize = 256;

/// Two bits of a code stand in each byte: byte `32 h + l` holds values `128 h + 32 j + l` for j in 0..4.
fn two_bits(codes: &[u8], i: usize) -> u8 {
    let (half, j, l) = (i / 128, i % 128 / 32, i % 32);
    codes[32 * half + l] >> (2 * j) & 3
}

/// Nibbles of 128 bytes: the low ones of 32 bytes are 32 values, their high ones the next 32.
fn nibble(codes: &[u8], i: usize) -> u8 {
    let byte = codes[i / 64 * 32 + i % 32];
    if i % 64 < 32 { byte & 15 } else { byte >> 4 }
}

pub(crate) fn read_q2(block: &[u8], out: &mut [f32]) {
    let (scales, codes, d, dmin) = (&block[..16], &block[16..80], half(block, 80), half(block, 82));
    for (run, values) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[run] & 15);
        let min = dmin * f32::from(scales[run] >> 4);
        for (l, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(two_bits(codes, 16 * run + l)) - min;
        }
    }
}

pub(crate) fn read_q3(block: &[u8], out: &mut [f32]) {
    let (third, codes, scales, d) = (&block[..32], &block[32..96], &block[96..108], half(block, 108));
    for (run, values) in out.chunks_exact_mut(16).enumerate() {
        let low = if run < 8 { scales[run] & 15 } else { scales[run - 8] >> 4 };
        let high = scales[8 + run % 4] >> (2 * (run / 4)) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        for (l, value) in values.iter_mut().enumerate() {
            let i = 16 * run + l;
            // A set bit is the code's third one; the code is around 4.
            let offset = if third[i % 32] >> (i / 32) & 1 == 1 { 0.0 } else { 4.0 };
            *value = scale * (f32::from(two_bits(codes, i)) - offset);
        }
    }
}

/// Scale and minimum of run `j` out of 12 bytes: six bits each, the upper two of the last four runs elsewhere.
fn scale_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

pub(crate) fn read_q4(block: &[u8], out: &mut [f32]) {
    let (d, dmin, scales, codes) = (half(block, 0), half(block, 2), &block[4..16], &block[16..144]);
    for (run, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(scales, run);
        let (scale, min) = (d * scale, dmin * min);
        for (l, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(nibble(codes, 32 * run + l)) - min;
        }
    }
}

pub(crate) fn read_q5(block: &[u8], out: &mut [f32]) {
    let (d, dmin, scales) = (half(block, 0), half(block, 2), &block[4..16]);
    let (fifth, codes) = (&block[16..48], &block[48..176]);
    for (run, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(scales, run);
        let (scale, min) = (d * scale, dmin * min);
        for (l, value) in values.iter_mut().enumerate() {
            let code = nibble(codes, 32 * run + l) | (fifth[l] >> run & 1) << 4;
            *value = scale * f32::from(code) - min;
        }
    }
}

pub(crate) fn read_q6(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
    for (run, values) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[run].cast_signed());
        for (l, value) in values.iter_mut().enumerate() {
            let i = 16 * run + l;
            // Of each 64 bytes the low nibbles are 64 values, the high ones the next 64.
            let byte = low[i / 128 * 64 + i % 64];
            let nibble = if i % 128 < 64 { byte & 15 } else { byte >> 4 };
            *value = scale * (f32::from(nibble | two_bits(high, i) << 4) - 32.0);
        }
    }
}

pub(crate) fn read_q8(block: &[u8], out: &mut [f32]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    out.iter_mut().zip(&block[4..4 + LEN]).for_each(|(value, q)| *value = d * f32::from(q.cast_signed()));
}
