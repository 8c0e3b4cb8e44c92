//! Numbers as written by people and models within prose: where the last one stands, and its exact value.

use std::borrow::Cow;

use num_bigint::BigInt;
use num_traits::{One, Zero};

use crate::answer::closing_brace;
use crate::math::rational::Rational;

/// Longer runs of digits are not read as a number: converting is quadratic in their length.
const MAX_DIGITS: usize = 4096;
/// Arguments of `\frac` that are longer are not read, so that broken ones cost little.
const MAX_ARGUMENT_BYTES: usize = 1024;
/// Larger powers of ten are not read as an exponent.
const MAX_EXPONENT: usize = 400;

/// What a comma between digits means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commas {
    /// `1,000`: it separates groups of three digits.
    Thousands,
    /// `2,74`: it stands before the decimals; `1,000` is still a thousand.
    Decimal,
    /// `(1,100)`: it separates numbers, always.
    Separators,
}

/// A number within prose.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Numeral {
    /// Its exact value.
    pub(crate) value: Rational,
    /// Whether it was written with decimals, and may be rounded.
    pub(crate) is_decimal: bool,
}

/// The last number in a text: integers, decimals, thousands separated by commas, exponents, fractions
/// `a/b` and `\frac{a}{b}`, each with a sign. A minus between two operands is not a sign.
pub(crate) fn last_in(text: &str, commas: Commas) -> Option<Numeral> {
    // LaTeX separates thousands by {,} or a thin space.
    let mut text = Cow::Borrowed(text);
    for (mark, plain) in [("{,}", ","), ("\\!", ""), ("\u{2212}", "-")] {
        if text.contains(mark) {
            text = Cow::Owned(text.replace(mark, plain));
        }
    }
    if text.contains("\\,") {
        text = Cow::Owned(without_thin_spaces(&text));
    }
    let bytes = text.as_bytes();
    let (mut at, mut last) = (0, None);
    while at < bytes.len() {
        if let Some((mut number, end)) = number_at(&text, at, commas) {
            number.is_negative ^= has_sign(bytes, at);
            last = Some(number);
            at = end;
        } else {
            at += passed_over(bytes, at);
        }
    }
    last.map(|number| number.numeral())
}

/// The unsigned decimal number that begins exactly at `at`, and where it ends.
pub(crate) fn read(bytes: &[u8], at: usize, commas: Commas) -> Option<(Numeral, usize)> {
    let (number, end) = decimal(bytes, at, commas)?;
    Some((Numeral { value: number.value(), is_decimal: number.scale > 0 }, end))
}

/// A decimal number as written, its last `scale` digits decimals, times a power of ten.
#[derive(Debug, Clone, Copy)]
struct Decimal<'a> {
    is_negative: bool,
    /// Digits, most significant first, with commas and the point between them.
    written: &'a [u8],
    scale: usize,
    exponent: i64,
}

/// A number that was found but not yet converted; the denominator is never zero.
#[derive(Debug)]
struct Found<'a> {
    is_negative: bool,
    above: Decimal<'a>,
    below: Option<Decimal<'a>>,
}

impl Decimal<'_> {
    fn is_zero(&self) -> bool {
        !self.written.iter().any(|byte| matches!(byte, b'1'..=b'9'))
    }

    fn value(&self) -> Rational {
        let digits: Vec<u8> = self.written.iter().copied().filter(u8::is_ascii_digit).collect();
        let digits = BigInt::parse_bytes(&digits, 10).unwrap_or_default();
        let digits = if self.is_negative { -digits } else { digits };
        let power = self.exponent - self.scale as i64;
        // Both are bounded by MAX_DIGITS and MAX_EXPONENT.
        let scale = BigInt::from(10).pow(power.unsigned_abs() as u32);
        if power < 0 { Rational::new(digits, scale) } else { Rational::new(digits * scale, BigInt::one()) }
    }
}

impl<'a> Found<'a> {
    fn of(above: Decimal<'a>, below: Option<Decimal<'a>>) -> Self {
        Self { is_negative: false, above, below }
    }

    fn numeral(&self) -> Numeral {
        let mut value = self.above.value();
        let mut is_decimal = self.above.scale > 0;
        if let Some(below) = self.below.as_ref().map(Decimal::value).filter(|below| !below.is_zero()) {
            value /= below;
            is_decimal = false;
        }
        Numeral { value: if self.is_negative { -value } else { value }, is_decimal }
    }
}

/// Thin spaces between digits separate thousands and go; others become blanks.
fn without_thin_spaces(text: &str) -> String {
    let mut pieces = text.split("\\,");
    let mut joined = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let between_digits =
            joined.ends_with(|c: char| c.is_ascii_digit()) && piece.starts_with(|c: char| c.is_ascii_digit());
        if !between_digits {
            joined.push(' ');
        }
        joined.push_str(piece);
    }
    joined
}

