//! Answers in words, and choices of a letter.

use std::sync::LazyLock;

use regex::Regex;

/// The letters and digits of words in lower case, joined by single blanks, without LaTeX and articles.
pub(crate) fn normal(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mut len = c.len_utf8();
        if c == '\\' {
            let name: usize = rest[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
            let command = &rest[1..=name];
            // Commands of style and space vanish, others keep their name.
            if is_style(command) || name == 0 {
                plain.push(' ');
            } else {
                plain.push_str(command);
            }
            len = 1 + name;
        } else if c == '.' && !rest[1..].starts_with(|next: char| next.is_ascii_digit()) {
            // Only the point of a number counts.
        } else if c.is_alphanumeric() || "+-*/^=<>%.:|".contains(c) {
            plain.extend(c.to_lowercase());
        } else if !matches!(c, '{' | '}' | '$' | '\'' | '’') {
            plain.push(' ');
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    let words: Vec<&str> = plain
        .split_whitespace()
        .map(|word| word.trim_matches(['.', ':']))
        .filter(|word| !word.is_empty() && !matches!(*word, "a" | "an" | "the") || text.trim().len() == 1)
        .collect();
    words.join(" ")
}

fn is_style(command: &str) -> bool {
    command.starts_with("text")
        || command.starts_with("math")
        || matches!(
            command,
            "mbox"
                | "left"
                | "right"
                | "quad"
                | "qquad"
                | "boxed"
                | "displaystyle"
                | "rm"
                | "bf"
                | "hbox"
                | "operatorname"
        )
}

/// The letter of a choice: `C`, `(C)`, `C.`, `\text{(C)}`, `C) 12`, `Option C`.
pub(crate) fn choice(text: &str) -> Option<char> {
    if text.len() > 200 {
        return None;
    }
    let cleaned: String = text
        .replace("\\textbf", "")
        .replace("\\text", "")
        .replace("\\mathrm", "")
        .replace("\\mathbf", "")
        .chars()
        .filter(|c| !matches!(c, '{' | '}' | '$' | '*' | '\\'))
        .collect();
    let cleaned = cleaned.trim();
    let lower = cleaned.to_ascii_lowercase();
    let skipped = ["option ", "choice ", "answer "]
        .iter()
        .find(|word| lower.starts_with(**word))
        .map_or(0, |word| word.len());
    let cleaned = cleaned.get(skipped..)?.trim_start();
    let (is_open, rest) = cleaned.strip_prefix('(').map_or((false, cleaned), |rest| (true, rest));
    let letter = rest.chars().next().filter(char::is_ascii_alphabetic)?;
    let after = &rest[1..];
    if is_open {
        return after.starts_with(')').then(|| letter.to_ascii_uppercase());
    }
    let ends = match after.as_bytes() {
        [] => true,
        [b'.' | b')' | b':', ..] => after[1..].is_empty() || after.as_bytes().get(1) == Some(&b' '),
        _ => false,
    };
    ends.then(|| letter.to_ascii_uppercase())
}

/// A choice that a sentence makes: `so I choose A`, `the correct option is D`, `(B)`.
static CHOSEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let verbs =
        r"(?i:\b(?:options?|choices?|answers?|choose|chose|select|pick)\b[\s:*(]*(?:is\b[\s:*(]*)?)([A-J])\b";
    Regex::new(&format!(r"{verbs}|\(([A-J])\)")).ok()
});

/// The letter of the last choice that a text makes in a sentence.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    let last = CHOSEN.as_ref()?.captures_iter(text).last()?;
    last.get(1).or_else(|| last.get(2)).map(|letter| letter.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lose_style_case_and_articles() {
        assert_eq!(normal(r"\text{The midpoints form a regular hexagon.}"), "midpoints form regular hexagon");
        assert_eq!(normal("Evelyn"), normal(r"$\text{Evelyn}$"));
        assert_eq!(normal("a"), "a");
        assert_eq!(normal(r"\text{11:30 a.m.}"), normal("11:30 am"));
        assert_eq!(normal("\\"), "");
        assert_eq!(normal("\\é"), "é");
    }

    #[test]
    fn sentences_choose() {
        for (text, letter) in [
            ("Therefore the correct option is D", Some("D")),
            ("Option A is wrong, so I choose B.", Some("B")),
            ("I prefer (C) to (D).", Some("D")),
            ("the answer is not C", None),
            ("A triangle has I sides", None),
        ] {
            assert_eq!(chosen(text), letter, "{text}");
        }
    }

    #[test]
    fn choices_are_letters() {
        for text in ["C", "(C)", "C.", r"\text{(C)}", "C) 12", "Option C", "**C**", "c", "C: twelve"] {
            assert_eq!(choice(text), Some('C'), "{text}");
        }
        for text in ["Cat", "C+1", "CD", "3", "", "(C", "C.D"] {
            assert_eq!(choice(text), None, "{text}");
        }
    }
}
