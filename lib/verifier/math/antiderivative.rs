//! Antiderivatives: their constant has any name.

use crate::math::tree::Expr;

/// Names of a constant of integration in labels: a small letter may be a number of the question.
const GOLD: &[&str] = &["C", "C_1"];
/// Names of one in answers.
const FOUND: &[&str] = &["C", "c", "K", "k", "C_1", "c_1"];

/// The answer with the constant of the label, where both are antiderivatives: functions of one variable and a constant
/// that stands in no other term.
pub(crate) fn with_constant_of(gold: &Expr, found: &Expr) -> Option<Expr> {
    let (own, other) = (constant(gold, GOLD)?, constant(found, FOUND)?);
    let replaced = |part: Expr| if part == *other { own.clone() } else { part };
    (own != other).then(|| found.map(&replaced))
}

/// The constant of an antiderivative, under one of the names.
fn constant<'a>(expr: &'a Expr, names: &[&str]) -> Option<&'a Expr> {
    let Expr::Sum(terms) = expr else { return None };
    let is_constant = |term: &Expr| matches!(term, Expr::Symbol(name) if names.contains(&name.as_str()));
    let at = terms.iter().rposition(is_constant)?;
    let symbols = expr.symbols();
    // The variable and the constant, which no other term has.
    let constant = terms.get(at)?;
    let is_alone =
        terms.iter().enumerate().all(|(other, term)| other == at || !term.any(&|part| part == constant));
    (symbols.len() == 2 && is_alone).then_some(constant)
}
