//! Opens a checkpoint of any readable format and hands out its tensors under Hugging Face names.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use slime_cli::{Failure, exit};
use slime_config::HfConfig;
use slime_weights::{Dtype, Gguf, GgufSource, TensorSpec, WeightDir, check, is_f32};

use crate::failure;

/// An opened checkpoint.
pub enum Checkpoint {
    /// A Hugging Face directory, or one safetensors file.
    Safetensors(WeightDir),
    /// A GGUF file with the sources of its tensors.
    Gguf(Gguf, Vec<GgufSource>),
}

/// A file beside the weights: its name and content.
pub type SideFile = (String, Vec<u8>);

impl Checkpoint {
    /// Opens `path`; a file that begins with `GGUF` is one.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if !is_gguf(path)? {
            return WeightDir::open(path).map(Self::Safetensors).map_err(failure);
        }
        let gguf = Gguf::open(path).map_err(failure)?;
        let config = gguf.config_json(Dtype::F32).map_err(failure)?.to_string();
        let config = HfConfig::parse(&config, path).map_err(|error| failure(error.into()))?;
        let sources = gguf.sources(&config).map_err(failure)?;
        Ok(Self::Gguf(gguf, sources))
    }

    /// What the format is called.
    pub fn format(&self) -> &'static str {
        match self {
            Self::Safetensors(_) => "safetensors",
            Self::Gguf(..) => "gguf",
        }
    }

    /// The tensors in their order, floating ones as `dtype` where it is given, except those that stay f32.
    pub fn tensors(&self, dtype: Option<Dtype>) -> Result<Vec<TensorSpec>, Failure> {
        match self {
            Self::Safetensors(weights) => weights
                .names()
                .map(|name| {
                    let info = weights.info(name).map_err(failure)?;
                    let is_cast = info.dtype.torch_name().is_some() && !is_f32(name);
                    let dtype = dtype.filter(|_| is_cast).unwrap_or(info.dtype);
                    Ok(TensorSpec { name: name.to_owned(), dtype, shape: info.shape.clone() })
                })
                .collect(),
            Self::Gguf(_, sources) => Ok(sources
                .iter()
                .map(|source| TensorSpec {
                    name: source.hf_name.clone(),
                    dtype: dtype.unwrap_or(Dtype::F32),
                    shape: source.shape.clone(),
                })
                .collect()),
        }
    }

    /// The bytes of a tensor as `spec` describes it.
    pub fn read(&self, spec: &TensorSpec) -> Result<Cow<'_, [u8]>, Failure> {
        match self {
            Self::Safetensors(weights) => {
                weights.tensor(&spec.name).and_then(|tensor| tensor.cast(spec.dtype)).map_err(failure)
            }
            Self::Gguf(gguf, sources) => {
                let source = sources.iter().find(|source| source.hf_name == spec.name);
                let missing =
                    || Failure::data(format!("{}: tensor {} is missing", gguf.path().display(), spec.name));
                let values = gguf.read(source.ok_or_else(missing)?).map_err(failure)?;
                slime_weights::encode_f32(&spec.name, &values, spec.dtype).map(Cow::Owned).map_err(failure)
            }
        }
    }

    /// The configuration, generation settings and tokenizer that belong to the weights, in files named as by
    /// Hugging Face; `config.json` says `dtype` where it is given.
    pub fn side_files(&self, dtype: Option<Dtype>) -> Result<Vec<SideFile>, Failure> {
        match self {
            Self::Safetensors(weights) => side_files_of_dir(weights.path(), dtype),
            Self::Gguf(gguf, _) => {
                let file = |name: &str, value: serde_json::Value| (name.to_owned(), pretty(&value));
                Ok(vec![
                    file("config.json", gguf.config_json(dtype.unwrap_or(Dtype::F32)).map_err(failure)?),
                    file("generation_config.json", gguf.generation_config_json()),
                    file("tokenizer.json", gguf.tokenizer_json().map_err(failure)?),
                    file("tokenizer_config.json", gguf.tokenizer_config_json().map_err(failure)?),
                ])
            }
        }
    }

    /// Checks the tensors of a directory against `config.json`; those the model does not use are named.
    pub fn check(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::Safetensors(weights) => {
                let config = HfConfig::load(weights.path()).map_err(|error| failure(error.into()))?;
                check(&config, weights).map_err(failure)
            }
            Self::Gguf(..) => Ok(Vec::new()),
        }
    }
}

/// The files beside the weights of a Hugging Face directory.
pub fn side_files_of_dir(dir: &Path, dtype: Option<Dtype>) -> Result<Vec<SideFile>, Failure> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| Failure::open(dir.display(), &error))? {
        let path = entry.map_err(|error| Failure::io(dir.display(), &error))?.path();
        if path.is_file() && is_side_file(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    paths.into_iter().map(|path| read_side_file(&path, dtype)).collect()
}

fn is_side_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    !name.ends_with(".index.json") && matches!(&*extension, "json" | "txt" | "jinja" | "model")
}

fn read_side_file(path: &PathBuf, dtype: Option<Dtype>) -> Result<SideFile, Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut content = fs::read(path).map_err(|error| Failure::io(path.display(), &error))?;
    if let (true, Some(dtype)) = (name == "config.json", dtype.and_then(Dtype::torch_name)) {
        let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&content)
            .map_err(|error| Failure::data(format!("{}: not JSON: {error}", path.display())))?;
        // `dtype` is the newer spelling of transformers; a file that has it keeps it.
        let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
        config.insert(key.to_owned(), dtype.into());
        content = pretty(&config.into());
    }
    Ok((name, content))
}

fn is_gguf(path: &Path) -> Result<bool, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::open(path.display(), &error))?;
    if metadata.is_dir() {
        return Ok(false);
    }
    let mut magic = Vec::new();
    let file = File::open(path).map_err(|error| Failure::open(path.display(), &error))?;
    file.take(4).read_to_end(&mut magic).map_err(|error| Failure::io(path.display(), &error))?;
    let is_named_gguf = path.extension().is_some_and(|extension| extension == "gguf");
    match magic == b"GGUF" {
        false if is_named_gguf => {
            Err(Failure::new(exit::DATA, format!("{}: corrupt: it does not begin with GGUF", path.display())))
        }
        is_gguf => Ok(is_gguf),
    }
}

fn pretty(value: &serde_json::Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}
