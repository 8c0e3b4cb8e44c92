//! Keys and values of a cache in e4m3, a byte each, without scales: what is beyond 448 is cut off.

use tch::{Kind, Tensor};

use crate::Result;
use crate::fp8_cast::{Format, codes};

/// The kind of a cache that holds codes.
pub const CODES: Kind = Kind::Uint8;

/// Codes of `x`, of the same shape.
///
/// # Errors
/// No room.
pub fn encode(x: &Tensor) -> Result<Tensor> {
    Ok(codes(&x.f_to_kind(Kind::Float)?, Format::E4m3)?.f_view_dtype(CODES)?)
}

/// What `codes` stand for, in `kind`; of a cache that holds no codes, what it holds.
///
/// # Errors
/// No room.
pub fn decode(codes: &Tensor, kind: Kind) -> Result<Tensor> {
    if codes.kind() != CODES {
        return Ok(codes.f_to_kind(kind)?);
    }
    Ok(codes.f_view_dtype(Format::E4m3.kind())?.f_to_kind(kind)?)
}

/// The macro that tells a kernel of a cache's kind.
pub(crate) fn define(cache: Kind) -> (&'static str, i64) {
    ("KV_FP8", i64::from(cache == CODES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_three_bits_of_mantissa() {
        let x = Tensor::from_slice(&[1.0f32, -1.1, 448.0, -1000.0, 0.001, 0.0]);
        let codes = encode(&x).unwrap();
        assert_eq!(codes.kind(), CODES);
        let got = Vec::<f32>::try_from(decode(&codes, Kind::Float).unwrap()).unwrap();
        assert_eq!(got, [1.0, -1.125, 448.0, -448.0, 0.001_953_125, 0.0]);
        assert!(decode(&x, Kind::Float).unwrap().equal(&x));
    }
}
