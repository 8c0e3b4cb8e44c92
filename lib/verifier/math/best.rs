//! The `math` reward: the answer of a response means the same as the label.

use crate::answer::final_answer;
use crate::error::Result;
use crate::math::collection::both_signs;
use crate::math::equal;
use crate::math::extract::{self, Answer};
use crate::math::numeral::Commas;
use crate::math::parse::parse;
use crate::math::quick;
use crate::math::text;
use crate::math::tree::Expr;
use crate::math::value::Rounding;
use crate::{Row, RowVerifier, Verdict};

/// Significant decimals that have to agree unless the type says otherwise.
pub(crate) const DECIMALS: u32 = 6;

/// A longer response is no answer in words.
const MAX_SAID_BYTES: usize = 240;

/// The `math` reward.
#[derive(Debug)]
pub(crate) struct Math {
    rounding: Rounding,
}

impl Math {
    /// So many significant decimals of rounded answers have to agree.
    pub(crate) fn with_decimals(decimals: u32) -> Self {
        Self { rounding: Rounding { decimals } }
    }

    fn judged(&self, gold: &Answer<'_>, found: &Answer<'_>) -> Option<Verdict> {
        let rule = equal::answers(&gold.text, &found.text, self.rounding)?;
        Some(
            Verdict::of(true, [found.source, " ", short(&found.text), ": ", rule].concat())
                .about(found.text.as_ref()),
        )
    }
}

impl RowVerifier for Math {
    fn verdict(&self, sample: &Row<'_>) -> Result<Verdict> {
        let label = sample.expected();
        let gold = extract::label(label);
        let answer = final_answer(sample.response);
        // How many values are asked for, the label knows.
        let as_list = gold.source == "the last boxes" || is_list(&gold.text);
        let Some(found) = extract::answer(answer, as_list) else {
            return Ok(Verdict::of(false, "no answer".to_owned()));
        };
        if let Some(verdict) = self.judged(&gold, &found) {
            return Ok(verdict);
        }
        // A question with choices may be answered in a sentence.
        if text::choice(&gold.text).is_some()
            && gold.text.len() <= 3
            && !found.source.contains("box")
            && text::choice(&found.text).is_none()
            && let Some(letter) = text::chosen(answer)
        {
            let is_right = text::choice(&gold.text) == text::choice(letter);
            return Ok(Verdict::of(is_right, format!("the chosen letter is {letter}")));
        }
        // A label of several sentences, repeated as it is, or in words.
        let is_short = answer.len() <= MAX_SAID_BYTES && !found.source.contains("box");
        if found.text == label.trim() || is_short && equal::says(&gold.text, answer.trim()) {
            return Ok(Verdict::of(true, format!("{}: the same text", found.source)));
        }
        // The last of several boxes may hold the whole list.
        if found.source == "the last boxes"
            && let Some(last) = extract::answer(answer, false)
            && let Some(verdict) = self.judged(&gold, &last)
        {
            return Ok(verdict);
        }
        let reason = [found.source, " is ", short(&found.text), ", the label is ", short(&gold.text)];
        Ok(Verdict::of(false, reason.concat()).about(found.text))
    }
}

/// Whether a label lists several values.
fn is_list(label: &str) -> bool {
    if quick::is_plain(label) {
        return false;
    }
    let text = crate::math::escape::without_double_escapes(label);
    let tree = parse(text.as_deref().unwrap_or(label), Commas::Thousands);
    matches!(tree.as_ref().map(both_signs), Some(Expr::List(_, items)) if items.len() > 1)
}

/// At most 60 characters of an answer.
fn short(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(response: &str, label: &str) -> Verdict {
        let row = Row { response, label: Some(label), ..Row::default() };
        Math::with_decimals(DECIMALS).verdict(&row).unwrap()
    }

    #[test]
    fn verdicts_name_the_answer_and_the_rule() {
        let right = verdict(r"so $\boxed{\sqrt{12}}$", r"2\sqrt{3}");
        assert_eq!(
            (right.reward, right.reason.as_str()),
            (1.0, r"the last box \sqrt{12}: equal by exact arithmetic")
        );
        let wrong = verdict("The answer is 5.", "4");
        assert_eq!((wrong.reward, wrong.reason.as_str()), (0.0, "the announced answer is 5, the label is 4"));
        assert_eq!(verdict("<think>4", "4").reason, "no answer");
    }
}
