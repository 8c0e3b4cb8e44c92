//! The mathematics rewards against public verdicts, hostile texts and the tables of the framework slime.
#![allow(clippy::unwrap_used, missing_docs)]

mod equivalence;
mod hostile;
mod mutations;
mod pairs;
mod slime_tables;

use std::path::{Path, PathBuf};

use serde_json::Value;
use slime_verifier::{RewardSet, Row};

/// The rows of a file of the shared data; nothing, said aloud, where it is not.
fn data(name: &str) -> Option<Vec<Value>> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: {} is not here", path.display());
        return None;
    };
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The reward of a response under a type, and the reason.
fn verdict(kind: &str, response: &str, label: &str) -> (f64, String) {
    let set = RewardSet::parse(&[kind]).unwrap();
    let row = Row { response, label: Some(label), ..Row::default() };
    let scored = set.score(&[row]).unwrap().remove(0);
    (scored.reward, scored.parts[0].reason.clone())
}
