//! The normal form of a value: a quotient of polynomials over atoms. Equal normal forms are equal values; different
//! ones are different values where their atoms are independent.

use num_traits::{One, Zero};

use crate::math::form::{Form, symbol_key};
use crate::math::polynomial::{Atom, Monomial, Polynomial};
use crate::math::rational::Rational;
use crate::math::tree::Expr;

/// Units of exact work for a pair of answers: a few milliseconds.
const WORK: u64 = 8_000;

/// What exact arithmetic says about two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exact {
    Equal,
    Different,
    /// The atoms may be dependent, or the work was too much.
    Unknown,
}

/// Compares two values by their normal forms. `log_base` is the base of logarithms without one; nothing is e.
pub(crate) fn compare(left: &Expr, right: &Expr, log_base: Option<i64>) -> Exact {
    let mut form = Form::with_work(WORK, log_base);
    let Some(difference) = form.difference(left, right) else { return Exact::Unknown };
    if difference.0.is_empty() {
        Exact::Equal
    } else if form.ring.is_independent(&difference) {
        Exact::Different
    } else {
        Exact::Unknown
    }
}

/// The value, where it is a rational number.
pub(crate) fn rational_value(expr: &Expr) -> Option<Rational> {
    if let Expr::Number { value, .. } = expr {
        return Some(value.clone());
    }
    let mut form = Form::with_work(WORK, Some(10));
    form.quotient(expr)?.as_constant()
}

/// The factor between `left.0 - left.1` and `right.0 - right.1` where it is a number: relations to zero that differ by
/// it are the same, up to its sign.
pub(crate) fn proportion(left: (&Expr, &Expr), right: (&Expr, &Expr)) -> Option<Rational> {
    let mut form = Form::with_work(WORK, Some(10));
    let first = form.difference(left.0, left.1)?;
    let second = form.difference(right.0, right.1)?;
    let (Some(a), Some(b)) = (first.0.values().next_back(), second.0.values().next_back()) else {
        return (first == second).then(Rational::one);
    };
    let factor = a / b;
    let scaled = form.ring.product(&second, &Polynomial::constant(factor.clone()))?;
    (scaled == first).then_some(factor)
}

/// `left - right` as a polynomial of its only variable: the coefficients of 1, x and x^2, where there are no others.
pub(crate) fn quadratic(left: &Expr, right: &Expr, name: &str) -> Option<[Rational; 3]> {
    let mut form = Form::with_work(WORK, Some(10));
    let difference = form.difference(left, right)?;
    let symbol = form.ring.atom(symbol_key(name), Atom::Symbol);
    let mut coefficients = [Rational::zero(), Rational::zero(), Rational::zero()];
    for (Monomial(factors), coefficient) in &difference.0 {
        let power = match &factors[..] {
            [] => 0,
            [(atom, exponent)] if *atom == symbol && exponent.is_integer() => {
                usize::try_from(exponent.to_integer()).ok()?
            }
            _ => return None,
        };
        *coefficients.get_mut(power)? = coefficient.clone();
    }
    Some(coefficients)
}
