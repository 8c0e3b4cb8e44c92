//! Which parameters are never trained, by patterns of their Hugging Face names.

use crate::{Error, Result};

/// Names that a message offers in place of a pattern without a match.
const NUM_NEAR: usize = 3;

/// Which of `storages` are frozen by `patterns`; a storage is given as the names of the tensors in it. In a pattern `*`
/// stands for any characters, also none and dots; the rest is the name itself.
///
/// # Errors
/// A pattern that matches no name, with the names nearest to it, or that freezes a part of a storage: its tensors are one
/// buffer with one state.
pub fn frozen<N: AsRef<str>>(patterns: &[String], storages: &[Vec<N>]) -> Result<Vec<bool>> {
    let names = || storages.iter().flatten().map(N::as_ref);
    for pattern in patterns {
        if !names().any(|name| matches(pattern, name)) {
            return Err(Error::Conflict(format!(
                "train.freeze: {pattern:?} matches no parameter of the model\nhint: did you mean {}?",
                nearest(pattern, names()).join(", ")
            )));
        }
    }
    let is_frozen = |name: &str| patterns.iter().any(|pattern| matches(pattern, name));
    let of_storage = |storage: &Vec<N>| {
        let (frozen, kept): (Vec<&str>, Vec<&str>) =
            storage.iter().map(N::as_ref).partition(|name| is_frozen(name));
        match frozen.first() {
            Some(name) if !kept.is_empty() => Err(Error::Conflict(format!(
                "train.freeze: {name} is frozen, but not {}, which has one buffer with it\nhint: freeze them together",
                kept.join(", ")
            ))),
            found => Ok(found.is_some()),
        }
    };
    storages.iter().map(of_storage).collect()
}

/// Whether `name` is what `pattern` says.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// The names that look most like `pattern`, best first.
pub(crate) fn nearest<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut scored: Vec<(f64, &str)> =
        names.map(|name| (strsim::normalized_levenshtein(pattern, name), name)).collect();
    scored.sort_by(|left, right| right.0.total_cmp(&left.0));
    scored.into_iter().take(NUM_NEAR).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storages() -> Vec<Vec<&'static str>> {
        vec![
            vec!["model.embed_tokens.weight"],
            vec!["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"],
            vec!["model.layers.1.mlp.gate.weight"],
            vec!["model.layers.10.mlp.gate.weight"],
        ]
    }

    fn of(patterns: &[&str]) -> Result<Vec<bool>> {
        frozen(&patterns.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>(), &storages())
    }

    #[test]
    fn patterns_match_whole_names() {
        assert_eq!(of(&[]).unwrap(), [false; 4]);
        assert_eq!(of(&["model.layers.*.mlp.gate.weight"]).unwrap(), [false, false, true, true]);
        assert_eq!(of(&["model.layers.1.*"]).unwrap(), [false, false, true, false]);
        assert_eq!(of(&["*self_attn*", "model.embed_tokens.weight"]).unwrap(), [true, true, false, false]);
        assert_eq!(of(&["*"]).unwrap(), [true; 4]);
        assert!(matches("a*b*b", "a.b.b") && !matches("a*b*b", "a.b") && !matches("ab*ba", "aba"));
    }

    #[test]
    fn what_matches_nothing_and_what_parts_a_buffer_is_named() {
        assert_eq!(
            of(&["model.layers.1.mlp.gate"]).unwrap_err().to_string(),
            "train.freeze: \"model.layers.1.mlp.gate\" matches no parameter of the model\nhint: did you mean \
             model.layers.1.mlp.gate.weight, model.layers.10.mlp.gate.weight, model.layers.0.self_attn.q_proj.weight?"
        );
        assert_eq!(
            of(&["*.q_proj.*"]).unwrap_err().to_string(),
            "train.freeze: model.layers.0.self_attn.q_proj.weight is frozen, but not \
             model.layers.0.self_attn.k_proj.weight, which has one buffer with it\nhint: freeze them together"
        );
    }
}
