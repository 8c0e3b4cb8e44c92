//! The samples of a committed step with their rewards, for the numbers about them.

use std::collections::{BTreeMap, HashMap};

use slime_cli::Failure;
use slime_exchange::Store;
use slime_metrics::rollout::Rewarded;
use slime_record::{Column, ColumnValues, Manifest, Sample, SampleId, Segment, decode_segment};

use crate::failure;
use crate::sampler::GroupId;

/// Column that holds the number a sample is trained on.
const REWARD: &str = "reward";

/// A reward and its parts by name.
type Reward = (f32, BTreeMap<String, f64>);

/// The groups of a manifest. What was pruned meanwhile is left out, and said.
///
/// # Errors
/// A file is broken, or the store cannot be read.
pub fn read_groups(store: &mut dyn Store, manifest: &Manifest) -> Result<Vec<Vec<Rewarded>>, Failure> {
    let rewards = read_rewards(store, manifest)?;
    let has_rewards = manifest.columns().iter().any(|column| column.name == REWARD);
    let mut segments: HashMap<&str, Option<Segment>> = HashMap::new();
    let mut groups = Vec::new();
    let mut num_missing = 0;
    for group in &manifest.groups {
        let path = group.segment.path.as_str();
        if !segments.contains_key(path) {
            let bytes = store.read(path).map_err(failure!())?;
            let segment = bytes.map(|bytes| decode_segment(bytes.to_vec()).map_err(failure!()));
            segments.insert(path, segment.transpose()?);
        }
        let Some(Some(segment)) = segments.get(path) else {
            num_missing += 1;
            continue;
        };
        let rows = group.first_row as usize..group.first_row as usize + group.samples.len();
        let mut samples = Vec::new();
        for row in rows.filter(|row| *row < segment.len()) {
            let sample = segment.sample(row).map_err(failure!())?;
            if let Some((reward, parts)) = rewards.get(&sample.id()).cloned() {
                samples.push(Rewarded { sample, reward: Some(reward), parts });
            } else if !has_rewards {
                samples.push(Rewarded { sample, reward: None, parts: BTreeMap::new() });
            }
        }
        groups.push(samples);
    }
    if num_missing > 0 {
        tracing::warn!("step {}: {num_missing} groups are pruned and not in its numbers", manifest.step);
    }
    Ok(groups)
}

/// The samples of a group that an earlier replica left unfinished, all of them or none: a file that is gone or broken costs
/// its tokens and no more.
pub fn unfinished(store: &mut dyn Store, path: &str, id: GroupId) -> Vec<Sample> {
    let bytes = store.read(path).map_err(|error| error.to_string());
    let samples = bytes.and_then(|bytes| {
        let bytes = bytes.ok_or("it is not there")?;
        let segment = decode_segment(bytes.to_vec()).map_err(|error| error.to_string())?;
        let samples = (0..segment.len()).map(|row| segment.sample(row).map_err(|error| error.to_string()));
        samples.collect::<Result<Vec<Sample>, String>>()
    });
    match samples {
        Ok(samples) => samples.into_iter().filter(|s| (s.step, s.group) == (id.step, id.group)).collect(),
        Err(problem) => {
            tracing::warn!("{path}: {problem}; group {}/{} begins anew", id.step, id.group);
            Vec::new()
        }
    }
}

fn read_rewards(store: &mut dyn Store, manifest: &Manifest) -> Result<HashMap<SampleId, Reward>, Failure> {
    let mut rewards = HashMap::new();
    for reference in manifest.columns().into_iter().filter(|column| column.name == REWARD) {
        let Some(bytes) = store.read(&reference.path).map_err(failure!())? else { continue };
        let (column, _) = Column::decode(bytes.to_vec()).map_err(failure!())?;
        let ColumnValues::F32(values) = column.values else { continue };
        for ((id, value), details) in column.ids.into_iter().zip(values).zip(column.details) {
            // Details are for people, of any form; only parts that are numbers are told.
            let parts = details.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            rewards.insert(id, (value, parts));
        }
    }
    Ok(rewards)
}
