//! Reward types as `--type` and `[reward] types` write them: `NAME[ARGUMENT][:WEIGHT]`.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::registry::{Form, RewardType, find, types, unknown};
use crate::row::Row;
use crate::{Verdict, Verifier};

/// One parsed type.
pub(crate) struct Spec {
    /// What its value is called in `rewards`.
    pub(crate) name: String,
    pub(crate) weight: f64,
    pub(crate) kind: &'static RewardType,
    verifier: Box<dyn Verifier>,
}

impl Spec {
    /// A verdict for each row, in their order. Rows without what the type needs are errors and not shown to it.
    pub(crate) fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let compares_groups = self.compares_groups();
        let is_missing = |row: &Row<'_>| self.missing(row, compares_groups).is_some();
        let mut verdicts = if rows.iter().any(is_missing) {
            self.score_complete(rows, compares_groups)
        } else {
            self.verifier.score(rows)
        };
        verdicts.resize_with(rows.len(), || Err(Error::Lost { name: self.name.clone() }));
        for verdict in &mut verdicts {
            if let Ok(found) = verdict
                && !is_finite(found)
            {
                *verdict = Err(Error::NotFinite { name: self.name.clone(), reward: found.reward });
            }
        }
        verdicts
    }

    /// Verdicts on the rows that have what the type needs, errors about the others.
    fn score_complete(&self, rows: &[Row<'_>], compares_groups: bool) -> Vec<Result<Verdict>> {
        let problems: Vec<Option<Error>> =
            rows.iter().map(|row| self.missing(row, compares_groups)).collect();
        let complete = rows.iter().zip(&problems).filter(|(_, problem)| problem.is_none());
        let complete: Vec<Row<'_>> = complete.map(|(row, _)| *row).collect();
        let mut verdicts = self.verifier.score(&complete).into_iter();
        let mut next = || verdicts.next().unwrap_or_else(|| Err(Error::Lost { name: self.name.clone() }));
        problems.into_iter().map(|problem| problem.map_or_else(&mut next, Err)).collect()
    }

    /// Whether whole groups must be scored together.
    pub(crate) fn compares_groups(&self) -> bool {
        let inner = || self.verifier.inner().is_some_and(Self::compares_groups);
        self.kind.compares_groups || self.verifier.compares_groups() || inner()
    }

    /// Whether it starts programs or talks to servers.
    pub(crate) fn reaches_outside(&self) -> bool {
        self.kind.reaches_outside || self.verifier.inner().is_some_and(Self::reaches_outside)
    }

    fn missing(&self, row: &Row<'_>, compares_groups: bool) -> Option<Error> {
        let name = self.kind.name;
        if self.kind.needs_label && row.label.is_none() {
            return Some(Error::MissingLabel { name });
        }
        if compares_groups && row.group.is_none() {
            return Some(Error::MissingGroup { name });
        }
        let keys = self.kind.metadata;
        let object = if keys.is_empty() { None } else { Some(row.metadata_object().unwrap_or_default()) };
        keys.iter()
            .find(|key| {
                object.as_ref().is_some_and(|object| object.get(**key).is_none_or(serde_json::Value::is_null))
            })
            .map(|key| Error::MissingMetadata { name, key })
    }
}

/// Whether a verdict can be summed.
fn is_finite(verdict: &Verdict) -> bool {
    verdict.reward.is_finite() && verdict.token_rewards.iter().all(|reward| reward.is_finite())
}

/// Splits `number,format:json:0.2` at its commas outside quotes; a type that takes the rest keeps its own.
pub fn split_types(argument: &str) -> Vec<String> {
    let mut types = Vec::new();
    let mut rest = argument;
    while let Some(comma) = next_comma(rest) {
        types.push(rest[..comma].trim().to_owned());
        rest = rest[comma + 1..].trim_start();
    }
    types.push(rest.trim().to_owned());
    types
}

/// Where the first type of `text` ends.
fn next_comma(text: &str) -> Option<usize> {
    // What is boxed keeps its form.
    if let Some(inner) = text.strip_prefix("boxed:").or_else(|| text.strip_prefix("boxed_")) {
        return next_comma(inner).map(|at| at + text.len() - inner.len());
    }
    let takes_rest = |kind: &RewardType| {
        matches!(kind.form, Form::Rest(_)) && kind.argument(text).is_some_and(|rest| !rest.is_empty())
    };
    if types().any(takes_rest) {
        return None;
    }
    let mut quote = None;
    text.char_indices().find_map(|(at, letter)| {
        match (letter, quote) {
            (',', None) => return Some(at),
            ('\'' | '"', None) => quote = Some(letter),
            (_, Some(open)) if open == letter => quote = None,
            _ => {}
        }
        None
    })
}

