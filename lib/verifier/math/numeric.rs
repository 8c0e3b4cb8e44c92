//! Two values compared by evaluation at points, with bounds of the error.
//!
//! Variables take pseudo-random values, multiples of 2^-40 drawn from the pair itself, so a verdict never depends on its
//! neighbours. A difference is proven by disjoint balls. Equality is claimed after [`AGREEMENTS`] points where balls of
//! 256 bits overlap: two different polynomials (or quotients of them) of degree d agree by chance at all of them with
//! a probability below (d / 2^40)^4 (Schwartz and Zippel), which is under 1e-40 for d up to 100; two different analytic
//! functions agree on a set of measure zero only, and beyond that to 75 digits by rounding only.

use std::cmp::Ordering;

use num_bigint::BigInt;

use crate::math::ball::Ball;
use crate::math::evaluate::Evaluator;
use crate::math::rational::{Rational, whole};
use crate::math::real::{Big, Real};
use crate::math::tree::{Constant, Expr, Function};

/// Points at which equal values have to agree.
pub(crate) const AGREEMENTS: u32 = 4;
/// Points that are tried.
const MAX_POINTS: u64 = 16;
/// Units of work for a pair, of about 0.1 us each.
const WORK: u64 = 150_000;
/// Balls have to be this small beside their centre to count as an agreement.
const MAX_RADIUS: f64 = 1e-25;

/// What evaluation says about two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numeric {
    Equal,
    Different,
    /// Undefined at too many points, or too much work.
    Unknown,
}

/// How near two values have to be.
pub(crate) type Tolerance<'a> = &'a dyn Fn(f64) -> f64;

/// Compares two values. `tolerance` gives the difference allowed at a value of that size; nothing allows none.
pub(crate) fn compare(
    left: &Expr,
    right: &Expr,
    log_base: Option<i64>,
    tolerance: Option<Tolerance<'_>>,
) -> Numeric {
    let seed = seed(left, right);
    let mut names = left.symbols();
    names.extend(right.symbols());
    let is_constant = names.is_empty();
    let of_whole = |expr: &Expr| {
        matches!(
            expr,
            Expr::Call(
                Function::Factorial | Function::Binomial | Function::Gcd | Function::Lcm | Function::Modulo,
                _
            )
        )
    };
    let takes_whole = !is_constant && (left.any(&of_whole) || right.any(&of_whole));
    let is_i = |expr: &Expr| *expr == Expr::Constant(Constant::I);
    let is_complex = left.any(&is_i) || right.any(&is_i);
    let mut work = WORK;
    let mut tally = Tally::default();
    for index in 0..if is_constant { 1 } else { MAX_POINTS } {
        let point = |name: &str| coordinate(seed, index, name, takes_whole);
        let mut pair = Pair { left, right, point: &point, log_base, tolerance, work: &mut work };
        let agreement = pair.judge();
        // Points of mixed signs may lie outside the domain that is meant.
        match agreement {
            Agreement::Apart { both_real: true } => return Numeric::Different,
            Agreement::Apart { both_real: false } if is_complex || is_constant => return Numeric::Different,
            Agreement::Apart { both_real: false } if index % 2 == 0 => tally.apart += 1,
            Agreement::Together { both_real } if both_real || is_complex => tally.real += 1,
            Agreement::Together { .. } => tally.complex += 1,
            Agreement::Apart { .. } | Agreement::Undecided => {}
        }
        if tally.real >= AGREEMENTS || is_constant && tally.real + tally.complex > 0 {
            break;
        }
    }
    tally.verdict(is_constant)
}

/// Compares two real numbers by size; nothing when they are not real or nearer than their errors.
pub(crate) fn order(left: &Expr, right: &Expr) -> Option<Ordering> {
    if left == right || !left.symbols().is_empty() || !right.symbols().is_empty() {
        return None;
    }
    order_in::<f64>(left, right).or_else(|| order_in::<Big>(left, right))
}

fn order_in<R: Real>(left: &Expr, right: &Expr) -> Option<Ordering> {
    let mut work = WORK;
    let none = |_: &str| whole(0);
    let constants = R::constants()?;
    let mut evaluator = Evaluator::<R> { constants, point: &none, log_base: Some(10), work: &mut work };
    let (left, right) = (evaluator.value(left)?, evaluator.value(right)?);
    if !left.is_real() || !right.is_real() {
        return None;
    }
    let difference = left.subtract(&right)?;
    if difference.has_zero() {
        return None;
    }
    difference.re.to_f64().partial_cmp(&0.0)
}

#[derive(Debug, Default)]
struct Tally {
    /// Points where both values are real, or may be complex, and agree.
    real: u32,
    /// Points where both are not real and agree.
    complex: u32,
    /// Points within the likely domain where one is real and the other is not, or both differ.
    apart: u32,
}

impl Tally {
    fn verdict(&self, is_constant: bool) -> Numeric {
        let enough = if is_constant { 1 } else { AGREEMENTS };
        if self.apart > 0 {
            Numeric::Different
        } else if self.real >= enough || self.real == 0 && self.complex >= enough {
            Numeric::Equal
        } else {
            Numeric::Unknown
        }
    }
}

