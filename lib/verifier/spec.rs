//! Reward types by name: `NAME[:WEIGHT]`, as `--type` and `[reward] types` write them.

use regex::Regex;

use crate::Verifier;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::exact::Exact;
use crate::format::Format;
use crate::number::Number;

/// The reward types with one line of explanation each.
pub const TYPES: [(&str, &str); 7] = [
    ("exact", "the answer is the label, apart from surrounding blanks"),
    ("number", "the number of the last \\boxed{}, else the last number, equals the label's number"),
    ("format:think_answer", "<think>...</think><answer>...</answer> and nothing else (also plain `format`)"),
    ("format:json", "one JSON value, bare or in a code fence"),
    ("format:xml", "one well-formed XML element, bare or in a code fence"),
    ("format:regex=PATTERN", "the pattern matches somewhere; takes the rest of the argument"),
    ("command:PROGRAM [ARG...]", "a program of yours, JSON lines in and out; takes the rest of the argument"),
];

/// One parsed type.
pub(crate) struct Spec {
    /// What its value is called in `rewards`.
    pub(crate) name: String,
    pub(crate) weight: f64,
    pub(crate) verifier: Box<dyn Verifier>,
}

/// Splits `number,format:json:0.2` at its commas; a pattern or a command keeps its own.
pub fn split_types(argument: &str) -> Vec<String> {
    let mut types = Vec::new();
    let mut rest = argument;
    loop {
        let takes_rest = rest.starts_with("command:") || rest.starts_with("format:regex=");
        match rest.split_once(',') {
            Some((first, after)) if !takes_rest => {
                types.push(first.trim().to_owned());
                rest = after.trim_start();
            }
            _ => {
                types.push(rest.trim().to_owned());
                return types;
            }
        }
    }
}

/// Parses one `NAME[:WEIGHT]`.
pub(crate) fn parse(text: &str) -> Result<Spec> {
    let (name, weight) = split_weight(text)?;
    let verifier: Box<dyn Verifier> = match name {
        "exact" => Box::new(Exact),
        "number" => Box::new(Number),
        "format" | "format:think_answer" => Box::new(Format::ThinkAnswer),
        "format:json" => Box::new(Format::Json),
        "format:xml" => Box::new(Format::Xml),
        _ => {
            if let Some(pattern) = name.strip_prefix("format:regex=") {
                Box::new(Format::Regex(Regex::new(pattern)?))
            } else if let Some(line) = name.strip_prefix("command:") {
                Box::new(Command::new(text, line)?)
            } else {
                return Err(unknown(name));
            }
        }
    };
    Ok(Spec { name: name.to_owned(), weight, verifier })
}

/// Takes a number after the last colon as the weight.
fn split_weight(text: &str) -> Result<(&str, f64)> {
    let Some((name, last)) = text.rsplit_once(':') else { return Ok((text, 1.0)) };
    let Ok(weight) = last.trim().parse::<f64>() else {
        // `number:x` is a bad weight; `format:json` is a name.
        if ["exact", "number"].contains(&name) {
            return Err(Error::Weight { spec: text.to_owned(), weight: last.to_owned() });
        }
        return Ok((text, 1.0));
    };
    if weight.is_finite() {
        Ok((name, weight))
    } else {
        Err(Error::Weight { spec: text.to_owned(), weight: last.to_owned() })
    }
}

fn unknown(name: &str) -> Error {
    let nearest = TYPES
        .iter()
        .filter_map(|(known, _)| known.split(['=', ' ']).next())
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(likeness, _)| *likeness >= 0.75)
        .max_by(|left, right| left.0.total_cmp(&right.0));
    let hint = if let Some((_, known)) = nearest {
        format!("\nhint: did you mean {known}?")
    } else {
        let known: Vec<&str> = TYPES.iter().map(|(known, _)| *known).collect();
        format!("\nhint: reward types are {}", known.join(", "))
    };
    Error::UnknownType { name: name.to_owned(), hint }
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
        ] {
            let spec = parse(text).unwrap();
            assert_eq!((spec.name.as_str(), spec.weight), (name, weight), "{text}");
        }
    }

    #[test]
    fn wrong_types_are_explained() {
        let message = |text: &str| parse(text).map(|_| ()).unwrap_err().to_string();
        assert!(message("nubmer").contains("hint: did you mean number?"), "{}", message("nubmer"));
        assert!(message("zzz").contains("hint: reward types are exact, number"));
        assert!(message("number:heavy").contains("expected a finite number, got heavy"));
        assert!(message("number:nan").contains("expected a finite number"));
        assert!(message("format:regex=(").contains("regex"));
    }

    #[test]
    fn commas_separate_types_but_not_patterns() {
        assert_eq!(split_types("number, format:json:0.2"), ["number", "format:json:0.2"]);
        assert_eq!(split_types("exact,format:regex=a{1,2}"), ["exact", "format:regex=a{1,2}"]);
        assert_eq!(split_types("command:judge a,b"), ["command:judge a,b"]);
    }
}
