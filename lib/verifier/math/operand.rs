//! Tokens to a tree: powers, brackets, functions, fractions.

use num_traits::Signed;

use crate::math::parse::{Context, Parser};
use crate::math::rational::{small, whole};
use crate::math::token::{Bracket, Kind};
use crate::math::tree::{Brackets, Constant, Expr, Function};
use crate::math::unit::Unit;
use crate::math::words;

/// The complex conjugate, where something is imaginary; a line over names and digits changes nothing.
fn conjugate(expr: &Expr) -> Expr {
    expr.map(&|part| match part {
        Expr::Constant(Constant::I) => Expr::Constant(Constant::I).negative(),
        other => other,
    })
}

impl Parser {
    /// An operand with what is written behind and above it.
    pub(super) fn power(&mut self) -> Option<Expr> {
        let mut base = self.operand()?;
        loop {
            match self.peek() {
                Some(Kind::Bang) => {
                    self.take();
                    base = Expr::Call(Function::Factorial, vec![base]);
                    // A row of signs nests without brackets.
                    if matches!(self.peek(), Some(Kind::Bang)) {
                        return None;
                    }
                }
                Some(Kind::Percent) => {
                    self.take();
                    base = Expr::Quantity(Box::new(base), Unit::named("%"));
                    if matches!(self.peek(), Some(Kind::Percent)) {
                        return None;
                    }
                }
                Some(Kind::Degree) => {
                    self.take();
                    base = Expr::Quantity(Box::new(base), Unit::named("°"));
                    if matches!(self.peek(), Some(Kind::Degree)) {
                        return None;
                    }
                }
                Some(Kind::Caret) => {
                    self.take();
                    if self.degree_sign() {
                        return Some(Expr::Quantity(Box::new(base), Unit::named("°")));
                    }
                    let exponent = self.nested(self.context, Self::exponent)?;
                    return Some(Expr::Power(Box::new(base), Box::new(exponent)));
                }
                _ => return Some(base),
            }
        }
    }

    /// `^\circ` and `^{\circ}`.
    fn degree_sign(&mut self) -> bool {
        let group = [&Kind::Open(Bracket::Group), &Kind::Degree, &Kind::Close(Bracket::Group)];
        if (0..3).all(|ahead| self.peek_at(ahead) == Some(group[ahead])) {
            for _ in group {
                self.take();
            }
            return true;
        }
        self.eat(&Kind::Degree).is_some()
    }

    fn exponent(&mut self) -> Option<Expr> {
        let is_negative = self.eat(&Kind::Minus).is_some();
        if !is_negative {
            let _plus = self.eat(&Kind::Plus);
        }
        let mut exponent = self.operand()?;
        if self.eat(&Kind::Caret).is_some() {
            let upper = self.nested(self.context, Self::exponent)?;
            exponent = Expr::Power(Box::new(exponent), Box::new(upper));
        }
        Some(if is_negative { exponent.negative() } else { exponent })
    }

