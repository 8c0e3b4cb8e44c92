//! The seam between whoever draws prompts and wherever they come from.

use crate::{Arithmetic, Error, Result, Split};

/// One prompt, as it stands in a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its name within the source; the same prompt has the same name in every epoch.
    pub prompt_id: String,
    /// The source's name.
    pub source: String,
    /// JSON text: a string, or a list of chat messages (`slime_record::PromptContent`; before a recorded response of an
    /// assistant that begins the list is empty).
    pub prompt: String,
    /// The reference answer.
    pub label: Option<String>,
    /// JSON text, passed through unchanged.
    pub metadata: Option<String>,
    /// Tool definitions as JSON text.
    pub tools: Option<String>,
    /// Recorded responses as JSON texts, each a string or a list of messages; none where they are to be sampled.
    pub responses: Vec<String>,
}

/// An endless sequence of prompts that depends on nothing but its settings and the seed.
pub trait PromptSource: Send + Sync {
    /// How many prompts an epoch has; `None` when prompts are made up without end.
    fn len(&self) -> Option<u64>;

    /// Whether there are no prompts; sources refuse to open without any.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The prompt at a position: epoch `cursor / len`, each in an order of its own.
    ///
    /// # Errors
    /// A row that cannot be read or lacks a key.
    fn prompt(&self, cursor: u64) -> Result<Prompt>;
}

/// The names [`environment`] knows.
pub const ENVIRONMENTS: &[&str] = &["arithmetic"];

/// Opens an environment by name.
///
/// # Errors
/// [`Error::Environment`] for an unknown name, [`Error::Empty`] when the split has no task.
pub fn environment(name: &str, difficulty: u64, split: Split, seed: u64) -> Result<Box<dyn PromptSource>> {
    match name {
        "arithmetic" => Ok(Box::new(Arithmetic::new(difficulty, split, seed)?)),
        _ => Err(Error::Environment { name: name.to_owned(), known: ENVIRONMENTS.join(", ") }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_named_environment_opens_and_others_are_refused_with_the_names() {
        for name in ENVIRONMENTS {
            let all = |split| {
                let source = environment(name, 10, split, 1).unwrap();
                (0..200).map(|at| source.prompt(at).unwrap().prompt).collect::<BTreeSet<_>>()
            };
            assert!(
                all(Split::Train).is_disjoint(&all(Split::HeldOut)),
                "{name}: held out prompts are trained"
            );
        }
        let error = environment("chess", 10, Split::Train, 1).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "environment \"chess\" is not known\nhint: known environments: {}",
                ENVIRONMENTS.join(", ")
            )
        );
        assert_eq!(error.exit_code(), 78);
    }
}
