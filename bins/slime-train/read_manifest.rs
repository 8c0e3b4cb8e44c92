//! The samples of a committed step, in training order, joined with the rewards the manifest pins.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_config::Algorithm;
use slime_exchange::Bytes;
use slime_record::{Column, ColumnValues, Manifest, SampleId, Segment, decode_segment};
use slime_trainer::Scored;

use crate::failure;
use crate::read_samples::{margin, needs_reward};

/// Column that holds the number a sample is trained on.
const REWARD: &str = "reward";
/// Column with a teacher's log-prob of each response token.
const TEACHER: &str = "teacher_log_probs";

/// Joins segments and columns, both by path below the run directory.
///
/// # Errors
/// A row is not the sample the manifest names, or has no reward.
pub fn read_manifest(
    manifest: &Manifest,
    segments: &BTreeMap<String, Bytes>,
    columns: &BTreeMap<String, Bytes>,
    algorithm: &Algorithm,
) -> Result<Vec<Scored>, Failure> {
    let segments: BTreeMap<&str, Segment> = segments
        .iter()
        .map(|(path, bytes)| Ok((path.as_str(), decode_segment(bytes.to_vec()).map_err(failure!())?)))
        .collect::<Result<_, Failure>>()?;
    let mut columns = read_columns(columns)?;
    let mut scored = Vec::new();
    for group in &manifest.groups {
        let broken = |what: String| {
            let place = format!("step {}, group {}/{}", manifest.step, group.step, group.group);
            Failure::data(format!("{place}: {what}"))
        };
        let path = group.segment.path.as_str();
        let segment = segments.get(path).ok_or_else(|| broken(format!("segment {path} was not read")))?;
        for (offset, entry) in group.samples.iter().enumerate() {
            let row = group.first_row as usize + offset;
            if row >= segment.len() {
                return Err(broken(format!("{path}: expected row {row}, got {} rows", segment.len())));
            }
            let mut sample = segment.sample(row).map_err(failure!())?;
            if sample.tokens_hash() != entry.tokens_hash {
                let id = sample.id();
                return Err(broken(format!(
                    "{path}: row {row} is sample {id} with other tokens than committed"
                )));
            }
            mask_stale(&mut sample, manifest.min_version);
            let id = sample.id();
            let reward = columns.rewards.get(&id).copied();
            if reward.is_none() && needs_reward(algorithm) {
                return Err(broken(format!("no reward for sample {id}")));
            }
            let margin = margin(&sample, &Map::new(), &format!("{path}: sample {id}"))?;
            let token_rewards = columns.token_rewards.remove(&id).unwrap_or_default();
            let teacher_log_probs = columns.teacher_log_probs.remove(&id).unwrap_or_default();
            scored.push(Scored { sample, reward, token_rewards, teacher_log_probs, margin });
        }
    }
    Ok(scored)
}

/// Tokens that are older than the staleness bound are not trained.
fn mask_stale(sample: &mut slime_record::Sample, min_version: u64) {
    let mut mask = sample.loss_mask.iter_mut();
    for run in &sample.weight_versions {
        for token in mask.by_ref().take(run.len as usize) {
            if run.version < min_version {
                *token = 0;
            }
        }
    }
}

/// What columns say about samples.
#[derive(Default)]
struct Columns {
    rewards: HashMap<SampleId, f32>,
    token_rewards: HashMap<SampleId, Vec<f32>>,
    teacher_log_probs: HashMap<SampleId, Vec<f32>>,
}

fn read_columns(files: &BTreeMap<String, Bytes>) -> Result<Columns, Failure> {
    let mut columns = Columns::default();
    for (path, bytes) in files {
        let (Column { name, ids, values, details, .. }, _) =
            Column::decode(bytes.to_vec()).map_err(failure!())?;
        match (name.as_str(), values) {
            (REWARD, ColumnValues::F32(values)) => {
                for (id, details) in ids.iter().zip(&details) {
                    if let Some(rewards) = token_rewards(details.as_deref(), path, *id)? {
                        columns.token_rewards.insert(*id, rewards);
                    }
                }
                columns.rewards.extend(ids.into_iter().zip(values));
            }
            (REWARD, _) => {
                return Err(Failure::data(format!("{path}: expected one number for each sample")));
            }
            (TEACHER, ColumnValues::F32List(values)) => {
                columns.teacher_log_probs.extend(ids.into_iter().zip(values));
            }
            _ => {}
        }
    }
    Ok(columns)
}

/// The rewards of single tokens among what a reward has to say about itself.
fn token_rewards(details: Option<&str>, path: &str, id: SampleId) -> Result<Option<Vec<f32>>, Failure> {
    let details: Option<Value> = details.and_then(|text| serde_json::from_str(text).ok());
    let Some(value) = details.and_then(|mut details| details.get_mut("token_rewards").map(Value::take))
    else {
        return Ok(None);
    };
    let broken = |error| {
        Failure::data(format!("{path}: sample {id}: token_rewards: expected a list of numbers: {error}"))
    };
    serde_json::from_value(value).map(Some).map_err(broken)
}
