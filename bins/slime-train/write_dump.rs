//! Writes what a step computed, for comparison with other implementations: loss, gradients, weights.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use slime_cli::Failure;
use slime_model::{ParamStore, WholeTensors};
use slime_trainer::StepMetrics;
use slime_weights::WeightWriter;
use tch::Tensor;

use crate::failure;
use crate::write_metrics::numbers;
use crate::write_weights::{each_tensor, is_writer, send_weights, specs};

/// Fills the folder `dump` with grads.safetensors, weights.safetensors and, last, loss.json. Of a split model every rank
/// calls it, and rank 0 writes.
pub fn write_dump(
    dump: &Path,
    params: &ParamStore,
    steps: &[StepMetrics],
    grads: Option<&[(String, Tensor)]>,
) -> Result<(), Failure> {
    if !is_writer(params) {
        if let Some(grads) = grads {
            each_tensor(params.whole_gradients(grads), |_, _| Ok(()))?;
        }
        return send_weights(params);
    }
    let is_new = !dump.exists();
    fs::create_dir_all(dump).map_err(|error| Failure::create(dump.display(), &error))?;
    fill(dump, params, steps, grads).inspect_err(|_| {
        if is_new {
            // A part of a dump is of no use to anyone.
            let _ = fs::remove_dir_all(dump);
        }
    })
}

fn fill(
    dump: &Path,
    params: &ParamStore,
    steps: &[StepMetrics],
    grads: Option<&[(String, Tensor)]>,
) -> Result<(), Failure> {
    // While a critic learns alone, the policy has none.
    let grads = grads.map(|grads| params.whole_gradients(grads));
    write_safetensors(dump, "grads", grads)?;
    write_safetensors(dump, "weights", Some(params.whole_tensors()))?;
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

/// One file: a weight directory of one shard whose file is then moved to its place.
fn write_safetensors(dump: &Path, name: &str, tensors: Option<WholeTensors<'_>>) -> Result<(), Failure> {
    let folder = dump.join(format!(".{name}.parts"));
    let path = dump.join(format!("{name}.safetensors"));
    let io = |error: std::io::Error| Failure::io(path.display(), &error);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io)?;
    }
    let all = tensors.as_ref().map_or(Ok(Vec::new()), specs)?;
    let mut writer = WeightWriter::create(&folder, all, usize::MAX).map_err(failure!())?;
    if let Some(tensors) = tensors {
        each_tensor(tensors, |name, bytes| writer.write(name, bytes).map_err(failure!()))?;
    }
    writer.finish().map_err(failure!())?;
    fs::rename(folder.join("model.safetensors"), &path).map_err(io)?;
    fs::remove_dir_all(&folder).map_err(io)
}
