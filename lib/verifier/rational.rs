//! Numbers as written by people and models, read and compared exactly at any length up to a bound.

use crate::answer::closing_brace;

/// A number as a fraction of two natural numbers in decimal digits.
#[derive(Debug, Clone)]
pub struct Rational {
    is_negative: bool,
    /// Decimal digits, most significant first, no leading zero; empty is zero.
    numerator: Vec<u8>,
    /// The same, never zero.
    denominator: Vec<u8>,
}

/// Longer runs of digits are not read as a number: comparing is quadratic in their length.
const MAX_DIGITS: usize = 4096;
/// Arguments of `\frac` that are longer are not read, so that broken ones cost little.
const MAX_ARGUMENT_BYTES: usize = 1024;
/// Larger powers of ten are not read as an exponent.
const MAX_EXPONENT: usize = 400;

impl PartialEq for Rational {
    fn eq(&self, other: &Self) -> bool {
        let left = multiply(&self.numerator, &other.denominator);
        let right = multiply(&other.numerator, &self.denominator);
        left == right && (left.is_empty() || self.is_negative == other.is_negative)
    }
}

impl Rational {
    /// The last number in a text: integers, decimals, thousands separated by commas, exponents, fractions
    /// `a/b` and `\frac{a}{b}`, each with a sign. A minus between two operands is not a sign.
    pub fn last_in(text: &str) -> Option<Self> {
        // LaTeX separates thousands by {,} or a thin space.
        let text = text.replace("{,}", ",").replace("\\!", "").replace('\u{2212}', "-");
        let text = without_thin_spaces(&text);
        let bytes = text.as_bytes();
        let (mut at, mut last) = (0, None);
        while at < bytes.len() {
            if let Some((mut number, end)) = number_at(&text, at) {
                number.is_negative ^= has_sign(bytes, at);
                last = Some(number);
                at = end;
            } else {
                at += passed_over(bytes, at);
            }
        }
        last
    }

    fn over(&self, other: &Self) -> Option<Self> {
        (!other.numerator.is_empty()).then(|| Self {
            is_negative: self.is_negative ^ other.is_negative,
            numerator: multiply(&self.numerator, &other.denominator),
            denominator: multiply(&self.denominator, &other.numerator),
        })
    }
}

