//! The last number of a sentence.

/// The last number of a text with its sign, a fraction with its denominator: not the digits of a word. Nothing where it
/// is an operand of a formula, of which it would be a part only.
pub(crate) fn last_number(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut end = bytes.len();
    loop {
        end = 1 + bytes.get(..end)?.iter().rposition(u8::is_ascii_digit)?;
        let is_part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b',' | b'/');
        let mut start = bytes[..end].iter().rposition(|byte| !is_part(byte)).map_or(0, |at| at + 1);
        while matches!(bytes.get(start), Some(b',' | b'/'))
            || bytes.get(start) == Some(&b'.') && !bytes.get(start + 1).is_some_and(u8::is_ascii_digit)
        {
            start += 1;
        }
        // `H2O` and `x_1` are words.
        let before = start.checked_sub(1).and_then(|at| bytes.get(at));
        if before.is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_') {
            end = start;
            continue;
        }
        if is_operand(&text[..start], &text[end..]) {
            return None;
        }
        let is_sign = before == Some(&b'-')
            && start.checked_sub(2).and_then(|at| bytes.get(at)).is_none_or(|byte| b" (=:$".contains(byte));
        let start = if is_sign { start - 1 } else { start };
        // A percent sign belongs to it.
        let rest = &text[end..];
        let percent = rest.trim_start_matches([' ', '\\']);
        let end = if percent.starts_with('%') { text.len() - percent.len() + 1 } else { end };
        return Some(&text[start..end]);
    }
}

/// Whether a number between these texts is calculated with.
fn is_operand(before: &str, after: &str) -> bool {
    let is_value = |c: char| c.is_alphanumeric() || matches!(c, ')' | ']' | '}' | '|' | '!');
    let left = before.trim_end_matches(' ');
    let Some(sign) = left.chars().next_back() else { return is_raised(after) };
    let further = &left[..left.len() - sign.len_utf8()];
    let operated = match sign {
        '^' | '_' => true,
        '+' | '/' | '×' | '·' => further.trim_end_matches(' ').ends_with(is_value),
        // Between a blank and a number an asterisk is a mark of emphasis.
        '*' => {
            let is_even = (left.len() < before.len()) == further.ends_with(' ');
            is_even && further.trim_end_matches(' ').ends_with(is_value)
        }
        // A dash may stand between words, and `3-5` may be a range.
        '-' | '−' => {
            let is_spaced = left.len() < before.len();
            let value = further.trim_end_matches(' ');
            let letters = value.chars().rev().take_while(|c| c.is_alphabetic()).count();
            value.ends_with([')', ']', '}', '|'])
                || letters == 1
                || is_spaced && letters == 0 && value.ends_with(is_value)
        }
        // A bracket may begin a remark.
        '(' | '[' | '{' => {
            further.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '^' | '}' | ']' | '_'))
        }
        _ => false,
    };
    operated || is_raised(after)
}

/// Whether a text begins with what is done to the value before it.
fn is_raised(after: &str) -> bool {
    let rest = after.trim_start_matches(' ');
    let is_degree = rest.starts_with("^\\circ") || rest.starts_with("^{\\circ");
    let is_product = rest.strip_prefix(['*', '+', '×', '·']).is_some_and(|rest| {
        rest.trim_start_matches(' ').starts_with(|c: char| c.is_ascii_alphanumeric() || c == '(')
    });
    rest.starts_with('^') && !is_degree || is_product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sentences_are_found_and_operands_are_not() {
        for (text, expected) in [
            ("it is **42**", Some("42")),
            ("it is *42*.", Some("42")),
            ("so 3 + 4 = 7.", Some("7")),
            ("it is -3", Some("-3")),
            ("costs $10 bills", Some("10")),
            ("they are 5 (that is 28 %)", Some("28 %")),
            ("an angle of 90^\\circ", Some("90")),
            ("a range of 3-5", Some("5")),
            (r"\int_0^1 x^2 dx + 5", None),
            (r"\zeta(3)", None),
            ("foo(x) - 3", None),
            ("foo(x)-3", None),
            ("x - 3", None),
            ("the total - 3", Some("3")),
            ("3 * 5", None),
            ("x^2", None),
            ("2^n + n", None),
            (r"\weird{7}", None),
            ("no number", None),
        ] {
            assert_eq!(last_number(text), expected, "{text}");
        }
    }
}
