//! Reads the committed samples of a few steps with rewards, advantages and the log-probs of both sides.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use slime_config::{RunDir, paths};
use slime_record::{
    Column, ColumnValues, GroupEntry, Manifest, PromptContent, Sample, SampleId, Segment, decode_segment,
};
use slime_tokenizer::Tokenizer;

/// Added to the standard deviation of a group's rewards, as training does.
const EPSILON: f64 = 1e-6;
/// Larger segment files are not opened for a few samples.
const MAX_SEGMENT_BYTES: u64 = 256 << 20;

/// One answer of a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shown {
    /// Its text.
    pub response: String,
    /// Its reward, where a column tells it.
    pub reward: Option<f32>,
    /// The parts of the reward, as JSON text.
    pub parts: Option<String>,
    /// Its reward among those of its group: minus the mean, over the standard deviation.
    pub advantage: Option<f64>,
    /// Such as `completed`.
    pub status: String,
    /// The text of each response token, where there is a tokenizer; together they are the response.
    pub tokens: Vec<String>,
    /// With which log-prob each token was generated.
    pub rollout_log_probs: Vec<f32>,
    /// Which log-prob it had in training, where that was kept.
    pub log_probs: Vec<f32>,
    /// How many response tokens there are.
    pub num_tokens: usize,
}

/// One group: a prompt and its answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShownGroup {
    /// Its number in the step it was drawn for.
    pub group: u32,
    /// Role and text of each message of the prompt.
    pub prompt: Vec<(String, String)>,
    /// The expected answer.
    pub label: Option<String>,
    /// The answers, in the order of their index.
    pub answers: Vec<Shown>,
}

/// The numbers of the steps that were committed, in order.
pub fn committed_steps(run_dir: &RunDir) -> Vec<u64> {
    let entries = fs::read_dir(run_dir.join(paths::ROLLOUT)).into_iter().flatten().flatten();
    let mut steps: Vec<u64> =
        entries.filter_map(|entry| paths::parse_number(entry.file_name().to_str()?)).collect();
    steps.sort_unstable();
    // The newest folders may still be open; looking into each of thousands would take long.
    while steps.last().is_some_and(|step| !run_dir.join(paths::manifest(*step)).exists()) {
        steps.pop();
    }
    steps
}

/// The first step whose samples are kept; those before it were pruned with their checkpoints.
pub fn first_kept_step(run_dir: &RunDir) -> u64 {
    let told = fs::read_to_string(run_dir.join(paths::FIRST_STEP)).ok();
    let kept = told.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    // Steps that were packed before they were pruned are kept all the same.
    let packed = slime_archive::Packed::open(run_dir.root()).ok();
    let oldest = packed.and_then(|packed| packed.list().filter_map(|member| step_of(&member.name)).min());
    oldest.map_or(kept, |oldest| kept.min(oldest))
}

/// The step of a segment's path.
fn step_of(path: &str) -> Option<u64> {
    let (folder, file) = path.strip_prefix(paths::ROLLOUT)?.strip_prefix('/')?.split_once('/')?;
    let is_segment = Path::new(file).extension().is_some_and(|extension| extension == "arrow");
    is_segment.then(|| paths::parse_number(folder)).flatten()
}

/// The tokenizer of the run: that of its newest weights, or of the model it began with.
pub fn tokenizer(run_dir: &RunDir, model: Option<&str>) -> Option<Tokenizer> {
    let entries = fs::read_dir(run_dir.join(paths::WEIGHTS)).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| paths::parse_physical(name).is_some()))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.reverse();
    folders.extend(model.map(std::path::PathBuf::from));
    folders.into_iter().find_map(|folder| Tokenizer::from_dir(folder).ok())
}