impl std::fmt::Display for Rational {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
        if self.is_negative && !self.numerator.is_empty() {
            f.write_str("-")?;
        }
        let decimals = self.denominator.len() - 1;
        if !self.denominator[1..].iter().all(|&digit| digit == b'0') || self.denominator[0] != b'1' {
            return write!(f, "{}/{}", text(&self.numerator), text(&self.denominator));
        }
        let padded = format!("{:0>width$}", text(&self.numerator), width = decimals + 1);
        let (whole, part) = padded.split_at(padded.len() - decimals);
        match part.trim_end_matches('0') {
            "" => f.write_str(whole),
            part => write!(f, "{whole}.{part}"),
        }
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
fn number_at(text: &str, at: usize) -> Option<(Rational, usize)> {
    let bytes = text.as_bytes();
    if bytes[at] == b'\\' {
        return fraction_command(text, at);
    }
    if is_in_word(bytes, at) {
        return None;
    }
    let (number, end) = decimal(bytes, at)?;
    let mut below = end;
    while bytes.get(below) == Some(&b' ') {
        below += 1;
    }
    if bytes.get(below) == Some(&b'/') {
        below += 1;
        while bytes.get(below) == Some(&b' ') {
            below += 1;
        }
        if let Some((denominator, denominator_end)) = decimal(bytes, below)
            && let Some(fraction) = number.over(&denominator)
        {
            return Some((fraction, denominator_end));
        }
    }
    Some((number, end))
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
fn fraction_command(text: &str, at: usize) -> Option<(Rational, usize)> {
    let rest = &text[at..];
    let name = ["\\frac", "\\dfrac", "\\tfrac", "\\cfrac"].into_iter().find(|name| rest.starts_with(name))?;
    let (above, after_above) = argument(text, at + name.len())?;
    let (below, end) = argument(text, after_above)?;
    Some((above.over(&below)?, end))
}

/// One argument of a command: a braced number, or a single digit.
fn argument(text: &str, at: usize) -> Option<(Rational, usize)> {
    let rest = text.get(at..)?;
    let blank = rest.len() - rest.trim_start().len();
    let rest = rest.trim_start();
    if let Some(content) = rest.strip_prefix('{') {
        let close =
            closing_brace(content.as_bytes().get(..MAX_ARGUMENT_BYTES).unwrap_or(content.as_bytes()))?;
        let inner = content[..close].trim();
        let (is_negative, digits) =
            inner.strip_prefix('-').map_or((false, inner), |rest| (true, rest.trim()));
        let (mut number, end) = decimal(digits.as_bytes(), 0)?;
        number.is_negative = is_negative;
        return (end == digits.len()).then_some((number, at + blank + close + 2));
    }
    let digit = rest.bytes().next().filter(u8::is_ascii_digit)?;
    Some((natural(&[digit], 0), at + blank + 1))
}

/// Digits with thousands, decimals and exponent that begin exactly at `at`.
fn decimal(bytes: &[u8], at: usize) -> Option<(Rational, usize)> {
    let run =
        |from: usize| bytes[from.min(bytes.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut digits = Vec::new();
    let first = run(at);
    let mut end = at + first;
    digits.extend_from_slice(bytes.get(at..end)?);
    if (1..=3).contains(&first) {
        while bytes.get(end) == Some(&b',') && run(end + 1) == 3 && digits.len() <= MAX_DIGITS {
            digits.extend_from_slice(&bytes[end + 1..end + 4]);
            end += 4;
        }
    }
    let mut scale = 0;
    if bytes.get(end) == Some(&b'.') && run(end + 1) > 0 {
        scale = run(end + 1);
        digits.extend_from_slice(&bytes[end + 1..=end + scale]);
        end += 1 + scale;
    }
    if digits.is_empty() || digits.len() > MAX_DIGITS {
        return None;
    }
    let mut number = natural(&digits, scale);
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let from = end + 1 + sign;
        let len = run(from);
        let exponent = std::str::from_utf8(bytes.get(from..from + len)?).ok()?.parse::<usize>();
        if let Ok(exponent) = exponent
            && exponent <= MAX_EXPONENT
        {
            let is_small = bytes[end + 1] == b'-';
            let scaled = if is_small { &mut number.denominator } else { &mut number.numerator };
            if !scaled.is_empty() {
                scaled.resize(scaled.len() + exponent, b'0');
            }
            end = from + len;
        }
    }
    Some((number, end))
}

/// Digits over ten to the power `scale`.
fn natural(digits: &[u8], scale: usize) -> Rational {
    let leading = digits.iter().take_while(|&&digit| digit == b'0').count();
    let mut denominator = vec![b'1'];
    denominator.resize(1 + scale, b'0');
    Rational { is_negative: false, numerator: digits[leading..].to_vec(), denominator }
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

/// Schoolbook product of two digit strings without leading zeros; zero is empty.
fn multiply(left: &[u8], right: &[u8]) -> Vec<u8> {
    if left.is_empty() || right.is_empty() {
        return Vec::new();
    }
    let mut sums = vec![0_u32; left.len() + right.len()];
    for (i, a) in left.iter().rev().enumerate() {
        let mut carry = 0;
        for (j, b) in right.iter().rev().enumerate() {
            let sum = sums[i + j] + u32::from(a - b'0') * u32::from(b - b'0') + carry;
            sums[i + j] = sum % 10;
            carry = sum / 10;
        }
        sums[i + right.len()] += carry;
    }
    sums.iter().rev().skip_while(|&&digit| digit == 0).map(|&digit| digit as u8 + b'0').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(left: &str, right: &str) -> bool {
        let number = |text: &str| Rational::last_in(text).unwrap_or_else(|| panic!("no number in {text:?}"));
        number(left) == number(right)
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
            assert!(equal(text, value), "{text}: {:?}", Rational::last_in(text));
        }
        for text in ["", "no number", ".", "-", r"\frac{a}{b}", "H2", "x123"] {
            assert!(Rational::last_in(text).is_none(), "{text}");
        }
    }

    #[test]
    fn numbers_are_shown_shortly() {
        for (text, shown) in
            [("1,080", "1080"), ("-.50", "-0.5"), ("1e-3", "0.001"), ("2/4", "2/4"), ("-0", "0")]
        {
            assert_eq!(Rational::last_in(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn hostile_lengths_end_quickly() {
        assert!(Rational::last_in(&"9".repeat(1_000_000)).is_none());
        assert!(Rational::last_in(&"999,".repeat(250_000)).is_none());
        assert!(Rational::last_in(&r"\frac{".repeat(150_000)).is_none());
        assert!(equal("1", &format!("{} 1", "1e999999999 ".repeat(1000))));
    }
}
