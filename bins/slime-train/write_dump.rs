//! Writes what a step computed, for comparison with other implementations: loss, gradients, weights.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use slime_cli::Failure;
use slime_model::Model;
use slime_trainer::StepMetrics;
use slime_weights::WeightWriter;
use tch::Tensor;

use crate::failure;
use crate::write_metrics::numbers;
use crate::write_weights::{specs, write_tensors};

/// Fills the folder `dump` with grads.safetensors, weights.safetensors and, last, loss.json.
pub fn write_dump(
    dump: &Path,
    model: &Model,
    steps: &[StepMetrics],
    grads: &[(String, Tensor)],
) -> Result<(), Failure> {
    let is_new = !dump.exists();
    fs::create_dir_all(dump).map_err(|error| Failure::create(dump.display(), &error))?;
    fill(dump, model, steps, grads).inspect_err(|_| {
        if is_new {
            // A part of a dump is of no use to anyone.
            let _ = fs::remove_dir_all(dump);
        }
    })
}

fn fill(
    dump: &Path,
    model: &Model,
    steps: &[StepMetrics],
    grads: &[(String, Tensor)],
) -> Result<(), Failure> {
    write_safetensors(dump, "grads", &hf_grads(model, grads)?)?;
    write_safetensors(dump, "weights", &model.params().views().map_err(failure!())?)?;
    let named = |step| -> Map<String, Value> {
        numbers(step).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
    };
    let all: Vec<_> = steps.iter().map(named).collect();
    let loss = json!({ "loss": steps.first().map(|step| step.loss), "steps": all });
    let (path, temporary) = (dump.join("loss.json"), dump.join(".loss.json.tmp"));
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "{loss:#}")?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    };
    write().map_err(|error| Failure::io(path.display(), &error))
}

/// Gradients of storages as those of Hugging Face tensors.
fn hf_grads(model: &Model, grads: &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>, Failure> {
    let by_storage: HashMap<&str, &Tensor> = grads.iter().map(|(name, grad)| (name.as_str(), grad)).collect();
    let mut named = Vec::new();
    for (spec, _) in model.params().iter() {
        let Some(grad) = by_storage.get(spec.name.as_str()) else { continue };
        for view in &spec.views {
            let rows = view.shape.first().copied().unwrap_or(1) as i64;
            let part = grad
                .f_narrow(0, view.offset_rows as i64, rows)
                .map_err(|error| Failure::new(70, format!("gradient of {}: {error}", view.name)))?;
            named.push((view.name.clone(), part));
        }
    }
    Ok(named)
}

/// One file: a weight directory of one shard whose file is then moved to its place.
fn write_safetensors(dump: &Path, name: &str, tensors: &[(String, Tensor)]) -> Result<(), Failure> {
    let folder = dump.join(format!(".{name}.parts"));
    let path = dump.join(format!("{name}.safetensors"));
    let io = |error: std::io::Error| Failure::io(path.display(), &error);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io)?;
    }
    let mut writer = WeightWriter::create(&folder, specs(tensors)?, usize::MAX).map_err(failure!())?;
    write_tensors(&mut writer, tensors)?;
    writer.finish().map_err(failure!())?;
    fs::rename(folder.join("model.safetensors"), &path).map_err(io)?;
    fs::remove_dir_all(&folder).map_err(io)
}
