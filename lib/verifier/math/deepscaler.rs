//! The `deepscaler` reward: the box behind the thought, judged as by `slime_math`.

use crate::error::Result;
use crate::math::slime_math;
use crate::{Row, RowVerifier, Verdict};

/// Ends a thought.
const THOUGHT: &str = "</think>";
/// Begins a response of models that think without tags.
const RESPONSE: &str = "###Response";

/// The `deepscaler` reward.
#[derive(Debug)]
pub(crate) struct Deepscaler;

impl RowVerifier for Deepscaler {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        Ok(match solution(row.response) {
            Some(solution) => slime_math::verdict(solution, row.expected()),
            None => Verdict::of(false, "no </think> and no ###Response"),
        })
    }
}

/// What follows the last `</think>`, else the text between the first `###Response` and the next.
fn solution(response: &str) -> Option<&str> {
    if let Some((_, solution)) = response.rsplit_once(THOUGHT) {
        return Some(solution);
    }
    response.split(RESPONSE).nth(1)
}
