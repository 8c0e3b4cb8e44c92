//! The second grader of the framework slime: a normal form of its own, then a simplification that many answers are
//! barred from. What it cannot read is wrong.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::LazyLock;

use regex::Regex;

use crate::math::latex_text;
use crate::math::mathd;
use crate::math::numeral::Commas;
use crate::math::parse::parse;
use crate::math::tree::{Constant, Expr};
use crate::math::value;
use crate::math::value::Rounding;

/// Words that go with their plural and their power, also within other words.
const UNITS: [&str; 16] = [
    "degree",
    "cm",
    "centimeter",
    "meter",
    "mile",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "foot",
    "feet",
    "inch",
    "yard",
];
/// Letters that stand for the variables of longer names while a formula is read.
const NAMES: &str = "ABCDJKLMRSTVWXYZ";
/// Longer answers are not read.
const MAX_BYTES: usize = 4096;

static UNIT: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    UNITS.iter().filter_map(|unit| Regex::new(&format!(r"{unit}(es)?(s)? *(\^[0-9]+)?")).ok()).collect()
});
static CIRCLE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\^ *\\circ").ok());
static THIN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r",\\! *").ok());
static MINUS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"- *").ok());
static MIXED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"([0-9]) +([0-9])").ok());
static BARRED: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\^\{|\^\(|\^[0-9]+\^|\^[0-9][0-9]+").ok());

fn replaced(regex: &LazyLock<Option<Regex>>, text: &str, by: &str) -> String {
    regex.as_ref().map_or_else(|| text.to_owned(), |regex| regex.replace_all(text, by).into_owned())
}

/// The normal form.
fn normal(text: &str) -> String {
    let mut text = mathd::unwrapped(text).replace("\\%", "%").replace("\\$", "$").replace(['$', '%'], "");
    text = text.replace(" or ", " , ").replace(" and ", " , ");
    text = text.replace("million", "*10^6").replace("billion", "*10^9").replace("trillion", "*10^12");
    for unit in UNIT.iter() {
        text = unit.replace_all(&text, "").into_owned();
    }
    text = replaced(&CIRCLE, &text, "");
    let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    text = replaced(&THIN, inner.unwrap_or(&text), "");
    if let Some(value) = float(&text).filter(|value| is_near_whole(*value)) {
        text = whole(value.round());
    }
    if text.contains('\\') {
        text = latex_text::plain(&text);
    }
    text = replaced(&MINUS, &text, "-");
    text = replaced(&MIXED, &text, "$1+$2").replace(' ', "").replace(['{', '}'], "").to_lowercase();
    match float(&without_thousands(&text)).filter(|value| is_near_whole(*value)) {
        Some(_) => float(&text.replace(',', "")).map_or(text, |value| whole(value.trunc())),
        None => text,
    }
}

/// A number as Python's `float` reads it.
pub(crate) fn float(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|value| value.is_finite())
}

fn is_near_whole(value: f64) -> bool {
    (value - value.round()).abs() <= 1e-7
}

/// A whole number in digits; zero has no sign.
pub(crate) fn whole(value: f64) -> String {
    format!("{:.0}", if value == 0.0 { 0.0 } else { value })
}

fn is_whole(text: &str) -> bool {
    float(&without_thousands(text)).is_some_and(is_near_whole)
}

/// The text without commas before groups of three digits.
fn without_thousands(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut kept = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let is_thousand =
            c == ',' && at > 0 && digit(at - 1) && (1..=3).all(|ahead| digit(at + ahead)) && !digit(at + 4);
        if !is_thousand {
            kept.push(c);
        }
    }
    kept
}

/// The elements of a tuple or interval, without its brackets; else the text alone.
fn elements(text: &str) -> Vec<String> {
    let text = without_thousands(text);
    let is_bracket = |c: char| "()[]".contains(c);
    let inner = text
        .strip_prefix(is_bracket)
        .and_then(|rest| rest.strip_suffix(is_bracket))
        .filter(|inner| !inner.is_empty() && !inner.contains(is_bracket));
    match inner {
        Some(inner) => inner.split(',').map(|element| element.trim().to_owned()).collect(),
        None if text.is_empty() => Vec::new(),
        None => vec![text],
    }
}

