//! The element types of weight files, and casts between the floating ones.

use std::borrow::Cow;

use half::{bf16, f16};

use crate::{Error, Result};

/// An element type of a safetensors file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE double.
    F64,
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// Eight-bit float, 4 bits of exponent.
    F8E4M3,
    /// Eight-bit float, 5 bits of exponent.
    F8E5M2,
    /// Signed 64 bits.
    I64,
    /// Signed 32 bits.
    I32,
    /// Signed 16 bits.
    I16,
    /// Signed 8 bits.
    I8,
    /// Unsigned 8 bits.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

const ALL: [(Dtype, &str, usize); 12] = [
    (Dtype::F64, "F64", 8),
    (Dtype::F32, "F32", 4),
    (Dtype::F16, "F16", 2),
    (Dtype::BF16, "BF16", 2),
    (Dtype::F8E4M3, "F8_E4M3", 1),
    (Dtype::F8E5M2, "F8_E5M2", 1),
    (Dtype::I64, "I64", 8),
    (Dtype::I32, "I32", 4),
    (Dtype::I16, "I16", 2),
    (Dtype::I8, "I8", 1),
    (Dtype::U8, "U8", 1),
    (Dtype::Bool, "BOOL", 1),
];

impl Dtype {
    /// The type that safetensors spells `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, n, _)| *n == name).map(|(dtype, ..)| *dtype)
    }

    /// The name in a safetensors header.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The name in the `torch_dtype` of a `config.json`, for the floating types a model may have as a whole.
    pub fn torch_name(self) -> Option<&'static str> {
        match self {
            Self::F64 => Some("float64"),
            Self::F32 => Some("float32"),
            Self::F16 => Some("float16"),
            Self::BF16 => Some("bfloat16"),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub fn num_bytes(self) -> usize {
        self.row().2
    }

    fn row(self) -> (Self, &'static str, usize) {
        ALL[self as usize]
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The little-endian elements of `bytes` as f32; `None` for a type that is not one of F64, F32, F16, BF16.
fn to_f32(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F64 => elements::<8>(bytes).map(|b| f64::from_le_bytes(b) as f32).collect(),
        Dtype::F32 => elements::<4>(bytes).map(f32::from_le_bytes).collect(),
        Dtype::F16 => elements::<2>(bytes).map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => elements::<2>(bytes).map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => return None,
    })
}

/// The little-endian bytes of `values` in `dtype`, rounded to nearest even; `None` for F64 and non-floating types.
pub(crate) fn from_f32(values: &[f32], dtype: Dtype) -> Option<Vec<u8>> {
    Some(match dtype {
        Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => return None,
    })
}

/// The little-endian bytes of the values of `tensor` in `dtype`, rounded to nearest even.
///
/// # Errors
/// `dtype` is not one of F32, F16, BF16.
pub fn encode_f32(tensor: &str, values: &[f32], dtype: Dtype) -> Result<Vec<u8>> {
    from_f32(values, dtype).ok_or_else(|| not_floating(tensor, dtype))
}

/// The little-endian elements of `tensor` as f32.
///
/// # Errors
/// `dtype` is not one of F64, F32, F16, BF16.
pub fn decode_f32(tensor: &str, bytes: &[u8], dtype: Dtype) -> Result<Vec<f32>> {
    to_f32(bytes, dtype).ok_or_else(|| not_floating(tensor, dtype))
}

fn not_floating(tensor: &str, dtype: Dtype) -> Error {
    Error::Dtype { tensor: tensor.to_owned(), expected: "a floating type".to_owned(), got: dtype.to_string() }
}

/// The little-endian elements `bytes` of `tensor`, of type `from`, as type `to`, rounded to nearest even; borrowed when they are
/// the same type.
///
/// # Errors
/// The types differ and one of them is not floating.
pub fn cast<'a>(tensor: &str, bytes: &'a [u8], from: Dtype, to: Dtype) -> Result<Cow<'a, [u8]>> {
    if from == to {
        return Ok(Cow::Borrowed(bytes));
    }
    let elements = to_f32(bytes, from).and_then(|values| from_f32(&values, to));
    elements.map(Cow::Owned).ok_or_else(|| Error::Dtype {
        tensor: tensor.to_owned(),
        expected: format!("a tensor that converts to {to}"),
        got: from.to_string(),
    })
}

/// Index of the first element that is NaN or infinite; integer types have none. One pass at the speed of memory.
pub fn first_not_finite(bytes: &[u8], dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => {
            find::<8>(bytes, |b| u64::from_le_bytes(b) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000)
        }
        Dtype::F32 => find::<4>(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        Dtype::F16 => find::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        Dtype::BF16 => find::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        Dtype::F8E4M3 => find::<1>(bytes, |[b]| b & 0x7f == 0x7f),
        Dtype::F8E5M2 => find::<1>(bytes, |[b]| b & 0x7c == 0x7c),
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 | Dtype::Bool => None,
    }
}

/// Elements looked at before a branch: long enough for vector instructions, short enough to stay in the cache.
const RUN_LEN: usize = 4096;

/// Index of the first element that `is_bad`.
fn find<const N: usize>(bytes: &[u8], is_bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.chunks(RUN_LEN).enumerate().find_map(|(run, elements)| {
        // Without an early exit the compiler makes this a vector loop; only a run with a find is searched.
        let any = elements.iter().fold(false, |any, element| any | is_bad(*element));
        let place = || elements.iter().position(|element| is_bad(*element));
        if any { place().map(|at| run * RUN_LEN + at) } else { None }
    })
}

fn elements<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (dtype, name, _) in ALL {
            assert_eq!((dtype.row().0, Dtype::from_name(name)), (dtype, Some(dtype)));
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let bytes = from_f32(&[1.0, 1.003_906_3, 1.011_718_8], Dtype::BF16).unwrap();
        assert_eq!(to_f32(&bytes, Dtype::BF16).unwrap(), [1.0, 1.0, 1.015_625]);
    }

    #[test]
    fn not_finite_elements_are_found_in_every_float() {
        let doubles: Vec<u8> = [1.0, f64::MAX, f64::NAN].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(first_not_finite(&doubles, Dtype::F64), Some(2));
        assert_eq!(first_not_finite(&[0x7e, 0x80, 0xff], Dtype::F8E4M3), Some(2));
        assert_eq!(first_not_finite(&[0x7b, 0xfc], Dtype::F8E5M2), Some(1));
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let bytes = from_f32(&[0.5, -2.0, f32::NAN, 1.0], dtype).unwrap();
            assert_eq!(first_not_finite(&bytes, dtype), Some(2), "{dtype}");
            let bytes = from_f32(&[0.5, f32::NEG_INFINITY], dtype).unwrap();
            assert_eq!(first_not_finite(&bytes, dtype), Some(1), "{dtype}");
            assert_eq!(first_not_finite(&from_f32(&[0.5, -0.0, 1e4], dtype).unwrap(), dtype), None);
            let mut long = vec![1.0; 3 * RUN_LEN];
            long[2 * RUN_LEN + 5] = f32::NAN;
            let bytes = from_f32(&long, dtype).unwrap();
            assert_eq!(first_not_finite(&bytes, dtype), Some(2 * RUN_LEN + 5), "{dtype}");
        }
    }
}