    pub(super) fn operand(&mut self) -> Option<Expr> {
        match self.take()? {
            Kind::Number { value, is_decimal, text } => self.number(value, is_decimal, text),
            Kind::Symbol(name) => self.symbol(name),
            Kind::Constant(constant) => {
                let is_name = self.peek() == Some(&Kind::Underscore);
                match constant {
                    Constant::E if is_name => self.symbol("e".to_owned()),
                    Constant::I if is_name => self.symbol("i".to_owned()),
                    _ => Some(Expr::Constant(constant)),
                }
            }
            Kind::Function(function) => self.nested(self.context, |parser| parser.call(function)),
            Kind::Open(bracket) => self.bracket(bracket),
            Kind::Close(Bracket::Square) => self.turned_interval(),
            Kind::Bar => {
                let context = Context { in_bars: true, ..Context::default() };
                let inner = self.nested(context, Self::sum)?;
                self.eat(&Kind::Bar)?;
                Some(Expr::Call(Function::Abs, vec![inner]))
            }
            Kind::Fraction => {
                let (above, below) = (self.argument()?, self.argument()?);
                Some(Expr::quotient(above, below))
            }
            Kind::Binomial => {
                let (n, k) = (self.argument()?, self.argument()?);
                Some(Expr::Call(Function::Binomial, vec![n, k]))
            }
            Kind::Series(series) => self.nested(self.context, |parser| parser.series(series)),
            Kind::Integral => self.nested(self.context, Self::integral),
            Kind::Limit => self.nested(self.context, Self::limit),
            Kind::Root => self.root(),
            Kind::BeginTable(table) => self.nested(Context::default(), |parser| parser.table(table)),
            Kind::Overline => Some(conjugate(&self.argument()?)),
            Kind::NumberSet(letter) => Some(Expr::NumberSet(letter)),
            Kind::EmptySet => Some(Expr::List(Brackets::Brace, Vec::new())),
            _ => None,
        }
    }

    /// A number: with a base below it, or the whole part of a mixed number.
    fn number(
        &mut self,
        value: crate::math::rational::Rational,
        is_decimal: bool,
        text: String,
    ) -> Option<Expr> {
        if self.peek() == Some(&Kind::Underscore) {
            self.take();
            let base = self.nested(Context::default(), Self::operand)?;
            let Expr::Number { value: base, .. } = base else { return None };
            let base = u32::try_from(small(&base)?).ok().filter(|base| (2..=36).contains(base))?;
            return Some(Expr::Based { digits: text, base });
        }
        let number = Expr::Number { value: value.clone(), is_decimal };
        if !value.is_integer() || is_decimal {
            return Some(number);
        }
        let part = match (self.peek(), self.peek_at(1), self.peek_at(2)) {
            (
                Some(Kind::Number { value: above, is_decimal: false, .. }),
                Some(Kind::Divide),
                Some(Kind::Number { value: below, is_decimal: false, .. }),
            ) if self.is_spaced(0) && *above < *below && above.is_positive() => {
                let part = above / below;
                for _ in 0..3 {
                    self.take();
                }
                part
            }
            (Some(Kind::Fraction), ..) => return self.mixed(value),
            _ => return Some(number),
        };
        Some(Expr::Number { value: value + part, is_decimal: false })
    }

    /// A whole number before `\frac`: a mixed number when the fraction is a proper one of whole numbers.
    fn mixed(&mut self, value: crate::math::rational::Rational) -> Option<Expr> {
        self.take();
        let (above, below) = (self.argument()?, self.argument()?);
        if let (Expr::Number { value: a, is_decimal: false }, Expr::Number { value: b, is_decimal: false }) =
            (&above, &below)
            && a.is_integer()
            && b.is_integer()
            && a.is_positive()
            && a < b
        {
            return Some(Expr::Number { value: value + a / b, is_decimal: false });
        }
        let number = Expr::Number { value, is_decimal: false };
        Some(Expr::Product(vec![number, Expr::quotient(above, below)]))
    }

    /// A variable with its subscript, or an unknown function with its arguments.
    fn symbol(&mut self, mut name: String) -> Option<Expr> {
        if self.eat(&Kind::Underscore).is_some() {
            name.push('_');
            name.push_str(&self.subscript()?);
        }
        while self.eat(&Kind::Prime).is_some() {
            name.push('\'');
        }
        let is_function =
            matches!(name.as_bytes().first(), Some(b'f' | b'g' | b'h' | b'F' | b'G' | b'H' | b'P' | b'Q'));
        if is_function && self.peek() == Some(&Kind::Open(Bracket::Paren)) && !self.is_spaced(0) {
            self.take();
            let arguments = self.nested(Context::default(), Self::items)?;
            self.eat(&Kind::Close(Bracket::Paren))?;
            return Some(Expr::Apply(name, arguments));
        }
        Some(Expr::Symbol(name))
    }

