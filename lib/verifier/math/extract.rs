//! Where in a text its answer stands: boxes, final statements, formulas, numbers.

use std::borrow::Cow;

use crate::math::formula::formulas;
use crate::math::last_number::last_number;
use crate::math::numeral::Commas;
use crate::math::parse::parse;
use crate::math::quick;
use crate::math::statement::{Phrase, last_phrase, sentence};

/// Longer texts are no answer as a whole.
const MAX_WHOLE_BYTES: usize = 240;
/// Longer lists are not put together.
const MAX_ITEMS: usize = 64;
/// Boxes further apart are no list.
const MAX_GAP_BYTES: usize = 48;

/// An answer and where it was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer<'a> {
    pub(crate) text: Cow<'a, str>,
    pub(crate) source: &'static str,
}

impl<'a> Answer<'a> {
    fn of(text: &'a str, source: &'static str) -> Self {
        Self { text: Cow::Borrowed(text), source }
    }
}

/// The answer of a response. The last final statement counts, a box or a sentence that says so; else what is announced
/// as the answer; else the last formula or number. `as_list` takes boxes that follow one another as a list.
pub(crate) fn answer(text: &str, as_list: bool) -> Option<Answer<'_>> {
    if quick::is_plain(text) {
        return Some(Answer::of(text, "the response"));
    }
    let text = before_markers(text);
    let boxes = boxes(text);
    let last_box = boxes.last().map(|last| last.end);
    if let Some(phrase) = last_phrase(text, Phrase::Final)
        && last_box.is_none_or(|last| last < phrase)
        && let Some(answer) = stated(text, phrase, "the final answer", (last_box.is_none(), as_list))
    {
        return Some(answer);
    }
    if let Some(answer) = boxed(text, &boxes, as_list) {
        return Some(answer);
    }
    if let Some(phrase) = last_phrase(text, Phrase::Announced)
        && let Some(answer) = stated(text, phrase, "the announced answer", (true, as_list))
    {
        return Some(answer);
    }
    let whole = text.trim();
    if whole.len() <= MAX_WHOLE_BYTES && is_whole_formula(whole) {
        return Some(Answer::of(whole, "the response"));
    }
    last_item(text, as_list).or_else(|| {
        (!whole.is_empty() && whole.len() <= MAX_WHOLE_BYTES).then(|| Answer::of(whole, "the response"))
    })
}

/// The answer of a label: what follows `####`, its boxes, all of it, else what a response would give.
pub(crate) fn label(text: &str) -> Answer<'_> {
    let whole = text.trim();
    if quick::is_plain(whole) {
        return Answer::of(whole, "the label");
    }
    if let Some((_, answer)) = whole.rsplit_once("####") {
        return Answer::of(answer.trim(), "the label");
    }
    if let Some(answer) = boxed(whole, &boxes(whole), true) {
        return answer;
    }
    if is_whole_formula(whole) {
        return Answer::of(whole, "the label");
    }
    let unescaped = crate::math::escape::without_double_escapes(whole);
    if unescaped.is_some_and(|text| parse(&text, Commas::Thousands).is_some()) {
        return Answer::of(whole, "the label");
    }
    last_phrase(whole, Phrase::Final)
        .and_then(|phrase| stated(whole, phrase, "the label", (true, true)))
        .or_else(|| is_prose(whole).then(|| last_item(whole, true)).flatten())
        .unwrap_or_else(|| Answer::of(whole, "the label"))
}

/// Whether a text is sentences or lines rather than a formula.
fn is_prose(text: &str) -> bool {
    text.len() > MAX_WHOLE_BYTES
        || text.contains('\n')
        || text.split_whitespace().filter(|word| word.chars().all(char::is_alphabetic)).count() > 3
}

/// Whether a text is a formula as a whole; plain numbers are known at once.
fn is_whole_formula(text: &str) -> bool {
    quick::is_plain(text) || parse(text, Commas::Thousands).is_some()
}

