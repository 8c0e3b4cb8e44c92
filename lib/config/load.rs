//! One TOML for all tools: reading it, `--set section.key=value` on top, and the resolved text back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::algorithm::{AdvantageEstimator, Algorithm, Checks, Critic, LossType, Reference, Teacher};
use crate::cluster::Cluster;
use crate::data::{Data, Eval, Model};
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::parallel::Parallel;
use crate::rollout::{Reward, Rollout, run_code};
use crate::run::{Checkpoint, Run, Watchdog};
use crate::stage::Stage;
use crate::sync::Sync;
use crate::train::Train;
use crate::{check, unknown_key, warning};

/// A run's whole configuration, one field for each section of the TOML.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// `[run]`
    pub run: Run,
    /// `[model]`
    pub model: Model,
    /// `[data]`
    pub data: Data,
    /// `[rollout]`
    pub rollout: Rollout,
    /// `[[stage]]`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stage: Vec<Stage>,
    /// `[reward]`
    pub reward: Reward,
    /// `[train]`
    pub train: Train,
    /// `[parallel]`
    pub parallel: Parallel,
    /// `[cluster]`
    pub cluster: Cluster,
    /// `[algorithm]`
    pub algorithm: Algorithm,
    /// `[reference]`
    pub reference: Reference,
    /// `[critic]`
    pub critic: Critic,
    /// `[teacher]`
    pub teacher: Teacher,
    /// `[checks]`
    pub checks: Checks,
    /// `[eval.<set>]`
    pub eval: BTreeMap<String, Eval>,
    /// `[checkpoint]`
    pub checkpoint: Checkpoint,
    /// `[sync]`
    pub sync: Sync,
    /// `[watchdog]`
    pub watchdog: Watchdog,
    /// `[metrics]`
    pub metrics: Metrics,
    /// The keys the user wrote with another value than the default, as `section.key`.
    #[serde(skip)]
    pub(crate) chosen: BTreeSet<String>,
}

/// Reads a configuration file, or the defaults when `path` is `None`, with `--set` arguments on top.
///
/// # Errors
/// An unreadable file, text that is not TOML, an unknown key, a wrong or contradictory value.
pub fn load(path: Option<&Path>, sets: &[String]) -> Result<RunConfig> {
    let Some(path) = path else { return parse("", "", sets) };
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&text, &path.display().to_string(), sets)
}

/// The same for a text; `name` is what messages call it.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, name: &str, sets: &[String]) -> Result<RunConfig> {
    toml::from_str::<RunConfig>(text).map_err(|error| located(&error, text, name))?;
    let mut table = toml::from_str::<Table>(text).map_err(|error| located(&error, text, name))?;
    for argument in sets {
        set(&mut table, argument)?;
    }
    let given = keys(&table);
    let mut config = RunConfig::deserialize(table)
        .map_err(|error| Error::Syntax { place: name.to_owned(), message: error.message().to_owned() })?;
    let names_correction = given.iter().any(|key| key.starts_with("algorithm.correction"));
    config.chosen = chosen(given, &config);
    if !names_correction {
        config.correct_stale();
    }
    check::check(&config)?;
    Ok(config)
}

/// Writes one `section.key=value` into the table, after the value alone was accepted by the schema.
fn set(table: &mut Table, argument: &str) -> Result<()> {
    let malformed = || Error::SetArgument { argument: argument.to_owned() };
    let (dotted, text) = argument.split_once('=').ok_or_else(malformed)?;
    let path: Vec<&str> = dotted.trim().split('.').collect();
    if path.len() < 2 || path.iter().any(|part| part.is_empty()) {
        return Err(malformed());
    }
    let text = text.trim();
    // What does not read as a TOML value is a string: `--set model.path=weights/base`.
    let value = toml::from_str::<Table>(&format!("value = {text}"))
        .ok()
        .filter(|parsed| parsed.len() == 1)
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| Value::String(text.to_owned()));

    let mut alone = Table::new();
    insert(&mut alone, &path, value.clone()).ok_or_else(malformed)?;
    RunConfig::deserialize(alone).map_err(|error| {
        let place = format!("--set {argument}");
        unknown_key::explain(error.message(), &path[..path.len() - 1].join("."), &place)
    })?;
    insert(table, &path, value).ok_or_else(malformed)
}