/// At most `max_groups` groups of a committed step, evenly chosen.
///
/// # Errors
/// What could not be read, in words.
pub fn read_step(
    run_dir: &RunDir,
    step: u64,
    max_groups: usize,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<ShownGroup>, String> {
    let path = run_dir.join(paths::manifest(step));
    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    let num = manifest.groups.len().min(max_groups);
    let mut reader = Reader { run_dir, tokenizer, segments: HashMap::new(), columns: HashMap::new() };
    let log_probs = reader.log_probs(step);
    let chosen = (0..num).map(|at| &manifest.groups[at * manifest.groups.len() / num]);
    chosen.map(|group| reader.group(group, &log_probs)).collect()
}

/// What was opened already.
struct Reader<'a> {
    run_dir: &'a RunDir,
    tokenizer: Option<&'a Tokenizer>,
    segments: HashMap<String, Segment>,
    columns: HashMap<String, Column>,
}

/// Log-probs of training by sample and hash of its tokens.
type LogProbs = HashMap<(SampleId, u64), Vec<f32>>;

impl Reader<'_> {
    fn group(&mut self, entry: &GroupEntry, log_probs: &LogProbs) -> Result<ShownGroup, String> {
        let samples = self.samples(entry)?;
        let rewards = self.rewards(entry, &samples);
        let known: Vec<f32> = rewards.iter().filter_map(|(reward, _)| *reward).collect();
        let advantages = if known.len() == samples.len() { advantages(&known) } else { Vec::new() };
        let answer = |(at, sample): (usize, &Sample)| {
            let (reward, parts) = rewards[at].clone();
            let num_tokens = sample.response_len();
            let trained = log_probs.get(&(sample.id(), sample.tokens_hash()));
            Shown {
                response: sample.response.clone(),
                reward,
                parts,
                advantage: advantages.get(at).copied(),
                status: sample.status.as_str().to_owned(),
                tokens: self.tokenizer.map(|t| pieces(t, sample)).unwrap_or_default(),
                rollout_log_probs: sample.rollout_log_probs.clone(),
                log_probs: trained.filter(|values| values.len() == num_tokens).cloned().unwrap_or_default(),
                num_tokens,
            }
        };
        Ok(ShownGroup {
            group: entry.group,
            prompt: samples.first().map(|sample| messages(&sample.prompt)).unwrap_or_default(),
            label: samples.first().and_then(|sample| sample.label.clone()),
            answers: samples.iter().enumerate().map(answer).collect(),
        })
    }

    fn samples(&mut self, entry: &GroupEntry) -> Result<Vec<Sample>, String> {
        let name = &entry.segment.path;
        if !self.segments.contains_key(name) {
            if entry.segment.num_bytes > MAX_SEGMENT_BYTES {
                return Err(format!("{name}: too large to open for a few samples"));
            }
            let failed = |error| match error {
                slime_archive::Error::Io { source, .. } => format!("{name}: {source}"),
                error => error.to_string(),
            };
            let bytes = slime_archive::read_run_file(self.run_dir.root(), name).map_err(failed)?;
            let segment = decode_segment(bytes).map_err(|error| format!("{name}: {error}"))?;
            self.segments.insert(name.clone(), segment);
        }
        let segment = &self.segments[name];
        let rows = entry.first_row as usize..entry.first_row as usize + entry.samples.len();
        if rows.end > segment.len() {
            return Err(format!("{name}: expected {} rows, got {}", rows.end, segment.len()));
        }
        rows.map(|row| segment.sample(row).map_err(|error| format!("{name}: {error}"))).collect()
    }

    /// Reward and its parts for each sample; none where the column is gone.
    fn rewards(&mut self, entry: &GroupEntry, samples: &[Sample]) -> Vec<(Option<f32>, Option<String>)> {
        let none = vec![(None, None); samples.len()];
        let Some(reference) = entry.columns.iter().find(|column| column.name == "reward") else {
            return none;
        };
        if !self.columns.contains_key(&reference.path) {
            let bytes = slime_archive::read_run_file(self.run_dir.root(), &reference.path).ok();
            let Some((column, _)) = bytes.and_then(|bytes| Column::decode(bytes).ok()) else { return none };
            self.columns.insert(reference.path.clone(), column);
        }
        let column = &self.columns[&reference.path];
        let ColumnValues::F32(values) = &column.values else { return none };
        samples.iter().map(|sample| reward_of(column, values, sample)).collect()
    }

    /// The log-probs of training that were kept for a step.
    fn log_probs(&self, step: u64) -> LogProbs {
        let mut found = LogProbs::new();
        let folder = paths::column("log_probs", step);
        let entries = fs::read_dir(self.run_dir.join(&folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| Some(format!("{folder}/{}", entry.file_name().to_str()?))).collect();
        if names.is_empty()
            && let Ok(packed) = slime_archive::Packed::open(self.run_dir.root())
        {
            let is_there = |name: &&str| name.strip_prefix(&folder).is_some_and(|rest| rest.starts_with('/'));
            names
                .extend(packed.list().map(|member| member.name.as_str()).filter(is_there).map(str::to_owned));
        }
        for name in names {
            let bytes = slime_archive::read_run_file(self.run_dir.root(), &name).ok();
            let column = bytes.and_then(|bytes| Column::decode(bytes).ok());
            let Some((Column { ids, tokens_hashes, values: ColumnValues::F32List(values), .. }, _)) = column
            else {
                continue;
            };
            found.extend(ids.into_iter().zip(tokens_hashes).zip(values));
        }
        found
    }
}