    /// The text of a subscript: one token, or those within braces.
    fn subscript(&mut self) -> Option<String> {
        let is_group = self.eat(&Kind::Open(Bracket::Group)).is_some();
        let mut name = String::new();
        loop {
            match self.take()? {
                Kind::Number { text, .. } => name.push_str(&text),
                Kind::Symbol(letter) => name.push_str(&letter),
                Kind::Word(word) => name.push_str(&word),
                Kind::Constant(Constant::E) => name.push('e'),
                Kind::Constant(Constant::I) => name.push('i'),
                Kind::Plus if is_group => name.push('+'),
                Kind::Minus if is_group => name.push('-'),
                Kind::Comma if is_group => name.push(','),
                Kind::Function(Function::Max) => name.push_str("max"),
                Kind::Function(Function::Min) => name.push_str("min"),
                _ => return None,
            }
            if !is_group || self.eat(&Kind::Close(Bracket::Group)).is_some() {
                return Some(name);
            }
        }
    }

    /// A function: its power, its base, its argument.
    fn call(&mut self, function: Function) -> Option<Expr> {
        let mut function = function;
        let mut base = None;
        let mut exponent = None;
        for _ in 0..2 {
            if base.is_none() && self.eat(&Kind::Underscore).is_some() {
                base = Some(self.operand()?);
            }
            if exponent.is_none() && self.eat(&Kind::Caret).is_some() {
                exponent = Some(self.exponent()?);
            }
        }
        if exponent == Some(Expr::whole(-1)) {
            function = words::inverse(function)?;
            exponent = None;
        }
        let mut arguments = self.arguments()?;
        if let Some(base) = base {
            arguments.truncate(1);
            arguments.push(base);
            function = Function::LogBase;
        } else if function == Function::Log && arguments.len() == 2 {
            // Programs write log(x, base).
            function = Function::LogBase;
        }
        let call = Expr::Call(function, arguments);
        Some(match exponent {
            Some(exponent) => Expr::Power(Box::new(call), Box::new(exponent)),
            None => call,
        })
    }

    /// The arguments of a function: in brackets, else the factors up to the next function or sign.
    fn arguments(&mut self) -> Option<Vec<Expr>> {
        if let Some(Kind::Open(
            bracket @ (Bracket::Paren | Bracket::Square | Bracket::Brace | Bracket::Group),
        )) = self.peek()
        {
            let bracket = *bracket;
            self.take();
            let arguments = self.nested(Context::default(), Self::items)?;
            self.eat(&Kind::Close(bracket))?;
            return Some(arguments);
        }
        let mut is_negative = false;
        while self.eat(&Kind::Minus).is_some() {
            is_negative = !is_negative;
        }
        let mut factors = vec![self.power()?];
        while self.begins_factor()
            && !matches!(self.peek(), Some(Kind::Function(_) | Kind::Open(Bracket::Paren)))
        {
            factors.push(self.power()?);
        }
        let argument = if factors.len() == 1 { factors.pop()? } else { Expr::Product(factors) };
        Some(vec![if is_negative { argument.negative() } else { argument }])
    }

