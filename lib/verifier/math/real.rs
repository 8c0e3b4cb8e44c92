//! Real numbers of two precisions behind one trait: `f64`, and 256 bits.

use astro_float_num::{BigFloat, Consts, RoundingMode, Sign, Word};
use num_bigint::{BigInt, Sign as IntSign};
use num_traits::{Signed, Zero};

use crate::math::rational::{Rational, to_f64};

/// Bits of the high precision.
const PRECISION: usize = 256;
const ROUND: RoundingMode = RoundingMode::ToEven;

/// What balls need of a real number. Results are nearest, or off by no more than [`Real::EPSILON`] of their size.
pub(crate) trait Real: Clone {
    /// Constants that are computed once.
    type Constants;
    /// Bound of the relative error of an operation.
    const EPSILON: f64;
    /// What an operation costs, and what a function costs, in units of work of about 0.1 us.
    const COST: (u64, u64);

    fn constants() -> Option<Self::Constants>;
    fn of(value: &Rational) -> Self;
    fn pi(constants: &mut Self::Constants) -> Self;
    fn to_f64(&self) -> f64;
    fn is_zero(&self) -> bool;
    fn negative(&self) -> Self;
    fn add(&self, other: &Self) -> Self;
    fn multiply(&self, other: &Self) -> Self;
    fn divide(&self, other: &Self) -> Self;
    fn sqrt(&self) -> Self;
    fn exp(&self, constants: &mut Self::Constants) -> Self;
    fn ln(&self, constants: &mut Self::Constants) -> Self;
    fn sin(&self, constants: &mut Self::Constants) -> Self;
    fn cos(&self, constants: &mut Self::Constants) -> Self;
    fn atan(&self, constants: &mut Self::Constants) -> Self;
}

impl Real for f64 {
    type Constants = ();
    // Mathematical libraries promise an error below one unit in the last place; this is four.
    const EPSILON: f64 = 4.0 * f64::EPSILON;
    const COST: (u64, u64) = (1, 1);

    fn constants() -> Option<()> {
        Some(())
    }

    fn of(value: &Rational) -> Self {
        to_f64(value)
    }

    fn pi((): &mut ()) -> Self {
        std::f64::consts::PI
    }

    fn to_f64(&self) -> f64 {
        *self
    }

    fn is_zero(&self) -> bool {
        *self == 0.0
    }

    fn negative(&self) -> Self {
        -self
    }

    fn add(&self, other: &Self) -> Self {
        self + other
    }

    fn multiply(&self, other: &Self) -> Self {
        self * other
    }

    fn divide(&self, other: &Self) -> Self {
        self / other
    }

    fn sqrt(&self) -> Self {
        f64::sqrt(*self)
    }

    fn exp(&self, (): &mut ()) -> Self {
        f64::exp(*self)
    }

    fn ln(&self, (): &mut ()) -> Self {
        f64::ln(*self)
    }

    fn sin(&self, (): &mut ()) -> Self {
        f64::sin(*self)
    }

    fn cos(&self, (): &mut ()) -> Self {
        f64::cos(*self)
    }

    fn atan(&self, (): &mut ()) -> Self {
        f64::atan(*self)
    }
}

/// A number of 256 bits.
#[derive(Debug, Clone)]
pub(crate) struct Big(BigFloat);

impl Real for Big {
    type Constants = Consts;
    // 2^-253.
    const EPSILON: f64 = 6.91e-77;
    const COST: (u64, u64) = (4, 300);

    fn constants() -> Option<Consts> {
        Consts::new().ok()
    }

    fn of(value: &Rational) -> Self {
        if value.is_zero() {
            return Self(BigFloat::new(PRECISION));
        }
        let above = from_integer(value.numer());
        if value.is_integer() {
            Self(above)
        } else {
            Self(above.div(&from_integer(value.denom()), PRECISION, ROUND))
        }
    }

    fn pi(constants: &mut Consts) -> Self {
        Self(constants.pi(PRECISION, ROUND))
    }

