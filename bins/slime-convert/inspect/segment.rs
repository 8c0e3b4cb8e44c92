//! What a segment says beyond its columns: steps, groups, lengths, statuses, sources, versions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::json;
use slime_cli::Failure;
use slime_record::decode_segment;

use super::{Summary, of_record};

pub fn summarise(path: &Path, bytes: Vec<u8>) -> Result<Summary, Failure> {
    let samples = decode_segment(bytes).and_then(|segment| segment.samples());
    let samples = samples.map_err(|error| of_record(path, &error))?;
    let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
    let mut sources: BTreeMap<&str, usize> = BTreeMap::new();
    let mut versions: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in &samples {
        *statuses.entry(sample.status.as_str().to_owned()).or_default() += 1;
        *sources.entry(&sample.source).or_default() += 1;
        for run in &sample.weight_versions {
            *versions.entry(run.version).or_default() += u64::from(run.len);
        }
    }
    let steps: BTreeSet<u64> = samples.iter().map(|sample| sample.step).collect();
    let groups: BTreeSet<(u64, u32)> = samples.iter().map(|sample| (sample.step, sample.group)).collect();
    let lens = |of: &dyn Fn(usize) -> u64| -> [f64; 3] {
        let lens: Vec<u64> = (0..samples.len()).map(of).collect();
        let mean = lens.iter().sum::<u64>() as f64 / lens.len().max(1) as f64;
        [lens.iter().min().copied().unwrap_or(0) as f64, mean, lens.iter().max().copied().unwrap_or(0) as f64]
    };
    let prompt = lens(&|i| u64::from(samples[i].prompt_len));
    let response = lens(&|i| samples[i].loss_mask.len() as u64);
    let count = |map: &BTreeMap<String, usize>| join(map.iter().map(|(name, n)| format!("{name} {n}")));
    let range = |[min, mean, max]: [f64; 3]| format!("{min} to {max} tokens, mean {mean:.1}");
    let facts = vec![
        ("steps", join(steps.iter().map(u64::to_string))),
        ("groups", groups.len().to_string()),
        ("samples", samples.len().to_string()),
        ("prompts", range(prompt)),
        ("responses", range(response)),
        ("statuses", count(&statuses)),
        ("sources", join(sources.iter().map(|(name, n)| format!("{name} {n}")))),
        ("tokens by version", join(versions.iter().map(|(version, n)| format!("{version}: {n}")))),
    ];
    let of = |[min, mean, max]: [f64; 3]| json!({"min": min as u64, "mean": mean, "max": max as u64});
    let versions: BTreeMap<String, u64> = versions.iter().map(|(v, n)| (v.to_string(), *n)).collect();
    let json = json!({
        "steps": steps, "num_groups": groups.len(), "num_samples": samples.len(),
        "prompt_len": of(prompt), "response_len": of(response),
        "statuses": statuses, "sources": sources, "tokens_by_version": versions,
    });
    Ok(Summary { json, facts })
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}