/// Parses one `NAME[ARGUMENT][:WEIGHT]`.
pub(crate) fn parse(text: &str) -> Result<Spec> {
    let (name, weight) = split_weight(text)?;
    Ok(Spec { weight, ..parse_unweighted(name)? })
}

/// Parses one `NAME[ARGUMENT]`, of weight 1.
pub(crate) fn parse_unweighted(name: &str) -> Result<Spec> {
    let (kind, argument) = find(name).ok_or_else(|| unknown(name))?;
    let mut options = Options::new(name, argument);
    let verifier = (kind.make)(&mut options)?;
    options.finish()?;
    Ok(Spec { name: name.to_owned(), weight: 1.0, kind, verifier })
}

/// Takes a number after the last colon as the weight, unless it is the port of a URL.
fn split_weight(text: &str) -> Result<(&str, f64)> {
    let Some((name, last)) = text.rsplit_once(':') else { return Ok((text, 1.0)) };
    if ends_in_host(name) {
        return Ok((text, 1.0));
    }
    let wrong = || Error::Weight { spec: text.to_owned(), weight: last.to_owned() };
    match last.trim().parse::<f64>() {
        Ok(weight) if weight.is_finite() => Ok((name, weight)),
        Ok(_) => Err(wrong()),
        // `number:x` is a bad weight; `format:json` is a name.
        Err(_) if find(text).is_none() && find(name).is_some_and(|(kind, _)| kind.form == Form::Bare) => {
            Err(wrong())
        }
        Err(_) => Ok((text, 1.0)),
    }
}

/// Whether the last word is `scheme://host`, so that a port may follow.
fn ends_in_host(text: &str) -> bool {
    let word = text.rsplit([' ', '=', '\'', '"']).next().unwrap_or_default();
    word.split_once("://").is_some_and(|(_, host)| match host.strip_prefix('[') {
        Some(inner) => inner.ends_with(']'),
        None => !host.contains([':', '/']),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_weights_are_told_apart() {
        for (text, name, weight) in [
            ("number", "number", 1.0),
            ("number:0.5", "number", 0.5),
            ("format:json", "format:json", 1.0),
            ("format:json:-2", "format:json", -2.0),
            ("format:regex=^a: b$", "format:regex=^a: b$", 1.0),
            ("command:judge --port 8", "command:judge --port 8", 1.0),
            ("command:judge:0.25", "command:judge", 0.25),
            ("command:curl http://h:80", "command:curl http://h:80", 1.0),
            ("command:curl http://h:80:0.25", "command:curl http://h:80", 0.25),
            ("command:curl http://[::1]:80", "command:curl http://[::1]:80", 1.0),
            ("command:curl http://h/a:2", "command:curl http://h/a", 2.0),
        ] {
            let spec = parse(text).unwrap();
            assert_eq!((spec.name.as_str(), spec.weight), (name, weight), "{text}");
        }
    }

    #[test]
    fn wrong_types_are_explained() {
        let message = |text: &str| parse(text).map(|_| ()).unwrap_err().to_string();
        assert!(message("nubmer").contains("hint: did you mean number?"), "{}", message("nubmer"));
        assert!(message("zzz").contains("hint: reward types are exact, exact_match, f1"));
        assert!(message("number:heavy").contains("expected a finite number, got heavy"));
        assert!(message("number:nan").contains("expected a finite number"));
        assert!(message("format:regex=(").contains("regex"));
    }

    #[test]
    fn commas_separate_types_but_not_patterns() {
        assert_eq!(split_types("number, format:json:0.2"), ["number", "format:json:0.2"]);
        assert_eq!(split_types("exact,format:regex=a{1,2}"), ["exact", "format:regex=a{1,2}"]);
        assert_eq!(split_types("command:judge a,b"), ["command:judge a,b"]);
        assert_eq!(split_types("boxed:f1,boxed_exact"), ["boxed:f1", "boxed_exact"]);
        assert_eq!(split_types("boxed:format:regex=a,b"), ["boxed:format:regex=a,b"]);
        assert_eq!(
            split_types("by_metadata:default='judge:x a=b,c',f1"),
            ["by_metadata:default='judge:x a=b,c'", "f1"]
        );
    }

    #[test]
    fn rows_without_what_a_type_needs_are_errors_of_their_own() {
        let row = |label| Row { response: "4", label, ..Row::default() };
        let verdicts = parse("number").unwrap().score(&[row(Some("4")), row(None), row(Some("5"))]);
        let rewards: Vec<Option<f64>> =
            verdicts.iter().map(|verdict| verdict.as_ref().ok().map(|verdict| verdict.reward)).collect();
        assert_eq!(rewards, [Some(1.0), None, Some(0.0)]);
        assert!(matches!(verdicts[1], Err(Error::MissingLabel { name: "number" })));
    }
}
