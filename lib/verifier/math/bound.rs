//! Integrals and limits: not worked out, but one is another whatever their bound variable is called.

use crate::math::parse::Parser;
use crate::math::series::hides;
use crate::math::token::{Bracket, Kind};
use crate::math::tree::Expr;

/// The function that an integral is: of its bounds and its integrand, or of its variable and its integrand.
const INTEGRAL: &str = "\\int";
/// The function that a limit is: of the point, of the side (-1, 0, 1) and of the term.
const LIMIT: &str = "\\lim";

impl Parser {
    /// What stands behind the sign: the bounds, if any, the integrand and the differential. Nothing without a
    /// differential outside brackets.
    pub(super) fn integral(&mut self) -> Option<Expr> {
        let lower = self.eat(&Kind::Underscore).map(|()| self.integral_bound());
        let upper = self.eat(&Kind::Caret).map(|()| self.integral_bound());
        self.mark_differential()?;
        let integrand = if self.peek() == Some(&Kind::Differential) { Expr::whole(1) } else { self.sum()? };
        self.eat(&Kind::Differential)?;
        let Kind::Symbol(name) = self.take()? else { return None };
        match (lower, upper) {
            (Some(lower), Some(upper)) => {
                bound(INTEGRAL, vec![lower?, upper?], &Expr::Symbol(name), &integrand)
            }
            // The variable of an integral without bounds is that of its antiderivative.
            (None, None) => Some(Expr::Apply(INTEGRAL.to_owned(), vec![Expr::Symbol(name), integrand])),
            _ => None,
        }
    }

    /// A bound: what is in braces, else one operand, with its sign.
    fn integral_bound(&mut self) -> Option<Expr> {
        let is_negative = self.eat(&Kind::Minus).is_some();
        let bound = self.argument()?;
        Some(if is_negative { bound.negative() } else { bound })
    }

    /// Makes a differential of the `d` that ends the integral: each integral within it has one of its own.
    fn mark_differential(&mut self) -> Option<()> {
        let (mut depth, mut num_open) = (0_usize, 1_usize);
        for ahead in 0.. {
            match self.peek_at(ahead)? {
                Kind::Open(_) => depth += 1,
                Kind::Close(_) => depth = depth.checked_sub(1)?,
                Kind::Integral if depth == 0 => num_open += 1,
                Kind::Symbol(d) | Kind::Word(d) | Kind::Unit(d)
                    if depth == 0 && d == "d" && matches!(self.peek_at(ahead + 1), Some(Kind::Symbol(_))) =>
                {
                    num_open -= 1;
                    if num_open == 0 {
                        self.replace(ahead, Kind::Differential);
                        return Some(());
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// What stands behind `\lim`: the variable and where it goes, then the factors of the term.
    pub(super) fn limit(&mut self) -> Option<Expr> {
        self.eat(&Kind::Underscore)?;
        self.eat(&Kind::Open(Bracket::Group))?;
        let Kind::Symbol(name) = self.take()? else { return None };
        self.eat(&Kind::To)?;
        let is_negative = self.eat(&Kind::Minus).is_some();
        let point = self.product_without_side()?;
        let point = if is_negative { point.negative() } else { point };
        let side = self.side()?;
        self.eat(&Kind::Close(Bracket::Group))?;
        let term = self.product()?;
        bound(LIMIT, vec![point, Expr::whole(side)], &Expr::Symbol(name), &term)
    }

    /// The point of a limit: a product, or one operand before the sign of a side.
    fn product_without_side(&mut self) -> Option<Expr> {
        let is_side = self.peek_at(1) == Some(&Kind::Caret)
            && (matches!(self.peek_at(2), Some(Kind::Plus | Kind::Minus))
                || self.peek_at(2) == Some(&Kind::Open(Bracket::Group))
                    && matches!(self.peek_at(3), Some(Kind::Plus | Kind::Minus))
                    && self.peek_at(4) == Some(&Kind::Close(Bracket::Group)));
        if is_side { self.operand() } else { self.product() }
    }

    /// `^+`, `^{-}` or nothing.
    fn side(&mut self) -> Option<i64> {
        if self.eat(&Kind::Caret).is_none() {
            return Some(0);
        }
        let is_group = self.eat(&Kind::Open(Bracket::Group)).is_some();
        let side = match self.take()? {
            Kind::Plus => 1,
            Kind::Minus => -1,
            _ => return None,
        };
        if is_group {
            self.eat(&Kind::Close(Bracket::Group))?;
        }
        Some(side)
    }
}

/// A function of its arguments and of `body`, in which the variable gets a name that depends on its place only. Nothing
/// where the variable may hide in another name.
fn bound(function: &str, mut arguments: Vec<Expr>, variable: &Expr, body: &Expr) -> Option<Expr> {
    if body.any(&|part| hides(part, variable)) {
        return None;
    }
    let own = Expr::Symbol(format!("bound {}", num_bound(body)));
    arguments.push(body.map(&|part| if part == *variable { own.clone() } else { part }));
    Some(Expr::Apply(function.to_owned(), arguments))
}

/// Integrals and limits in an expression: those within others take the lower names.
fn num_bound(expr: &Expr) -> usize {
    let own = matches!(expr, Expr::Apply(name, _) if name == INTEGRAL || name == LIMIT);
    usize::from(own) + expr.children().into_iter().map(num_bound).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    #[test]
    fn bound_variables_have_no_name_of_their_own() {
        let tree = |text| parse(text, Commas::Thousands);
        for (one, other) in [
            (r"\int_0^1 x^2 dx", r"\int_{0}^{1} t^2 \,\mathrm{d}t"),
            (r"\int_0^1\int_0^2 xy\,dy\,dx", r"\int_0^1\int_0^2 uv\,dv\,du"),
            (r"\lim_{x\to 0^+} \frac{1}{x}", r"\lim\limits_{h \rightarrow 0^{+}} \frac{1}{h}"),
            (r"\lim_{n\to\infty} (1+\frac1n)^n", r"\lim_{m\to\infty} (1+\frac1m)^m"),
        ] {
            assert!(tree(one).is_some() && tree(one) == tree(other), "{one} {:?}", tree(one));
        }
        for (one, other) in [
            (r"\int x\,dx", r"\int t\,dt"),
            (r"\int_0^1\int_0^2 xy\,dy\,dx", r"\int_0^1\int_0^2 x^2\,dy\,dx"),
            (r"\lim_{x\to 0^+} \frac{1}{x}", r"\lim_{x\to 0^-} \frac{1}{x}"),
            (r"\int_0^1 xy\,dx", r"\int_0^1 xy\,dy"),
        ] {
            assert!(tree(one).is_some() && tree(one) != tree(other), "{one}");
        }
        for text in
            [r"\int_0^1 x", r"\int_0^1 \frac{dx}{x}", r"\int_0 x dx", r"\lim x", r"\lim_{n\to\infty} a_n"]
        {
            assert_eq!(tree(text), None, "{text}");
        }
    }
}
