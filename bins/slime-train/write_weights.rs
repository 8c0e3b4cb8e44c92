//! Writes the policy as a weight directory, with the files beside the weights it started from.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_model::Model;
use slime_torch::bytes_of;
use slime_weights::{Dtype, MAX_SHARD_BYTES, TensorSpec, WeightWriter};
use tch::{Device, Kind, Tensor};

use crate::failure;
use crate::read_carried::Carried;

/// Makes the directory `output`, which must be new.
pub fn write_weights(output: &Path, model: &Model, origin: &Path) -> Result<(), Failure> {
    let views = model.params().views().map_err(failure!())?;
    let carried = Carried::of(model, origin)?;
    let all = [specs(&views)?, carried.specs.clone()].concat();
    let mut writer = WeightWriter::create(output, all, MAX_SHARD_BYTES).map_err(failure!())?;
    write_tensors(&mut writer, &views)?;
    carried.write(|name, bytes| writer.write(name, bytes).map_err(failure!()))?;
    for (name, bytes) in side_files(origin, model.params().kind())? {
        writer.add_file(&name, &bytes).map_err(failure!())?;
    }
    writer.finish().map_err(failure!())?;
    let num_tensors = views.len() + carried.specs.len();
    tracing::info!("wrote {num_tensors} tensors to {}", output.display());
    Ok(())
}

/// What a writer has to know of named tensors.
pub fn specs(views: &[(String, Tensor)]) -> Result<Vec<TensorSpec>, Failure> {
    let spec = |(name, tensor): &(String, Tensor)| {
        let dtype = match tensor.kind() {
            Kind::Float => Dtype::F32,
            Kind::BFloat16 => Dtype::BF16,
            other => return Err(Failure::new(70, format!("{name}: cannot write {other:?}"))),
        };
        let shape = tensor.size().iter().map(|n| *n as usize).collect();
        Ok(TensorSpec { name: name.clone(), dtype, shape })
    };
    views.iter().map(spec).collect()
}

/// Hands every tensor to the writer, in order.
pub fn write_tensors(writer: &mut WeightWriter, views: &[(String, Tensor)]) -> Result<(), Failure> {
    for (name, tensor) in views {
        let host = tensor.to_device(Device::Cpu).contiguous();
        writer.write(name, bytes_of(&host).map_err(failure!())?).map_err(failure!())?;
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
