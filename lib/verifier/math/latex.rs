//! Tokens of LaTeX: `\frac{1}{2}`, `x \in [-2, 7]`, `\begin{pmatrix} 1 \\ 2 \end{pmatrix}`.

use crate::answer::closing_brace;
use crate::math::numeral::{self, Commas};
use crate::math::plain;
use crate::math::rational::Rational;
use crate::math::token::{Bracket, Kind, Table, Tokens};
use crate::math::tree::Relation;
use crate::math::unit::Unit;
use crate::math::words::{self, Command};

/// The tokens of a LaTeX text; nothing when a command has no meaning here.
pub(crate) fn tokens(text: &str, commas: Commas) -> Option<Tokens> {
    // Where formulas are marked, what is not marked is prose.
    let is_marked =
        text.contains('$') && !text.contains("\\$") || text.contains("\\(") || text.contains("\\[");
    let has_environment = text.contains("\\begin{");
    let mut lexer = Lexer {
        text,
        at: 0,
        commas,
        tokens: Tokens::default(),
        environments: Vec::new(),
        is_prose: is_marked || has_environment,
        is_prose_around: false,
    };
    while lexer.at < text.len() {
        lexer.step()?;
    }
    Some(lexer.tokens)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    commas: Commas,
    tokens: Tokens,
    /// Whether each open environment is a matrix.
    environments: Vec<bool>,
    /// Whether the cursor is outside marked formulas.
    is_prose: bool,
    /// The same before the environment that is open.
    is_prose_around: bool,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn in_matrix(&self) -> bool {
        self.environments.last().copied().unwrap_or(false)
    }

    fn step(&mut self) -> Option<()> {
        let c = self.rest().chars().next()?;
        match c {
            '\\' => return self.backslash(),
            '{' if self.rest().starts_with("{,}") => {
                // A comma without a blank behind it: only thousands are read by the number before it.
                self.tokens.push(Kind::Comma)?;
                self.at += 3;
            }
            '{' => {
                self.tokens.push(Kind::Open(Bracket::Group))?;
                self.at += 1;
            }
            '}' => {
                self.tokens.push(Kind::Close(Bracket::Group))?;
                self.at += 1;
            }
            '&' => {
                if self.in_matrix() {
                    self.tokens.push(Kind::Cell)?;
                } else {
                    self.tokens.blank();
                }
                self.at += 1;
            }
            // The full stop of a sentence that ends with the formula.
            '.' if self.rest()[1..].trim_start().starts_with("\\end") => {
                self.tokens.blank();
                self.at += 1;
            }
            '~' => {
                self.tokens.blank();
                self.at += 1;
            }
            '$' => {
                self.tokens.blank();
                self.at += if self.rest().starts_with("$$") { 2 } else { 1 };
                self.is_prose = !self.is_prose;
            }
            _ if self.is_prose && c.is_ascii_alphabetic() => {
                self.at = plain::letters(self.text, self.at, &mut self.tokens)?;
            }
            _ if c.is_ascii_digit() => self.number()?,
            _ if c.is_ascii_alphabetic() => self.letters()?,
            _ => self.at = plain::step(self.text, self.at, c, self.commas, &mut self.tokens)?,
        }
        Some(())
    }

    /// A number; `{,}`, `\!` and thin spaces may separate its thousands, and decimals may repeat.
    fn number(&mut self) -> Option<()> {
        let (joined, len) = thousands(self.rest());
        if let Some(joined) = joined {
            self.at += len;
            let (numeral, _) = numeral::read(joined.as_bytes(), 0, Commas::Separators)?;
            let (value, is_decimal) = (numeral.value, numeral.is_decimal);
            return self.tokens.push(Kind::Number { value, is_decimal, text: joined });
        }
        let from = self.at;
        // `\frac12` and `x^23` mean single digits to TeX; the parser decides.
        self.at = plain::number(self.text, self.at, self.commas, &mut self.tokens)?;
        let (text, written) = (self.text, &self.text[from..self.at]);
        let rest = &text[self.at..];
        // `0.\overline{3}` and `0.1\overline{6}`.
        let (decimals, point) = match written.split_once('.') {
            Some((_, part)) => (part.len(), ""),
            None => (0, "."),
        };
        if let Some(period) = rest.strip_prefix(point).and_then(|rest| rest.strip_prefix("\\overline{"))
            && let Some(digits) = period.split('}').next()
            && !digits.is_empty()
            && digits.len() <= 100
            && digits.bytes().all(|byte| byte.is_ascii_digit())
        {
            self.at += point.len() + "\\overline{}".len() + digits.len();
            return self.repeat(digits, decimals);
        }
        Some(())
    }

    /// Adds the value of repeating digits to the number before them.
    fn repeat(&mut self, digits: &str, decimals: usize) -> Option<()> {
        let ten = |power: usize| num_bigint::BigInt::from(10).pow(power as u32);
        let period = Rational::new(digits.parse().ok()?, (ten(digits.len()) - 1) * ten(decimals));
        let digits = digits.to_owned();
        match &mut self.tokens.list.last_mut()?.kind {
            Kind::Number { value, is_decimal, text } => {
                *value += period;
                *is_decimal = false;
                text.push_str(&digits);
            }
            _ => return None,
        }
        Some(())
    }

    /// Letters outside commands: a word everyone writes without its backslash, a unit, else variables.
    fn letters(&mut self) -> Option<()> {
        let len = self.rest().bytes().take_while(u8::is_ascii_alphabetic).count();
        let run = self.rest()[..len].to_owned();
        self.at += len;
        if run.len() > 1
            && let Some(kind) = words::word(&run)
        {
            return self.tokens.push(kind);
        }
        if self.tokens.follows_number() && Unit::is_known(&run) {
            return self.tokens.push(Kind::Unit(run));
        }
        // More letters than a product has: a word without \text.
        if run.len() > 3 && run.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return self.tokens.push(Kind::Word(run));
        }
        run.chars().try_for_each(|c| self.tokens.push(words::letter(c)))
    }

    fn backslash(&mut self) -> Option<()> {
        let after = self.text.as_bytes().get(self.at + 1).copied();
        let len = self.text[self.at + 1..].bytes().take_while(u8::is_ascii_alphabetic).count();
        if len > 0 {
            let name = self.text[self.at + 1..self.at + 1 + len].to_owned();
            self.at += 1 + len;
            return self.command(&name);
        }
        let next = self.text[self.at + 1..].chars().next();
        self.at += 1 + next.map_or(0, char::len_utf8);
        match after {
            Some(b'(' | b'[') => {
                self.tokens.blank();
                self.is_prose = false;
            }
            Some(b')' | b']') => {
                self.tokens.blank();
                self.is_prose = true;
            }
            Some(b'\\') if self.in_matrix() => self.tokens.push(Kind::Row)?,
            Some(b'\\') if !self.environments.is_empty() => {
                // The next line of a derivation goes on, or says something else.
                let next = self.rest().trim_start_matches([' ', '\n', '&']);
                let goes_on = ["=", "\\approx", "+", "-", "\\end", "\\cdot", "\\times"];
                if goes_on.iter().any(|mark| next.starts_with(mark)) {
                    self.tokens.blank();
                } else {
                    self.tokens.push(Kind::Comma)?;
                }
            }
            None => self.tokens.blank(),
            Some(byte) if b" ,;:!>/\n\t$\\_#&'\"".contains(&byte) => self.tokens.blank(),
            Some(b'{') => self.tokens.push(Kind::Open(Bracket::Brace))?,
            Some(b'}') => self.tokens.push(Kind::Close(Bracket::Brace))?,
            Some(b'%') => self.tokens.push(Kind::Percent)?,
            Some(b'|') => self.tokens.push(Kind::Bar)?,
            Some(_) => return None,
        }
        Some(())
    }

    fn command(&mut self, name: &str) -> Option<()> {
        match name {
            "begin" | "end" => return self.environment(name == "begin"),
            "mathbb" | "Bbb" => return self.blackboard(),
            "left" | "right" => {
                // \left. is an invisible bracket.
                if self.rest().starts_with('.') {
                    self.at += 1;
                }
                return Some(());
            }
            "not" => {
                let len = self.rest().find('=')? + 1;
                self.at += len;
                return self.tokens.push(Kind::Relation(Relation::NotEqual));
            }
            "overline" if self.tokens.follows_number() => return None,
            _ => {}
        }
        // `\quadx` is a blank before x, though TeX would not read it so.
        let glued = ["qquad", "quad", "cdot", "times"].into_iter().find(|known| name.starts_with(known));
        let name = match glued {
            Some(known) if words::command(name).is_none() => {
                self.at -= name.len() - known.len();
                known
            }
            _ => name,
        };
        match words::command(name)? {
            Command::Token(kind) => self.tokens.push(kind),
            Command::Silent => Some(()),
            Command::Blank => {
                self.tokens.blank();
                Some(())
            }
            Command::Text => self.text_argument(),
        }
    }

    /// The argument of `\text` and its like: a joining word, a unit, a function, or an answer in words.
    fn text_argument(&mut self) -> Option<()> {
        let trimmed = self.rest().trim_start();
        let Some(content) = trimmed.strip_prefix('{') else { return Some(()) };
        let close = closing_brace(content.as_bytes())?;
        let skipped = self.rest().len() - content.len();
        let content = self.rest()[skipped..skipped + close].to_owned();
        self.at += skipped + close + 1;
        let words = content.trim().trim_matches(',').trim();
        if words.is_empty() {
            self.tokens.blank();
            return if content.contains(',') { self.tokens.push(Kind::Comma) } else { Some(()) };
        }
        if let Some(kind) = words::word(words) {
            return self.tokens.push(kind);
        }
        // A number with its unit may be all text.
        if words.starts_with(|c: char| c.is_ascii_digit() || c == '-')
            && let Some(inner) = plain::tokens(words, self.tokens.commas(self.commas))
        {
            return inner.list.into_iter().try_for_each(|token| {
                if token.is_spaced {
                    self.tokens.blank();
                }
                self.tokens.push(token.kind)
            });
        }
        let mut letters = words.chars();
        if let (Some(c), None) = (letters.next(), letters.next())
            && !self.tokens.follows_number()
            && c.is_alphabetic()
        {
            return self.tokens.push(words::letter(c));
        }
        self.tokens.push(Kind::Word(words.to_owned()))
    }

    fn blackboard(&mut self) -> Option<()> {
        let rest = self.rest().trim_start().trim_start_matches('{');
        let letter = rest.chars().next().filter(char::is_ascii_uppercase)?;
        let after = rest[1..].strip_prefix('}').unwrap_or(&rest[1..]);
        self.at = self.text.len() - after.len();
        self.tokens.push(Kind::NumberSet(letter))
    }

    fn environment(&mut self, begins: bool) -> Option<()> {
        let content = self.rest().trim_start().strip_prefix('{')?;
        let close = content.find('}')?;
        let name = content[..close].trim_end_matches('*').to_owned();
        self.at = self.text.len() - content.len() + close + 1;
        let table = match name.as_str() {
            "vmatrix" => Some(Table::Determinant),
            "cases" => Some(Table::Cases),
            // A norm is not its matrix.
            "Vmatrix" => return None,
            other => (other.ends_with("matrix") || other == "array").then_some(Table::Matrix),
        };
        if begins {
            if self.environments.is_empty() {
                self.is_prose_around = self.is_prose;
                self.is_prose = false;
            }
            self.environments.push(table.is_some());
            if name == "array" && self.rest().starts_with('{') {
                self.at += self.rest().find('}')? + 1;
            }
        } else {
            self.environments.pop()?;
            if self.environments.is_empty() {
                self.is_prose = self.is_prose_around;
            }
        }
        match (table, begins) {
            (None, _) => {
                self.tokens.blank();
                Some(())
            }
            (Some(table), true) => self.tokens.push(Kind::BeginTable(table)),
            (Some(_), false) => self.tokens.push(Kind::EndTable),
        }
    }
}

