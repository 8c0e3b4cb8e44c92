//! Tokens of plain text: `sqrt(3)/2`, `x**2 <= 5`, `12 apples`.

use crate::math::numeral::{self, Commas};
use crate::math::token::{Bracket, Kind, Tokens, sign};
use crate::math::unit::Unit;
use crate::math::words;

/// The tokens of a text without LaTeX; nothing when a character has no meaning in it.
pub(crate) fn tokens(text: &str, commas: Commas) -> Option<Tokens> {
    let mut tokens = Tokens::default();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        at = step(text, at, c, commas, &mut tokens)?;
    }
    Some(tokens)
}

/// Reads what begins at `at` and returns where it ends.
pub(crate) fn step(text: &str, at: usize, c: char, commas: Commas, tokens: &mut Tokens) -> Option<usize> {
    let rest = &text[at..];
    let two = rest.as_bytes().get(1).copied();
    if c.is_whitespace() || c == '\u{200b}' {
        tokens.blank();
        return Some(at + c.len_utf8());
    }
    if c.is_ascii_digit() || c == '.' && two.is_some_and(|byte| byte.is_ascii_digit()) {
        return number(text, at, commas, tokens);
    }
    let pair = match (c, two) {
        ('*', Some(b'*')) => Some(Kind::Caret),
        ('<', Some(b'=')) => Some(Kind::Relation(crate::math::tree::Relation::LessEqual)),
        ('>', Some(b'=')) => Some(Kind::Relation(crate::math::tree::Relation::GreaterEqual)),
        ('!', Some(b'=')) => Some(Kind::Relation(crate::math::tree::Relation::NotEqual)),
        ('=', Some(b'=')) => Some(Kind::Relation(crate::math::tree::Relation::Equal)),
        _ => None,
    };
    if let Some(kind) = pair {
        tokens.push(kind)?;
        return Some(at + 2);
    }
    let end = at + c.len_utf8();
    if let Some(digits) = superscript(rest) {
        tokens.push(Kind::Caret)?;
        tokens.push(Kind::Open(Bracket::Group))?;
        for digit in digits.0.chars() {
            let kind = if digit == '-' { Kind::Minus } else { digit_token(digit) };
            tokens.push(kind)?;
        }
        tokens.push(Kind::Close(Bracket::Group))?;
        return Some(at + digits.1);
    }
    if let Some((above, below)) = vulgar(c) {
        tokens.push(Kind::Fraction)?;
        for digit in [above, below] {
            tokens.push(digit_token(digit))?;
        }
        return Some(end);
    }
    match c {
        '$' | '€' | '£' | '¥' | '"' | '“' | '”' | '`' => {
            tokens.blank();
            return Some(end);
        }
        '{' => tokens.push(Kind::Open(Bracket::Brace))?,
        '}' => tokens.push(Kind::Close(Bracket::Brace))?,
        _ if c.is_alphabetic() && sign(c).is_none() => return letters(text, at, tokens),
        _ => tokens.push(sign(c)?)?,
    }
    Some(end)
}

/// A number with its thousands, also those separated by single blanks: `1 000`.
pub(crate) fn number(text: &str, at: usize, commas: Commas, tokens: &mut Tokens) -> Option<usize> {
    let bytes = text.as_bytes();
    let (joined, len) = with_blank_thousands(&text[at..]);
    let (numeral, end, written) = if let Some(joined) = joined {
        let (numeral, end) = numeral::read(joined.as_bytes(), 0, Commas::Separators)?;
        let rest = joined.len() - end;
        (numeral, at + len - rest, joined)
    } else {
        let (numeral, end) = numeral::read(bytes, at, tokens.commas(commas))?;
        (numeral, end, text[at..end].to_owned())
    };
    tokens.push(Kind::Number { value: numeral.value, is_decimal: numeral.is_decimal, text: written })?;
    Some(end)
}