/// The text before the markers that end a message, as `<|im_end|>`.
fn before_markers(text: &str) -> &str {
    let is_marker = |at: usize| {
        let Some(marker) = text[at..].strip_prefix("<|") else { return false };
        let name = marker.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        name > 0 && marker[name..].starts_with("|>") && !text[..at].trim().is_empty()
    };
    let marker = text.match_indices('<').map(|(at, _)| at).find(|at| is_marker(*at));
    marker.map_or(text, |at| &text[..at])
}

/// A closed box: where its command begins, and its content.
#[derive(Debug, Clone, Copy)]
struct Box {
    begin: usize,
    start: usize,
    end: usize,
}

/// The closed boxes of a text that lie in no other one, in order.
fn boxes(text: &str) -> Vec<Box> {
    let bytes = text.as_bytes();
    let mut closed: Vec<Box> = Vec::new();
    if !text.contains("box") {
        return closed;
    }
    let mut open: Vec<Option<Box>> = Vec::new();
    let mut is_escaped = false;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'{' => {
                let before = text[..at].trim_end_matches(' ');
                let command = ["\\boxed", "\\fbox"].into_iter().find(|command| before.ends_with(command));
                open.push(command.map(|name| Box {
                    begin: before.len() - name.len(),
                    start: at + 1,
                    end: at + 1,
                }));
            }
            b'}' => {
                if let Some(Some(found)) = open.pop() {
                    while closed.last().is_some_and(|inner| inner.start > found.start) {
                        closed.pop();
                    }
                    closed.push(Box { end: at, ..found });
                }
            }
            _ => {}
        }
    }
    closed
}

/// The last box, or the list of those that lead to it.
fn boxed<'a>(text: &'a str, boxes: &[Box], as_list: bool) -> Option<Answer<'a>> {
    let last = boxes.last()?;
    let content = |each: &Box| text[each.start..each.end].trim();
    if as_list {
        let mut group = vec![last];
        for pair in boxes.windows(2).rev() {
            let [before, after] = pair else { break };
            if !joins(&text[before.end + 1..after.begin]) {
                break;
            }
            group.push(before);
        }
        let mut contents: Vec<&str> = Vec::new();
        for each in group.iter().rev() {
            if !contents.contains(&content(each)) && contents.len() < MAX_ITEMS {
                contents.push(content(each));
            }
        }
        if contents.len() > 1 {
            return Some(Answer { text: Cow::Owned(contents.join(", ")), source: "the last boxes" });
        }
    }
    Some(Answer::of(content(last), "the last box"))
}

/// Whether what stands between two boxes joins them to a list: punctuation, a joining word, a name that is defined.
fn joins(gap: &str) -> bool {
    if gap.len() > MAX_GAP_BYTES || gap.contains("\n\n") {
        return false;
    }
    let plain = gap
        .replace("\\text", " ")
        .replace("\\quad", " ")
        .replace("\\qquad", " ")
        .replace(['$', '\\', '{', '}', '[', ']', '&'], " ");
    let words: Vec<&str> =
        plain.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let is_joined = words.iter().any(|word| *word == "and" || *word == "or");
    let ends_sentence = plain.contains(". ") || plain.trim().starts_with('.');
    // Without a joining word only punctuation, or the name of the next value.
    let is_named = plain.contains('=') && plain.contains(',');
    let is_mark_only = words.is_empty() && !plain.contains('=');
    !ends_sentence && (is_joined || is_named || is_mark_only)
}

/// What the sentence behind a phrase states. Without formula and number, words count only where `or_words` says so.
fn stated<'a>(
    text: &'a str,
    from: usize,
    source: &'static str,
    (or_words, as_list): (bool, bool),
) -> Option<Answer<'a>> {
    let sentence = sentence(&text[from..]);
    let content = sentence.trim().trim_matches('*').trim();
    if content.is_empty() {
        return None;
    }
    if let Some(found) = boxes(content).last() {
        return Some(Answer::of(content[found.start..found.end].trim(), source));
    }
    let is_formula = content.len() <= MAX_WHOLE_BYTES && is_whole_formula(content);
    let has_sign = content.bytes().any(|byte| byte.is_ascii_digit() || byte == b'$' || byte == b'\\');
    if is_formula && (has_sign || or_words) {
        return Some(Answer::of(content, source));
    }
    if let Some(item) = last_item(content, as_list) {
        return Some(Answer { source, ..item });
    }
    (or_words && content.len() <= MAX_WHOLE_BYTES).then(|| Answer::of(content.trim_end_matches('.'), source))
}

