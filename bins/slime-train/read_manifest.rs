//! The samples of a committed step, in training order, joined with the rewards the manifest pins.

use std::collections::{BTreeMap, HashMap};

use slime_cli::Failure;
use slime_exchange::Bytes;
use slime_record::{Column, ColumnValues, Manifest, SampleId, Segment, decode_segment};
use slime_trainer::Scored;

use crate::failure;

/// Column that holds the number a sample is trained on.
const REWARD: &str = "reward";

/// Joins segments and columns, both by path below the run directory.
///
/// # Errors
/// A row is not the sample the manifest names, or has no reward.
pub fn read_manifest(
    manifest: &Manifest,
    segments: &BTreeMap<String, Bytes>,
    columns: &BTreeMap<String, Bytes>,
) -> Result<Vec<Scored>, Failure> {
    let segments: BTreeMap<&str, Segment> = segments
        .iter()
        .map(|(path, bytes)| Ok((path.as_str(), decode_segment(bytes.to_vec()).map_err(failure!())?)))
        .collect::<Result<_, Failure>>()?;
    let rewards = rewards(columns)?;
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
            let reward = rewards.get(&id).copied();
            let reward = reward.ok_or_else(|| broken(format!("no reward for sample {id}")))?;
            scored.push(Scored { sample, reward });
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

fn rewards(columns: &BTreeMap<String, Bytes>) -> Result<HashMap<SampleId, f32>, Failure> {
    let mut rewards = HashMap::new();
    for (path, bytes) in columns {
        let (column, _) = Column::decode(bytes.to_vec()).map_err(failure!())?;
        if column.name != REWARD {
            continue;
        }
        let ColumnValues::F32(values) = column.values else {
            return Err(Failure::data(format!("{path}: expected one number for each sample")));
        };
        rewards.extend(column.ids.into_iter().zip(values));
    }
    Ok(rewards)
}