/// The row of a sample; older versions did not write the hash of its tokens.
fn reward_of(column: &Column, values: &[f32], sample: &Sample) -> (Option<f32>, Option<String>) {
    let id = sample.id();
    let is_row = |row: &usize| {
        column.ids[*row] == id && [0, sample.tokens_hash()].contains(&column.tokens_hashes[*row])
    };
    match (0..column.ids.len()).find(is_row) {
        Some(row) => (values.get(row).copied(), column.details.get(row).cloned().flatten()),
        None => (None, None),
    }
}

/// GRPO (arXiv 2402.03300, section 4.1): reward minus the group's mean over its standard deviation (n - 1).
fn advantages(rewards: &[f32]) -> Vec<f64> {
    let num = rewards.len() as f64;
    let mean = rewards.iter().copied().map(f64::from).sum::<f64>() / num;
    let square = |reward: &f32| (f64::from(*reward) - mean).powi(2);
    let std = (rewards.iter().map(square).sum::<f64>() / (num - 1.0).max(1.0)).sqrt();
    let is_flat = rewards.iter().all(|reward| Some(reward) == rewards.first());
    let advantage = |reward: &f32| if is_flat { 0.0 } else { (f64::from(*reward) - mean) / (std + EPSILON) };
    rewards.iter().map(advantage).collect()
}

/// The text of each response token; those whose character is not complete yet have none.
fn pieces(tokenizer: &Tokenizer, sample: &Sample) -> Vec<String> {
    let mut stream = tokenizer.decode_stream(false);
    let tokens = sample.response_tokens();
    let mut pieces: Vec<String> =
        tokens.iter().map(|token| stream.push(*token).unwrap_or_default()).collect();
    if let (Some(last), Ok(rest)) = (pieces.last_mut(), stream.finish()) {
        *last += &rest;
    }
    pieces
}

/// Role and text of each message.
fn messages(prompt: &str) -> Vec<(String, String)> {
    let Ok(content) = PromptContent::parse(prompt) else { return vec![(String::new(), prompt.to_owned())] };
    let text = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if let PromptContent::Text(text) = content {
        return vec![(String::new(), text)];
    }
    let role = |message: &Value| message["role"].as_str().unwrap_or_default().to_owned();
    content.into_messages().iter().map(|message| (role(message), text(message))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_are_those_of_the_group() {
        let found = advantages(&[1.0, 0.0, 0.0, 1.0]);
        assert!((found[0] - 0.866_024).abs() < 1e-5 && (found[1] + 0.866_024).abs() < 1e-5, "{found:?}");
        assert_eq!(advantages(&[0.1, 0.1, 0.1]), [0.0; 3]);
        assert_eq!(advantages(&[2.0]), [0.0]);
    }

    #[test]
    fn prompts_are_texts_or_messages() {
        assert_eq!(messages("\"hi\""), [(String::new(), "hi".to_owned())]);
        let chat = messages("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":[1]}]");
        assert_eq!(chat, [("user".into(), "a".into()), ("tool".into(), "[1]".into())]);
        assert_eq!(messages("{broken"), [(String::new(), "{broken".to_owned())]);
    }
}
