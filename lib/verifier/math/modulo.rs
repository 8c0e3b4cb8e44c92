//! Remainders (`9 \bmod 7`) and congruences (`x \equiv 3 \pmod 7`).

use crate::math::equal::trees;
use crate::math::normal;
use crate::math::parse::Parser;
use crate::math::rational;
use crate::math::token::{Bracket, Kind};
use crate::math::tree::{Expr, Function, Relation};
use crate::math::value::{self, Rounding};

impl Parser {
    /// The remainder that a sum has by what follows `\bmod`; nothing where a sum follows, which may go with either side.
    pub(super) fn remainder(&mut self, sum: Expr) -> Option<Expr> {
        self.eat(&Kind::Modulo)?;
        let modulus = self.product()?;
        let is_open =
            matches!(self.peek(), Some(Kind::Plus | Kind::Minus | Kind::PlusMinus(_) | Kind::Modulo));
        (!is_open).then(|| Expr::Call(Function::Modulo, vec![sum, modulus]))
    }

    /// Whether `(mod 7)` comes next.
    pub(super) fn begins_modulus(&self) -> bool {
        self.peek() == Some(&Kind::Open(Bracket::Paren)) && self.peek_at(1) == Some(&Kind::Modulo)
    }

    /// Sides that are equal, or one alone, with the modulus behind them, where there is one.
    pub(super) fn congruence(&mut self, mut sides: Vec<Expr>, relations: Vec<Relation>) -> Option<Expr> {
        let is_congruent =
            relations.iter().all(|relation| matches!(relation, Relation::Congruent | Relation::Equal));
        let modulus = if self.eat(&Kind::Modulus).is_some() {
            Some(self.power()?)
        } else if self.begins_modulus() {
            self.take();
            self.take();
            let modulus = self.sum()?;
            self.eat(&Kind::Close(Bracket::Paren))?;
            Some(modulus)
        } else {
            None
        };
        // `x \equiv 3 \bmod 7` is no remainder.
        let modulus = match (modulus, sides.last_mut()) {
            (None, Some(Expr::Call(Function::Modulo, own)))
                if relations.last() == Some(&Relation::Congruent) =>
            {
                let modulus = own.pop()?;
                let side = own.pop()?;
                *sides.last_mut()? = side;
                Some(modulus)
            }
            (modulus, _) => modulus,
        };
        match modulus {
            Some(modulus) if is_congruent => Some(Expr::Congruence(sides, Box::new(modulus))),
            Some(_) => None,
            None if relations.is_empty() => sides.pop(),
            None => Some(Expr::Relation(sides, relations)),
        }
    }
}

/// The rule by which two congruences say the same: of the same name, by the same modulus, and of residues that differ by
/// a multiple of it. Where only the answer has a modulus, its residue is compared as it is.
pub(crate) fn equal(gold: &Expr, found: &Expr, rounding: Rounding) -> Option<&'static str> {
    let (Expr::Congruence(sides, modulus), Expr::Congruence(others, other)) = (gold, found) else {
        return match (gold, found) {
            (gold, Expr::Congruence(sides, _)) if value::is_value(gold) => {
                trees(gold, sides.last()?, rounding)
            }
            _ => None,
        };
    };
    trees(modulus, other, rounding)?;
    if let ([name, _, ..], [other, _, ..]) = (&sides[..], &others[..]) {
        trees(name, other, rounding)?;
    }
    let (residue, other) = (sides.last()?, others.last()?);
    let difference = Expr::Sum(vec![residue.clone(), other.clone().negative()]);
    let remainder = Expr::Call(Function::Modulo, vec![difference, modulus.as_ref().clone()]);
    let is_multiple = normal::rational_value(&remainder) == Some(rational::whole(0));
    (is_multiple || trees(residue, other, rounding).is_some()).then_some("the same residue")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    #[test]
    fn remainders_are_worked_out_and_congruences_are_none() {
        let tree = |text| parse(text, Commas::Thousands);
        for (text, expected) in [(r"9 \bmod 7", 2), ("-1 mod 7", 6), (r"2^{10}+1 \bmod 10", 5)] {
            let value = normal::rational_value(&tree(text).unwrap());
            assert_eq!(value, Some(rational::whole(expected)), "{text}");
        }
        for text in [r"x \equiv 3 \pmod{7}", r"x \equiv 3 \pmod 7", "x ≡ 3 (mod 7)", r"x \equiv 3 \bmod 7"]
        {
            let sides = vec![Expr::Symbol("x".to_owned()), Expr::whole(3)];
            assert_eq!(tree(text), Some(Expr::Congruence(sides, Box::new(Expr::whole(7)))), "{text}");
        }
        for text in [r"9 \bmod 7 + 1", r"\bmod 7", r"x < 3 \pmod 7", "mod", "5 (mod)"] {
            assert_eq!(tree(text), None, "{text}");
        }
        for text in [r"9 \bmod 0", r"\frac12 \bmod 7"] {
            assert_eq!(normal::rational_value(&tree(text).unwrap()), None, "{text}");
        }
    }
}
