//! Inequalities in one variable as sets: absolute values and quadratic polynomials against a bound.

use num_traits::{Signed, Zero};

use crate::math::normal;
use crate::math::rational::whole;
use crate::math::tree::{Brackets, Expr, Function, Relation, SetOperation};

/// The set of reals where the relation holds, in terms of simpler sets and relations.
pub(crate) fn solved(left: &Expr, right: &Expr, relation: Relation, name: &str) -> Option<Expr> {
    match (left, right) {
        (Expr::Call(Function::Abs, inner), bound) if bound.symbols().is_empty() => {
            within(inner.first()?, bound, relation)
        }
        (bound, Expr::Call(Function::Abs, inner)) if bound.symbols().is_empty() => {
            within(inner.first()?, bound, relation.turned())
        }
        _ => quadratic(left, right, relation, name),
    }
}

/// `|f| < c` is `-c < f < c`, `|f| > c` is `f < -c` or `f > c`.
fn within(inner: &Expr, bound: &Expr, relation: Relation) -> Option<Expr> {
    let minus = bound.clone().negative();
    Some(match relation {
        Relation::Less | Relation::LessEqual => {
            Expr::Relation(vec![minus, inner.clone(), bound.clone()], vec![relation; 2])
        }
        Relation::Greater | Relation::GreaterEqual => {
            let below = Expr::Relation(vec![inner.clone(), minus], vec![relation.turned()]);
            let above = Expr::Relation(vec![inner.clone(), bound.clone()], vec![relation]);
            Expr::SetOperation(SetOperation::Union, vec![below, above])
        }
        _ => return None,
    })
}

/// Where a quadratic polynomial is below or above zero: between its roots, or outside.
fn quadratic(left: &Expr, right: &Expr, relation: Relation, name: &str) -> Option<Expr> {
    let [c, b, a] = normal::quadratic(left, right, name)?;
    if a.is_zero() {
        return None;
    }
    let relation = if a.is_negative() { relation.turned() } else { relation };
    let (is_below, has_ends) = match relation {
        Relation::Less => (true, false),
        Relation::LessEqual => (true, true),
        Relation::Greater => (false, false),
        Relation::GreaterEqual => (false, true),
        _ => return None,
    };
    let number = |value| Expr::Number { value, is_decimal: false };
    let discriminant = &b * &b - whole(4) * &a * &c;
    if discriminant.is_negative() {
        let none = Expr::List(Brackets::Brace, Vec::new());
        return Some(if is_below { none } else { Expr::NumberSet('R') });
    }
    // (-b -+ sqrt(D)) / 2|a|, the smaller root first.
    let size = whole(2) * a.abs();
    let middle = if a.is_negative() { b } else { -b } / &size;
    let half = Expr::Product(vec![
        number(size.recip()),
        Expr::Call(Function::Root, vec![number(discriminant), Expr::whole(2)]),
    ]);
    let lower = Expr::Sum(vec![number(middle.clone()), half.clone().negative()]);
    let upper = Expr::Sum(vec![number(middle), half]);
    let between = |brackets| Expr::List(brackets, vec![lower.clone(), upper.clone()]);
    Some(if is_below {
        between(if has_ends { Brackets::Square } else { Brackets::Paren })
    } else {
        let inside = between(if has_ends { Brackets::Paren } else { Brackets::Square });
        Expr::SetOperation(SetOperation::Difference, vec![Expr::NumberSet('R'), inside])
    })
}
