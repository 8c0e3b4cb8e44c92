//! Which part of a response is the answer.

use crate::math::numeral::{self, Commas};
use crate::math::rational::show;

/// The part after the last `</think>`; nothing when a `<think>` is never closed, since an unfinished thought is
/// no answer; the whole response when there is no thought.
pub fn answer_text(response: &str) -> &str {
    if !response.contains('<') {
        return response;
    }
    match (response.rfind("</think>"), response.rfind("<think>")) {
        (Some(close), open) if open.is_none_or(|open| open < close) => &response[close + "</think>".len()..],
        (_, Some(_)) => "",
        (_, None) => response,
    }
}

/// The answer that is compared with a label: what the last `<answer>` holds, where there is one that closes behind the
/// thought, else all behind it.
pub(crate) fn final_answer(response: &str) -> &str {
    let answer = answer_text(response);
    let Some(close) = answer.rfind("</answer>") else { return answer };
    match answer[..close].rfind("<answer>") {
        Some(open) => &answer[open + "<answer>".len()..close],
        None => answer,
    }
}

/// What a response answers, for counting equal answers: the number in the last box, else the last box as it is, else the
/// last number, else the whole answer without blanks around it.
pub fn voted_answer(response: &str) -> String {
    let answer = final_answer(response);
    let boxed = last_boxed(answer);
    let number = numeral::last_in(boxed.unwrap_or(answer), Commas::Thousands);
    number.map_or_else(|| boxed.unwrap_or(answer).trim().to_owned(), |found| show(&found.value))
}

/// The content of the last closed `\boxed{...}` (or `\fbox{...}`), braces balanced.
pub(crate) fn last_boxed(text: &str) -> Option<&str> {
    boxes(text).into_iter().max().map(|(start, end)| &text[start..end])
}

/// The contents of all closed boxes that hold no other one: together they are no longer than the text.
pub(crate) fn innermost_boxed(text: &str) -> Vec<&str> {
    let mut innermost: Vec<(usize, usize)> = Vec::new();
    for (start, end) in boxes(text) {
        // A box closes after those within it.
        if innermost.last().is_none_or(|(inner, _)| *inner < start) {
            innermost.push((start, end));
        }
    }
    innermost.into_iter().map(|(start, end)| &text[start..end]).collect()
}

/// Where the contents of closed boxes begin and end.
fn boxes(text: &str) -> Vec<(usize, usize)> {
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut found = Vec::new();
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => {
                let before = &text[..at];
                open.push((at + 1, before.ends_with("\\boxed") || before.ends_with("\\fbox")));
            }
            b'}' => {
                if let Some((start, true)) = open.pop() {
                    found.push((start, at));
                }
            }
            _ => {}
        }
    }
    found
}

/// Where the brace that was open before `content` closes.
pub(crate) fn closing_brace(content: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut escaped = false;
    for (at, byte) in content.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_answers_are_equal_however_they_are_written() {
        for (response, answer) in [
            ("so \\boxed{1,000} and 3", "1000"),
            ("it is 1000.0", "1000"),
            ("<think>7</think> \\boxed{x} ", "x"),
            ("<think>7</think><answer> x </answer>.", "x"),
            (" yes ", "yes"),
        ] {
            assert_eq!(voted_answer(response), answer, "{response}");
        }
    }

    #[test]
    fn answer_follows_the_closed_thought() {
        assert_eq!(answer_text("<think>1 + 1</think>2"), "2");
        assert_eq!(answer_text("1 + 1</think> 2"), " 2");
        assert_eq!(answer_text("<think>it may be 7"), "");
        assert_eq!(answer_text("<think>a</think>b<think>c"), "");
        assert_eq!(answer_text("plain"), "plain");
    }

    #[test]
    fn final_answers_may_be_marked() {
        assert_eq!(final_answer("<think>1</think> <answer>2</answer>"), "2");
        assert_eq!(final_answer("<answer>1</answer> no: <answer>2</answer>."), "2");
        assert_eq!(final_answer("<think><answer>1</answer></think>2"), "2");
        assert_eq!(final_answer("</answer>2"), "</answer>2");
        assert_eq!(final_answer("<answer>2"), "<answer>2");
    }

    #[test]
    fn last_closed_box_is_taken_with_its_inner_braces() {
        assert_eq!(last_boxed(r"\boxed{1} then \boxed{\frac{1}{2}}."), Some(r"\frac{1}{2}"));
        assert_eq!(last_boxed(r"\boxed{4} and \boxed{5"), Some("4"));
        assert_eq!(last_boxed(r"\boxed{\}} x"), Some(r"\}"));
        assert_eq!(last_boxed("no box"), None);
        assert_eq!(last_boxed(r"\boxed{"), None);
        assert_eq!(last_boxed(r"\boxed{\text{a} \boxed{7}}"), Some("7"));
        assert_eq!(
            innermost_boxed(r"\boxed{1} \boxed{2 \boxed{3} \boxed{4}} \boxed{5}"),
            ["1", "3", "4", "5"]
        );
        assert_eq!(last_boxed(&r"\boxed{".repeat(150_000)), None);
    }
}
