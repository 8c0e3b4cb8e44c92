//! A GGUF file as it is: its own names, block types and metadata, of any architecture.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use slime_cli::Failure;
use slime_weights::{Gguf, GgufValue};

use super::{Report, table};
use crate::failure;

/// Longer arrays (a vocabulary) are told by their length.
const MAX_ARRAY_LEN: usize = 8;

pub fn report(path: &Path) -> Result<Report, Failure> {
    let gguf = Gguf::open(path).map_err(failure)?;
    let mut dtypes: BTreeMap<String, usize> = BTreeMap::new();
    let mut rows = Vec::new();
    let mut lines = vec![["tensor", "type", "shape", "bytes"].map(str::to_owned).to_vec()];
    let (mut num_parameters, mut num_bytes) = (0, 0);
    for (name, tensor) in gguf.tensors() {
        let (dtype, count) = (tensor.block_type.to_string(), tensor.shape.iter().product::<usize>());
        num_parameters += count;
        num_bytes += tensor.num_bytes();
        *dtypes.entry(dtype.clone()).or_default() += count;
        let shape = format!("{:?}", tensor.shape);
        lines.push(vec![name.clone(), dtype.clone(), shape, tensor.num_bytes().to_string()]);
        rows.push(
            json!({"name": name, "dtype": dtype, "shape": tensor.shape, "num_bytes": tensor.num_bytes()}),
        );
    }
    let metadata: Map<String, Value> =
        gguf.metadata().iter().map(|(key, value)| (key.clone(), to_json(value))).collect();
    let total = format!("{} tensors, {num_parameters} parameters, {num_bytes} bytes", rows.len());
    let types = dtypes.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ");
    let mut facts = vec![
        ("path", path.display().to_string()),
        ("kind", "weights (gguf)".to_owned()),
        ("total", total),
        ("parameters by type", types),
    ];
    // Long texts (a chat template) are for --json.
    let shown = metadata.iter().filter(|(_, value)| value.as_str().is_none_or(|text| text.len() < 60));
    facts.extend(shown.map(|(key, value)| (key.as_str(), value.to_string())));
    let text = format!("{}\n{}", table::facts(&facts), table::table(&lines));
    Ok(Report {
        json: json!({
            "path": path.display().to_string(),
            "kind": "weights",
            "format": "gguf",
            "num_parameters": num_parameters,
            "num_bytes": num_bytes,
            "parameters_by_dtype": dtypes,
            "metadata": metadata,
            "tensors": rows,
        }),
        text,
    })
}

fn to_json(value: &GgufValue) -> Value {
    match value {
        GgufValue::Unsigned(value) => json!(value),
        GgufValue::Signed(value) => json!(value),
        GgufValue::Float(value) => json!(value),
        GgufValue::Bool(value) => json!(value),
        GgufValue::Text(value) => json!(value),
        GgufValue::Array(values) if values.len() > MAX_ARRAY_LEN => json!({"len": values.len()}),
        GgufValue::Array(values) => values.iter().map(to_json).collect(),
    }
}
