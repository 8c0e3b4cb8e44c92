//! The element and block types of GGUF tensors: their numbers, names, sizes, and their values as f32.
//!
//! Definition: `ggml-common.h` and `ggml-quants.c` of llama.cpp. A block holds 32 values along the innermost dimension,
//! a block of a K type 256 ([`crate::gguf_k_block`]).

use half::{bf16, f16};
use rayon::prelude::*;

use crate::gguf_k_block as k;

/// Values of one quantised block.
const BLOCK_LEN: usize = 32;

/// Blocks that one thread takes at a time.
const BLOCKS_PER_TASK: usize = 1024;

/// A tensor type this implementation reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names of ggml")]
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
    /// Blocks of 5-bit values around 16, with a scale.
    Q5_0,
    /// Blocks of 5-bit values with a scale and a minimum.
    Q5_1,
    /// Blocks of signed 8-bit values with a scale.
    Q8_0,
    /// 16 runs of 2-bit values, each with a 4-bit scale and minimum.
    Q2_K,
    /// 16 runs of 3-bit values around 4, each with a 6-bit scale.
    Q3_K,
    /// 8 runs of 4-bit values, each with a 6-bit scale and minimum.
    Q4_K,
    /// 8 runs of 5-bit values, each with a 6-bit scale and minimum.
    Q5_K,
    /// 16 runs of 6-bit values around 32, each with an 8-bit scale.
    Q6_K,
    /// 256 signed 8-bit values with an f32 scale.
    Q8_K,
}

use BlockType::{BF16, F16, F32, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_K};

/// Every type that is read: its ggml number, its values per block, and the bytes of a block.
const READ: [(BlockType, u32, usize, usize); 14] = [
    (F32, 0, 1, 4),
    (F16, 1, 1, 2),
    (BF16, 30, 1, 2),
    (Q4_0, 2, BLOCK_LEN, 2 + BLOCK_LEN / 2),
    (Q4_1, 3, BLOCK_LEN, 4 + BLOCK_LEN / 2),
    (Q5_0, 6, BLOCK_LEN, 2 + 4 + BLOCK_LEN / 2),
    (Q5_1, 7, BLOCK_LEN, 4 + 4 + BLOCK_LEN / 2),
    (Q8_0, 8, BLOCK_LEN, 2 + BLOCK_LEN),
    (Q2_K, 10, k::LEN, 84),
    (Q3_K, 11, k::LEN, 110),
    (Q4_K, 12, k::LEN, 144),
    (Q5_K, 13, k::LEN, 176),
    (Q6_K, 14, k::LEN, 210),
    (Q8_K, 15, k::LEN, 292),
];

