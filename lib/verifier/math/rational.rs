//! Exact numbers: rationals of any size up to a bound, and what whole numbers can do without rounding.

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use num_rational::Ratio;
use num_traits::{One, Signed, ToPrimitive, Zero};

/// A rational number in lowest terms.
pub(crate) type Rational = Ratio<BigInt>;

/// Numbers of more bits are not computed: `9^9^9^9` and large factorials end here.
pub(crate) const MAX_BITS: u64 = 8192;
/// Prime factors are looked for below this bound only; a larger cofactor stays as it is.
const MAX_TRIAL_DIVISOR: u32 = 1000;

/// A whole number as a rational.
pub(crate) fn whole(value: i64) -> Rational {
    Rational::from_integer(BigInt::from(value))
}

/// The value as a machine integer, where it is whole and small.
pub(crate) fn small(value: &Rational) -> Option<i64> {
    if value.is_integer() { value.numer().to_i64() } else { None }
}

/// `base^exponent` for a whole exponent; nothing where the result is undefined or over [`MAX_BITS`].
pub(crate) fn power(base: &Rational, exponent: i64) -> Option<Rational> {
    if base.is_zero() {
        return match exponent.signum() {
            1 => Some(Rational::zero()),
            0 => Some(Rational::one()),
            _ => None,
        };
    }
    let bits = base.numer().bits().max(base.denom().bits());
    if bits > 1 && bits.checked_mul(exponent.unsigned_abs())? > MAX_BITS {
        return None;
    }
    // A base of one bit is 1 or -1.
    let exponent = if bits > 1 { exponent } else { exponent % 2 };
    Some(base.pow(i32::try_from(exponent).ok()?))
}

/// A natural number as primes with exponents; the last one may be a cofactor without small factors.
pub(crate) fn factors(value: &BigInt) -> Vec<(BigInt, u32)> {
    let (mut rest, mut found) = (value.abs(), Vec::new());
    let mut divisor = 2_u32;
    while divisor < MAX_TRIAL_DIVISOR && rest > BigInt::one() {
        let mut count = 0;
        loop {
            let (quotient, remainder) = rest.div_rem(&BigInt::from(divisor));
            if !remainder.is_zero() {
                break;
            }
            rest = quotient;
            count += 1;
        }
        if count > 0 {
            found.push((BigInt::from(divisor), count));
        }
        if BigInt::from(u64::from(divisor) * u64::from(divisor)) > rest {
            break;
        }
        divisor += if divisor == 2 { 1 } else { 2 };
    }
    if rest > BigInt::one() {
        // A perfect power of something large is found by its root.
        let root = (2..=6_u32).rev().find_map(|degree| {
            let root = rest.nth_root(degree);
            (root.pow(degree) == rest).then_some((root, degree))
        });
        found.push(root.unwrap_or((rest, 1)));
    }
    found
}

/// `n!` where it is small enough.
pub(crate) fn factorial(n: i64) -> Option<BigInt> {
    // 900! has 7,500 bits.
    if !(0..=900).contains(&n) {
        return None;
    }
    Some((2..=n).fold(BigInt::one(), |product, factor| product * factor))
}

/// The binomial coefficient for whole `n` and `k`, where it is small enough.
pub(crate) fn binomial(n: i64, k: i64) -> Option<BigInt> {
    if n < 0 || k < 0 {
        return None;
    }
    if k > n {
        return Some(BigInt::zero());
    }
    let k = k.min(n - k);
    if k > 900 {
        return None;
    }
    let mut product = BigInt::one();
    for step in 0..k {
        product = product * (n - step) / (step + 1);
        if product.bits() > MAX_BITS {
            return None;
        }
    }
    Some(product)
}

