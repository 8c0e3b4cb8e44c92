//! The `exact` reward: the answer is the label, character for character, apart from surrounding blanks.

use crate::answer::final_answer;
use crate::error::Result;
use crate::{Row, RowVerifier, Verdict};

/// The `exact` reward.
#[derive(Debug)]
pub(crate) struct Exact;

impl RowVerifier for Exact {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let answer = final_answer(row.response).trim();
        let right = answer == row.expected().trim();
        let verb = if right { "is" } else { "is not" };
        Ok(Verdict::of(right, format!("the answer {verb} the label")).about(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_surrounding_blanks_are_forgiven() {
        for (response, expected) in
            [(" Paris\n", 1.0), ("paris", 0.0), ("Paris.", 0.0), ("<think>x</think>Paris", 1.0)]
        {
            let row = Row { response, label: Some("Paris"), ..Row::default() };
            let reward = Exact.verdict(&row).unwrap().reward;
            assert!((reward - expected).abs() < f64::EPSILON, "{response}");
        }
    }
}
