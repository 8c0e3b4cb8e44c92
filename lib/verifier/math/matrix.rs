//! Sums, products and powers of matrices as written.

use crate::math::rational::small;
use crate::math::tree::Expr;

/// Larger matrices are not multiplied.
const MAX_SIDE: usize = 12;
/// Larger powers are not multiplied.
const MAX_POWER: i64 = 16;

/// Rows of entries of the same length.
type Rows = Vec<Vec<Expr>>;

/// The tree with its arithmetic of matrices done.
pub(crate) fn reduced(expr: &Expr) -> Expr {
    if !expr.any(&|part| matches!(part, Expr::Matrix(_))) {
        return expr.clone();
    }
    rows(expr).map_or_else(|| expr.clone(), Expr::Matrix)
}

fn rows(expr: &Expr) -> Option<Rows> {
    match expr {
        Expr::Matrix(rows) => Some(rows.clone()),
        Expr::Sum(terms) => {
            let mut terms = terms.iter().map(rows);
            let first = terms.next()??;
            terms.try_fold(first, |sum, term| add(&sum, &term?))
        }
        Expr::Product(factors) => {
            let mut product: Option<Rows> = None;
            let mut scalars = Vec::new();
            for factor in factors {
                let Some(right) = rows(factor) else {
                    scalars.push(factor.clone());
                    continue;
                };
                product = Some(match product {
                    Some(left) => multiply(&left, &right)?,
                    None => right,
                });
            }
            let scale = |entry: Expr| {
                let mut factors = scalars.clone();
                factors.push(entry);
                if factors.len() == 1 { factors.remove(0) } else { Expr::Product(factors) }
            };
            Some(product?.into_iter().map(|row| row.into_iter().map(scale).collect()).collect())
        }
        Expr::Power(base, exponent) => {
            let Expr::Number { value, .. } = exponent.as_ref() else { return None };
            let exponent = small(value).filter(|exponent| (1..=MAX_POWER).contains(exponent))?;
            let base = rows(base)?;
            // Entries are trees: they double with every factor, so only small powers stay small.
            (1..exponent).try_fold(base.clone(), |power, _| Some(evaluated(multiply(&power, &base)?)))
        }
        _ => None,
    }
}

/// Entries that are numbers as numbers.
fn evaluated(rows: Rows) -> Rows {
    let number = |entry: Expr| match crate::math::normal::rational_value(&entry) {
        Some(value) => Expr::Number { value, is_decimal: false },
        None => entry,
    };
    rows.into_iter().map(|row| row.into_iter().map(number).collect()).collect()
}

fn add(left: &Rows, right: &Rows) -> Option<Rows> {
    let is_same = left.len() == right.len() && left.first()?.len() == right.first()?.len();
    is_same.then(|| {
        let sum = |(a, b): (&Expr, &Expr)| Expr::Sum(vec![a.clone(), b.clone()]);
        left.iter().zip(right).map(|(a, b)| a.iter().zip(b).map(sum).collect()).collect()
    })
}

fn multiply(left: &Rows, right: &Rows) -> Option<Rows> {
    let (inner, width) = (right.len(), right.first()?.len());
    if left.first()?.len() != inner || left.len().max(inner).max(width) > MAX_SIDE {
        return None;
    }
    // Products of formulas would grow without bound.
    let is_small = |rows: &Rows| rows.iter().flatten().all(|entry| size(entry) <= 64);
    if !is_small(left) || !is_small(right) {
        return None;
    }
    let entry = |row: &Vec<Expr>, column: usize| {
        let terms = row
            .iter()
            .zip(right)
            .filter_map(|(a, b)| Some(Expr::Product(vec![a.clone(), b.get(column)?.clone()])));
        Expr::Sum(terms.collect())
    };
    let product = left.iter().map(|row| (0..width).map(|column| entry(row, column)).collect()).collect();
    Some(evaluated(product))
}

fn size(expr: &Expr) -> usize {
    1 + expr.children().into_iter().map(size).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    fn entries(text: &str) -> Vec<String> {
        let Expr::Matrix(rows) = reduced(&parse(text, Commas::Thousands).unwrap()) else { panic!("{text}") };
        let value = |entry: &Expr| crate::math::normal::rational_value(entry).unwrap().to_string();
        rows.iter().flatten().map(value).collect()
    }

    #[test]
    fn arithmetic_is_done() {
        let (a, b) =
            (r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}", r"\begin{bmatrix}0 & 1\\1 & 0\end{bmatrix}");
        assert_eq!(entries(&format!("{a}+{b}")), ["1", "3", "4", "4"]);
        assert_eq!(entries(&format!("{a}{b}")), ["2", "1", "4", "3"]);
        assert_eq!(entries(&format!("2{a}")), ["2", "4", "6", "8"]);
        assert_eq!(entries(&format!(r"{a}^2")), ["7", "10", "15", "22"]);
    }
}
