//! The `mathd` reward: the content of the last box is the label's text, both in the normal form of the MATH data set
//! (Hendrycks et al. 2021), which the framework slime uses too.

use std::fmt::Write;

use crate::error::Result;
use crate::math::slime_box;
use crate::{Row, RowVerifier, Verdict};

/// The `mathd` reward.
#[derive(Debug)]
pub(crate) struct Mathd;

impl RowVerifier for Mathd {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let label = row.expected();
        let gold = normal(slime_box::extract(label).unwrap_or(label));
        Ok(match slime_box::extract(row.response).map(normal) {
            None => Verdict::of(false, "no box".to_owned()),
            Some(found) if found == gold => {
                Verdict::of(true, format!("the last box {found}: the same normal text"))
            }
            Some(found) => Verdict::of(false, format!("the last box is {found}, the label is {gold}")),
        })
    }
}

/// The normal form of an answer.
pub(crate) fn normal(answer: &str) -> String {
    let answer = unwrapped(answer.trim());
    // What cannot be brought into form stays as it is.
    stripped(answer).unwrap_or_else(|| answer.to_owned())
}

/// The content where the whole is one `\text{...}`.
pub(crate) fn unwrapped(answer: &str) -> &str {
    let content = answer.strip_prefix("\\text{").and_then(|rest| rest.strip_suffix('}'));
    match content {
        Some(content) if !content.is_empty() && !content.contains('\n') => content.trim(),
        _ => answer,
    }
}

fn stripped(answer: &str) -> Option<String> {
    let mut text = answer.replace('\n', "").replace("\\!", "").replace("\\\\", "\\");
    text =
        text.replace("tfrac", "frac").replace("dfrac", "frac").replace("\\left", "").replace("\\right", "");
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "");
    text = match text.split("\\text{ ").collect::<Vec<_>>()[..] {
        [_] => text,
        [before, _] => before.to_owned(),
        // More than one unit is no unit.
        _ => return None,
    };
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.");
    if text.is_empty() {
        return Some(text);
    }
    if text.starts_with('.') {
        text.insert(0, '0');
    }
    let defined = match text.split('=').collect::<Vec<_>>()[..] {
        [left, right] if left.chars().count() <= 2 => right.to_owned(),
        _ => text,
    };
    text = braced_roots(&defined)?.replace(' ', "");
    text = braced_fractions(&text)?;
    if text == "0.5" {
        "\\frac{1}{2}".clone_into(&mut text);
    }
    Some(slashed_fraction(&text).unwrap_or(text))
}

/// `\sqrt3` with braces.
fn braced_roots(text: &str) -> Option<String> {
    let mut parts = text.split("\\sqrt");
    let mut result = parts.next()?.to_owned();
    for part in parts {
        let first = part.chars().next()?;
        result.push_str("\\sqrt");
        if first == '{' {
            result.push_str(part);
        } else {
            let _ = write!(result, "{{{first}}}{}", &part[first.len_utf8()..]);
        }
    }
    Some(result)
}

/// `\frac12` and `\frac1{72}` with braces; what is too short changes nothing.
fn braced_fractions(text: &str) -> Option<String> {
    let mut parts = text.split("\\frac");
    let mut result = parts.next()?.to_owned();
    for part in parts {
        let mut letters = part.chars();
        let first = letters.next()?;
        result.push_str("\\frac");
        if first == '{' {
            result.push_str(part);
            continue;
        }
        let Some(second) = letters.next() else { return Some(text.to_owned()) };
        let rest = letters.as_str();
        if second == '{' {
            let _ = write!(result, "{{{first}}}{{{rest}");
        } else {
            let _ = write!(result, "{{{first}}}{{{second}}}{rest}");
        }
    }
    Some(result)
}

/// `3/4` of whole numbers as `\frac{3}{4}`, where it is written exactly so.
fn slashed_fraction(text: &str) -> Option<String> {
    let (above, below) = text.split_once('/')?;
    let is_exact = |part: &str| {
        let digits = part.strip_prefix('-').unwrap_or(part);
        !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits == "0" && digits == part || !digits.starts_with('0'))
    };
    (is_exact(above) && is_exact(below)).then(|| format!("\\frac{{{above}}}{{{below}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms_are_those_of_the_table() {
        for (text, expected) in [
            (r"\frac12", r"\frac{1}{2}"),
            (r"\tfrac{1}{2}", r"\frac{1}{2}"),
            (r"\left(1\right)", "(1)"),
            (r"45^{\circ}", "45"),
            (r"45^\circ", "45"),
            (".7", "0.7"),
            ("0.5", r"\frac{1}{2}"),
            (".5", r"\frac{1}{2}"),
            ("0.50", "0.50"),
            ("3/4", r"\frac{3}{4}"),
            ("3/4/5", "3/4/5"),
            ("1 + 1", "1+1"),
            (r"\frac{72}1", r"\frac{72}1"),
            (r"\frac1{72}", r"\frac{1}{72}"),
            ("k=3", "3"),
            ("abc=3", "abc=3"),
            ("-.5", "-.5"),
            ("1,000", "1,000"),
            (r"10\%", "10"),
            (r"\text{42}", "42"),
            (r"5\text{ cm}", "5"),
            (r"\sqrt3", r"\sqrt{3}"),
            (r"5\text{ cm}\text{ m}", r"5\text{ cm}\text{ m}"),
            (r"\frac1", r"\frac1"),
            (r"2\sqrt", r"2\sqrt"),
            ("", ""),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
    }

    #[test]
    fn boxes_are_compared_as_text() {
        let reward = |response: &str, label: &str| {
            let row = Row { response, label: Some(label), ..Row::default() };
            Mathd.verdict(&row).unwrap().reward
        };
        assert!(reward(r"\boxed{\frac12}", "0.5") > 0.5);
        assert!(reward(r"\boxed{42}", r"\boxed{42}") > 0.5);
        assert!(reward(r"\boxed{\frac{2}{4}}", "0.5") < 0.5);
        assert!(reward("42", "42") < 0.5);
    }
}