/// A number or fraction that begins exactly at `at`, and where it ends.
fn number_at(text: &str, at: usize, commas: Commas) -> Option<(Found<'_>, usize)> {
    let bytes = text.as_bytes();
    if bytes[at] == b'\\' {
        return fraction_command(text, at);
    }
    if is_in_word(bytes, at) {
        return None;
    }
    let (number, end) = decimal(bytes, at, commas)?;
    let mut below = end;
    while bytes.get(below) == Some(&b' ') {
        below += 1;
    }
    if bytes.get(below) == Some(&b'/') {
        below += 1;
        while bytes.get(below) == Some(&b' ') {
            below += 1;
        }
        if let Some((denominator, denominator_end)) = decimal(bytes, below, commas)
            && !denominator.is_zero()
        {
            return Some((Found::of(number, Some(denominator)), denominator_end));
        }
    }
    Some((Found::of(number, None), end))
}

/// Whether what stands at `at` continues a word, as in `H2O`.
fn is_in_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphabetic() || bytes[at - 1] == b'_')
}

/// Bytes to step over where no number begins: the digits of a word, or all of a number that is too long.
fn passed_over(bytes: &[u8], at: usize) -> usize {
    let separators: &[u8] = match bytes[at] {
        byte if !byte.is_ascii_digit() => return 1,
        _ if is_in_word(bytes, at) => b"",
        _ => b",.",
    };
    bytes[at..].iter().take_while(|&byte| byte.is_ascii_digit() || separators.contains(byte)).count()
}

/// `\frac{a}{b}` and its variants; also `\frac12`.
fn fraction_command(text: &str, at: usize) -> Option<(Found<'_>, usize)> {
    let rest = &text[at..];
    let name = ["\\frac", "\\dfrac", "\\tfrac", "\\cfrac"].into_iter().find(|name| rest.starts_with(name))?;
    let (above, after_above) = argument(text, at + name.len())?;
    let (below, end) = argument(text, after_above)?;
    (!below.is_zero()).then(|| (Found::of(above, Some(below)), end))
}

/// One argument of a command: a braced number, or a single digit.
fn argument(text: &str, at: usize) -> Option<(Decimal<'_>, usize)> {
    let rest = text.get(at..)?;
    let blank = rest.len() - rest.trim_start().len();
    let rest = rest.trim_start();
    if let Some(content) = rest.strip_prefix('{') {
        let close =
            closing_brace(content.as_bytes().get(..MAX_ARGUMENT_BYTES).unwrap_or(content.as_bytes()))?;
        let inner = content[..close].trim();
        let (is_negative, digits) =
            inner.strip_prefix('-').map_or((false, inner), |rest| (true, rest.trim()));
        let (number, end) = decimal(digits.as_bytes(), 0, Commas::Thousands)?;
        let number = Decimal { is_negative, ..number };
        return (end == digits.len()).then_some((number, at + blank + close + 2));
    }
    let written = rest.as_bytes().get(..1).filter(|digit| digit.iter().all(u8::is_ascii_digit))?;
    let number = Decimal { is_negative: false, written, scale: 0, exponent: 0 };
    Some((number, at + blank + 1))
}

