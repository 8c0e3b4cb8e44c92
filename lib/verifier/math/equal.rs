//! Whether an answer equals the label: the same words, the same choice, or trees that mean the same.

use std::borrow::Cow;

use crate::math::antiderivative;
use crate::math::collection;
use crate::math::matrix;
use crate::math::modulo;
use crate::math::numeral::Commas;
use crate::math::parse::{MAX_BYTES, infinity, parse};
use crate::math::quick;
use crate::math::rational;
use crate::math::real_set::RealSet;
use crate::math::relation;
use crate::math::spelled;
use crate::math::text;
use crate::math::tree::{Brackets, Expr};
use crate::math::unit::{Dimension, Unit};
use crate::math::value::{self, Rounding};

/// Longer answers are compared as words up to this many bytes only.
const MAX_TEXT_BYTES: usize = 65_536;

/// The rule of answers that are written alike.
const SAME_TEXT: &str = "the same text";

/// The rule by which two answers are equal; nothing when none finds them equal.
pub(crate) fn answers(gold: &str, found: &str, rounding: Rounding) -> Option<&'static str> {
    let (gold, found) = (gold.trim(), found.trim());
    if found.is_empty() || gold.len().max(found.len()) > MAX_TEXT_BYTES {
        return None;
    }
    if gold == found {
        return Some(SAME_TEXT);
    }
    match quick::equal(gold, found) {
        Some(true) => return Some(value::EXACT),
        Some(false) => return None,
        None if unmarked(gold).eq(unmarked(found)) => return Some(SAME_TEXT),
        None => {}
    }
    // A small letter without brackets is a variable.
    let is_choice = gold.contains(|c: char| c.is_ascii_uppercase() || c == '(');
    let letter = text::choice(gold).filter(|_| is_choice);
    if letter.is_some() && letter == text::choice(found) {
        return Some("the same choice");
    }
    if says(gold, found) {
        return Some("the same words");
    }
    if are_other_currencies(gold, found) {
        return None;
    }
    if gold.len().max(found.len()) > MAX_BYTES {
        return None;
    }
    let (gold, found) = (unescaped(gold), unescaped(found));
    // A comma between digits separates thousands, or numbers, or stands before decimals: what a pair has in common
    // counts.
    let readings = [Commas::Thousands, Commas::Separators, Commas::Decimal];
    let of = |text: &str| -> Vec<Expr> {
        let num = if has_digit_comma(text) { readings.len() } else { 1 };
        let mut trees: Vec<Expr> = Vec::new();
        for commas in &readings[..num] {
            if let Some(tree) = parse(text, *commas).map(|tree| matrix::reduced(&tree))
                && !trees.contains(&tree)
            {
                trees.push(tree);
            }
        }
        trees
    };
    let (gold, found) = (spelled::digits(&gold).unwrap_or(gold), spelled::digits(&found).unwrap_or(found));
    let (golds, founds) = (of(&gold), of(&found));
    golds.iter().find_map(|gold| founds.iter().find_map(|found| trees(gold, found, rounding)))
}

/// What a text says without the dollars around formulas.
fn unmarked(text: &str) -> impl Iterator<Item = char> {
    text.trim_matches(['$', ' ']).chars().filter(|c| *c != '$')
}

/// Whether a short text says a label in words.
pub(crate) fn says(gold: &str, text: &str) -> bool {
    let words = text::normal(gold);
    let is_said = gold.starts_with("\\text{") || is_words(&words);
    if !is_said || words.is_empty() {
        return false;
    }
    let said = text::normal(text);
    // There may be no solution, or no solutions.
    let is_none = words.starts_with("no ") && said.starts_with("no ");
    words == said || is_none && words.trim_end_matches('s') == said.trim_end_matches('s')
}

/// Whether both name money, but not the same.
fn are_other_currencies(gold: &str, found: &str) -> bool {
    let of = |text: &str| {
        // A dollar without a backslash marks a formula.
        let sign = text.chars().find(|c| "€£¥₹".contains(*c));
        sign.or_else(|| text.contains("\\$").then_some('$'))
    };
    matches!((of(gold), of(found)), (Some(one), Some(other)) if one != other)
}

/// Whether words are words: formulas are compared as such, for `f(y)` is not `f y`.
fn is_words(words: &str) -> bool {
    words.chars().all(|c| c.is_alphabetic() || c.is_whitespace()) && words.chars().count() > 1
}

