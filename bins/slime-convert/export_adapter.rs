//! `export` of the adapters in a checkpoint of the trainer, as a directory that PEFT loads.

use std::path::Path;

use slime_checkpoint::Checkpoint;
use slime_cli::Failure;
use slime_config::{HfConfig, Lora, RunDir};
use slime_weights::{Dtype, PeftAdapter, TensorSpec, adapters, target_modules};

use crate::failure;

/// What stands before the names of trained parameters in a checkpoint.
const MASTER: &str = "master/";

/// Writes the adapters of the checkpoint `src`, in f32, to the new directory `dst`. The model beside which they were trained is
/// `origin`, or else the one that the run of the checkpoint names.
pub fn export_adapter(src: &Path, dst: &Path, origin: Option<&Path>) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(src).map_err(of_checkpoint)?;
    let no_adapters =
        || Failure::data(format!("{}: a checkpoint of a run without [train.lora]", src.display()));
    let lora = checkpoint.meta().get("lora").filter(|lora| !lora.is_null()).ok_or_else(no_adapters)?;
    let broken = |error| Failure::data(format!("{}: index.json: lora: {error}", src.display()));
    let lora: Lora = serde_json::from_value(lora.clone()).map_err(broken)?;
    let base = match origin {
        Some(origin) => origin.display().to_string(),
        None => base_of_run(src)?,
    };
    let config = HfConfig::load(&base).map_err(|error| Failure::from_error(error.exit_code(), &error))?;
    let all = adapters(&config, &lora).map_err(|error| Failure::from_error(error.exit_code(), &error))?;
    let mut tensors = Vec::with_capacity(2 * all.len());
    for spec in all.iter().flat_map(|adapter| [&adapter.a, &adapter.b]) {
        let name = &spec.views[0].name;
        let stored = format!("{MASTER}{name}");
        let bytes = checkpoint.read(&stored, 0..spec.num_elements()).map_err(of_checkpoint)?;
        let spec = TensorSpec { name: name.clone(), dtype: Dtype::F32, shape: spec.shape.clone() };
        tensors.push((spec, bytes));
    }
    let num_tensors = tensors.len();
    let target_modules = target_modules(&config, &all);
    PeftAdapter { base: &base, lora: &lora, target_modules, tensors }.write(dst).map_err(failure)?;
    tracing::info!("wrote {num_tensors} tensors of adapters to {}", dst.display());
    Ok(())
}

/// `model.path` of the run in whose folder of checkpoints `src` lies.
fn base_of_run(src: &Path) -> Result<String, Failure> {
    let run = src.parent().and_then(Path::parent).map(|run| RunDir::new(run).run_toml());
    let path = run.filter(|path| path.exists()).ok_or_else(|| {
        Failure::new(
            66,
            format!(
                "{}: no run.toml two folders above says beside which model it was trained",
                src.display()
            ),
        )
        .with_hint("--origin-hf DIR")
    })?;
    let config = slime_config::load(Some(&path), &[]);
    Ok(config.map_err(|error| Failure::from_error(error.exit_code(), &error))?.model.path)
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn of_checkpoint(error: slime_checkpoint::Error) -> Failure {
    let failure = Failure::from_error(error.exit_code(), &error);
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}
