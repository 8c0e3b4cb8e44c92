//! Sentences that announce an answer.

/// How an answer is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phrase {
    /// `Final Answer:`, `the final answer is`.
    Final,
    /// `the answer is`, `Answer:`.
    Announced,
}

/// Where the last phrase of this kind ends, and what it announces begins.
pub(crate) fn last_phrase(text: &str, phrase: Phrase) -> Option<usize> {
    let mut end = text.len();
    while let Some(at) = last_answer(&text[..end]) {
        let is_final = text[..at].trim_end().len() >= 5 && {
            let before = text[..at].trim_end();
            before.get(before.len() - 5..).is_some_and(|word| word.eq_ignore_ascii_case("final"))
        };
        let after = at + "answer".len();
        match phrase {
            Phrase::Final if is_final => return Some(announced(text, after).unwrap_or(after)),
            Phrase::Announced => {
                if let Some(from) = announced(text, after) {
                    return Some(from);
                }
            }
            Phrase::Final => {}
        }
        end = at;
    }
    None
}

/// Where the word `answer` stands last, in any case.
fn last_answer(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut end = bytes.len();
    while let Some(at) = bytes.get(..end)?.iter().rposition(|byte| matches!(byte, b'w' | b'W')) {
        // The w is its fourth letter.
        if let Some(start) = at.checked_sub(3)
            && bytes.get(start..start + 6).is_some_and(|word| word.eq_ignore_ascii_case(b"answer"))
        {
            return Some(start);
        }
        end = at;
    }
    None
}

/// Behind `answer`: past `is`, `are`, `:`, `=` and emphasis; nothing when nothing is announced.
fn announced(text: &str, from: usize) -> Option<usize> {
    let rest = text[from..].strip_prefix('s').unwrap_or(&text[from..]);
    let rest = rest.trim_start_matches([' ', '*', '\t']);
    let after = [":", "is", "are", "="].into_iter().find_map(|word| rest.strip_prefix(word))?;
    let after = after.trim_start_matches([' ', '*', ':', '\t', '\n']);
    // `is: ` and `is therefore`.
    let after = ["therefore ", "thus ", "then ", "simply ", "just "]
        .into_iter()
        .find_map(|word| after.strip_prefix(word))
        .unwrap_or(after);
    Some(text.len() - after.len())
}

/// The first sentence of a text: up to a line's end, or a full stop behind which a new sentence begins.
pub(crate) fn sentence(text: &str) -> &str {
    let skipped = text.len() - text.trim_start_matches([' ', '*', ':', '\n', '\r', '\t', '#']).len();
    let mut is_formula = false;
    let bytes = text.as_bytes();
    for at in skipped..bytes.len() {
        match bytes[at] {
            b'$' => is_formula = !is_formula,
            b'\n' if !is_formula => return &text[skipped..at],
            b'.' if !is_formula && matches!(bytes.get(at + 1), None | Some(b' ' | b'\n')) => {
                return &text[skipped..at];
            }
            _ => {}
        }
    }
    &text[skipped..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &str, phrase: Phrase) -> Option<&str> {
        last_phrase(text, phrase).map(|from| sentence(&text[from..]))
    }

    #[test]
    fn phrases_lead_to_what_they_announce() {
        assert_eq!(after("Final Answer: The final answer is $4$. I hope.", Phrase::Final), Some("$4$"));
        assert_eq!(after("the ANSWER is: 5\nok", Phrase::Announced), Some("5"));
        assert_eq!(after("**Answer:** 3.5 cm. So", Phrase::Announced), Some("3.5 cm"));
        assert_eq!(after("an answer", Phrase::Announced), None);
        assert_eq!(after("the answer is 5", Phrase::Final), None);
        assert_eq!(after("**Final Answer**\nThe sum", Phrase::Final), Some("The sum"));
        assert_eq!(after("ends with answer", Phrase::Final), None);
        assert_eq!(last_phrase(&"www answer".repeat(100_000), Phrase::Announced), None);
    }

    #[test]
    fn a_stop_within_a_formula_or_number_ends_nothing() {
        assert_eq!(sentence("$100 . $ more. Then"), "$100 . $ more");
        assert_eq!(sentence(" 3.5 of 4.5. Next"), "3.5 of 4.5");
    }
}
