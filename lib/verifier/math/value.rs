//! Whether two single values are equal: by exact arithmetic, then by evaluation; decimals may be rounded.

use num_bigint::BigInt;
use num_traits::{Signed, Zero};

use crate::math::normal::{self, Exact};
use crate::math::numeric::{self, Numeric};
use crate::math::parse::infinity;
use crate::math::rational::{self, Rational};
use crate::math::tree::{Expr, Function};

/// How rounded decimals are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// So many significant decimals have to agree where one side is written as a decimal.
    pub(crate) decimals: u32,
}

/// Rules that find two values equal.
pub(crate) const EXACT: &str = "equal by exact arithmetic";
pub(crate) const NUMERIC: &str = "equal at random points to 75 digits";
pub(crate) const ROUNDED: &str = "equal as rounded decimals";
pub(crate) const ROUNDED_LABEL: &str = "rounds to the label's decimals";

/// The rule by which the values are equal; nothing when they are not, or it cannot be decided.
pub(crate) fn equal(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    if let (Some(gold), Some(found)) = (infinity(gold), infinity(found)) {
        return (gold == found).then_some(EXACT);
    }
    let is_decimal = has_decimals(gold) || has_decimals(found);
    if let (Some(a), Some(b)) = (normal::rational_value(gold), normal::rational_value(found)) {
        return equal_numbers(&a, &b, is_decimal, rounding).or_else(|| {
            rounds_to(gold, found, &|value, half| (value - &b).abs() <= *half).then_some(ROUNDED_LABEL)
        });
    }
    let is_log = |expr: &Expr| matches!(expr, Expr::Call(Function::Log, _));
    let has_log = gold.any(&is_log) || found.any(&is_log);
    // A logarithm without its base is to ten, or natural.
    let bases: &[Option<i64>] = if has_log { &[Some(10), None] } else { &[Some(10)] };
    bases
        .iter()
        .find_map(|base| equal_forms(gold, found, *base, is_decimal, rounding))
        .or_else(|| rounds_to_irrational(gold, found).then_some(ROUNDED_LABEL))
}

/// Whether a part was written with decimals.
fn has_decimals(expr: &Expr) -> bool {
    expr.any(&|part| matches!(part, Expr::Number { is_decimal: true, .. }))
}

fn equal_forms(
    gold: &Expr,
    found: &Expr,
    log_base: Option<i64>,
    is_decimal: bool,
    rounding: Rounding,
) -> Option<&'static str> {
    match normal::compare(gold, found, log_base) {
        Exact::Equal => return Some(EXACT),
        Exact::Different if !is_decimal => return None,
        Exact::Different | Exact::Unknown => {}
    }
    if !is_decimal {
        let verdict = numeric::compare(gold, found, log_base, None);
        return (verdict == Numeric::Equal).then_some(NUMERIC);
    }
    let tolerance = |size: f64| allowed(size, rounding);
    let verdict = numeric::compare(gold, found, log_base, Some(&tolerance));
    (verdict == Numeric::Equal).then_some(ROUNDED)
}

/// Two numbers: equal, or one a rounded decimal of the other.
pub(crate) fn equal_numbers(
    gold: &Rational,
    found: &Rational,
    is_decimal: bool,
    rounding: Rounding,
) -> Option<&'static str> {
    if gold == found {
        return Some(EXACT);
    }
    let apart = rational::to_f64(&(gold - found).abs());
    (is_decimal && apart <= allowed(rational::to_f64(gold).abs(), rounding)).then_some(ROUNDED)
}

/// Half a unit in the last significant decimal of a value of this size.
fn allowed(size: f64, rounding: Rounding) -> f64 {
    let leading = if size > 0.0 { (size.log10().floor() + 1.0).min(0.0) } else { 0.0 };
    // The slack admits a half exactly.
    0.5 * 10_f64.powf(leading - f64::from(rounding.decimals)) * (1.0 + 1e-9)
}

/// Whether the label is a decimal of enough digits to which `is_near` finds an exact answer to round.
fn rounds_to(gold: &Expr, found: &Expr, is_near: &dyn Fn(&Rational, &Rational) -> bool) -> bool {
    let Expr::Number { value, is_decimal: true } = gold else { return false };
    let is_whole = matches!(found, Expr::Number { value, .. } if value.is_integer());
    if is_whole || has_decimals(found) {
        return false;
    }
    let Some((places, digits)) = decimal_digits(value) else { return false };
    // Fewer digits are met by chance too easily.
    if places < 2 || digits < 3 {
        return false;
    }
    is_near(value, &Rational::new(BigInt::from(1), BigInt::from(2) * BigInt::from(10).pow(places)))
}

