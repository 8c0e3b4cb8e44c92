//! The `number` reward: the number of the last box, or the last number of the answer, equals the label's.

use crate::answer::{final_answer, last_boxed};
use crate::error::{Error, Result};
use crate::math::numeral::{self, Commas};
use crate::math::rational::{Rational, show};
use crate::{Row, RowVerifier, Verdict};

/// The `number` reward.
#[derive(Debug)]
pub(crate) struct Number;

impl RowVerifier for Number {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let label = row.expected();
        let expected = label_number(label).ok_or_else(|| Error::LabelWithoutNumber {
            name: "number",
            label: label.chars().take(80).collect(),
        })?;
        let answer = final_answer(row.response);
        let boxed = last_boxed(answer);
        let rule = if boxed.is_some() { "number in the last box" } else { "last number" };
        Ok(match numeral::last_in(boxed.unwrap_or(answer), Commas::Thousands).map(|found| found.value) {
            None => Verdict::of(false, format!("no {rule}")),
            Some(found) => {
                let right = found == expected;
                let reason = if right {
                    format!("the {rule} equals the label")
                } else {
                    format!("the {rule} is {}, the label is {}", show(&found), show(&expected))
                };
                Verdict::of(right, reason).about(show(&found))
            }
        })
    }
}

/// The number of a label: after the last `####` (GSM8K), else in the last box, else the last number.
fn label_number(label: &str) -> Option<Rational> {
    let text = label.rsplit_once("####").map_or(label, |(_, answer)| answer);
    numeral::last_in(last_boxed(text).unwrap_or(text), Commas::Thousands).map(|found| found.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(response: &str, label: &str) -> f64 {
        let row = Row { response, label: Some(label), ..Row::default() };
        Number.verdict(&row).unwrap().reward
    }

    #[test]
    fn box_goes_before_last_number() {
        assert!(reward(r"\boxed{4}, checked 3 times", "4") > 0.5);
        assert!(reward("it is 4", "4") > 0.5);
        assert!(reward("it is 4, no 5", "4") < 0.5);
        assert!(reward(r"\boxed{four} 4", "4") < 0.5);
    }

    #[test]
    fn gold_answers_of_gsm8k_are_read() {
        assert!(reward("so 1,080", "He makes 90*12=<<90*12=1080>>1080\n#### 1,080") > 0.5);
    }

    #[test]
    fn unfinished_thought_is_wrong() {
        assert!(reward("<think>maybe 4", "4") < 0.5);
        assert!(reward("<think>maybe 3</think>4", "4") > 0.5);
    }

    #[test]
    fn unusable_labels_are_errors() {
        let row = Row { response: "4", label: Some("four"), ..Row::default() };
        assert!(matches!(Number.verdict(&row), Err(Error::LabelWithoutNumber { .. })));
    }
}