fn insert(table: &mut Table, path: &[&str], value: Value) -> Option<()> {
    let (last, parents) = path.split_last()?;
    let mut place = table;
    for part in parents {
        place = place.entry(*part).or_insert_with(|| Value::Table(Table::new())).as_table_mut()?;
    }
    place.insert((*last).to_owned(), value);
    Some(())
}

/// The dotted names of everything below the sections.
fn keys(table: &Table) -> BTreeSet<String> {
    fn walk(table: &Table, prefix: &str, found: &mut BTreeSet<String>) {
        for (key, value) in table {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                Value::Table(inner) => walk(inner, &name, found),
                _ => {
                    found.insert(name);
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(table, "", &mut found);
    found
}

/// Those of the `given` keys that say something else than the defaults, which a resolved file merely writes out.
fn chosen(given: BTreeSet<String>, config: &RunConfig) -> BTreeSet<String> {
    let mut defaults = RunConfig::default();
    defaults.eval.extend(config.eval.keys().map(|name| (name.clone(), Eval::default())));
    let (Ok(values), Ok(defaults)) = (Table::try_from(config), Table::try_from(&defaults)) else {
        return given;
    };
    given.into_iter().filter(|key| value(&values, key) != value(&defaults, key)).collect()
}

/// The value of a dotted name.
fn value<'a>(table: &'a Table, dotted: &str) -> Option<&'a Value> {
    let (first, rest) = dotted.split_once('.').map_or((dotted, None), |(first, rest)| (first, Some(rest)));
    let found = table.get(first)?;
    rest.map_or(Some(found), |rest| value(found.as_table()?, rest))
}

/// An error of the TOML parser with file and line.
fn located(error: &toml::de::Error, text: &str, name: &str) -> Error {
    let (place, section) = match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or(text);
            let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
            let section = before.lines().rev().find_map(|line| {
                Some(
                    line.trim()
                        .strip_prefix('[')?
                        .trim_start_matches('[')
                        .split_once(']')?
                        .0
                        .trim()
                        .to_owned(),
                )
            });
            (format!("{name}:{line}"), section.unwrap_or_default())
        }
        None => (name.to_owned(), String::new()),
    };
    unknown_key::explain(error.message(), &section, &place)
}

impl RunConfig {
    /// The weights of the reference, where it is a model of its own: that of a policy with adapters is the policy without
    /// them, unless `reference.path` names other weights.
    pub fn reference_path(&self) -> Option<&str> {
        let path = self.reference.path.as_deref().unwrap_or(&self.model.path);
        let is_base = self.train.lora.is_some() && path == self.model.path;
        (self.algorithm.has_reference() && !is_base).then_some(path)
    }

    /// Weight of the teacher's term in each token's advantage; none without a teacher.
    pub fn opd_kl_coef(&self) -> Option<f64> {
        let algorithm = &self.algorithm;
        let is_distilled = algorithm.advantage_estimator == AdvantageEstimator::Distillation;
        let coef = self.teacher.opd_kl_coef.or(is_distilled.then_some(1.0));
        coef.filter(|_| algorithm.loss == LossType::Policy)
    }

    /// Every how many versions some set may be due: the greatest common divisor of their intervals; 0 without sets.
    pub fn eval_interval(&self) -> u64 {
        fn gcd(a: u64, b: u64) -> u64 {
            if b == 0 { a } else { gcd(b, a % b) }
        }
        self.eval.values().map(|set| set.interval).fold(0, gcd)
    }