/// The other types of ggml by number, for the message about one that is not read.
const NOT_READ: [(u32, &str); 19] = [
    (9, "Q8_1"),
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
        if let Some((block_type, ..)) = READ.iter().find(|row| row.1 == number) {
            return Ok(*block_type);
        }
        let name = NOT_READ.iter().find(|(n, _)| *n == number);
        Err(name.map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned()))
    }

    /// The names of all types that are read, for messages.
    pub(crate) fn names() -> String {
        READ.iter().map(|row| row.0.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Values of one block (1 for plain numbers) and its bytes.
    fn layout(self) -> (usize, usize) {
        READ.iter().find(|row| row.0 == self).map_or((1, 1), |row| (row.2, row.3))
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

    /// The values of `bytes`, a whole number of blocks; blocks are read in parallel.
    pub(crate) fn to_f32(self, bytes: &[u8]) -> Vec<f32> {
        let (block_len, block_bytes) = self.layout();
        let mut values = vec![0.0; bytes.len() / block_bytes * block_len];
        let tasks = values.par_chunks_mut(block_len * BLOCKS_PER_TASK);
        tasks.zip(bytes.par_chunks(block_bytes * BLOCKS_PER_TASK)).for_each(|(values, bytes)| {
            for (out, block) in values.chunks_exact_mut(block_len).zip(bytes.chunks_exact(block_bytes)) {
                self.read_block(block, out);
            }
        });
        values
    }

    /// The values of one block. Products are rounded before sums, as ggml does.
    fn read_block(self, block: &[u8], out: &mut [f32]) {
        match self {
            F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            F16 => out[0] = half(block, 0),
            BF16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
            Q4_0 => {
                let scale = half(block, 0);
                nibbles(&block[2..], out, |_, q| (f32::from(q) - 8.0) * scale);
            }
            Q4_1 => {
                let (scale, min) = (half(block, 0), half(block, 2));
                nibbles(&block[4..], out, |_, q| f32::from(q) * scale + min);
            }
            Q5_0 => {
                let (scale, fifth) = (half(block, 0), fifth_bits(&block[2..6]));
                nibbles(&block[6..], out, |i, q| (f32::from(q | fifth(i)) - 16.0) * scale);
            }
            Q5_1 => {
                let (scale, min, fifth) = (half(block, 0), half(block, 2), fifth_bits(&block[4..8]));
                nibbles(&block[8..], out, |i, q| f32::from(q | fifth(i)) * scale + min);
            }
            Q8_0 => {
                let scale = half(block, 0);
                out.iter_mut().zip(&block[2..]).for_each(|(v, q)| *v = f32::from(q.cast_signed()) * scale);
            }
            Q2_K => k::read_q2(block, out),
            Q3_K => k::read_q3(block, out),
            Q4_K => k::read_q4(block, out),
            Q5_K => k::read_q5(block, out),
            Q6_K => k::read_q6(block, out),
            Q8_K => k::read_q8(block, out),
        }
    }
}

/// The name of ggml.
impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The f16 at byte `at` of a block.
pub(crate) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 32 values of 16 bytes: first all low nibbles, then all high ones; `value` gets the position and the nibble.
fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    let codes = bytes.iter().map(|b| b & 15).chain(bytes.iter().map(|b| b >> 4));
    out.iter_mut().zip(codes).enumerate().for_each(|(i, (out, code))| *out = value(i, code));
}

/// Bit 4 of each of 32 values, out of 4 bytes.
fn fifth_bits(bytes: &[u8]) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    move |i| ((bits >> i & 1) as u8) << 4
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
        let values = Q4_0.to_f32(&block(&[0.5], 16));
        assert_eq!(values[..4], [-4.0, -3.0, -2.0, -1.0]);
        assert_eq!(values[16..20], [-3.5, -2.5, -1.5, -0.5]);
        assert_eq!(values.len(), 32);
    }

    #[test]
    fn q4_1_values_are_the_nibbles_times_scale_plus_minimum() {
        let values = Q4_1.to_f32(&block(&[0.5, -1.0], 16));
        assert_eq!(values[..4], [-1.0, 0.0, 1.0, 2.0]);
        assert_eq!(values[16..20], [-0.5, 0.5, 1.5, 2.5]);
    }

    #[test]
    fn q8_0_values_are_signed() {
        let values = Q8_0.to_f32(&block(&[0.5], 32));
        assert_eq!(values[..8], [8.0, 25.0, 42.0, 59.0, -52.0, -35.0, -18.0, -1.0]);
    }

    #[test]
    fn unread_types_have_their_names() {
        assert_eq!(BlockType::from_number(12), Ok(Q4_K));
        assert_eq!(BlockType::from_number(23), Err("IQ4_XS".to_owned()));
        assert_eq!(BlockType::from_number(99), Err("number 99".to_owned()));
        assert!(BlockType::names().ends_with("Q6_K, Q8_K"));
    }

    #[test]
    fn row_that_blocks_do_not_divide_has_no_size() {
        assert_eq!(Q4_1.num_bytes(&[3, 64]), Some(120));
        assert_eq!(Q4_1.num_bytes(&[64, 3]), None);
        assert_eq!(Q4_K.num_bytes(&[2, 512]), Some(4 * 144));
        assert_eq!(Q4_K.num_bytes(&[512, 32]), None);
        assert_eq!(F32.num_bytes(&[usize::MAX, 2]), None);
    }

    /// Bit for bit: the fixture has 32-value blocks too, and more of them than one task takes.
    #[test]
    fn values_are_those_of_the_gguf_package() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gguf/blocks.safetensors");
        let fixture = crate::WeightDir::open(path).unwrap();
        let mut num_types = 0;
        for (block_type, ..) in READ {
            let Ok(blocks) = fixture.tensor(&format!("{block_type}.blocks")) else { continue };
            let expected = fixture.tensor(&format!("{block_type}.values")).unwrap().to_f32().unwrap();
            let got = block_type.to_f32(&blocks.bytes);
            assert_eq!(got.len(), expected.len(), "{block_type}");
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got.to_bits(), expected.to_bits(), "{block_type} value {i}: {got}, {expected}");
            }
            num_types += 1;
        }
        assert_eq!(num_types, 11, "types in the fixture");
    }
}