/// Groups of three digits behind single blanks, joined; and how long they and their decimals are.
fn with_blank_thousands(text: &str) -> (Option<String>, usize) {
    let bytes = text.as_bytes();
    let run = |from: usize| {
        bytes.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let first = run(0);
    if !(1..=3).contains(&first) {
        return (None, 0);
    }
    let (mut joined, mut at) = (text[..first].to_owned(), first);
    while matches!(bytes.get(at), Some(b' ')) && run(at + 1) == 3 {
        joined.push_str(&text[at + 1..at + 4]);
        at += 4;
    }
    // `1 000/3` may be a mixed number, and `1 234 5` are several.
    let after = text[at..].trim_start();
    if at == first || after.starts_with(|c: char| c == '/' || c.is_ascii_digit()) {
        return (None, 0);
    }
    if bytes.get(at) == Some(&b'.') && run(at + 1) > 0 {
        let end = at + 1 + run(at + 1);
        joined.push_str(&text[at..end]);
        at = end;
    }
    (Some(joined), at)
}

/// A run of letters: a known word, a unit, variables, or a word.
pub(crate) fn letters(text: &str, at: usize, tokens: &mut Tokens) -> Option<usize> {
    let rest = &text[at..];
    let len: usize =
        rest.chars().take_while(|c| c.is_alphabetic() && sign(*c).is_none()).map(char::len_utf8).sum();
    let run = &rest[..len];
    let end = at + len;
    if let Some(kind) = words::word(run) {
        tokens.push(kind)?;
        return Some(end);
    }
    if tokens.follows_number() && Unit::is_known(run) {
        tokens.push(Kind::Unit(run.to_owned()))?;
        return Some(end);
    }
    if run == "U" && text[end..].trim_start().starts_with(['(', '[', '{']) && !tokens.list.is_empty() {
        tokens.push(Kind::Union)?;
        return Some(end);
    }
    // Letters that touch a number or an operator are variables; so is a single one, two capitals, and a few small ones of
    // which no word is made.
    let touches = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || "+-*/^_=<>()|".contains(c));
    let before = text[..at].chars().next_back();
    let num = run.chars().count();
    let is_product = num <= 3 && (touches(before) || touches(text[end..].chars().next()))
        || num == 2 && run.chars().all(|c| c.is_ascii_uppercase())
        || num <= 3 && run.chars().all(|c| c.is_ascii_lowercase() && !"aeiou".contains(c));
    if num == 1 || is_product {
        for c in run.chars() {
            tokens.push(words::letter(c))?;
        }
    } else {
        tokens.push(Kind::Word(run.to_owned()))?;
    }
    Some(end)
}

fn digit_token(digit: char) -> Kind {
    let value = digit.to_digit(10).map_or(0, i64::from);
    Kind::Number { value: crate::math::rational::whole(value), is_decimal: false, text: digit.to_string() }
}

/// Raised digits as ordinary ones, and how many bytes they are.
fn superscript(text: &str) -> Option<(String, usize)> {
    let mut digits = String::new();
    let mut len = 0;
    for c in text.chars() {
        let Some(at) = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻".chars().position(|raised| raised == c) else { break };
        digits.push("0123456789-".chars().nth(at)?);
        len += c.len_utf8();
    }
    (len > 0).then_some((digits, len))
}

/// Fractions that are one character.
fn vulgar(c: char) -> Option<(char, char)> {
    Some(match c {
        '½' => ('1', '2'),
        '⅓' => ('1', '3'),
        '⅔' => ('2', '3'),
        '¼' => ('1', '4'),
        '¾' => ('3', '4'),
        '⅕' => ('1', '5'),
        '⅖' => ('2', '5'),
        '⅗' => ('3', '5'),
        '⅘' => ('4', '5'),
        '⅙' => ('1', '6'),
        '⅚' => ('5', '6'),
        '⅛' => ('1', '8'),
        '⅜' => ('3', '8'),
        '⅝' => ('5', '8'),
        '⅞' => ('7', '8'),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        tokens(text, Commas::Thousands).unwrap().list.into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn thousands_are_one_number() {
        for text in ["1000", "1,000", "1 000"] {
            assert!(
                matches!(&kinds(text)[..], [Kind::Number { value, .. }] if *value == crate::math::rational::whole(1000)),
                "{text}"
            );
        }
        assert_eq!(kinds("(1,000)").len(), 5);
        assert_eq!(kinds("1 1/2").len(), 4);
    }

    #[test]
    fn letters_are_variables_units_or_words() {
        assert_eq!(kinds("2xy").len(), 3);
        assert!(matches!(kinds("5 cm")[1], Kind::Unit(_)));
        assert!(matches!(kinds("12 apples")[1], Kind::Word(_)));
        assert!(matches!(kinds("sqrt(2)")[0], Kind::Root));
        assert_eq!(kinds("x\u{b2}")[1], Kind::Caret);
    }
}
