//! Tokens to a tree: lists, relations, sets, sums and products. Depth and length are bounded, so every text ends
//! quickly.

use crate::math::latex;
use crate::math::numeral::Commas;
use crate::math::plain;
use crate::math::token::{Bracket, Kind, Token};
use crate::math::tree::{Brackets, Constant, Expr, Relation, SetOperation};
use crate::math::unit::Unit;
use crate::math::words;

/// Longer texts are not read as formulas.
pub(crate) const MAX_BYTES: usize = 4096;
/// Deeper nesting is not read as a formula.
const MAX_DEPTH: usize = 64;

/// The tree of a text, LaTeX or plain; nothing when it is no formula.
pub(crate) fn parse(text: &str, commas: Commas) -> Option<Expr> {
    let text = text.trim().trim_end_matches(['.', ',', ';', ':']).trim_end();
    if text.is_empty() || text.len() > MAX_BYTES {
        return None;
    }
    let tokens =
        if latex::is_latex(text) { latex::tokens(text, commas)? } else { plain::tokens(text, commas)? };
    let mut parser = Parser::of(tokens.list);
    let expr = parser.list()?;
    parser.is_done().then_some(expr)
}

/// The parser: a cursor over tokens and what is open around it.
pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    pub(super) context: Context,
}

/// What some tokens mean depends on what is open around them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Context {
    /// A bar closes an absolute value.
    pub(super) in_bars: bool,
    /// A bar or a colon begins the condition of a set.
    pub(super) in_braces: bool,
    /// `[` closes an interval that `]` opened.
    pub(super) in_turned: bool,
}

