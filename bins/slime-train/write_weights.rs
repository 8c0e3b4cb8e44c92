//! Writes the policy as a weight directory, with the files beside the weights it started from.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_config::Lora;
use slime_model::{Model, ParamStore, WholeSpec, WholeTensors};
use slime_torch::bytes_of;
use slime_weights::{
    Dtype, MAX_SHARD_BYTES, PeftAdapter, TensorSpec, WeightWriter, adapters, target_modules,
};
use tch::{Device, Kind};

use crate::failure;
use crate::read_carried::Carried;

/// Makes the directory `output`, which must be new. Of a split model every rank calls it, and rank 0 writes.
pub fn write_weights(output: &Path, model: &Model, origin: &Path) -> Result<(), Failure> {
    let params = model.params();
    if !is_writer(params) {
        return send_weights(params);
    }
    let carried = Carried::of(model, origin)?;
    let own = specs(&params.whole_tensors())?;
    let num_tensors = own.len() + carried.specs.len();
    let all = [own, carried.specs.clone()].concat();
    let mut writer = WeightWriter::create(output, all, MAX_SHARD_BYTES).map_err(failure!())?;
    each_tensor(params.whole_tensors(), |name, bytes| writer.write(name, bytes).map_err(failure!()))?;
    carried.write(|name, bytes| writer.write(name, bytes).map_err(failure!()))?;
    for (name, bytes) in side_files(origin, model.params().kind())? {
        writer.add_file(&name, &bytes).map_err(failure!())?;
    }
    writer.finish().map_err(failure!())?;
    tracing::info!("wrote {num_tensors} tensors to {}", output.display());
    Ok(())
}

/// Makes the directory `output` with the adapters of `model`, as PEFT loads them beside the weights in `origin`. Of a split model
/// every rank calls it, and rank 0 writes.
pub fn write_adapter(output: &Path, model: &Model, lora: &Lora, origin: &str) -> Result<(), Failure> {
    let params = model.params();
    if !is_writer(params) {
        return each_tensor(params.whole_adapters(), |_, _| Ok(()));
    }
    let mut specs = specs(&params.whole_adapters())?.into_iter();
    let mut tensors = Vec::new();
    each_tensor(params.whole_adapters(), |_, bytes| {
        tensors.extend(specs.next().map(|spec| (spec, bytes.to_vec())));
        Ok(())
    })?;
    let adapters = adapters(model.config(), lora).map_err(failure!())?;
    let target_modules = target_modules(model.config(), &adapters);
    PeftAdapter { base: origin, lora, target_modules, tensors }.write(output).map_err(failure!())?;
    tracing::info!("wrote the adapters to {}", output.display());
    Ok(())
}

/// Whether this rank writes what the ranks of a model hold between them.
pub fn is_writer(params: &ParamStore) -> bool {
    params.parallel().is_none_or(|parallel| parallel.world().rank() == 0)
}

/// Sends what this rank holds of a split model to the one that writes it.
pub fn send_weights(params: &ParamStore) -> Result<(), Failure> {
    each_tensor(params.whole_tensors(), |_, _| Ok(()))
}

/// What a writer has to know of `tensors`.
pub fn specs(tensors: &WholeTensors<'_>) -> Result<Vec<TensorSpec>, Failure> {
    let spec = |WholeSpec { name, shape, kind }: WholeSpec| {
        let dtype = match kind {
            Kind::Float => Dtype::F32,
            Kind::BFloat16 => Dtype::BF16,
            other => return Err(Failure::new(70, format!("{name}: cannot write {other:?}"))),
        };
        Ok(TensorSpec { name, dtype, shape })
    };
    tensors.specs().into_iter().map(spec).collect()
}

/// Hands the bytes of every whole tensor to `write`, in order; of a split model on rank 0 alone.
pub fn each_tensor(
    tensors: WholeTensors<'_>,
    mut write: impl FnMut(&str, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for whole in tensors {
        let (name, tensor) = whole.map_err(failure!())?;
        if let Some(tensor) = tensor {
            let host = tensor.to_device(Device::Cpu).contiguous();
            write(&name, bytes_of(&host).map_err(failure!())?)?;
        }
    }
    Ok(())
}

/// config.json (with the dtype of the new weights, which are never quantised), generation settings, tokenizer and chat template of `origin`.
pub fn side_files(origin: &Path, kind: Kind) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(origin).map_err(|error| Failure::open(origin.display(), &error))? {
        let path = entry.map_err(|error| Failure::io(origin.display(), &error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        let is_side_file = matches!(&*extension, "json" | "txt" | "jinja" | "model");
        if !path.is_file() || !is_side_file || name.ends_with(".index.json") {
            continue;
        }
        let bytes = fs::read(&path).map_err(|error| Failure::io(path.display(), &error))?;
        files.push((
            name.clone(),
            if name == "config.json" { with_dtype(&path, &bytes, kind)? } else { bytes },
        ));
    }
    files.sort();
    Ok(files)
}

fn with_dtype(path: &Path, bytes: &[u8], kind: Kind) -> Result<Vec<u8>, Failure> {
    let broken = |error| Failure::data(format!("{}: not JSON: {error}", path.display()));
    let mut config: Map<String, Value> = serde_json::from_slice(bytes).map_err(broken)?;
    // `dtype` is the newer spelling of transformers; a file that has it keeps it.
    let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    config.remove("quantization_config");
    let word = if kind == Kind::BFloat16 { "bfloat16" } else { "float32" };
    config.insert(key.to_owned(), Value::from(word));
    serde_json::to_vec_pretty(&config).map_err(broken)
}