/// Digits whose thousands are separated in LaTeX's own ways, joined, with their decimals; and how long they are.
fn thousands(text: &str) -> (Option<String>, usize) {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let first = digits(text);
    if first > 3 {
        return (None, 0);
    }
    let (mut joined, mut at) = (text[..first].to_owned(), first);
    loop {
        let rest = &text[at..];
        let separator =
            ["{,}", "\\,", "\\!", ",\\!", "\\ ", "~"].into_iter().find(|mark| rest.starts_with(mark));
        let Some(mark) = separator.filter(|mark| digits(&rest[mark.len()..]) == 3) else { break };
        joined.push_str(&rest[mark.len()..mark.len() + 3]);
        at += mark.len() + 3;
    }
    if at == first {
        return (None, 0);
    }
    if let Some(part) = text[at..].strip_prefix('.').filter(|part| digits(part) > 0) {
        joined.push('.');
        joined.push_str(&part[..digits(part)]);
        at += 1 + digits(part);
    }
    (Some(joined), at)
}

/// Whether a text is LaTeX rather than plain.
pub(crate) fn is_latex(text: &str) -> bool {
    // A single dollar is money.
    let num_dollars = text.bytes().filter(|byte| *byte == b'$').count();
    num_dollars > 0 && num_dollars % 2 == 0
        || text.bytes().any(|byte| matches!(byte, b'\\' | b'{' | b'}' | b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        tokens(text, Commas::Thousands).unwrap().list.into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn thousands_and_repeating_decimals_are_one_number() {
        for (text, above, below) in [
            (r"10{,}000", 10_000, 1),
            (r"10\,000", 10_000, 1),
            (r"10,\!000", 10_000, 1),
            (r"0.\overline{3}", 1, 3),
            (r"0.1\overline{6}", 1, 6),
        ] {
            let expected = Rational::new(i64::into(above), i64::into(below));
            assert!(
                matches!(&kinds(text)[..], [Kind::Number { value, .. }] if *value == expected),
                "{text}: {:?}",
                kinds(text)
            );
        }
    }

    #[test]
    fn unknown_commands_have_no_tokens() {
        assert!(tokens(r"\oint x", Commas::Thousands).is_none());
        assert!(tokens(r"\", Commas::Thousands).is_some());
    }
}