/// The last formula, or the last number behind it. `as_list` takes formulas that follow one another as a list.
fn last_item(text: &str, as_list: bool) -> Option<Answer<'_>> {
    let formulas = formulas(text);
    let last = formulas.last();
    if let Some(number) = last_number(&text[last.map_or(0, |last| last.end)..]) {
        return Some(Answer::of(number, "the last number"));
    }
    let last = last?;
    let mut group = vec![last.content];
    for pair in formulas.windows(2).rev().take_while(|_| as_list) {
        let [before, after] = pair else { break };
        if !joins(&text[before.end..after.begin]) || group.len() == MAX_ITEMS {
            break;
        }
        group.push(before.content);
    }
    if group.len() > 1 {
        group.reverse();
        return Some(Answer { text: Cow::Owned(group.join(", ")), source: "the last formulas" });
    }
    Some(Answer::of(last.content, "the last formula"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> String {
        answer(text, false).map(|answer| answer.text.into_owned()).unwrap_or_default()
    }

    #[test]
    fn the_last_final_statement_counts() {
        for (text, expected) in [
            (r"\boxed{1} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
            (r"\boxed{4} and \boxed{5", "4"),
            (r"\boxed{\text{a} \boxed{7}}", r"\text{a} \boxed{7}"),
            (r"It is \boxed{3}. Final Answer: The final answer is $4$. I hope it is correct.", "$4$"),
            (r"Final answer: 3. No, \boxed{4}.", "4"),
            (r"\boxed{4}. I hope my final answer is correct.", "4"),
            ("Final Answer: The largest $n$ is 34.", "34"),
            ("Final Answer: the points in the domain of $f(x)$ are 19. <|im_start|>user", "19"),
            ("**Final Answer**\n$x = 5$", "$x = 5$"),
            ("The answer is 42. It took 3 steps.", "42"),
            ("The answer is (C) because of 7", "7"),
            ("Answer: Paris", "Paris"),
            ("so 10 is wrong, which leaves 1,000.99€", "1,000.99"),
            ("it is -3.", "-3"),
            ("16-3", "16-3"),
            ("thus there are 16-3 of them", "3"),
            ("water is H2O, so 5 it is", "5"),
            ("we get $x^2$ and so $y = 3$ holds", "y = 3"),
            ("It costs $5 and she pays with $10 bills", "10"),
            ("about 28 percent", "28"),
            ("they are 28 % of them", "28 %"),
            ("", ""),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn boxes_that_follow_one_another_are_a_list() {
        let list = |text| answer(text, true).unwrap().text.into_owned();
        assert_eq!(list("Therefore $x = 5$ or $x = -5$."), "x = 5, x = -5");
        assert_eq!(list(r"\boxed{1} and \boxed{2} and \boxed{3}"), "1, 2, 3");
        assert_eq!(list(r"\[\boxed{(1, 2)}, \boxed{(2, 1)}\]"), "(1, 2), (2, 1)");
        assert_eq!(list(r"\boxed{1} papers and \boxed{2} bins"), "1, 2");
        assert_eq!(list(r"it is $\boxed{200}$ So, after six months we have $\boxed{255}$"), "255");
        assert_eq!(list(r"\boxed{5}. \boxed{5}"), "5");
    }

    #[test]
    fn labels_are_answers_or_hold_them() {
        for (text, expected) in [
            ("He makes 9\n#### 1,080", "1,080"),
            (r"\boxed{4}", "4"),
            ("$125$ miles", "$125$ miles"),
            (r"\frac{1}{2}", r"\frac{1}{2}"),
            ("no real solution", "no real solution"),
        ] {
            assert_eq!(label(text).text, expected, "{text}");
        }
    }
}