/// Digits with thousands, decimals and exponent that begin exactly at `at`.
fn decimal(bytes: &[u8], at: usize, commas: Commas) -> Option<(Decimal<'_>, usize)> {
    let run =
        |from: usize| bytes[from.min(bytes.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let first = run(at);
    let mut end = at + first;
    let mut num_digits = first;
    if (1..=3).contains(&first) && commas != Commas::Separators {
        while bytes.get(end) == Some(&b',') && run(end + 1) == 3 && num_digits <= MAX_DIGITS {
            num_digits += 3;
            end += 4;
        }
    }
    let mut scale = 0;
    let is_point = match bytes.get(end) {
        Some(b'.') => true,
        Some(b',') => commas == Commas::Decimal && end == at + first && first > 0,
        _ => false,
    };
    if is_point && run(end + 1) > 0 {
        scale = run(end + 1);
        num_digits += scale;
        end += 1 + scale;
    }
    if !(1..=MAX_DIGITS).contains(&num_digits) {
        return None;
    }
    let mut number = Decimal { is_negative: false, written: bytes.get(at..end)?, scale, exponent: 0 };
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let from = end + 1 + sign;
        let len = run(from);
        let exponent = std::str::from_utf8(bytes.get(from..from + len)?).ok()?.parse::<usize>();
        if let Ok(exponent) = exponent
            && exponent <= MAX_EXPONENT
        {
            number.exponent = if bytes[end + 1] == b'-' { -(exponent as i64) } else { exponent as i64 };
            end = from + len;
        }
    }
    Some((number, end))
}

/// Whether the number at `at` has a minus that is a sign and not a subtraction.
fn has_sign(bytes: &[u8], at: usize) -> bool {
    let mut before = at;
    while before > 0 && bytes[before - 1] == b'$' {
        before -= 1;
    }
    let touches = before > 0 && bytes[before - 1] == b'-';
    let mut minus = before;
    while minus > 0 && bytes[minus - 1] == b' ' {
        minus -= 1;
    }
    if minus == 0 || bytes[minus - 1] != b'-' {
        return false;
    }
    let ahead = &bytes[..minus - 1];
    if touches {
        // `5-3` and `(a)-3` subtract; `is -3`, `=-3` and `$-3` are signs.
        ahead.last().is_none_or(|&byte| {
            !byte.is_ascii_alphanumeric() && !byte.is_ascii_punctuation()
                || b"=(:[{,<>$*\"'+/|".contains(&byte)
        }) && !follows_operand(ahead)
    } else {
        ahead.iter().rev().find(|&&byte| byte != b' ').is_some_and(|byte| b"=(:[{,<>".contains(byte))
    }
}

/// Whether a minus with a blank before it stands after a number, as in `10 -3`.
fn follows_operand(ahead: &[u8]) -> bool {
    ahead.last() == Some(&b' ')
        && ahead
            .iter()
            .rev()
            .find(|&&byte| byte != b' ')
            .is_some_and(|byte| byte.is_ascii_digit() || *byte == b')')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(left: &str, right: &str) -> bool {
        let number =
            |text: &str| last_in(text, Commas::Thousands).unwrap_or_else(|| panic!("no number in {text:?}"));
        number(left).value == number(right).value
    }

    #[test]
    fn forms_of_one_value_are_equal() {
        for (left, right) in [
            ("7425000", "7,425,000"),
            ("1000", "1000.0"),
            ("0.4", ".4"),
            ("0.5", "1/2"),
            ("0.5", r"\frac{1}{2}"),
            ("-0.5", r"-\frac12"),
            ("-0.5", r"\dfrac{-1}{2}"),
            ("2/4", "3 / 6"),
            ("1000", r"1{,}000"),
            ("10000", r"10\,000"),
            ("1500", "1.5e3"),
            ("0.0015", "1.5e-3"),
            ("0", "-0"),
            ("0", "0.00"),
            ("-5", "\u{2212}5"),
            ("5", "-5/-1 is 5"),
            ("007", "7"),
            ("123456789012345678901234567890123456789012", "123456789012345678901234567890123456789012.0"),
        ] {
            assert!(equal(left, right), "{left} {right}");
        }
    }

    #[test]
    fn near_values_are_not_equal() {
        for (left, right) in [
            ("0.333333333333333333333333", "1/3"),
            ("5", "-5"),
            ("123456789012345678901234567890123456789012", "123456789012345678901234567890123456789013"),
            ("1000", "1,0000"),
            ("100", "1e3"),
        ] {
            assert!(!equal(left, right), "{left} {right}");
        }
    }

    #[test]
    fn last_number_is_found_with_its_sign() {
        for (text, value) in [
            ("the number is not 10 which is 1,000.99 euro", "1000.99"),
            ("16-3", "3"),
            ("10 - 3", "3"),
            ("10 -3", "3"),
            ("x = -3", "-3"),
            ("x = - 3", "-3"),
            ("The answer is -3.", "-3"),
            ("-$5", "-5"),
            ("$-5$", "-5"),
            ("(-5)", "-5"),
            ("- 5 apples", "5"),
            ("5-10", "10"),
            ("<<16-3-4=9>>9 eggs", "9"),
            ("4, 5 and 6.", "6"),
            ("7 in H2O", "7"),
            ("1,2", "2"),
            ("12,345,6", "6"),
            ("8/0", "0"),
            ("3 e", "3"),
            ("3e", "3"),
        ] {
            assert!(equal(text, value), "{text}: {:?}", last_in(text, Commas::Thousands));
        }
        for text in ["", "no number", ".", "-", r"\frac{a}{b}", "H2", "x123"] {
            assert!(last_in(text, Commas::Thousands).is_none(), "{text}");
        }
    }

    #[test]
    fn a_comma_may_stand_before_decimals() {
        let number = |text: &str| last_in(text, Commas::Decimal).unwrap().value;
        assert_eq!(number("2,74 or so"), Rational::new(274.into(), 100.into()));
        assert_eq!(number("1,000"), Rational::from_integer(1000.into()));
    }

    #[test]
    fn hostile_lengths_end_quickly() {
        assert!(last_in(&"9".repeat(1_000_000), Commas::Thousands).is_none());
        assert!(last_in(&"999,".repeat(250_000), Commas::Thousands).is_none());
        assert!(last_in(&r"\frac{".repeat(150_000), Commas::Thousands).is_none());
        assert!(equal("1", &format!("{} 1", "1e999999999 ".repeat(1000))));
    }
}
