//! Cells in rows: matrices, determinants, systems of equations.

use crate::math::parse::Parser;
use crate::math::token::{Kind, Table};
use crate::math::tree::{Brackets, Expr};

/// Larger determinants are not written out.
const MAX_SIDE: usize = 4;

impl Parser {
    /// What stands between the begin of a table and its end.
    pub(super) fn table(&mut self, table: Table) -> Option<Expr> {
        let rows = self.rows()?;
        match table {
            Table::Determinant => determinant(&rows),
            // Equations below one another are a list of them.
            Table::Cases if rows.iter().all(|row| row.len() == 1) => {
                let mut items: Vec<Expr> = rows.into_iter().flatten().collect();
                if items.len() == 1 { items.pop() } else { Some(Expr::List(Brackets::Bare, items)) }
            }
            Table::Matrix | Table::Cases => Some(Expr::Matrix(rows)),
        }
    }

    /// Rows of the same length.
    fn rows(&mut self) -> Option<Vec<Vec<Expr>>> {
        let mut rows = vec![Vec::new()];
        loop {
            match self.peek()? {
                Kind::EndTable => {
                    self.take();
                    break;
                }
                Kind::Row => {
                    self.take();
                    rows.push(Vec::new());
                }
                Kind::Cell => {
                    self.take();
                    if rows.last().is_some_and(Vec::is_empty) {
                        return None;
                    }
                }
                _ => {
                    let entry = self.relation()?;
                    // Punctuation at the end of a row belongs to the sentence.
                    if matches!(self.peek(), Some(Kind::Comma | Kind::Semicolon))
                        && matches!(self.peek_at(1), Some(Kind::Row | Kind::EndTable))
                    {
                        self.take();
                    }
                    if !matches!(self.peek(), Some(Kind::Cell | Kind::Row | Kind::EndTable)) {
                        return None;
                    }
                    rows.last_mut()?.push(entry);
                }
            }
        }
        rows.retain(|row| !row.is_empty());
        let width = rows.first()?.len();
        rows.iter().all(|row| row.len() == width).then_some(rows)
    }
}

/// The determinant, expanded along its first row; nothing where there are more columns than rows, or too many.
fn determinant(rows: &[Vec<Expr>]) -> Option<Expr> {
    let (first, below) = rows.split_first()?;
    if first.len() != rows.len() || rows.len() > MAX_SIDE {
        return None;
    }
    if below.is_empty() {
        return first.first().cloned();
    }
    let term = |(column, entry): (usize, &Expr)| {
        let without = |row: &Vec<Expr>| {
            let kept = row.iter().enumerate().filter(|(at, _)| *at != column);
            kept.map(|(_, entry)| entry.clone()).collect()
        };
        let minor: Vec<Vec<Expr>> = below.iter().map(without).collect();
        let product = Expr::Product(vec![entry.clone(), determinant(&minor)?]);
        Some(if column % 2 == 0 { product } else { product.negative() })
    };
    first.iter().enumerate().map(term).collect::<Option<_>>().map(Expr::Sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::normal::rational_value;
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    #[test]
    fn determinants_are_worked_out() {
        for (text, expected) in [
            (r"\begin{vmatrix}7\end{vmatrix}", 7),
            (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", -2),
            (r"\begin{vmatrix}2&0&1\\1&3&2\\1&1&4\end{vmatrix}", 18),
        ] {
            let value = rational_value(&parse(text, Commas::Thousands).unwrap()).unwrap();
            assert_eq!(value, crate::math::rational::whole(expected), "{text}");
        }
        assert_eq!(parse(r"\begin{vmatrix}1&2\end{vmatrix}", Commas::Thousands), None);
    }

    #[test]
    fn equations_below_one_another_are_a_list() {
        let tree = |text| parse(text, Commas::Thousands).unwrap();
        assert_eq!(tree(r"\begin{cases}x=1\\y=2\end{cases}"), tree("x=1, y=2"));
        assert_eq!(tree(r"\begin{cases}x=3\end{cases}"), tree("x=3"));
        assert!(matches!(tree(r"\begin{cases}x&x>0\\0&x<0\end{cases}"), Expr::Matrix(_)));
    }
}