impl Parser {
    fn of(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, depth: 0, context: Context::default() }
    }

    fn is_done(&self) -> bool {
        self.at == self.tokens.len()
    }

    pub(super) fn peek(&self) -> Option<&Kind> {
        self.peek_at(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<&Kind> {
        self.tokens.get(self.at + ahead).map(|token| &token.kind)
    }

    pub(super) fn is_spaced(&self, ahead: usize) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.is_spaced)
    }

    pub(super) fn before(&self) -> Option<&Kind> {
        self.at.checked_sub(1).and_then(|before| self.tokens.get(before)).map(|token| &token.kind)
    }

    pub(super) fn take(&mut self) -> Option<Kind> {
        let kind = self.peek()?.clone();
        self.at += 1;
        Some(kind)
    }

    pub(super) fn eat(&mut self, kind: &Kind) -> Option<()> {
        (self.peek() == Some(kind)).then(|| self.at += 1)
    }

    /// Replaces the token so far ahead of the cursor.
    pub(super) fn replace(&mut self, ahead: usize, kind: Kind) {
        if let Some(token) = self.tokens.get_mut(self.at + ahead) {
            token.kind = kind;
        }
    }

    /// Runs one level deeper, within its own context.
    pub(super) fn nested<T>(
        &mut self,
        context: Context,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let outer = std::mem::replace(&mut self.context, context);
        let result = read(self);
        self.context = outer;
        self.depth -= 1;
        result
    }

    /// Items separated by commas, semicolons and joining words; one item alone is no list.
    pub(super) fn list(&mut self) -> Option<Expr> {
        let mut items = self.items()?;
        if items.len() == 1 { items.pop() } else { Some(Expr::List(Brackets::Bare, items)) }
    }

    pub(super) fn items(&mut self) -> Option<Vec<Expr>> {
        let mut items = Vec::new();
        while matches!(self.peek(), Some(Kind::And)) {
            self.at += 1;
        }
        loop {
            match self.item()? {
                // `{1, 2}` in invisible braces within a list are its items.
                Expr::List(Brackets::Bare, inner) => items.extend(inner),
                item => items.push(item),
            }
            let mut is_more = false;
            while matches!(self.peek(), Some(Kind::Comma | Kind::Semicolon | Kind::And)) {
                self.at += 1;
                is_more = true;
            }
            if !is_more {
                return Some(items);
            }
        }
    }

    /// One item: words, or a relation.
    fn item(&mut self) -> Option<Expr> {
        if let Some(Kind::Word(_)) = self.peek() {
            let text = self.words();
            let ends = matches!(
                self.peek(),
                None | Some(Kind::Comma | Kind::Semicolon | Kind::And | Kind::Close(_))
            );
            return ends.then(|| words::named_set(&text).unwrap_or(Expr::Text(text)));
        }
        self.relation()
    }

    fn words(&mut self) -> String {
        let mut text = String::new();
        while let Some(Kind::Word(word) | Kind::Unit(word)) = self.peek() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(word);
            self.at += 1;
        }
        text
    }

    pub(super) fn relation(&mut self) -> Option<Expr> {
        let mut operands = vec![self.set()?];
        let mut relations = Vec::new();
        while let Some(Kind::Relation(relation)) = self.peek() {
            relations.push(*relation);
            self.at += 1;
            // `= -5 = ...` after a line break may repeat the sign.
            operands.push(self.set()?);
        }
        self.congruence(operands, relations)
    }

    fn set(&mut self) -> Option<Expr> {
        let mut left = self.ratio()?;
        loop {
            let operation = match self.peek() {
                Some(Kind::Union) => SetOperation::Union,
                Some(Kind::Intersection) => SetOperation::Intersection,
                Some(Kind::SetMinus) => SetOperation::Difference,
                _ => return Some(left),
            };
            self.at += 1;
            let right = self.ratio()?;
            left = match left {
                Expr::SetOperation(SetOperation::Union, mut items) if operation == SetOperation::Union => {
                    items.push(right);
                    Expr::SetOperation(operation, items)
                }
                other => self.deeper(Expr::SetOperation(operation, vec![other, right]))?,
            };
        }
    }

    /// Counts a tree that grows without brackets as nesting.
    fn deeper(&mut self, expr: Expr) -> Option<Expr> {
        self.depth += 1;
        (self.depth < MAX_DEPTH).then_some(expr)
    }

    fn ratio(&mut self) -> Option<Expr> {
        let first = self.quantity()?;
        if self.context.in_braces || self.peek() != Some(&Kind::Colon) {
            return Some(first);
        }
        let mut parts = vec![first];
        while self.eat(&Kind::Colon).is_some() {
            parts.push(self.quantity()?);
        }
        Some(Expr::Ratio(parts))
    }

    /// A sum with the unit behind it.
    fn quantity(&mut self) -> Option<Expr> {
        let mut value = self.sum()?;
        while let Some(Kind::Word(word)) = self.peek() {
            let Some(power) = words::power_of_ten(word) else { break };
            self.at += 1;
            let ten = Expr::Power(Box::new(Expr::whole(10)), Box::new(Expr::whole(power)));
            value = Expr::Product(vec![value, ten]);
            value = self.deeper(value)?;
        }
        let mut name = self.words();
        if name.is_empty() {
            return Some(value);
        }
        if self.eat(&Kind::Divide).is_some() {
            match self.take()? {
                Kind::Unit(below) | Kind::Word(below) | Kind::Symbol(below) => {
                    name = format!("{name}/{below}");
                }
                _ => return None,
            }
        }
        let mut unit = Unit::named(&name);
        if unit.is_radian() {
            return Some(value);
        }
        if self.eat(&Kind::Caret).is_some() {
            let is_group = self.eat(&Kind::Open(Bracket::Group)).is_some();
            let Some(Kind::Number { value, .. }) = self.take() else { return None };
            unit = unit.power(crate::math::rational::small(&value)?);
            if is_group {
                self.eat(&Kind::Close(Bracket::Group))?;
            }
        }
        Some(Expr::Quantity(Box::new(value), unit))
    }

    pub(super) fn sum(&mut self) -> Option<Expr> {
        let mut terms = vec![self.signed_product()?];
        while let Some(Kind::Plus | Kind::Minus | Kind::PlusMinus(_)) = self.peek() {
            terms.push(self.signed_product()?);
        }
        let sum = if terms.len() == 1 { terms.pop()? } else { Expr::Sum(terms) };
        if self.peek() == Some(&Kind::Modulo) { self.remainder(sum) } else { Some(sum) }
    }

    /// A product with the signs before it.
    fn signed_product(&mut self) -> Option<Expr> {
        let mut is_negative = false;
        let mut both = None;
        loop {
            match self.peek() {
                Some(Kind::Plus) => {}
                Some(Kind::Minus) => is_negative = !is_negative,
                Some(Kind::PlusMinus(is_upper_plus)) if both.is_none() => both = Some(*is_upper_plus),
                _ => break,
            }
            self.at += 1;
        }
        let product = self.product()?;
        let product = if is_negative { product.negative() } else { product };
        Some(match both {
            Some(is_upper_plus) => Expr::PlusMinus { is_upper_plus, operand: Box::new(product) },
            None => product,
        })
    }

    /// Factors and divisors from left to right; a factor may follow without a sign.
    pub(super) fn product(&mut self) -> Option<Expr> {
        let mut factors = vec![self.power()?];
        loop {
            match self.peek() {
                Some(Kind::Times) => {
                    self.at += 1;
                    factors.push(self.signed_power()?);
                }
                Some(Kind::Divide) => {
                    self.at += 1;
                    let below = self.signed_power()?;
                    factors.push(Expr::Power(Box::new(below), Box::new(Expr::whole(-1))));
                }
                _ if self.begins_factor() => factors.push(self.power()?),
                _ => break,
            }
        }
        Some(if factors.len() == 1 { factors.pop()? } else { Expr::Product(factors) })
    }

    /// A factor behind a sign of operation, which may have a minus: `2 * -3`.
    pub(super) fn signed_power(&mut self) -> Option<Expr> {
        let mut is_negative = false;
        while let Some(Kind::Plus | Kind::Minus) = self.peek() {
            is_negative ^= self.peek() == Some(&Kind::Minus);
            self.at += 1;
        }
        let power = self.power()?;
        Some(if is_negative { power.negative() } else { power })
    }

    /// Whether what comes next is multiplied without a sign.
    pub(super) fn begins_factor(&self) -> bool {
        match self.peek() {
            // Two numbers side by side are no product, but a number behind a bracket is a factor.
            Some(Kind::Number { .. }) => matches!(self.before(), Some(Kind::Close(_))),
            Some(Kind::Open(Bracket::Square)) => !self.context.in_turned,
            Some(Kind::Open(Bracket::Paren)) => !self.begins_modulus(),
            Some(Kind::Bar) => !self.context.in_bars && !self.context.in_braces,
            Some(
                Kind::Symbol(_)
                | Kind::Constant(_)
                | Kind::Function(_)
                | Kind::Open(_)
                | Kind::Fraction
                | Kind::Root
                | Kind::Binomial
                | Kind::Series(_)
                | Kind::Integral
                | Kind::Limit
                | Kind::BeginTable(_)
                | Kind::Overline,
            ) => true,
            _ => false,
        }
    }
}

/// `x \in S` is written for S.
pub(crate) fn is_membership(relations: &[Relation]) -> bool {
    relations == [Relation::In]
}

/// Whether the tree is infinity, with either sign.
pub(crate) fn infinity(expr: &Expr) -> Option<bool> {
    match expr {
        Expr::Constant(Constant::Infinity) => Some(true),
        Expr::Product(factors) => match &factors[..] {
            [Expr::Number { value, .. }, Expr::Constant(Constant::Infinity)] => {
                Some(value > &crate::math::rational::whole(0))
            }
            _ => None,
        },
        _ => None,
    }
}