/// The text with single backslashes.
fn unescaped(text: &str) -> Cow<'_, str> {
    crate::math::escape::without_double_escapes(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Whether a comma stands directly between digits.
fn has_digit_comma(text: &str) -> bool {
    text.as_bytes()
        .windows(3)
        .any(|three| matches!(three, [a, b',', b] if a.is_ascii_digit() && b.is_ascii_digit()))
}

/// The rule by which two trees mean the same.
pub(crate) fn trees(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    if gold == found {
        return Some("the same expression");
    }
    let (gold, found) = (&collection::both_signs(gold), &collection::both_signs(found));
    if value::is_value(gold) && value::is_value(found) {
        return quantities(gold, found, rounding)
            .or_else(|| value::equal(gold, found, rounding))
            .or_else(|| value::equal(gold, &antiderivative::with_constant_of(gold, found)?, rounding));
    }
    if let (Some(gold), Some(found)) = (infinity(gold), infinity(found)) {
        return (gold == found).then_some(value::EXACT);
    }
    relation::definitions(gold, found, rounding)
        .or_else(|| kinds(gold, found, rounding))
        .or_else(|| sets(gold, found, rounding))
}

/// Trees by what they are.
fn kinds(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    match (gold, found) {
        (Expr::Relation(..), Expr::Relation(..)) => relation::equal(gold, found, rounding),
        (Expr::List(..), _) | (_, Expr::List(..)) => collection::equal(gold, found, rounding),
        (Expr::Matrix(gold), Expr::Matrix(found)) => {
            let is_same = gold.len() == found.len()
                && gold.iter().zip(found).all(|(gold, found)| {
                    gold.len() == found.len()
                        && gold.iter().zip(found).all(|(gold, found)| trees(gold, found, rounding).is_some())
                });
            is_same.then_some("equal matrices")
        }
        (Expr::Congruence(..), _) | (_, Expr::Congruence(..)) => modulo::equal(gold, found, rounding),
        (Expr::Quantity(..), _) | (_, Expr::Quantity(..)) => quantities(gold, found, rounding),
        (Expr::Ratio(_), _) | (_, Expr::Ratio(_)) => ratios(gold, found, rounding),
        (Expr::Based { digits: a, base }, Expr::Based { digits: b, base: other }) if base == other => {
            let value = |digits: &str| num_bigint::BigInt::parse_bytes(digits.as_bytes(), *base);
            (value(a).is_some() && value(a) == value(b)).then_some(value::EXACT)
        }
        (Expr::Text(gold), Expr::Text(found)) => {
            (text::normal(gold) == text::normal(found)).then_some("the same words")
        }
        (Expr::SetOperation(operation, gold), Expr::SetOperation(other, found)) if operation == other => {
            collection::is_matched(gold, found, rounding).then_some("equal parts of a set")
        }
        _ => None,
    }
}

/// Sets of reals in any form: intervals, unions, inequalities.
fn sets(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    let is_set = |expr: &Expr| {
        matches!(expr, Expr::SetOperation(..) | Expr::Relation(..) | Expr::NumberSet(_))
            || matches!(expr, Expr::List(brackets, _) if *brackets != Brackets::Bare && *brackets != Brackets::Angle)
    };
    let of = |expr: &Expr| match expr {
        // `x < 1 or x > 3`
        Expr::List(Brackets::Bare, items) if items.iter().all(is_set) => RealSet::of_conditions(items),
        other if is_set(other) => RealSet::of(other),
        _ => None,
    };
    // Two plain lists are no sets of reals: their brackets were compared.
    if matches!((gold, found), (Expr::List(..), Expr::List(..)))
        && collection::is_plain(gold)
        && collection::is_plain(found)
    {
        return None;
    }
    of(gold)?.is_same(&of(found)?, rounding).then_some("the same set of numbers")
}

/// Values with units: converted where both are known, ignored where one is left out.
fn quantities(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    let same = |gold: &Expr, found: &Expr| trees(gold, found, rounding);
    match (gold, found) {
        (Expr::Quantity(a, first), Expr::Quantity(b, second)) => match (&first.known, &second.known) {
            (Some((dimension, _)), Some((other, _))) if dimension != other => None,
            (Some(_), Some(_)) if first != second => {
                let is_same = value::is_value(a)
                    && value::is_value(b)
                    && value::equal(&in_units(a, first), &in_units(b, second), rounding).is_some();
                is_same.then_some("equal after conversion of units")
            }
            _ => same(a, b),
        },
        (Expr::Quantity(_, unit), other) if with_unit(other, unit).is_some() => {
            same(gold, &with_unit(other, unit)?)
        }
        (other, Expr::Quantity(_, unit)) if with_unit(other, unit).is_some() => {
            same(&with_unit(other, unit)?, found)
        }
        (Expr::Quantity(value, unit), other) => {
            same(value, other).map(|_| "equal without the unit").or_else(|| same(&plain(value, unit)?, other))
        }
        (other, Expr::Quantity(value, unit)) => {
            same(other, value).map(|_| "equal without the unit").or_else(|| same(other, &plain(value, unit)?))
        }
        _ => None,
    }
}

/// A product with letters, as `1 m`, `5 m^2` or `5 m/s`, where these are a unit of the dimension that the other side has.
fn with_unit(expr: &Expr, other: &Unit) -> Option<Expr> {
    let Expr::Product(factors) = expr else { return None };
    let (value, letters) = factors.split_first()?;
    let unit = match letters {
        [Expr::Symbol(letter)] => Unit::named(letter),
        [Expr::Power(base, exponent)] => match (base.as_ref(), exponent.as_ref()) {
            (Expr::Symbol(letter), Expr::Number { value, .. }) => {
                Unit::named(letter).power(rational::small(value)?)
            }
            _ => return None,
        },
        [Expr::Symbol(above), Expr::Power(below, exponent)] if **exponent == Expr::whole(-1) => {
            let Expr::Symbol(below) = below.as_ref() else { return None };
            Unit::named(&format!("{above}/{below}"))
        }
        _ => return None,
    };
    let is_alike = unit.known.as_ref()?.0 == other.known.as_ref()?.0;
    (is_alike && matches!(value, Expr::Number { .. })).then(|| Expr::Quantity(Box::new(value.clone()), unit))
}

/// The value in the unit that its dimension is measured in.
fn in_units(value: &Expr, unit: &Unit) -> Expr {
    let size = unit.known.as_ref().map_or_else(|| rational::whole(1), |(_, size)| size.clone());
    Expr::Product(vec![value.clone(), Expr::Number { value: size, is_decimal: false }])
}

/// A percentage as a share, an angle in radians: what the value is without its unit.
fn plain(value: &Expr, unit: &Unit) -> Option<Expr> {
    let (dimension, _) = unit.known.as_ref()?;
    match dimension {
        Dimension::Percent => Some(in_units(value, unit)),
        Dimension::Angle => Some(Expr::Product(vec![
            in_units(value, unit),
            Expr::Constant(crate::math::tree::Constant::Pi),
            Expr::Number { value: rational::whole(1) / rational::whole(180), is_decimal: false },
        ])),
        _ => None,
    }
}

/// Ratios are equal when their parts are proportional; one of two parts is its quotient.
fn ratios(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    let quotient = |parts: &[Expr]| match parts {
        [above, below] => Some(Expr::quotient(above.clone(), below.clone())),
        _ => None,
    };
    match (gold, found) {
        (Expr::Ratio(gold), Expr::Ratio(found)) => {
            let all = |parts: &[Expr]| parts.iter().all(value::is_value);
            if gold.len() != found.len() || !all(gold) || !all(found) {
                return None;
            }
            let zero = Expr::whole(0);
            if gold.iter().chain(found).any(|part| value::equal(part, &zero, rounding).is_some()) {
                return None;
            }
            let (first, other) = (gold.first()?, found.first()?);
            let is_same = gold.iter().zip(found).skip(1).all(|(a, b)| {
                let cross = |left: &Expr, right: &Expr| Expr::Product(vec![left.clone(), right.clone()]);
                value::equal(&cross(a, other), &cross(b, first), rounding).is_some()
            });
            is_same.then_some("equal ratios")
        }
        (Expr::Ratio(parts), other) if value::is_value(other) => {
            value::equal(&quotient(parts)?, other, rounding)
        }
        (other, Expr::Ratio(parts)) if value::is_value(other) => {
            value::equal(other, &quotient(parts)?, rounding)
        }
        _ => None,
    }
}
