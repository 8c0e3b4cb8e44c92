//! Lists, tuples and sets: which may be compared, and whether their order counts.

use crate::math::equal::trees;
use crate::math::relation;
use crate::math::tree::{Brackets, Expr, Relation};
use crate::math::value::{self, Rounding};

/// Longer lists are not matched without order.
const MAX_ITEMS: usize = 64;
/// Expressions with more of the signs plus-minus are not split.
const MAX_SIGNS: usize = 4;

/// A tree with `\pm` as the list of both its values.
pub(crate) fn both_signs(expr: &Expr) -> Expr {
    let is_sign = |part: &Expr| matches!(part, Expr::PlusMinus { .. });
    if !expr.any(&is_sign) {
        return expr.clone();
    }
    match expr {
        Expr::List(brackets, items) if matches!(brackets, Brackets::Bare | Brackets::Brace) => {
            let mut all = Vec::new();
            for item in items {
                match both_signs(item) {
                    Expr::List(Brackets::Bare, both) => all.extend(both),
                    one => all.push(one),
                }
            }
            Expr::List(*brackets, all)
        }
        _ if signs(expr) <= MAX_SIGNS => {
            Expr::List(Brackets::Bare, vec![with_sign(expr, true), with_sign(expr, false)])
        }
        _ => expr.clone(),
    }
}

fn signs(expr: &Expr) -> usize {
    usize::from(matches!(expr, Expr::PlusMinus { .. }))
        + expr.children().into_iter().map(signs).sum::<usize>()
}

/// The tree with all upper signs, or all lower ones.
fn with_sign(expr: &Expr, is_upper: bool) -> Expr {
    expr.map(&|part| match part {
        Expr::PlusMinus { is_upper_plus, operand } => {
            if is_upper_plus == is_upper {
                *operand
            } else {
                operand.negative()
            }
        }
        other => other,
    })
}

/// Whether a list holds values, points or words, so that its brackets mean a list.
pub(crate) fn is_plain(expr: &Expr) -> bool {
    matches!(expr, Expr::List(_, items) if !items.iter().any(|item| matches!(item, Expr::Relation(..) | Expr::SetOperation(..))))
}

/// The rule by which two things are equal of which at least one is a list.
pub(crate) fn equal(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    match (gold, found) {
        (Expr::List(first, gold), Expr::List(second, found)) => {
            use Brackets::{Angle, Bare, Brace, Paren, Square};
            let (gold, found) = (&named(gold, found), &named(found, gold));
            match (first, second) {
                (Bare | Brace, Bare | Brace) => {
                    let (gold, found) = (distinct(gold, rounding), distinct(found, rounding));
                    is_matched(&gold, &found, rounding).then_some("equal elements in any order")
                }
                (a, b) if a == b => in_order(gold, found, rounding),
                // An interval is not a tuple, but of three numbers there is no interval.
                (Paren | Square | Angle, Paren | Square | Angle)
                    if gold.len() > 2 || !matches!((first, second), (Paren, Square) | (Square, Paren)) =>
                {
                    in_order(gold, found, rounding)
                }
                (Bare, Paren | Angle | Square) | (Paren | Angle | Square, Bare) => {
                    in_order(gold, found, rounding)
                }
                _ => None,
            }
        }
        // Programs write a matrix as a list of its rows, and a vector in square brackets.
        (Expr::Matrix(own), Expr::List(Brackets::Square, items)) => {
            let entries = |row: &Expr| match row {
                Expr::List(Brackets::Square | Brackets::Paren, entries) => Some(entries.clone()),
                _ => None,
            };
            match items.iter().map(entries).collect::<Option<Vec<_>>>() {
                Some(rows) => trees(gold, &Expr::Matrix(rows), rounding),
                None => in_order(&vector(own)?, items, rounding),
            }
        }
        // A vector may be written as a tuple.
        (Expr::Matrix(rows), Expr::List(Brackets::Paren | Brackets::Angle, items)) => {
            in_order(&vector(rows)?, items, rounding)
        }
        (Expr::List(Brackets::Paren | Brackets::Angle, items), Expr::Matrix(rows)) => {
            in_order(items, &vector(rows)?, rounding)
        }
        // A set of one element is not far from its element; of repetitions one counts.
        (Expr::List(Brackets::Brace | Brackets::Bare, items), other) => {
            match &distinct(items, rounding)[..] {
                [item] => trees(item, other, rounding),
                _ => None,
            }
        }
        (other, Expr::List(Brackets::Brace | Brackets::Bare, items)) => {
            match &distinct(items, rounding)[..] {
                [item] => trees(other, item, rounding),
                _ => None,
            }
            .or_else(|| trees(other, relation::solved(items, rounding)?, rounding))
        }
        _ => None,
    }
}

/// The items without their names, where the other side has none: `x_1 = 2, x_2 = 3` and `2, 3`; a name before the
/// first of several values is that of all.
fn named(items: &[Expr], others: &[Expr]) -> Vec<Expr> {
    let is_relation = |item: &Expr| matches!(item, Expr::Relation(..));
    let values = || {
        items
            .iter()
            .map(|item| crate::math::relation::definition(item).map_or(item, |definition| definition.value))
    };
    let num = items.iter().filter(|item| is_relation(item)).count();
    let is_shared = num == 1 && items.len() > 1 && items.first().is_some_and(is_relation);
    if is_shared || num > 0 && !others.iter().any(is_relation) {
        return values().cloned().collect();
    }
    items.to_vec()
}

fn vector(rows: &[Vec<Expr>]) -> Option<Vec<Expr>> {
    match rows {
        [row] => Some(row.clone()),
        _ => rows.iter().map(|row| if row.len() == 1 { row.first().cloned() } else { None }).collect(),
    }
}

fn in_order(gold: &[Expr], found: &[Expr], rounding: Rounding) -> Option<&'static str> {
    let is_same = gold.len() == found.len()
        && gold.iter().zip(found).all(|(gold, found)| trees(gold, found, rounding).is_some());
    is_same.then_some("equal elements in order")
}

/// The items without repetitions.
fn distinct(items: &[Expr], rounding: Rounding) -> Vec<Expr> {
    let mut kept: Vec<Expr> = Vec::new();
    for item in items.iter().take(MAX_ITEMS + 1) {
        if !kept.iter().any(|other| trees(item, other, rounding).is_some()) {
            kept.push(item.clone());
        }
    }
    kept
}

/// Whether the items of both sides can be paired.
pub(crate) fn is_matched(gold: &[Expr], found: &[Expr], rounding: Rounding) -> bool {
    if gold.len() != found.len() || gold.len() > MAX_ITEMS {
        return false;
    }
    // Items of one side that differ from each other cannot share a partner, so the first partner is as good as any.
    let mut rest: Vec<&Expr> = found.iter().collect();
    gold.iter().all(|gold| {
        let at = rest.iter().position(|found| trees(gold, found, rounding).is_some());
        at.map(|at| rest.remove(at)).is_some()
    })
}

/// Binary relations of a chain: `a < b < c` is `a < b` and `b < c`.
pub(crate) fn links(items: &[Expr], relations: &[Relation]) -> Vec<(Expr, Relation, Expr)> {
    items
        .windows(2)
        .zip(relations)
        .filter_map(|(pair, relation)| match pair {
            [left, right] => Some((left.clone(), *relation, right.clone())),
            _ => None,
        })
        .collect()
}

/// Whether the tree is a single value or a name.
pub(crate) fn is_single(expr: &Expr) -> bool {
    value::is_value(expr) || matches!(expr, Expr::Text(_) | Expr::Quantity(..))
}
