//! The eight-bit float E4M3 of the OCP specification in the variant without infinities (`float8_e4m3fn` of PyTorch):
//! bias 7, largest value 448, NaN where all bits but the sign are ones.

/// The largest finite value.
pub const MAX: f32 = 448.0;
/// The bits of the largest finite value.
const MAX_BITS: u32 = 0x7e;
/// The smallest normal value; below it values are multiples of [`SUBNORMAL_STEP`].
const MIN_NORMAL: f32 = 0.015_625;
/// The smallest positive value.
pub const SUBNORMAL_STEP: f32 = 0.001_953_125;
/// Bits of the mantissa that f32 has more.
const SHIFT: u32 = 20;
/// The difference of the exponents' biases, at the place of the exponent.
const REBIAS: u32 = (127 - 7) << 3;

/// The nearest value, ties to even; what is larger than [`MAX`] becomes that, NaN stays NaN.
pub fn encode(value: f32) -> u8 {
    let (sign, magnitude) = ((value.to_bits() >> 24) as u8 & 0x80, value.abs());
    if magnitude.is_nan() {
        return sign | 0x7f;
    }
    if magnitude < MIN_NORMAL {
        return sign | (magnitude / SUBNORMAL_STEP).round_ties_even() as u8;
    }
    let bits = magnitude.to_bits();
    let rounded = (bits + (1 << (SHIFT - 1)) - 1 + ((bits >> SHIFT) & 1)) >> SHIFT;
    sign | (rounded - REBIAS).min(MAX_BITS) as u8
}

/// The value of eight bits, by the definition of the format.
pub fn decode(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa * SUBNORMAL_STEP,
        _ => (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// [`decode`] of all eight bits.
pub fn table() -> [f32; 256] {
    std::array::from_fn(|bits| decode(bits as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of rounding: of all values the nearest, of two the one with an even mantissa.
    fn nearest(value: f32) -> u8 {
        let distance = |bits: &u8| (f64::from(decode(*bits)) - f64::from(value.abs().min(MAX))).abs();
        let best =
            (0..0x7f_u8).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn every_value_is_its_own_code() {
        for bits in (0..=255_u8).filter(|bits| bits & 0x7f != 0x7f) {
            assert_eq!(encode(decode(bits)), bits, "{bits:#x}");
        }
        assert!(decode(0x7f).is_nan() && decode(0xff).is_nan() && encode(f32::NAN) == 0x7f);
        assert_eq!((decode(0x7e), decode(0x01), decode(0x08)), (MAX, SUBNORMAL_STEP, MIN_NORMAL));
    }

    #[test]
    fn codes_are_the_nearest_ones_with_ties_to_even() {
        for bits in 0..0x7e_u8 {
            let (low, high) = (decode(bits), decode(bits + 1));
            let middle = f32::midpoint(low, high);
            for value in [low, f32::midpoint(low, middle), middle.next_down(), middle, middle.next_up()] {
                assert_eq!((encode(value), encode(-value)), (nearest(value), nearest(-value)), "{value}");
            }
        }
        for bits in (0..=u32::MAX).step_by(99_991) {
            let value = f32::from_bits(bits);
            if value.is_finite() {
                assert_eq!(encode(value), nearest(value), "{value}");
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates() {
        for value in [448.1, 464.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!((encode(value), encode(-value)), (0x7e, 0xfe), "{value}");
        }
    }
}
