//! Tokens, one vocabulary for LaTeX and plain syntax.

use crate::math::numeral::Commas;
use crate::math::rational::Rational;
use crate::math::series::Series;
use crate::math::tree::{Constant, Function, Relation};

/// More tokens than this are no answer.
pub(crate) const MAX_TOKENS: usize = 2000;

/// A token and whether a blank stands before it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) is_spaced: bool,
}

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Number {
        value: Rational,
        is_decimal: bool,
        /// As written, for numbers with a base and clock times.
        text: String,
    },
    /// One variable.
    Symbol(String),
    Constant(Constant),
    Function(Function),
    /// A word that means nothing here but a unit or an answer in words.
    Word(String),
    /// A known unit directly behind a number.
    Unit(String),
    Plus,
    Minus,
    Times,
    Divide,
    Caret,
    Underscore,
    Bang,
    Prime,
    Percent,
    Degree,
    /// The upper sign is plus, or minus.
    PlusMinus(bool),
    Relation(Relation),
    Comma,
    Semicolon,
    /// A word that joins answers: and, or.
    And,
    Colon,
    Open(Bracket),
    Close(Bracket),
    Bar,
    Fraction,
    /// A line over what follows.
    Overline,
    Root,
    Binomial,
    /// A sign before terms.
    Series(Series),
    Integral,
    /// The `d` that ends an integral: only the parser makes one.
    Differential,
    Limit,
    /// Where a variable goes.
    To,
    /// A remainder by what follows.
    Modulo,
    /// What follows in brackets is the modulus of what stands before.
    Modulus,
    BeginTable(Table),
    EndTable,
    Cell,
    Row,
    Union,
    Intersection,
    SetMinus,
    NumberSet(char),
    EmptySet,
}

/// What cells in rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Matrix,
    Determinant,
    /// Equations, or the values of a function under conditions.
    Cases,
}

/// Kinds of brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bracket {
    Paren,
    Square,
    /// Braces that are printed.
    Brace,
    /// Braces that group only.
    Group,
    Angle,
    Floor,
    Ceil,
}

/// Collects tokens, up to the bound.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) list: Vec<Token>,
    is_spaced: bool,
    /// Brackets that are open, less the invisible ones.
    depth: i32,
}

impl Tokens {
    /// Notes a blank.
    pub(crate) fn blank(&mut self) {
        self.is_spaced = true;
    }

    /// Appends a token; nothing when there are too many.
    pub(crate) fn push(&mut self, kind: Kind) -> Option<()> {
        match kind {
            Kind::Open(bracket) if bracket != Bracket::Group => self.depth += 1,
            Kind::Close(bracket) if bracket != Bracket::Group => self.depth -= 1,
            _ => {}
        }
        self.list.push(Token { kind, is_spaced: std::mem::take(&mut self.is_spaced) });
        (self.list.len() <= MAX_TOKENS).then_some(())
    }

    /// Whether what comes next stands directly behind a number.
    pub(crate) fn follows_number(&self) -> bool {
        matches!(self.list.last(), Some(Token { kind: Kind::Number { .. }, .. }))
    }

    /// Within brackets commas separate, whatever they do outside.
    pub(crate) fn commas(&self, outside: Commas) -> Commas {
        if self.depth > 0 { Commas::Separators } else { outside }
    }
}

/// The meaning of a symbol that stands for itself in both syntaxes.
pub(crate) fn sign(c: char) -> Option<Kind> {
    Some(match c {
        '+' => Kind::Plus,
        '-' | '\u{2212}' | '\u{2013}' => Kind::Minus,
        '*' | '×' | '·' | '⋅' | '∙' => Kind::Times,
        '/' | '÷' | '⁄' => Kind::Divide,
        '^' => Kind::Caret,
        '_' => Kind::Underscore,
        '!' => Kind::Bang,
        '\'' | '′' => Kind::Prime,
        '%' => Kind::Percent,
        '°' => Kind::Degree,
        '±' => Kind::PlusMinus(true),
        '∓' => Kind::PlusMinus(false),
        '=' => Kind::Relation(Relation::Equal),
        '≈' | '≃' => Kind::Relation(Relation::Near),
        '≠' => Kind::Relation(Relation::NotEqual),
        '<' => Kind::Relation(Relation::Less),
        '≤' | '⩽' => Kind::Relation(Relation::LessEqual),
        '>' => Kind::Relation(Relation::Greater),
        '≥' | '⩾' => Kind::Relation(Relation::GreaterEqual),
        '∈' => Kind::Relation(Relation::In),
        '≡' => Kind::Relation(Relation::Congruent),
        '→' => Kind::To,
        ',' => Kind::Comma,
        ';' => Kind::Semicolon,
        ':' => Kind::Colon,
        '(' => Kind::Open(Bracket::Paren),
        ')' => Kind::Close(Bracket::Paren),
        '[' => Kind::Open(Bracket::Square),
        ']' => Kind::Close(Bracket::Square),
        '⟨' => Kind::Open(Bracket::Angle),
        '⟩' => Kind::Close(Bracket::Angle),
        '⌊' => Kind::Open(Bracket::Floor),
        '⌋' => Kind::Close(Bracket::Floor),
        '⌈' => Kind::Open(Bracket::Ceil),
        '⌉' => Kind::Close(Bracket::Ceil),
        '|' => Kind::Bar,
        '√' => Kind::Root,
        'π' => Kind::Constant(Constant::Pi),
        '∞' => Kind::Constant(Constant::Infinity),
        '∪' => Kind::Union,
        '∩' => Kind::Intersection,
        '∖' => Kind::SetMinus,
        '∅' => Kind::EmptySet,
        'ℝ' => Kind::NumberSet('R'),
        'ℤ' => Kind::NumberSet('Z'),
        'ℕ' => Kind::NumberSet('N'),
        'ℚ' => Kind::NumberSet('Q'),
        'ℂ' => Kind::NumberSet('C'),
        _ => return None,
    })
}