/// What one point says.
#[derive(Debug, Clone, Copy)]
enum Agreement {
    Together { both_real: bool },
    Apart { both_real: bool },
    Undecided,
}

struct Pair<'a> {
    left: &'a Expr,
    right: &'a Expr,
    point: &'a dyn Fn(&str) -> Rational,
    log_base: Option<i64>,
    tolerance: Option<Tolerance<'a>>,
    work: &'a mut u64,
}

impl Pair<'_> {
    /// In machine precision first: most different values are told apart there.
    fn judge(&mut self) -> Agreement {
        match self.judge_in::<f64>(0.0) {
            Agreement::Undecided => self.judge_in::<Big>(MAX_RADIUS),
            decided => decided,
        }
    }

    fn judge_in<R: Real>(&mut self, max_radius: f64) -> Agreement {
        let Some(constants) = R::constants() else { return Agreement::Undecided };
        let mut evaluator =
            Evaluator::<R> { constants, point: self.point, log_base: self.log_base, work: self.work };
        let Some(left) = evaluator.value(self.left) else { return Agreement::Undecided };
        let Some(right) = evaluator.value(self.right) else { return Agreement::Undecided };
        self.between(&left, &right, max_radius)
    }

    fn between<R: Real>(&self, left: &Ball<R>, right: &Ball<R>, max_radius: f64) -> Agreement {
        let Some(difference) = left.subtract(right) else { return Agreement::Undecided };
        let both_real = left.is_real() && right.is_real();
        let (apart, radius) = (difference.size(), difference.radius);
        if let Some(tolerance) = self.tolerance {
            let allowed = tolerance(left.size());
            if apart + radius <= allowed {
                return Agreement::Together { both_real };
            }
            if apart - radius > allowed {
                return Agreement::Apart { both_real };
            }
            return Agreement::Undecided;
        }
        if apart > radius {
            Agreement::Apart { both_real }
        } else if radius <= max_radius * left.size().max(1.0) {
            Agreement::Together { both_real }
        } else {
            Agreement::Undecided
        }
    }
}

/// The value of a variable at a point: in even points positive, in the first odd one negative, else of either sign.
fn coordinate(seed: u64, index: u64, name: &str, is_whole: bool) -> Rational {
    let mut hash = mixed(seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for byte in name.bytes() {
        hash = mixed(hash ^ u64::from(byte));
    }
    if is_whole {
        return whole(1 + (hash % 20) as i64);
    }
    let is_negative = index % 2 == 1 && (index == 1 || mixed(hash).is_multiple_of(2));
    // Between 1/4 and 17/4; later points reach further, for functions that are undefined near zero.
    let reach = if index < MAX_POINTS / 2 { 4 } else { 40 };
    let fraction = BigInt::from((hash >> 24) * reach) + (BigInt::from(1) << 38);
    let value = Rational::new(fraction, BigInt::from(1_u64 << 40));
    if is_negative { -value } else { value }
}

/// A number made of both trees.
fn seed(left: &Expr, right: &Expr) -> u64 {
    format!("{left:?} = {right:?}")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The finaliser of `SplitMix64` (Steele, Lea and Flood 2014).
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    fn says(left: &str, right: &str) -> Numeric {
        let tree = |text: &str| parse(text, Commas::Thousands).unwrap_or_else(|| panic!("{text}"));
        compare(&tree(left), &tree(right), Some(10), None)
    }

    #[test]
    fn identities_hold_at_points() {
        for (left, right) in [
            (r"\sin^2 x + \cos^2 x", "1"),
            (r"\tan^2(y)+1", r"\sec^2(y)"),
            (r"\sin(2x)", r"2\sin x\cos x"),
            (r"\sqrt{x^2}", "|x|"),
            (r"\log_2 8", "3"),
            (r"\ln(x^2 y)", r"2\ln x + \ln y"),
            (r"e^{i\pi}", "-1"),
            (r"\cos 60^\circ", "1/2"),
            (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
            (r"\sqrt{-x^2-1}", r"i\sqrt{x^2+1}"),
            (r"\binom{n}{2}", "n(n-1)/2"),
            (r"\sqrt{x-5}", r"\frac{x-5}{\sqrt{x-5}}"),
            (r"\arctan 1", r"\pi/4"),
            (r"\sinh x", "(e^x - e^{-x})/2"),
        ] {
            assert_eq!(says(left, right), Numeric::Equal, "{left} = {right}");
        }
    }

    #[test]
    fn differences_are_proven() {
        for (left, right) in [
            (r"\sqrt{x^2}", "x"),
            (r"\sin x", r"\cos x"),
            ("1/3", "0.33333333333333333333333333"),
            (r"e^{\pi\sqrt{163}}", "262537412640768744"),
            (r"\sqrt{2}", "1.41421356237309504880168872420969807857"),
            ("(a+5)(b+2)", "5(b+2)"),
            ("x!", "x^2"),
        ] {
            assert_eq!(says(left, right), Numeric::Different, "{left} = {right}");
        }
    }

    #[test]
    fn verdicts_are_the_same_every_time() {
        let first = coordinate(1, 2, "x", false);
        assert_eq!(first, coordinate(1, 2, "x", false));
        assert_ne!(first, coordinate(1, 2, "y", false));
        assert!(coordinate(1, 0, "x", false) > whole(0));
    }
}