    /// Whether rewards of steps or evaluations run code of responses.
    pub fn runs_code(&self) -> bool {
        let of_sets = self.eval.values().filter_map(|set| set.reward_types.as_ref());
        self.reward.runs_code() || of_sets.into_iter().any(|types| run_code(types))
    }

    /// Whether some set is evaluated before the first step.
    pub fn evaluates_at_start(&self) -> bool {
        self.eval.values().any(|set| set.at_start)
    }

    /// The resolved configuration: its plan as comments, then every section, defaults and derived sizes written out.
    ///
    /// # Errors
    /// The batch identity does not hold.
    pub fn to_toml(&self) -> Result<String> {
        let mut resolved = self.clone();
        let batch = self.batch()?;
        resolved.rollout.rollout_batch_size = Some(batch.rollout_batch_size);
        resolved.rollout.n_samples_per_prompt = Some(batch.n_samples_per_prompt);
        resolved.train.global_batch_size = Some(batch.global_batch_size);
        resolved.train.num_steps_per_rollout = Some(batch.num_steps_per_rollout);
        resolved.run.order = Some(self.run.order());
        resolved.rollout.partial = Some(self.partial());
        let plan = self.plan()?.join("\n# ");
        let text = toml::to_string(&resolved)
            .map_err(|error| Error::Conflict(format!("cannot write the configuration as TOML: {error}")))?;
        Ok(format!("# {plan}\n\n{text}"))
    }

