//! The expression tree, one for LaTeX and plain syntax.

use crate::math::rational::Rational;
use crate::math::unit::Unit;

/// A mathematical object as it was written, less its syntax. The depth is bounded by the parser.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expr {
    /// A number; one with decimals may be rounded.
    Number { value: Rational, is_decimal: bool },
    /// Digits with a base, as `204_5`.
    Based { digits: String, base: u32 },
    /// A named number.
    Constant(Constant),
    /// A variable with its subscript: `x`, `\alpha`, `a_{37}`.
    Symbol(String),
    /// The sum of the terms.
    Sum(Vec<Expr>),
    /// The product of the factors.
    Product(Vec<Expr>),
    /// Base and exponent.
    Power(Box<Expr>, Box<Expr>),
    /// A known function.
    Call(Function, Vec<Expr>),
    /// An unknown function, as `f(x)`.
    Apply(String, Vec<Expr>),
    /// Two values at once; the upper sign of `\mp` is minus.
    PlusMinus { is_upper_plus: bool, operand: Box<Expr> },
    /// A value with a unit.
    Quantity(Box<Expr>, Unit),
    /// `a < b <= c`: one relation less than there are operands.
    Relation(Vec<Expr>, Vec<Relation>),
    /// `a \equiv b \pmod{n}`: sides that leave the same remainder, and the modulus; one side is its residue class.
    Congruence(Vec<Expr>, Box<Expr>),
    /// Several things in brackets, or in none.
    List(Brackets, Vec<Expr>),
    /// `a : b : c`.
    Ratio(Vec<Expr>),
    /// Union, intersection or difference of sets.
    SetOperation(SetOperation, Vec<Expr>),
    /// Rows of the same length.
    Matrix(Vec<Vec<Expr>>),
    /// The reals, the integers and their like.
    NumberSet(char),
    /// What has no value but words.
    Text(String),
}

/// Named numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constant {
    Pi,
    E,
    I,
    Infinity,
}

/// Known functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    /// The natural logarithm.
    Ln,
    /// A logarithm whose base was not written: ten, or e.
    Log,
    /// The logarithm of the first argument to the base of the second.
    LogBase,
    Exp,
    /// The root of the first argument; its degree is the second.
    Root,
    Abs,
    Floor,
    Ceil,
    Factorial,
    Binomial,
    Max,
    Min,
    Gcd,
    Lcm,
    /// The remainder of the first argument by the second, not negative.
    Modulo,
}

/// Relations between two things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    Near,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Congruent,
}

/// What stands around a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brackets {
    /// Nothing: `1, 2`.
    Bare,
    /// Order does not count: `\{1, 2\}`.
    Brace,
    /// `(1, 2)`: a tuple or an open interval.
    Paren,
    /// `[1, 2]`: a closed interval or a tuple.
    Square,
    /// `(1, 2]`.
    ParenSquare,
    /// `[1, 2)`.
    SquareParen,
    /// `\langle 1, 2 \rangle`.
    Angle,
}

/// Operations on sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetOperation {
    Union,
    Intersection,
    Difference,
}

impl Expr {
    /// A whole number.
    pub(crate) fn whole(value: i64) -> Self {
        Self::Number { value: crate::math::rational::whole(value), is_decimal: false }
    }

    /// The negative.
    pub(crate) fn negative(self) -> Self {
        match self {
            Self::Number { value, is_decimal } => Self::Number { value: -value, is_decimal },
            other => Self::Product(vec![Self::whole(-1), other]),
        }
    }

    /// A quotient.
    pub(crate) fn quotient(above: Self, below: Self) -> Self {
        Self::Product(vec![above, Self::Power(Box::new(below), Box::new(Self::whole(-1)))])
    }

    /// What it is made of.
    pub(crate) fn children(&self) -> Vec<&Expr> {
        match self {
            Self::Sum(items)
            | Self::Product(items)
            | Self::Call(_, items)
            | Self::Apply(_, items)
            | Self::Relation(items, _)
            | Self::List(_, items)
            | Self::Ratio(items)
            | Self::SetOperation(_, items) => items.iter().collect(),
            Self::Congruence(sides, modulus) => sides.iter().chain([modulus.as_ref()]).collect(),
            Self::Power(base, exponent) => vec![base, exponent],
            Self::PlusMinus { operand, .. } => vec![operand],
            Self::Quantity(value, _) => vec![value],
            Self::Matrix(rows) => rows.iter().flatten().collect(),
            Self::Number { .. }
            | Self::Based { .. }
            | Self::Constant(_)
            | Self::Symbol(_)
            | Self::NumberSet(_)
            | Self::Text(_) => Vec::new(),
        }
    }

    /// The same with every part replaced, the innermost first.
    pub(crate) fn map(&self, change: &dyn Fn(Expr) -> Expr) -> Self {
        let all = |items: &[Expr]| items.iter().map(|item| item.map(change)).collect();
        change(match self {
            Self::Sum(items) => Self::Sum(all(items)),
            Self::Product(items) => Self::Product(all(items)),
            Self::Call(function, items) => Self::Call(*function, all(items)),
            Self::Apply(name, items) => Self::Apply(name.clone(), all(items)),
            Self::Relation(items, relations) => Self::Relation(all(items), relations.clone()),
            Self::Congruence(sides, modulus) => Self::Congruence(all(sides), Box::new(modulus.map(change))),
            Self::List(brackets, items) => Self::List(*brackets, all(items)),
            Self::Ratio(items) => Self::Ratio(all(items)),
            Self::SetOperation(operation, items) => Self::SetOperation(*operation, all(items)),
            Self::Power(base, exponent) => {
                Self::Power(Box::new(base.map(change)), Box::new(exponent.map(change)))
            }
            Self::PlusMinus { is_upper_plus, operand } => {
                Self::PlusMinus { is_upper_plus: *is_upper_plus, operand: Box::new(operand.map(change)) }
            }
            Self::Quantity(value, unit) => Self::Quantity(Box::new(value.map(change)), unit.clone()),
            Self::Matrix(rows) => Self::Matrix(rows.iter().map(|row| all(row)).collect()),
            leaf => leaf.clone(),
        })
    }

    /// Whether the claim holds of it or of a part of it.
    pub(crate) fn any(&self, claim: &dyn Fn(&Expr) -> bool) -> bool {
        claim(self) || self.children().into_iter().any(|child| child.any(claim))
    }

    /// The variables in it, each once, in order.
    pub(crate) fn symbols(&self) -> Vec<&str> {
        fn collect<'a>(expr: &'a Expr, found: &mut Vec<&'a str>) {
            if let Expr::Symbol(name) = expr {
                found.push(name);
            }
            for child in expr.children() {
                collect(child, found);
            }
        }
        let mut found = Vec::new();
        collect(self, &mut found);
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl Relation {
    /// The relation with its sides exchanged.
    pub(crate) fn turned(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            Self::GreaterEqual => Self::LessEqual,
            other => other,
        }
    }
}