fn is_fraction(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix('-')
        .unwrap_or(text)
        .split_once('/')
        .is_some_and(|(above, below)| digits(above) && digits(below))
}

/// The rule by which the second grader finds both equal.
pub(crate) fn equal(gold: &str, found: &str) -> Option<&'static str> {
    if gold.len().max(found.len()) > MAX_BYTES {
        return None;
    }
    let (gold, found) = (normal(gold), normal(found));
    if gold == found {
        return Some("the same normal text of the second grader");
    }
    if found.is_empty() {
        return None;
    }
    let (golds, founds) = (elements(&gold), elements(&found));
    let is_same_bracket =
        gold.chars().next() == found.chars().next() && gold.chars().last() == found.chars().last();
    if golds.len() != founds.len() || golds.len() > 1 && !is_same_bracket {
        return None;
    }
    let is_same = golds.iter().zip(&founds).all(|(gold, found)| {
        if is_fraction(gold) && is_fraction(found) {
            return gold == found;
        }
        is_whole(gold) == is_whole(found) && is_simplified(gold, found)
    });
    is_same.then_some("equal after simplification")
}

/// Whether the difference may be simplified, and is zero: at most two letters, no exponent of several digits.
fn is_simplified(gold: &str, found: &str) -> bool {
    let both = format!("({gold})-({found})");
    let letters: BTreeSet<char> =
        both.replace("sqrt", "").replace("frac", "").chars().filter(|c| c.is_alphabetic()).collect();
    if letters.len() > 2 || BARRED.as_ref().is_none_or(|barred| barred.is_match(&both)) {
        return false;
    }
    let mut names = Vec::new();
    let (Some(gold), Some(found)) = (formula(gold, &mut names), formula(found, &mut names)) else {
        return false;
    };
    let rounding = Rounding { decimals: 12 };
    value::is_value(&gold)
        && value::is_value(&found)
        && value::equal(&gold, &found, rounding).is_some_and(|rule| rule != value::ROUNDED_LABEL)
}

/// A formula in which a run of letters is one variable, as in programs; `names` are those met so far.
fn formula(text: &str, names: &mut Vec<String>) -> Option<Expr> {
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let len: usize = rest.chars().take_while(|c| c.is_alphabetic()).map(char::len_utf8).sum();
        if len == 0 {
            renamed.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let run = &rest[..len];
        rest = &rest[len..];
        if matches!(run, "sqrt" | "pi" | "ln") {
            renamed.push_str(run);
            continue;
        }
        let at = names.iter().position(|name| name == run).unwrap_or_else(|| {
            names.push(run.to_owned());
            names.len() - 1
        });
        // Blanks keep it from its neighbours.
        let _ = write!(renamed, " {} ", NAMES.chars().nth(at)?);
    }
    let tree = parse(&renamed, Commas::Separators)?;
    let has_constant = tree.any(&|part| matches!(part, Expr::Constant(Constant::E | Constant::I)));
    (!has_constant).then_some(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms_are_those_of_the_table() {
        for (text, expected) in [
            ("1,000", "1000"),
            ("3.0", "3"),
            ("2 and 3", "2,3"),
            (r"\frac{1}{2}", "1/2"),
            (r"1\frac{1}{2}", "1+1/2"),
            ("7 3/4", "7+3/4"),
            (r"\text{Hello World}", "helloworld"),
            ("3 million", "3*10^6"),
            ("12 square feet", "12square"),
            (r"\infty", "inf"),
            ("1e3", "1000"),
            ("today", "to"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
    }

    #[test]
    fn runs_of_letters_are_one_variable() {
        assert!(is_simplified("xy+1", "1+xy"));
        assert!(!is_simplified("xy", "yx"));
        assert!(is_simplified("e+1", "1+e"));
    }
}