    /// What a bracket holds: one thing, a tuple, an interval, a set.
    fn bracket(&mut self, bracket: Bracket) -> Option<Expr> {
        if bracket == Bracket::Brace {
            return self.braces();
        }
        let context = if bracket == Bracket::Group { self.context } else { Context::default() };
        if bracket == Bracket::Group && self.eat(&Kind::Close(Bracket::Group)).is_some() {
            // Empty braces print nothing.
            return self.nested(self.context, Self::power);
        }
        let mut items = self.nested(context, Self::items)?;
        let close = self.take()?;
        let brackets = match (bracket, close) {
            (Bracket::Group, Kind::Close(Bracket::Group)) => Brackets::Bare,
            (Bracket::Paren, Kind::Close(Bracket::Paren)) => Brackets::Paren,
            (Bracket::Paren, Kind::Close(Bracket::Square)) => Brackets::ParenSquare,
            (Bracket::Square, Kind::Close(Bracket::Square)) => Brackets::Square,
            (Bracket::Square, Kind::Close(Bracket::Paren)) => Brackets::SquareParen,
            // `[0, 1[` in the continental way.
            (Bracket::Square, Kind::Open(Bracket::Square)) if items.len() == 2 => Brackets::SquareParen,
            (Bracket::Angle, Kind::Close(Bracket::Angle)) => Brackets::Angle,
            (Bracket::Floor, Kind::Close(Bracket::Floor)) if items.len() == 1 => {
                return Some(Expr::Call(Function::Floor, items));
            }
            (Bracket::Ceil, Kind::Close(Bracket::Ceil)) if items.len() == 1 => {
                return Some(Expr::Call(Function::Ceil, items));
            }
            _ => return None,
        };
        if items.len() == 1 {
            let is_group = matches!(brackets, Brackets::Bare | Brackets::Paren | Brackets::Square);
            return if is_group { items.pop() } else { None };
        }
        Some(Expr::List(brackets, items))
    }

    /// `]0, 1[` and `]0, 1]`.
    fn turned_interval(&mut self) -> Option<Expr> {
        let context = Context { in_turned: true, ..Context::default() };
        let items = self.nested(context, Self::items)?;
        let brackets = match self.take()? {
            Kind::Open(Bracket::Square) => Brackets::Paren,
            Kind::Close(Bracket::Square) => Brackets::ParenSquare,
            _ => return None,
        };
        (items.len() == 2).then_some(Expr::List(brackets, items))
    }

    /// A set: its elements, or the condition that its elements satisfy.
    fn braces(&mut self) -> Option<Expr> {
        if self.eat(&Kind::Close(Bracket::Brace)).is_some() {
            return Some(Expr::List(Brackets::Brace, Vec::new()));
        }
        let context = Context { in_braces: true, ..Context::default() };
        let items = self.nested(context, Self::items)?;
        if self.eat(&Kind::Bar).is_some() || self.eat(&Kind::Colon).is_some() {
            let condition = self.nested(Context::default(), Self::list)?;
            self.eat(&Kind::Close(Bracket::Brace))?;
            return matches!(condition, Expr::Relation(..)).then_some(condition);
        }
        self.eat(&Kind::Close(Bracket::Brace))?;
        Some(Expr::List(Brackets::Brace, items))
    }

    /// An argument of a command: in braces, else one digit or one operand.
    pub(super) fn argument(&mut self) -> Option<Expr> {
        if let Some(Kind::Number { value, is_decimal: false, text }) = self.peek()
            && value.is_integer()
            && text.len() > 1
            && text.bytes().all(|byte| byte.is_ascii_digit())
        {
            let (first, rest) = (i64::from(text.as_bytes()[0] - b'0'), text[1..].to_owned());
            let value = crate::math::rational::Rational::from_integer(rest.parse().ok()?);
            self.replace(0, Kind::Number { value, is_decimal: false, text: rest });
            return Some(Expr::Number { value: whole(first), is_decimal: false });
        }
        if let Some(Kind::Number { value, is_decimal, .. }) = self.peek() {
            let number = Expr::Number { value: value.clone(), is_decimal: *is_decimal };
            self.take();
            return Some(number);
        }
        self.nested(Context::default(), Self::operand)
    }

    /// A root, with its degree in square brackets.
    fn root(&mut self) -> Option<Expr> {
        let mut degree = Expr::whole(2);
        if self.eat(&Kind::Open(Bracket::Square)).is_some() {
            degree = self.nested(Context::default(), Self::sum)?;
            self.eat(&Kind::Close(Bracket::Square))?;
        }
        let radicand = self.nested(Context::default(), Self::operand)?;
        Some(Expr::Call(Function::Root, vec![radicand, degree]))
    }
}
