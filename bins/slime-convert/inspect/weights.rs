//! A weight directory or a safetensors file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use slime_cli::Failure;
use slime_weights::{TensorSpec, tensor_hash};

use super::{Report, table};
use crate::read_weights::Checkpoint;

pub fn report(path: &Path) -> Result<Report, Failure> {
    let checkpoint = Checkpoint::open_stored(path)?;
    let tensors = checkpoint.tensors()?;
    let count = |spec: &TensorSpec| spec.shape.iter().product::<usize>();
    let mut dtypes: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in &tensors {
        *dtypes.entry(spec.dtype.name()).or_default() += count(spec);
    }
    let mut rows = Vec::with_capacity(tensors.len());
    let mut lines = vec![["tensor", "dtype", "shape", "bytes", "xxh3"].map(str::to_owned).to_vec()];
    for spec in &tensors {
        let (hash, num_bytes) = (tensor_hash(&checkpoint.read(&spec.name)?), spec.num_bytes());
        let (name, dtype) = (spec.name.clone(), spec.dtype.name());
        lines.push(vec![
            name.clone(),
            dtype.to_owned(),
            format!("{:?}", spec.shape),
            num_bytes.to_string(),
            hash.clone(),
        ]);
        rows.push(
            json!({"name": name, "dtype": dtype, "shape": spec.shape, "num_bytes": num_bytes, "xxh3": hash}),
        );
    }
    let num_parameters = tensors.iter().map(count).sum::<usize>();
    let num_bytes = tensors.iter().map(TensorSpec::num_bytes).sum::<usize>();
    let format = checkpoint.format();
    let summary = format!("{} tensors, {num_parameters} parameters, {num_bytes} bytes", tensors.len());
    let facts =
        [("path", path.display().to_string()), ("kind", format!("weights ({format})")), ("total", summary)];
    Ok(Report {
        json: json!({
            "path": path.display().to_string(),
            "kind": "weights",
            "format": format,
            "num_parameters": num_parameters,
            "num_bytes": num_bytes,
            "parameters_by_dtype": dtypes,
            "tensors": rows,
        }),
        text: format!("{}\n{}", table::facts(&facts), table::table(&lines)),
    })
}