/// The nearest machine number; infinite where the value is out of range.
pub(crate) fn to_f64(value: &Rational) -> f64 {
    let (numerator, denominator) = (value.numer(), value.denom());
    if let (Some(above), Some(below)) = (numerator.to_i32(), denominator.to_i32()) {
        return f64::from(above) / f64::from(below);
    }
    // Both are shifted so that the quotient keeps 64 bits.
    let shift = numerator.bits() as i64 - denominator.bits() as i64 - 64;
    let quotient =
        if shift >= 0 { numerator / (denominator << shift) } else { (numerator << -shift) / denominator };
    let sign = if quotient.sign() == Sign::Minus { -1.0 } else { 1.0 };
    let magnitude = quotient.abs().to_u128().map_or(f64::INFINITY, |magnitude| magnitude as f64);
    if shift > 960 {
        return sign * f64::INFINITY;
    }
    // Two steps, so that no power leaves the range on the way.
    let half = (shift / 2) as i32;
    sign * magnitude * 2_f64.powi(half) * 2_f64.powi(shift as i32 - half)
}

/// A number as a person writes it: a decimal where that is exact and short, else a fraction.
pub(crate) fn show(value: &Rational) -> String {
    if value.is_integer() {
        return value.numer().to_string();
    }
    let mut rest = value.denom().clone();
    let mut count = [0_u32; 2];
    for (index, prime) in [2, 5].into_iter().enumerate() {
        while rest.is_multiple_of(&BigInt::from(prime)) && count[index] <= 30 {
            rest /= prime;
            count[index] += 1;
        }
    }
    let decimals = count[0].max(count[1]);
    if !rest.is_one() || decimals > 30 {
        return format!("{}/{}", value.numer(), value.denom());
    }
    let scaled = (value.numer().abs() * BigInt::from(10).pow(decimals)) / value.denom();
    let digits = format!("{scaled:0>width$}", width = decimals as usize + 1);
    let (whole, part) = digits.split_at(digits.len() - decimals as usize);
    format!("{}{whole}.{part}", if value.is_negative() { "-" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_exact_or_refused() {
        assert_eq!(power(&whole(2), 10), Some(whole(1024)));
        assert_eq!(power(&whole(2), -2), Some(Rational::new(1.into(), 4.into())));
        assert_eq!(power(&whole(-1), 1_000_000_000_001), Some(whole(-1)));
        assert_eq!(power(&whole(9), 387_420_489), None);
        assert_eq!(power(&whole(0), -1), None);
        assert_eq!(power(&whole(0), 0), Some(whole(1)));
        assert_eq!(power(&whole(2), i64::MIN), None);
    }

    #[test]
    fn factors_multiply_to_the_number() {
        for value in [1_i64, 2, 12, 1358, 360_360, 1_000_003, 9973 * 9973, 2 * 1009 * 1013] {
            let product = factors(&BigInt::from(value))
                .into_iter()
                .fold(BigInt::one(), |product, (prime, count)| product * prime.pow(count));
            assert_eq!(product, BigInt::from(value));
        }
        assert_eq!(factors(&BigInt::from(9973_i64 * 9973)), [(BigInt::from(9973), 2)]);
    }

    #[test]
    fn counting_numbers_are_exact() {
        assert_eq!(factorial(5), Some(120.into()));
        assert_eq!(factorial(1_000_000), None);
        assert_eq!(factorial(-1), None);
        assert_eq!(binomial(10, 3), Some(120.into()));
        assert_eq!(binomial(3, 10), Some(0.into()));
        assert_eq!(binomial(1_000_000_000, 500_000_000), None);
    }

    #[test]
    fn machine_numbers_are_near() {
        let third = Rational::new(1.into(), 3.into());
        assert!((to_f64(&third) - 1.0 / 3.0).abs() < 1e-16);
        let large = power(&whole(10), 300).unwrap();
        assert!((to_f64(&large) / 1e300 - 1.0).abs() < 1e-14);
        assert!((to_f64(&large.recip()) / 1e-300 - 1.0).abs() < 1e-14);
        assert!(to_f64(&power(&whole(10), 2000).unwrap()).is_infinite());
        assert!((to_f64(&-large.recip()) / -1e-300 - 1.0).abs() < 1e-14);
    }

    #[test]
    fn numbers_are_shown_shortly() {
        for (above, below, shown) in [(1080, 1, "1080"), (-1, 2, "-0.5"), (1, 1000, "0.001"), (2, 6, "1/3")] {
            assert_eq!(show(&Rational::new(above.into(), below.into())), shown);
        }
    }
}