fn rounds_to_irrational(gold: &Expr, found: &Expr) -> bool {
    if !found.symbols().is_empty() {
        return false;
    }
    rounds_to(gold, found, &|value, half| {
        let half = rational::to_f64(half);
        numeric::compare(gold, found, Some(10), Some(&|_| half)) == Numeric::Equal && !value.is_zero()
    })
}

/// Decimals and significant digits of a number that ends.
fn decimal_digits(value: &Rational) -> Option<(u32, usize)> {
    let places = (0..=30_u32).find(|places| (value * BigInt::from(10).pow(*places)).is_integer())?;
    let digits = (value.abs() * BigInt::from(10).pow(places)).to_integer().to_string();
    Some((places, if value.is_zero() { 0 } else { digits.len() }))
}

/// Whether the tree is one value: a number or a formula, not a list, a relation or words.
pub(crate) fn is_value(expr: &Expr) -> bool {
    match expr {
        Expr::Number { .. } | Expr::Constant(_) | Expr::Symbol(_) | Expr::Apply(..) => true,
        Expr::Sum(items) | Expr::Product(items) | Expr::Call(_, items) => items.iter().all(is_value),
        Expr::Power(base, exponent) => is_value(base) && is_value(exponent),
        Expr::Quantity(value, unit) => unit.known.is_some() && is_value(value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    fn rule(gold: &str, found: &str) -> Option<&'static str> {
        let tree = |text: &str| parse(text, Commas::Thousands).unwrap_or_else(|| panic!("{text}"));
        equal(&tree(gold), &tree(found), Rounding { decimals: 6 })
    }

    #[test]
    fn exact_arithmetic_goes_first() {
        for (gold, found) in [
            ("1/2", "0.5"),
            (r"2\sqrt{3}", r"\sqrt{12}"),
            (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
            ("(x+1)^2", "x^2+2x+1"),
            (r"\frac{x^2-1}{x-1}", "x+1"),
            ("2^{x+1}", r"2\cdot 2^x"),
            (r"\log_2 8", "3"),
            ("i^2", "-1"),
            ("(1+i)(1-i)", "2"),
            (r"\sqrt[3]{-8}", "-2"),
            ("5!", "120"),
            (r"\sqrt{x}\sqrt{x}", "x"),
            ("0.5x", "x/2"),
            (r"\ln e^3", "3"),
        ] {
            assert_eq!(rule(gold, found), Some(EXACT), "{gold} {found}");
        }
    }

    #[test]
    fn decimals_may_be_rounded() {
        assert_eq!(rule("1/3", "0.333333"), Some(ROUNDED));
        assert_eq!(rule("1/3", "0.33333"), None);
        assert_eq!(rule("1/30", "0.033333"), None);
        assert_eq!(rule("1/30", "0.0333333"), Some(ROUNDED));
        assert_eq!(rule(r"\sqrt{2}", "1.414214"), Some(ROUNDED));
        assert_eq!(rule("3", "3.0000000001"), Some(ROUNDED));
        assert_eq!(rule("0.0000001", "0.0000002"), None);
        assert_eq!(rule("7.78", "70/9"), Some(ROUNDED_LABEL));
        assert_eq!(rule("3.14", r"\pi"), Some(ROUNDED_LABEL));
        assert_eq!(rule("70/9", "7.78"), None);
        assert_eq!(rule("0.5", "9/20"), None);
        assert_eq!(rule("16386.17", "16386.169"), None);
    }

    #[test]
    fn near_values_and_look_alikes_differ() {
        for (gold, found) in [
            ("1/3", "1/4"),
            (r"\sqrt{x^2}", "x"),
            ("x+y", "x-y"),
            (r"\infty", r"-\infty"),
            (r"1-\frac1e", r"1+\frac1e"),
            (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"),
            ("2^{100}", "2^{100}+1"),
        ] {
            assert_eq!(rule(gold, found), None, "{gold} {found}");
        }
    }

    #[test]
    fn logarithms_without_base_are_read_both_ways() {
        assert_eq!(rule(r"\log 100", "2"), Some(EXACT));
        assert_eq!(rule(r"\log e", "1"), Some(EXACT));
    }
}
