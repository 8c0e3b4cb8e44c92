//! Boxes as the framework slime finds them, for the rewards that follow it to the letter.

/// The last `\boxed`, else the last `\fbox`, up to where its braces balance. A brace that closes before one opens makes
/// the count negative, and the box may end at a later zero.
fn last_box(text: &str) -> Option<&str> {
    let begin = text.rfind("\\boxed").or_else(|| text.rfind("\\fbox"))?;
    let mut depth = 0_i64;
    for (at, byte) in text.bytes().enumerate().skip(begin) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return text.get(begin..=at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The content of the last `\boxed{...}`; nothing for `\fbox` and `\boxed 7`.
pub(crate) fn extract(text: &str) -> Option<&str> {
    if !text.contains("\\boxed") {
        return None;
    }
    last_box(text)?.strip_prefix("\\boxed{")?.strip_suffix('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_closed_box_is_found() {
        assert_eq!(extract(r"\boxed{1}, \boxed{2}"), Some("2"));
        assert_eq!(extract(r"\boxed{\frac{1}{2}} x}"), Some(r"\frac{1}{2}"));
        assert_eq!(extract(r"\boxed{7"), None);
        assert_eq!(extract(r"\boxed 7"), None);
        assert_eq!(extract(r"\fbox{7}"), None);
        assert_eq!(last_box(r"a \fbox{7} b"), Some(r"\fbox{7}"));
        assert_eq!(last_box("none"), None);
    }
}
