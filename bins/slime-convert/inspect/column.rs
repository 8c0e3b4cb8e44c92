//! What a column file says beyond its columns: the samples it is about, and the spread of its numbers.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use slime_cli::Failure;
use slime_record::{Column, ColumnValues};

use super::{Summary, of_record};

pub fn summarise(path: &Path, bytes: Vec<u8>) -> Result<Summary, Failure> {
    let (column, _) = Column::decode(bytes).map_err(|error| of_record(path, &error))?;
    let steps: BTreeSet<u64> = column.ids.iter().map(|id| id.step).collect();
    let groups: BTreeSet<(u64, u32)> = column.ids.iter().map(|id| (id.step, id.group)).collect();
    let numbers: Vec<f64> = match &column.values {
        ColumnValues::F32(values) => values.iter().copied().map(f64::from).collect(),
        ColumnValues::F32List(lists) => lists.iter().flatten().copied().map(f64::from).collect(),
        ColumnValues::Json(_) => Vec::new(),
    };
    let mut facts = vec![
        ("column", column.name.clone()),
        ("steps", steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
        ("groups", groups.len().to_string()),
    ];
    let mut spread = Value::Null;
    if !numbers.is_empty() {
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let (min, max) = numbers
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| (min.min(*value), max.max(*value)));
        facts.push(("values", format!("{min} to {max}, mean {mean:.4}")));
        spread = json!({"min": min, "mean": mean, "max": max});
    }
    let json = json!({"column": column.name, "steps": steps, "num_groups": groups.len(), "values": spread});
    Ok(Summary { json, facts })
}
