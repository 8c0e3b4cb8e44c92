//! LaTeX as plain text, the way the text converter behind the framework slime writes it: fractions with a slash and
//! without brackets, roots with brackets, unknown commands without a trace.

use crate::answer::closing_brace;

/// Deeper nesting is left as it is.
const MAX_DEPTH: usize = 64;

/// What each command becomes.
const COMMANDS: &[(&str, &str)] = &[
    ("pi", "pi"),
    ("infty", "inf"),
    ("cup", "U"),
    ("cdot", "*"),
    ("times", "*"),
    ("div", "÷"),
    ("pm", "±"),
    ("cap", "∩"),
    ("le", "≤"),
    ("leq", "≤"),
    ("ge", "≥"),
    ("geq", "≥"),
    ("ne", "≠"),
    ("neq", "≠"),
    ("lt", "<"),
    ("gt", ">"),
    ("in", "∈"),
    ("emptyset", "∅"),
    ("theta", "θ"),
    ("alpha", "α"),
    ("beta", "β"),
    ("gamma", "γ"),
    ("lambda", "λ"),
    ("mu", "μ"),
    ("phi", "ϕ"),
    ("omega", "ω"),
    ("sin", "sin"),
    ("cos", "cos"),
    ("tan", "tan"),
    ("log", "log"),
    ("ln", "ln"),
    ("quad", "  "),
    ("qquad", "    "),
];

/// The text of a formula.
pub(crate) fn plain(text: &str) -> String {
    // A blank before fractions keeps mixed numbers apart.
    let text = text.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac").replace("\\frac", " \\frac");
    let mut result = String::with_capacity(text.len());
    write(&text, &mut result, 0);
    result.trim().to_owned()
}

fn write(text: &str, result: &mut String, depth: usize) {
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c != '\\' {
            if !matches!(c, '{' | '}' | '$') {
                result.push(if c == '~' { ' ' } else { c });
            }
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let len = rest[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let name = &rest[1..=len];
        rest = &rest[1 + len..];
        match name {
            "" => {
                // An escaped sign is the sign, a spacing command a blank.
                if let Some(sign) = rest.chars().next() {
                    rest = &rest[sign.len_utf8()..];
                    match sign {
                        '!' => {}
                        ',' | ';' | ':' | ' ' | '\\' => result.push(' '),
                        other => result.push(other),
                    }
                }
            }
            "frac" | "sqrt" if depth < MAX_DEPTH => {
                if name == "sqrt"
                    && let Some(degree) = rest.trim_start().strip_prefix('[')
                    && let Some(end) = degree.find(']')
                {
                    rest = &degree[end + 1..];
                }
                let (first, after) = argument(rest);
                rest = after;
                if name == "sqrt" {
                    result.push_str("sqrt(");
                    write(first, result, depth + 1);
                    result.push(')');
                } else {
                    let (second, after) = argument(rest);
                    rest = after;
                    write(first, result, depth + 1);
                    result.push('/');
                    write(second, result, depth + 1);
                }
            }
            _ => {
                // A blank behind a command ends its name.
                rest = rest.trim_start_matches(' ');
                if let Some((_, written)) = COMMANDS.iter().find(|(known, _)| *known == name) {
                    result.push_str(written);
                }
            }
        }
    }
}

/// One argument of a command, in braces or one character, and what follows it.
fn argument(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    if let Some(content) = text.strip_prefix('{') {
        return match closing_brace(content.as_bytes()) {
            Some(close) => (&content[..close], &content[close + 1..]),
            None => (content, ""),
        };
    }
    let len = text.chars().next().map_or(0, char::len_utf8);
    text.split_at(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_written_plainly() {
        for (text, expected) in [
            (r"\frac{1}{2}", "1/2"),
            (r"1\frac{1}{2}", "1 1/2"),
            (r"2\sqrt{3}", "2sqrt(3)"),
            (r"\frac{\pi}{2}", "pi/2"),
            (r"(-\infty, 2] \cup [3, \infty)", "(-inf, 2] U[3, inf)"),
            (r"\frac12", "1/2"),
            (r"\sqrt[3]{8}", "sqrt(8)"),
            (r"3 \cdot 4", "3 *4"),
            (r"\unknown{x}", "x"),
            ("\\", ""),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
        assert!(!plain(&r"\frac{".repeat(10_000)).is_empty());
    }
}