    fn to_f64(&self) -> f64 {
        let Some((words, _, sign, exponent, _)) = self.0.as_raw_parts() else {
            return if self.0.is_inf() { f64::INFINITY } else { f64::NAN };
        };
        let Some(top) = words.last().filter(|_| !self.0.is_zero()) else { return 0.0 };
        // The mantissa is below one, its highest bit is set.
        let magnitude = *top as f64 * 2_f64.powi(-64);
        let exponent = exponent.clamp(-1100, 1100);
        let half = exponent / 2;
        let value = magnitude * 2_f64.powi(half) * 2_f64.powi(exponent - half);
        if sign == Sign::Neg { -value } else { value }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn negative(&self) -> Self {
        Self(self.0.neg())
    }

    fn add(&self, other: &Self) -> Self {
        Self(self.0.add(&other.0, PRECISION, ROUND))
    }

    fn multiply(&self, other: &Self) -> Self {
        Self(self.0.mul(&other.0, PRECISION, ROUND))
    }

    fn divide(&self, other: &Self) -> Self {
        Self(self.0.div(&other.0, PRECISION, ROUND))
    }

    fn sqrt(&self) -> Self {
        Self(self.0.sqrt(PRECISION, ROUND))
    }

    fn exp(&self, constants: &mut Consts) -> Self {
        Self(self.0.exp(PRECISION, ROUND, constants))
    }

    fn ln(&self, constants: &mut Consts) -> Self {
        Self(self.0.ln(PRECISION, ROUND, constants))
    }

    fn sin(&self, constants: &mut Consts) -> Self {
        Self(self.0.sin(PRECISION, ROUND, constants))
    }

    fn cos(&self, constants: &mut Consts) -> Self {
        Self(self.0.cos(PRECISION, ROUND, constants))
    }

    fn atan(&self, constants: &mut Consts) -> Self {
        Self(self.0.atan(PRECISION, ROUND, constants))
    }
}

/// The nearest number to a whole one that is not zero.
fn from_integer(value: &BigInt) -> BigFloat {
    let bits = value.bits();
    // The highest bit of the highest word must be set; bits below the precision go.
    let padding = (64 - bits % 64) % 64;
    let shifted = value.abs() << padding;
    let words: Vec<Word> = shifted.magnitude().to_u64_digits();
    let kept = words.len().saturating_sub(PRECISION / 64 + 1);
    let sign = if value.sign() == IntSign::Minus { Sign::Neg } else { Sign::Pos };
    let mut number = BigFloat::from_words(words.get(kept..).unwrap_or_default(), sign, bits as i32);
    if number.set_precision(PRECISION, ROUND).is_err() {
        number = BigFloat::nan(None);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::rational::{power, whole};

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() <= 1e-14 * right.abs().max(1e-300)
    }

    #[test]
    fn whole_numbers_and_fractions_are_read() {
        for (value, expected) in [
            (whole(0), 0.0),
            (whole(1), 1.0),
            (whole(-12345), -12345.0),
            (Rational::new(1.into(), 3.into()), 1.0 / 3.0),
            (power(&whole(10), 200).unwrap(), 1e200),
            (power(&whole(10), -200).unwrap(), 1e-200),
        ] {
            assert!(near(Big::of(&value).to_f64(), expected), "{value} {}", Big::of(&value).to_f64());
        }
    }

    #[test]
    fn functions_agree_in_both_precisions() {
        let mut constants = Big::constants().unwrap();
        let c = &mut constants;
        let x = Rational::new(7.into(), 5.into());
        let (small, big) = (f64::of(&x), Big::of(&x));
        assert!(near(big.sqrt().to_f64(), small.sqrt()));
        assert!(near(big.exp(c).to_f64(), small.exp()));
        assert!(near(big.ln(c).to_f64(), small.ln()));
        assert!(near(big.sin(c).to_f64(), small.sin()));
        assert!(near(big.cos(c).to_f64(), small.cos()));
        assert!(near(big.atan(c).to_f64(), small.atan()));
        assert!(near(Big::pi(c).to_f64(), std::f64::consts::PI));
    }

    #[test]
    fn high_precision_is_high() {
        let third = Big::of(&Rational::new(1.into(), 3.into()));
        let one = third.add(&third).add(&third);
        let error = one.add(&Big::of(&whole(-1))).to_f64().abs();
        assert!(error < 1e-75, "{error}");
        let root = Big::of(&whole(2)).sqrt();
        let error = root.multiply(&root).add(&Big::of(&whole(-2))).to_f64().abs();
        assert!(error < 1e-75 && error > 0.0, "{error}");
    }
}
