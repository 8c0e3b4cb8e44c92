//! The element and block types of GGUF tensors and their values as f32.
//!
//! Definition: `ggml-common.h` and `ggml-quants.c` of llama.cpp; a block holds 32 values along the innermost dimension.

use half::{bf16, f16};

/// Values of one quantised block.
pub(crate) const BLOCK_LEN: usize = 32;

/// A tensor type this implementation reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// Blocks of 4-bit values around 8, with a scale.
    Q4_0,
    /// Blocks of 4-bit values with a scale and a minimum.
    Q4_1,
    /// Blocks of signed 8-bit values with a scale.
    Q8_0,
}

/// The types of ggml by number, for the message about one that is not read.
const NAMES: [(u32, &str); 33] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (30, "BF16"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl BlockType {
    /// The type with this ggml number.
    ///
    /// # Errors
    /// The name of a type that is not read.
    pub(crate) fn from_number(number: u32) -> Result<Self, String> {
        match number {
            0 => Ok(Self::F32),
            1 => Ok(Self::F16),
            2 => Ok(Self::Q4_0),
            3 => Ok(Self::Q4_1),
            8 => Ok(Self::Q8_0),
            30 => Ok(Self::BF16),
            _ => Err(NAMES
                .iter()
                .find(|(n, _)| *n == number)
                .map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned())),
        }
    }

    /// Values of one block (1 for plain numbers) and its bytes.
    fn layout(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 => (BLOCK_LEN, 2 + BLOCK_LEN / 2),
            Self::Q4_1 => (BLOCK_LEN, 4 + BLOCK_LEN / 2),
            Self::Q8_0 => (BLOCK_LEN, 2 + BLOCK_LEN),
        }
    }

    /// Bytes of a tensor with these dimensions (innermost last), unless blocks do not divide a row or it overflows.
    pub(crate) fn num_bytes(self, shape: &[usize]) -> Option<usize> {
        let (block_len, block_bytes) = self.layout();
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(block_len) {
            return None;
        }
        let num_values = shape.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim))?;
        (num_values / block_len).checked_mul(block_bytes)
    }

    /// The values of `bytes`, a whole number of blocks.
    pub(crate) fn to_f32(self, bytes: &[u8]) -> Vec<f32> {
        let (block_len, block_bytes) = self.layout();
        let mut values = Vec::with_capacity(bytes.len() / block_bytes * block_len);
        for block in bytes.chunks_exact(block_bytes) {
            self.push_block(block, &mut values);
        }
        values
    }

    fn push_block(self, block: &[u8], values: &mut Vec<f32>) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let low = |bytes: &[u8]| bytes.iter().map(|b| b & 15).collect::<Vec<_>>();
        let high = |bytes: &[u8]| bytes.iter().map(|b| b >> 4).collect::<Vec<_>>();
        match self {
            Self::F32 => values.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            Self::F16 => values.push(half(0)),
            Self::BF16 => values.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            Self::Q4_0 => {
                let nibbles = low(&block[2..]).into_iter().chain(high(&block[2..]));
                values.extend(nibbles.map(|q| (f32::from(q) - 8.0) * half(0)));
            }
            Self::Q4_1 => {
                let nibbles = low(&block[4..]).into_iter().chain(high(&block[4..]));
                values.extend(nibbles.map(|q| f32::from(q) * half(0) + half(2)));
            }
            Self::Q8_0 => values.extend(block[2..].iter().map(|q| f32::from(q.cast_signed()) * half(0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block whose scale is 0.5 (and minimum -1), with payload bytes 0x10, 0x32, 0x54, ... repeated.
    fn block(header: &[f32], payload: usize) -> Vec<u8> {
        let header = header.iter().flat_map(|h| f16::from_f32(*h).to_le_bytes());
        header.chain((0..payload).map(|i| [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe][i % 8])).collect()
    }

    #[test]
    fn q4_0_values_are_the_nibbles_minus_eight_low_ones_first() {
        let values = BlockType::Q4_0.to_f32(&block(&[0.5], 16));
        assert_eq!(values[..4], [-4.0, -3.0, -2.0, -1.0]);
        assert_eq!(values[16..20], [-3.5, -2.5, -1.5, -0.5]);
        assert_eq!(values.len(), 32);
    }

    #[test]
    fn q4_1_values_are_the_nibbles_times_scale_plus_minimum() {
        let values = BlockType::Q4_1.to_f32(&block(&[0.5, -1.0], 16));
        assert_eq!(values[..4], [-1.0, 0.0, 1.0, 2.0]);
        assert_eq!(values[16..20], [-0.5, 0.5, 1.5, 2.5]);
    }

    #[test]
    fn q8_0_values_are_signed() {
        let values = BlockType::Q8_0.to_f32(&block(&[0.5], 32));
        assert_eq!(values[..8], [8.0, 25.0, 42.0, 59.0, -52.0, -35.0, -18.0, -1.0]);
    }

    #[test]
    fn unread_types_have_their_names() {
        assert_eq!(BlockType::from_number(12), Err("Q4_K".to_owned()));
        assert_eq!(BlockType::from_number(99), Err("number 99".to_owned()));
    }

    #[test]
    fn row_that_blocks_do_not_divide_has_no_size() {
        assert_eq!(BlockType::Q4_1.num_bytes(&[3, 64]), Some(120));
        assert_eq!(BlockType::Q4_1.num_bytes(&[64, 3]), None);
        assert_eq!(BlockType::F32.num_bytes(&[usize::MAX, 2]), None);
    }
}
