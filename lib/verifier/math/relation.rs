//! Equations and inequalities: which say the same, and which only name a value.

use num_traits::{Signed, Zero};

use crate::math::collection;
use crate::math::equal::trees;
use crate::math::normal;
use crate::math::tree::{Brackets, Expr, Function, Relation};
use crate::math::value::{self, Rounding};

/// What a relation gives a value to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Definition<'a> {
    /// The name; a computation such as `6 \cdot 7 = 42` has none.
    pub(crate) name: Option<&'a Expr>,
    pub(crate) value: &'a Expr,
}

/// The definition that a tree is: `x = 5`, `f(x) = x^2`, `\frac{NO}{BO} = 2`, `x \in S`, `3 = s`, `1 + 1 = 2`; of a
/// chain the last exact value.
pub(crate) fn definition(expr: &Expr) -> Option<Definition<'_>> {
    let Expr::Relation(items, relations) = expr else { return None };
    let first = items.first()?;
    if relations[..] == [Relation::In] {
        return is_name(first).then_some(Definition { name: Some(first), value: items.get(1)? });
    }
    if relations.iter().any(|relation| !matches!(relation, Relation::Equal | Relation::Near)) {
        return None;
    }
    // What is only near the value comes after it.
    let num_exact = relations.iter().take_while(|relation| **relation == Relation::Equal).count();
    let value = items.get(num_exact.max(1))?;
    if is_name(first) {
        return Some(Definition { name: Some(first), value });
    }
    if items.iter().all(|item| collection::is_single(item) && item.symbols().is_empty()) {
        return Some(Definition { name: None, value: items.get(num_exact)? });
    }
    (items.len() == 2 && is_name(value)).then_some(Definition { name: Some(value), value: first })
}

/// Whether the tree names something rather than computing it: a variable, a function of one, a length, a ratio of
/// such, a tuple of variables. Sums, numbers and products of plain variables are equations between quantities.
fn is_name(expr: &Expr) -> bool {
    let is_letters = |expr: &Expr| match expr {
        Expr::Symbol(name) => name.starts_with(|c: char| c.is_uppercase()),
        _ => false,
    };
    match expr {
        Expr::Symbol(_) | Expr::Text(_) => true,
        Expr::Apply(_, arguments) => arguments.iter().all(collection::is_single),
        Expr::List(Brackets::Paren | Brackets::Bare, items) => {
            items.iter().all(|item| matches!(item, Expr::Symbol(_)))
        }
        Expr::Ratio(items)
        | Expr::Call(
            Function::Abs | Function::Sin | Function::Cos | Function::Tan | Function::Max | Function::Min,
            items,
        ) => items.iter().all(is_name),
        // The inverse of a function.
        Expr::Product(factors) if is_inverse(factors) => true,
        // AB, and NO / BO.
        Expr::Product(factors) => factors.iter().all(|factor| match factor {
            Expr::Power(base, exponent) => **exponent == Expr::whole(-1) && is_name(base),
            Expr::Product(_) => is_name(factor),
            other => is_letters(other),
        }),
        // The inverse or transpose of a matrix.
        Expr::Power(base, exponent) => {
            is_letters(base) && (**exponent == Expr::whole(-1) || is_letters(exponent))
        }
        Expr::Quantity(value, _) => is_name(value),
        _ => false,
    }
}

/// Whether factors are `f^{-1}(x)`.
fn is_inverse(factors: &[Expr]) -> bool {
    let [Expr::Power(base, exponent), arguments @ ..] = factors else { return false };
    matches!(base.as_ref(), Expr::Symbol(name) if matches!(name.as_str(), "f" | "g" | "h"))
        && **exponent == Expr::whole(-1)
        && !arguments.is_empty()
        && arguments.iter().all(|argument| matches!(argument, Expr::Symbol(_)))
}

