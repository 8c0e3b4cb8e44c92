//! Rewards made of other rewards: `boxed:TYPE` and `by_metadata`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::answer::{answer_text, last_boxed};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::spec::{self, Spec};
use crate::{Row, Verdict, Verifier};

/// Names of types that are kept ready for `by_metadata`; more than any data set has.
const MAX_KEPT: usize = 1024;

/// Reads the type that stands as a word of its own among the options of another.
pub(crate) fn inner(options: &mut Options) -> Result<Spec> {
    let text = options.word()?;
    spec::parse_unweighted(&options.needed_word("a reward type", text)?)
}

/// The `boxed:TYPE` reward: the type sees what the last box of the answer holds, nothing where there is none.
pub(crate) struct Boxed {
    inner: Spec,
}

impl Boxed {
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let inner = spec::parse_unweighted(&options.rest())?;
        Ok(Self { inner })
    }
}

impl Verifier for Boxed {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let content = |response| last_boxed(answer_text(response)).unwrap_or_default();
        // What stands in the box has other tokens than the response.
        let rows: Vec<Row<'_>> = rows
            .iter()
            .map(|row| Row { response: content(row.response), num_tokens: None, token_offsets: None, ..*row })
            .collect();
        self.inner.score(&rows)
    }

    fn inner(&self) -> Option<&Spec> {
        Some(&self.inner)
    }
}

/// The `by_metadata` reward: every row's metadata names its type.
pub(crate) struct ByMetadata {
    key: String,
    default: Option<Spec>,
    kept: Mutex<HashMap<String, Arc<Spec>>>,
}

impl ByMetadata {
    /// `key` is where the name stands, `default` the type of rows without it.
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let key = options.text("key")?.unwrap_or_else(|| "rm_type".to_owned());
        let default = options.text("default")?.map(|text| spec::parse_unweighted(&text)).transpose()?;
        Ok(Self { key, default, kept: Mutex::new(HashMap::new()) })
    }

    fn bad(&self, problem: &str) -> Error {
        Error::BadRow { name: "by_metadata", problem: format!("metadata.{}: {problem}", self.key) }
    }

    /// The name in a row's metadata; `None` where there is none.
    fn name(&self, row: &Row<'_>) -> Result<Option<String>> {
        match row.metadata_object().unwrap_or_default().get(&self.key) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(serde_json::Value::String(name)) => {
                Ok(Some(name.trim().to_owned()).filter(|name| !name.is_empty()))
            }
            Some(other) => Err(self.bad(&format!("expected the name of a reward type, got {other}"))),
        }
    }

    fn spec(&self, name: &str) -> Result<Arc<Spec>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spec) = kept.get(name) {
            return Ok(Arc::clone(spec));
        }
        let made = spec::parse_unweighted(name).map_err(|error| self.bad(&error.to_string()))?;
        if made.reaches_outside() || made.compares_groups() {
            let problem = format!(
                "{name} starts programs, talks to servers or compares groups, which data may not ask for\n\
                 hint: name it in reward.types"
            );
            return Err(self.bad(&problem));
        }
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        Ok(Arc::clone(kept.entry(name.to_owned()).or_insert(Arc::new(made))))
    }
}

impl Verifier for ByMetadata {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let mut verdicts: Vec<Option<Result<Verdict>>> = rows.iter().map(|_| None).collect();
        // Rows of one type go to it together.
        let mut places: HashMap<Option<String>, Vec<usize>> = HashMap::new();
        for (at, (row, verdict)) in rows.iter().zip(&mut verdicts).enumerate() {
            match self.name(row) {
                Ok(name) => places.entry(name).or_default().push(at),
                Err(error) => *verdict = Some(Err(error)),
            }
        }
        for (name, places) in places {
            let own: Vec<Row<'_>> = places.iter().filter_map(|at| rows.get(*at).copied()).collect();
            let missing = || {
                self.bad(
                    "expected the name of a reward type, got none\nhint: give by_metadata a default=TYPE",
                )
            };
            let scored = match (&name, &self.default) {
                (None, Some(default)) => default.score(&own),
                (None, None) => own.iter().map(|_| Err(missing())).collect(),
                (Some(name), _) => match self.spec(name) {
                    Ok(spec) => spec.score(&own),
                    Err(_) => own.iter().map(|_| self.spec(name).and(Err(missing()))).collect(),
                },
            };
            for (at, verdict) in places.into_iter().zip(scored) {
                if let Some(place) = verdicts.get_mut(at) {
                    *place = Some(verdict);
                }
            }
        }
        let lost = || Err(Error::Lost { name: "by_metadata".to_owned() });
        verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(lost)).collect()
    }

    fn inner(&self) -> Option<&Spec> {
        self.default.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RewardSet;

    #[test]
    fn types_see_the_last_box() {
        let reward = |spec: &str, response, label| {
            let row = Row { response, label: Some(label), ..Row::default() };
            RewardSet::parse(&[spec]).unwrap().score(&[row]).unwrap()[0].reward
        };
        assert!(reward("boxed_f1", "so \\boxed{the brown fox}", "a quick brown fox") > 0.79);
        assert!(reward("boxed:exact", "no box: 4", "4") < 0.5);
        assert!((reward("boxed:exact:0.5", "\\boxed{4}", "4") - 0.5).abs() < 1e-9);
    }

    #[test]
    fn each_row_is_judged_by_the_type_of_its_metadata() {
        let set = RewardSet::parse(&["by_metadata:default=exact"]).unwrap();
        let row = |response, metadata| Row { response, label: Some("4"), metadata, ..Row::default() };
        let rows = [
            row("it is 4", Some("{\"rm_type\": \"number\"}")),
            row("it is 4", None),
            row("4", Some("{\"rm_type\": \"\"}")),
            row("4", Some("{\"rm_type\": \"numbr\"}")),
            row("4", Some("{\"rm_type\": \"command:rm\"}")),
        ];
        let scored = set.try_score(&rows);
        let rewards: Vec<Option<f64>> =
            scored.iter().map(|scored| scored.as_ref().ok().map(|scored| scored.reward)).collect();
        assert_eq!(rewards, [Some(1.0), Some(0.0), Some(1.0), None, None]);
        assert!(scored[3].as_ref().unwrap_err().to_string().contains("hint: did you mean number?"));
        assert!(scored[4].as_ref().unwrap_err().to_string().contains("which data may not ask for"));
        let strict = RewardSet::parse(&["by_metadata:key=kind"]).unwrap();
        assert_eq!(strict.score(&rows[..1]).unwrap_err().exit_code(), 65);
    }
}
