//! The `exact` reward: the answer is the label, character for character, apart from surrounding blanks.

use crate::answer::answer_text;
use crate::error::{Error, Result};
use crate::{Row, Verdict, Verifier};

/// The `exact` reward.
#[derive(Debug)]
pub(crate) struct Exact;

impl Verifier for Exact {
    fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Verdict>> {
        rows.iter()
            .enumerate()
            .map(|(row, sample)| {
                let label = sample.label.ok_or(Error::MissingLabel { row, name: "exact" })?;
                let right = answer_text(sample.response).trim() == label.trim();
                let verb = if right { "is" } else { "is not" };
                Ok(Verdict::of(right, format!("the answer {verb} the label")))
            })
            .collect()
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
            let row = Row { response, label: Some("Paris"), metadata: None, num_tokens: None };
            let reward = Exact.score(&[row]).unwrap()[0].reward;
            assert!((reward - expected).abs() < f64::EPSILON, "{response}");
        }
        let row = Row { response: "Paris", label: None, metadata: None, num_tokens: None };
        assert!(matches!(Exact.score(&[row]), Err(Error::MissingLabel { .. })));
    }
}