    /// What was set and has no effect, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        warning::warnings(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, sets: &[&str]) -> Result<RunConfig> {
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        parse(text, "run.toml", &sets)
    }

    #[test]
    fn unknown_key_names_line_and_suggestion() {
        let text = "[run]\nseed = 1\n\n[train]\nlrr = 1e-6\n";
        let message = with(text, &[]).unwrap_err().to_string();
        assert!(message.starts_with("run.toml:5: unknown key train.lrr"), "{message}");
        assert!(message.contains("hint: did you mean train.lr?"), "{message}");
    }

    #[test]
    fn unknown_section_and_misplaced_key_are_explained() {
        let message = with("[trian]\nlr = 1e-6\n", &[]).unwrap_err().to_string();
        assert!(message.contains("run.toml:1: unknown key trian"), "{message}");
        assert!(message.contains("did you mean train?"), "{message}");
        let message = with("[rollout]\nlr = 1e-6\n", &[]).unwrap_err().to_string();
        assert!(message.contains("run.toml:2: unknown key rollout.lr"), "{message}");
        assert!(message.contains("lr is a key of [train]"), "{message}");
        let message = with("[eval.test]\nintervall = 2\n", &[]).unwrap_err().to_string();
        assert!(message.contains("did you mean eval.test.interval?"), "{message}");
        let message = with("[metrics.warnings]\nentropy_dropp = 0.5\n", &[]).unwrap_err().to_string();
        assert!(message.starts_with("run.toml:2: unknown key metrics.warnings.entropy_dropp"), "{message}");
        assert!(message.contains("did you mean metrics.warnings.entropy_drop?"), "{message}");
        let message = with("", &["metrics.warnings.windw=3"]).unwrap_err().to_string();
        assert!(message.contains("did you mean metrics.warnings.window?"), "{message}");
    }

    #[test]
    fn wrong_type_names_the_line() {
        let message = with("[train]\n\nlr = \"fast\"\n", &[]).unwrap_err().to_string();
        assert!(message.starts_with("run.toml:3: "), "{message}");
        let message = with("[train\n", &[]).unwrap_err().to_string();
        assert!(message.starts_with("run.toml:1: "), "{message}");
    }

    #[test]
    fn set_overrides_the_file_and_guesses_strings() {
        let config = with(
            "[train]\nlr = 1e-6\n",
            &[
                "train.lr=2e-5",
                "model.path=weights/base",
                "rollout.stop=[\"\\n\"]",
                "eval.test.temperature=0",
                "algorithm.kl_loss_type=k1",
            ],
        )
        .unwrap();
        assert!((config.train.lr - 2e-5).abs() < 1e-12);
        assert_eq!(config.model.path, "weights/base");
        assert_eq!(config.rollout.stop, ["\n"]);
        assert!(config.eval["test"].temperature.abs() < 1e-12);
    }

    #[test]
    fn set_errors_name_the_argument() {
        for (argument, expected) in [
            ("train.lrr=1", "--set train.lrr=1: unknown key train.lrr"),
            ("lr=1", "expected section.key=value"),
            ("train.lr", "expected section.key=value"),
            ("train.lr=fast", "--set train.lr=fast: "),
        ] {
            let message = with("", &[argument]).unwrap_err().to_string();
            assert!(message.contains(expected), "{argument}: {message}");
        }
    }

    #[test]
    fn resolved_text_reads_back_as_the_same_run() {
        let config = with("[rollout]\nrollout_batch_size = 8\n[eval.held_out]\ninterval = 5\n", &[]).unwrap();
        let text = config.to_toml().unwrap();
        let again = with(&text, &[]).unwrap();
        assert_eq!(again.to_toml().unwrap(), text);
        assert_eq!(again.batch().unwrap(), config.batch().unwrap());
        assert_eq!(again.eval, config.eval);
    }

    #[test]
    fn resolved_text_gives_no_warning() {
        for text in [
            "",
            "[data]\nenvironment = \"arithmetic\"\n",
            "[data]\nshuffle = false\n[[data.source]]\npath = \"a.jsonl\"\nweight = 0.7\nname = \"a\"\n",
            "[rollout]\ntemperature = 0\n[eval.a]\nprompts = \"a.jsonl\"\n",
            "[data]\napply_chat_template = false\n[run]\nnum_steps = 3\n",
        ] {
            let config = with(text, &[]).unwrap();
            assert_eq!(config.warnings(), Vec::<String>::new(), "{text}");
            assert_eq!(
                with(&config.to_toml().unwrap(), &[]).unwrap().warnings(),
                Vec::<String>::new(),
                "{text}"
            );
        }
    }

    #[test]
    fn kl_estimators_have_the_names_of_the_field() {
        for name in ["k1", "k2", "k3", "low_var_kl"] {
            let text = format!("[algorithm]\nkl_loss_coef = 0.1\nkl_loss_type = \"{name}\"\n");
            assert!(with(&text, &[]).unwrap().to_toml().unwrap().contains(&format!("\"{name}\"")));
        }
        let message = with("[algorithm]\nkl_loss_type = \"k4\"\n", &[]).unwrap_err().to_string();
        assert!(message.starts_with("run.toml:2: ") && message.contains("low_var_kl"), "{message}");
    }

    #[test]
    fn number_of_steps_comes_from_steps_or_epochs() {
        let config = with("[run]\nnum_epoch = 2\n[rollout]\nrollout_batch_size = 10\n", &[]).unwrap();
        assert_eq!(config.num_steps(Some(105)).unwrap(), 21);
        assert!(config.num_steps(None).is_err());
        assert!(config.num_steps(Some(4)).is_err());
        assert_eq!(with("", &["run.num_steps=7"]).unwrap().num_steps(None).unwrap(), 7);
    }

    #[test]
    fn eval_interval_is_the_grid_of_all_sets() {
        assert_eq!(with("[eval.a]\ninterval = 4\n[eval.b]\ninterval = 6\n", &[]).unwrap().eval_interval(), 2);
        assert_eq!(with("", &[]).unwrap().eval_interval(), 0);
    }

    #[test]
    fn missing_file_is_no_input() {
        let error = load(Some(Path::new("/nonexistent/run.toml")), &[]).unwrap_err();
        assert_eq!(error.exit_code(), 66);
    }
}
