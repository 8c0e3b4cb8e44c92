//! The `slime_math` reward: what the framework slime calls `math`. The content of the last box equals the label by the
//! first grader (`mathd`) or by the second one.

use crate::error::Result;
use crate::math::{mathd, slime_box, slime_form};
use crate::{Row, RowVerifier, Verdict};

/// The `slime_math` reward.
#[derive(Debug)]
pub(crate) struct SlimeMath;

impl RowVerifier for SlimeMath {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        Ok(verdict(row.response, row.expected()))
    }
}

/// The verdict of both graders about the last box of a text.
pub(crate) fn verdict(text: &str, label: &str) -> Verdict {
    let gold = if label.contains("\\boxed") { slime_box::extract(label) } else { Some(label) };
    let Some(gold) = gold.filter(|gold| !gold.is_empty() || label != *gold) else {
        return Verdict::of(false, "the label has no answer".to_owned());
    };
    let Some(found) = slime_box::extract(text) else {
        return Verdict::of(false, "no box".to_owned());
    };
    let rule = if mathd::normal(found) == mathd::normal(gold) {
        Some("the same normal text")
    } else {
        slime_form::equal(gold, found)
    };
    match rule {
        Some(rule) => Verdict::of(true, format!("the last box {found}: {rule}")),
        None => Verdict::of(false, format!("the last box is {found}, the label is {gold}")),
    }
}