/// The rule by which a definition equals another one, or its bare value.
pub(crate) fn definitions(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    // An equation between quantities is more than a value, but an interval may be the solution of an inequality.
    let is_bare = |expr: &Expr, value: &Expr| !matches!(expr, Expr::Relation(..)) || !value::is_value(value);
    match (definition(gold), definition(found)) {
        (Some(left), Some(right)) => {
            let is_same_name = match (left.name, right.name) {
                (Some(a), Some(b)) => {
                    a == b
                        || value::is_value(a) && value::is_value(b) && value::equal(a, b, rounding).is_some()
                }
                _ => true,
            };
            if is_same_name { trees(left.value, right.value, rounding) } else { None }
        }
        (Some(left), None) if is_bare(found, left.value) => each_definition(left)
            .and_then(|each| trees(&each, found, rounding))
            .or_else(|| trees(left.value, found, rounding)),
        (None, Some(right)) if is_bare(gold, right.value) => each_definition(right)
            .and_then(|each| trees(gold, &each, rounding))
            .or_else(|| trees(gold, right.value, rounding)),
        _ => None,
    }
}

/// `(p, q) = (3, 2)` as `p = 3, q = 2`.
fn each_definition(definition: Definition<'_>) -> Option<Expr> {
    let (Some(Expr::List(_, names)), Expr::List(_, values)) = (definition.name, definition.value) else {
        return None;
    };
    let each = |(name, value): (&Expr, &Expr)| {
        Expr::Relation(vec![name.clone(), value.clone()], vec![Relation::Equal])
    };
    (names.len() == values.len())
        .then(|| Expr::List(Brackets::Bare, names.iter().zip(values).map(each).collect()))
}

/// The last line of a solution, `x = 5`, where the lines before it are equations of the same variable that it solves.
pub(crate) fn solved(lines: &[Expr], rounding: Rounding) -> Option<&Expr> {
    let (last, before) = lines.split_last()?;
    let definition = definition(last)?;
    let name = definition.name.filter(|name| matches!(name, Expr::Symbol(_)))?;
    if before.is_empty() || !value::is_value(definition.value) || !definition.value.symbols().is_empty() {
        return None;
    }
    let at_value =
        |side: &Expr| side.map(&|part| if part == *name { definition.value.clone() } else { part });
    let is_solved = |line: &Expr| {
        let Expr::Relation(sides, relations) = line else { return false };
        let sides: Vec<Expr> = sides.iter().map(at_value).collect();
        line.symbols().len() == 1
            && line.any(&|part| part == name)
            && relations.iter().all(|relation| *relation == Relation::Equal)
            && sides.iter().all(value::is_value)
            && sides.windows(2).all(|pair| value::equal(&pair[0], &pair[1], rounding).is_some())
    };
    before.iter().all(is_solved).then_some(last)
}

/// The rule by which two relations say the same.
pub(crate) fn equal(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    let (Expr::Relation(a, first), Expr::Relation(b, second)) = (gold, found) else { return None };
    let (gold, found) = (collection::links(a, first), collection::links(b, second));
    if gold.len() != found.len() {
        return None;
    }
    let mut rest: Vec<_> = found.iter().collect();
    let is_same = gold.iter().all(|gold| {
        let at = rest.iter().position(|found| is_same_link(gold, found, rounding));
        at.map(|at| rest.remove(at)).is_some()
    });
    is_same.then_some("equal relations")
}

/// Two binary relations: equal sides, or sides whose differences are proportional.
fn is_same_link(gold: &(Expr, Relation, Expr), found: &(Expr, Relation, Expr), rounding: Rounding) -> bool {
    let same = |gold: &Expr, found: &Expr| trees(gold, found, rounding).is_some();
    let (left, relation, right) = gold;
    let exact = |relation: Relation| if relation == Relation::Near { Relation::Equal } else { relation };
    let relation = exact(*relation);
    let other = exact(found.1);
    if relation == other && same(left, &found.0) && same(right, &found.2)
        || relation == other.turned()
            && relation != Relation::In
            && same(left, &found.2)
            && same(right, &found.0)
    {
        return true;
    }
    if !value::is_value(left)
        || !value::is_value(right)
        || !value::is_value(&found.0)
        || !value::is_value(&found.2)
    {
        return false;
    }
    let Some(factor) = normal::proportion((left, right), (&found.0, &found.2)) else { return false };
    if factor.is_zero() {
        return false;
    }
    match relation {
        Relation::Equal | Relation::NotEqual => relation == other,
        Relation::In | Relation::Near | Relation::Congruent => false,
        _ => relation == if factor.is_negative() { other.turned() } else { other },
    }
}
