//! Texts that were escaped twice, as JSON within JSON.

use crate::math::words;

/// One backslash where a text was escaped twice (`\\frac`): before a known command, outside matrices.
pub(crate) fn without_double_escapes(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut cleaned: Option<String> = None;
    let mut copied = 0;
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find("\\\\")) {
        let from = at + found;
        let len = bytes[from + 2..].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let name = &text[from + 2..from + 2 + len];
        let is_command = len > 1 && (words::command(name).is_some() || name == "begin" || name == "end");
        let is_bracket =
            len == 0 && matches!(bytes.get(from + 2), Some(b'(' | b')')) && !text.contains("\\begin");
        if is_command || is_bracket {
            cleaned.get_or_insert_with(String::new).push_str(&text[copied..=from]);
            copied = from + 2;
        }
        at = from + 2;
    }
    cleaned.map(|cleaned| cleaned + &text[copied..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_escapes_are_undone_outside_matrices() {
        assert_eq!(without_double_escapes(r"\\frac{1}{2}").as_deref(), Some(r"\frac{1}{2}"));
        assert_eq!(without_double_escapes(r"1 \\ x \\y"), None);
        assert_eq!(without_double_escapes(r"-2 \\le x").as_deref(), Some(r"-2 \le x"));
    }
}
