//! The `ifeval` and `ifbench` rewards: verifiable instructions, strict or loose.
//!
//! The metadata has `instruction_id_list` and `kwargs`, an object of arguments for each instruction, as the files of
//! `IFEval` and `IFBench` have them. Each group of kinds is a file; `kinds` is their table.

mod arguments;
mod case;
mod content;
mod count;
mod csv;
mod custom;
mod format;
mod keywords;
mod kinds;
mod length;
mod list;
mod position;
mod ratio;
mod repeat;
mod sentence;
mod sentences;
mod syllables;
#[cfg(test)]
mod tests;
mod text;
mod tokens;
mod verbs;
mod words;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::{Row, RowVerifier, Verdict, answer_text};

use arguments::Arguments;

/// The rewards of instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Instructions {
    name: &'static str,
    is_loose: bool,
    pays_shares: bool,
}

/// One instruction of a row.
struct Instruction {
    id: String,
    arguments: Map<String, Value>,
}

impl Instructions {
    /// `loose` also accepts a response without its first or last line or its asterisks; `share` pays for each
    /// instruction, where otherwise all must be followed.
    pub(crate) fn new(name: &'static str, options: &mut Options) -> Result<Self> {
        let (mut is_loose, mut pays_shares) = (false, false);
        while let Some(word) = options.word()? {
            match word.as_str() {
                "loose" => is_loose = true,
                "strict" => is_loose = false,
                "share" => pays_shares = true,
                _ => return Err(options.wrong("words", "strict, loose or share", word)),
            }
        }
        Ok(Self { name, is_loose, pays_shares })
    }

    fn bad(&self, problem: String) -> Error {
        Error::BadRow { name: self.name, problem }
    }

    fn instructions(&self, row: &Row<'_>) -> Result<Vec<Instruction>> {
        let metadata = row.metadata_object().unwrap_or_default();
        let ids: Option<Vec<&str>> = metadata
            .get("instruction_id_list")
            .and_then(Value::as_array)
            .and_then(|ids| ids.iter().map(Value::as_str).collect());
        let ids = ids
            .filter(|ids| !ids.is_empty())
            .ok_or_else(|| self.bad("metadata.instruction_id_list: expected a list of ids".to_owned()))?;
        let arguments = |at: usize| match metadata.get("kwargs") {
            None | Some(Value::Null) => Some(Map::new()),
            // One object stands for all; of a list too short the last entry does.
            Some(Value::Object(all)) => Some(all.clone()),
            Some(Value::Array(list)) => match list.get(at).or(list.last()) {
                Some(Value::Object(own)) => Some(own.clone()),
                Some(Value::Null) | None => Some(Map::new()),
                _ => None,
            },
            _ => None,
        };
        let wrong = || self.bad("metadata.kwargs: expected an object for each instruction".to_owned());
        ids.into_iter()
            .enumerate()
            .map(|(at, id)| {
                let arguments = arguments(at).ok_or_else(wrong)?;
                let arguments = arguments.into_iter().filter(|(_, value)| !value.is_null()).collect();
                Ok(Instruction { id: id.to_owned(), arguments })
            })
            .collect()
    }

    /// Whether each instruction is followed.
    fn followed(&self, row: &Row<'_>) -> Result<Vec<(String, bool)>> {
        let response = answer_text(row.response);
        let is_varied = self.is_loose && response.len() <= MAX_VARIED_BYTES;
        let variants = if is_varied { loose(response) } else { vec![response.to_owned()] };
        self.instructions(row)?
            .into_iter()
            .map(|Instruction { id, arguments }| {
                let check =
                    kinds::find(&id).ok_or_else(|| self.bad(format!("unknown instruction {id:?}")))?;
                for variant in variants.iter().filter(|variant| !variant.trim().is_empty()) {
                    let is_followed = check
                        .is_followed(&Arguments(&arguments), variant)
                        .map_err(|problem| self.bad(format!("{id}: {problem}")))?;
                    if is_followed {
                        return Ok((id, true));
                    }
                }
                Ok((id, false))
            })
            .collect()
    }
}

impl RowVerifier for Instructions {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let followed = self.followed(row)?;
        let broken: Vec<&str> =
            followed.iter().filter(|(_, is_followed)| !is_followed).map(|(id, _)| id.as_str()).collect();
        let num = followed.len();
        let reason = match broken.as_slice() {
            [] => format!("all {num} instructions are followed"),
            broken => format!("not followed: {}", broken.join(", ")),
        };
        let share = (num - broken.len()) as f64 / num as f64;
        Ok(Verdict::new(if self.pays_shares { share } else { share.floor() }, reason))
    }
}

/// The ids of all kinds.
#[cfg(test)]
pub(crate) fn kind_ids() -> impl Iterator<Item = &'static str> {
    kinds::IFEVAL.iter().chain(kinds::IFBENCH).map(|(id, _)| *id)
}

/// Longer responses are judged loosely as they are: no answer is so long, and each variant costs as much as the whole.
const MAX_VARIED_BYTES: usize = 250_000;

/// The response and what it is without its first line, its last, both, and without asterisks.
fn loose(response: &str) -> Vec<String> {
    let lines: Vec<&str> = response.split('\n').collect();
    let cut = |from: usize, to: usize| lines.get(from..to).unwrap_or_default().join("\n").trim().to_owned();
    let num = lines.len();
    let mut variants = vec![response.to_owned(), cut(1, num), cut(0, num - 1), cut(1, num.saturating_sub(1))];
    if response.contains('*') {
        variants.extend(variants.clone().iter().map(|variant| variant.replace('*', "")));
    }
    variants
}
