//! From the parser's "unknown field" to a message with the key's full name and what was probably meant.

use serde::Deserialize;

use crate::algorithm::{Algorithm, Checks, Correction, Critic, Reference, Teacher};
use crate::data::{Data, DataSource, Eval, Model};
use crate::engine_weights::EngineWeights;
use crate::error::Error;
use crate::fp8::Fp8;
use crate::load::RunConfig;
use crate::lora::Lora;
use crate::metrics::{Metrics, Warnings};
use crate::parallel::Parallel;
use crate::rollout::{Reward, Rollout};
use crate::run::{Checkpoint, Run, Watchdog};
use crate::stage::Stage;
use crate::train::Train;

/// Names further apart than this share of the written name are not suggested.
const FARTHEST: f64 = 0.7;

/// Turns a deserializer's message into an error; `section` is where the parser stood.
pub(crate) fn explain(message: &str, section: &str, place: &str) -> Error {
    let Some((key, known)) = unknown_field(message) else {
        return Error::Syntax { place: place.to_owned(), message: message.trim().replace('\n', ", ") };
    };
    // An unknown section is reported by the parser while it already stands in it.
    let is_section = known == keys_of::<RunConfig>();
    let full = |name: &str| {
        if is_section || section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
    };
    let nearest = known
        .iter()
        .map(|name| (strsim::jaro_winkler(&key, name), name))
        .filter(|(likeness, _)| *likeness >= FARTHEST)
        .max_by(|left, right| left.0.total_cmp(&right.0));
    let hint = if let Some(owner) = owner(&key).filter(|_| !is_section) {
        format!("\nhint: {key} is a key of [{owner}]")
    } else if let Some((_, name)) = nearest {
        format!("\nhint: did you mean {}?", full(name))
    } else {
        format!("\nhint: {} are {}", if is_section { "sections" } else { "keys" }, known.join(", "))
    };
    Error::UnknownKey { place: place.to_owned(), key: full(&key), hint }
}

/// The section that has this key.
fn owner(key: &str) -> Option<&'static str> {
    [
        ("run", keys_of::<Run>()),
        ("model", keys_of::<Model>()),
        ("data", keys_of::<Data>()),
        ("rollout", keys_of::<Rollout>()),
        ("rollout.weights", keys_of::<EngineWeights>()),
        ("reward", keys_of::<Reward>()),
        ("train", keys_of::<Train>()),
        ("train.lora", keys_of::<Lora>()),
        ("train.fp8", keys_of::<Fp8>()),
        ("parallel", keys_of::<Parallel>()),
        ("algorithm", keys_of::<Algorithm>()),
        ("algorithm.correction", keys_of::<Correction>()),
        ("reference", keys_of::<Reference>()),
        ("critic", keys_of::<Critic>()),
        ("teacher", keys_of::<Teacher>()),
        ("checks", keys_of::<Checks>()),
        ("checkpoint", keys_of::<Checkpoint>()),
        ("watchdog", keys_of::<Watchdog>()),
        ("metrics", keys_of::<Metrics>()),
        ("metrics.warnings", keys_of::<Warnings>()),
        ("eval.<set>", keys_of::<Eval>()),
        ("[data.source]", keys_of::<DataSource>()),
        ("[stage]", keys_of::<Stage>()),
    ]
    .into_iter()
    .find_map(|(section, keys)| keys.iter().any(|known| known == key).then_some(section))
}

/// The keys of a section, asked of its own deserializer so that there is no second list.
fn keys_of<'de, T: Deserialize<'de>>() -> Vec<String> {
    let mut probe = toml::Table::new();
    probe.insert(String::new(), toml::Value::Boolean(true));
    match T::deserialize(probe) {
        Ok(_) => Vec::new(),
        Err(error) => unknown_field(error.message()).map(|(_, known)| known).unwrap_or_default(),
    }
}

/// Splits serde's "unknown field `x`, expected one of `a`, `b`".
fn unknown_field(message: &str) -> Option<(String, Vec<String>)> {
    let rest = message.trim().strip_prefix("unknown field `")?;
    let (key, rest) = rest.split_once('`')?;
    let known = rest.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    Some((key.to_owned(), known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_schema() {
        assert_eq!(keys_of::<Reward>(), ["types", "placement", "patience_s", "spans", "sandbox_min"]);
        assert_eq!(keys_of::<Reference>(), ["path", "update_interval"]);
        assert!(keys_of::<RunConfig>().contains(&"eval".to_owned()));
        assert_eq!(owner("kl_loss_coef"), Some("algorithm"));
    }
}
