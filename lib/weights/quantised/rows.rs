//! Rows of a matrix as bf16 bytes, computed side by side.

use half::bf16;
use rayon::prelude::*;

/// `num_rows` rows of `columns` bf16 values; `fill` computes a row in f32, which is rounded to nearest even.
pub fn bf16_rows(num_rows: usize, columns: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Vec<u8> {
    let mut bytes = vec![0_u8; num_rows * columns * 2];
    if bytes.is_empty() {
        return bytes;
    }
    bytes.par_chunks_mut(columns * 2).enumerate().for_each_init(
        || vec![0.0; columns],
        |values, (row, bytes)| {
            fill(row, values);
            let (elements, _) = bytes.as_chunks_mut::<2>();
            for (element, value) in elements.iter_mut().zip(values.iter()) {
                *element = bf16::from_f32(*value).to_le_bytes();
            }
        },
    );
    bytes
}
