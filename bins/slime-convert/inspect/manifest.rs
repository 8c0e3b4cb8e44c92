//! The manifest of a step: what is trained, what was refused, carried and left running, and the files it pins.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use slime_cli::Failure;
use slime_record::Manifest;

use super::{Report, table, unknown};

pub fn report(path: &Path, bytes: &[u8]) -> Result<Report, Failure> {
    let value: Value = serde_json::from_slice(bytes).map_err(|_| unknown(path))?;
    if value.get("groups").is_none() || value.get("account").is_none() {
        return Err(unknown(path));
    }
    let manifest: Manifest = serde_json::from_value(value)
        .map_err(|error| Failure::data(format!("{}: not a step's manifest: {error}", path.display())))?;
    let num_samples: usize = manifest.groups.iter().map(|group| group.samples.len()).sum();
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for refusal in &manifest.refused {
        *refused.entry(&refusal.reason).or_default() += 1;
    }
    let mut rows = vec![["file", "column", "bytes", "checksum"].map(str::to_owned).to_vec()];
    let mut files = Vec::new();
    let segments = manifest.segments().into_iter().map(|s| (&s.path, None, s.num_bytes, s.checksum));
    let columns = manifest.columns().into_iter().map(|c| (&c.path, Some(&c.name), c.num_bytes, c.checksum));
    for (path, column, num_bytes, checksum) in segments.chain(columns) {
        let checksum = format!("{checksum:016x}");
        let name = column.cloned().unwrap_or_default();
        rows.push(vec![path.clone(), name, num_bytes.to_string(), checksum.clone()]);
        files.push(json!({"path": path, "column": column, "num_bytes": num_bytes, "xxh3": checksum}));
    }
    let account = &manifest.account;
    let facts = [
        ("path", path.display().to_string()),
        ("kind", "manifest".to_owned()),
        ("step", manifest.step.to_string()),
        ("builder", format!("{}, epoch {}", manifest.builder, manifest.epoch)),
        ("groups", format!("{} with {num_samples} samples", manifest.groups.len())),
        ("refused", refused.iter().map(|(reason, n)| format!("{reason} {n}")).collect::<Vec<_>>().join(", ")),
        ("carried", format!("{} groups, {} still out", manifest.carried.len(), manifest.outstanding.len())),
        (
            "staleness",
            format!("{}, tokens before version {} masked", manifest.staleness(), manifest.min_version),
        ),
        ("cursor", manifest.cursor.to_string()),
        (
            "tokens",
            account
                .fates()
                .iter()
                .map(|(fate, tokens)| format!("{fate} {tokens}"))
                .collect::<Vec<_>>()
                .join(", "),
        ),
    ];
    let text = format!("{}\n{}", table::facts(&facts), table::table(&rows));
    let json = json!({
        "path": path.display().to_string(),
        "kind": "manifest",
        "step": manifest.step,
        "builder": manifest.builder,
        "epoch": manifest.epoch,
        "min_version": manifest.min_version,
        "staleness": manifest.staleness(),
        "cursor": manifest.cursor,
        "num_groups": manifest.groups.len(),
        "num_samples": num_samples,
        "refused": refused,
        "num_carried": manifest.carried.len(),
        "num_outstanding": manifest.outstanding.len(),
        "account": account,
        "files": files,
    });
    Ok(Report { json, text })
}
