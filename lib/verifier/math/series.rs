//! Sums and products over a whole number between two known ones, written out: `\sum_{k=1}^{10} k^2`.

use crate::math::parse::Parser;
use crate::math::rational::small;
use crate::math::token::{Bracket, Kind};
use crate::math::tree::{Constant, Expr, Relation};

/// Written out, a series has at most so many parts.
const MAX_PARTS: usize = 4096;

/// What is done with the terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Series {
    /// They are added.
    Sum,
    /// They are multiplied.
    Product,
}

impl Parser {
    /// What stands behind the sign: the index with its bounds, then the factors of one term. Nothing where a bound is no
    /// whole number, or the index may hide in a name.
    pub(super) fn series(&mut self, series: Series) -> Option<Expr> {
        self.eat(&Kind::Underscore)?;
        self.eat(&Kind::Open(Bracket::Group))?;
        let index = match self.take()? {
            Kind::Symbol(name) => Expr::Symbol(name),
            Kind::Constant(Constant::I) => Expr::Constant(Constant::I),
            _ => return None,
        };
        self.eat(&Kind::Relation(Relation::Equal))?;
        let first = self.bound()?;
        self.eat(&Kind::Close(Bracket::Group))?;
        self.eat(&Kind::Caret)?;
        let is_group = self.eat(&Kind::Open(Bracket::Group)).is_some();
        let last = self.bound()?;
        if is_group {
            self.eat(&Kind::Close(Bracket::Group))?;
        }
        let term = self.product()?;
        let num = usize::try_from(last.checked_sub(first)?).ok()?.checked_add(1)?;
        if term.any(&|part| hides(part, &index)) || num.checked_mul(num_parts(&term))? > MAX_PARTS {
            return None;
        }
        let at = |value: i64| term.map(&|part| if part == index { Expr::whole(value) } else { part });
        let terms = (first..=last).map(at).collect();
        Some(match series {
            Series::Sum => Expr::Sum(terms),
            Series::Product => Expr::Product(terms),
        })
    }

    fn bound(&mut self) -> Option<i64> {
        let is_negative = self.eat(&Kind::Minus).is_some();
        let Kind::Number { value, is_decimal: false, .. } = self.take()? else { return None };
        let size = small(&value)?;
        Some(if is_negative { -size } else { size })
    }
}

/// Whether a part changes with the index in another way than by its value: `a_k`, or both signs at once.
pub(super) fn hides(part: &Expr, index: &Expr) -> bool {
    let letter = if let Expr::Symbol(name) = index { name.as_str() } else { "i" };
    match part {
        Expr::Symbol(name) | Expr::Apply(name, _) => {
            name.split_once('_').is_some_and(|(_, below)| below.contains(letter))
        }
        Expr::PlusMinus { .. } | Expr::Text(_) => true,
        _ => false,
    }
}

fn num_parts(expr: &Expr) -> usize {
    1 + expr.children().into_iter().map(num_parts).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    #[test]
    fn series_are_written_out() {
        let tree = |text| parse(text, Commas::Thousands);
        assert_eq!(tree(r"\sum_{k=-1}^{2} k"), Some(Expr::Sum((-1..=2).map(Expr::whole).collect())));
        assert_eq!(tree(r"\prod_{i=2}^4 i"), Some(Expr::Product((2..=4).map(Expr::whole).collect())));
        for text in [
            r"\sum_{k=1}^{n} k",
            r"\sum_{k=1}^{\infty} 2^{-k}",
            r"\sum_{k=3}^{1} k",
            r"\sum_{k=1}^{3} a_k",
            r"\sum_{k=1}^{3} (\pm k)",
            r"\sum_{k=1}^{99999} k",
            r"\sum_{k=1}^{60}\sum_{j=1}^{60} jk",
            r"\sum k",
        ] {
            assert_eq!(tree(text), None, "{text}");
        }
    }
}
