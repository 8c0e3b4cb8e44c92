//! The `gsm8k` reward: the number behind the last `####`, else of the last box, else the last one, equals that of the
//! label.

use crate::answer::{answer_text, last_boxed};
use crate::error::{Error, Result};
use crate::math::numeral::{self, Commas};
use crate::math::rational::{Rational, show};
use crate::{Row, RowVerifier, Verdict};

/// Stands before the answer in the data set.
const MARK: &str = "####";

/// The `gsm8k` reward.
#[derive(Debug)]
pub(crate) struct Gsm8k;

impl RowVerifier for Gsm8k {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let label = row.expected();
        let (_, gold) = stated(label);
        let gold = gold.ok_or_else(|| {
            let label = label.chars().take(80).collect();
            Error::LabelWithoutNumber { name: "gsm8k", label }
        })?;
        let (source, found) = stated(answer_text(row.response));
        Ok(match found {
            None => Verdict::of(false, format!("no number {source}")),
            Some(found) if found == gold => {
                Verdict::of(true, format!("the number {source} is {}, the label's", show(&found)))
            }
            Some(found) => {
                let (found, gold) = (show(&found), show(&gold));
                Verdict::of(false, format!("the number {source} is {found}, the label is {gold}"))
            }
        })
    }
}

/// The number that a text states, and where.
fn stated(text: &str) -> (&'static str, Option<Rational>) {
    let number = |text| numeral::last_in(text, Commas::Thousands).map(|numeral| numeral.value);
    if let Some((_, answer)) = text.rsplit_once(MARK) {
        // What follows in another line is no part of the answer.
        return ("behind ####", number(answer.trim_start().lines().next().unwrap_or_default()));
    }
    match last_boxed(text) {
        Some(content) => ("in the last box", number(content)),
        None => ("at the end", number(text)),
    }
}
