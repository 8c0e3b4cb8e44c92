//! Opens a checkpoint of any readable format and hands out its tensors under Hugging Face names.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use slime_cli::{Failure, exit};
use slime_config::HfConfig;
use slime_weights::{Dtype, FileRange, Gguf, GgufSource, TensorSpec, WeightDir, check};

use crate::failure;
use crate::side_files::{SideFiles, pretty};

/// An opened checkpoint.
pub enum Checkpoint {
    /// A Hugging Face directory, or one safetensors file.
    Safetensors(WeightDir),
    /// A GGUF file with the sources of its tensors.
    Gguf(Gguf, Vec<GgufSource>),
}

impl Checkpoint {
    /// Opens `path`; a file that begins with `GGUF` is one.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Self::open_with(path, |path| WeightDir::open(path))
    }

    /// The same with the tensors of safetensors as they are stored.
    pub fn open_stored(path: &Path) -> Result<Self, Failure> {
        Self::open_with(path, |path| WeightDir::open_stored(path))
    }

    fn open_with(
        path: &Path,
        open: impl Fn(&Path) -> slime_weights::Result<WeightDir>,
    ) -> Result<Self, Failure> {
        if !is_gguf(path)? {
            return open(path).map(Self::Safetensors).map_err(failure);
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

    /// The tensors in their order, with the types they have.
    pub fn tensors(&self) -> Result<Vec<TensorSpec>, Failure> {
        match self {
            Self::Safetensors(weights) => weights
                .names()
                .map(|name| {
                    let info = weights.info(name).map_err(failure)?;
                    Ok(TensorSpec { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone() })
                })
                .collect(),
            Self::Gguf(_, sources) => Ok(sources
                .iter()
                .map(|source| TensorSpec {
                    name: source.hf_name.clone(),
                    dtype: Dtype::F32,
                    shape: source.shape.clone(),
                })
                .collect()),
        }
    }

    /// The bytes of a tensor.
    pub fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, Failure> {
        match self {
            Self::Safetensors(weights) => weights.tensor(name).map(|tensor| tensor.bytes).map_err(failure),
            Self::Gguf(_, sources) => {
                let num = sources.iter().find(|source| source.hf_name == name).map(GgufSource::num_elements);
                let mut bytes = Vec::new();
                self.read_elements(name, 0..num.unwrap_or(0), &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// The bytes of the elements `range` of a tensor that [`Self::is_read_in_pieces`].
    pub fn read_elements(
        &self,
        name: &str,
        range: Range<usize>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match self {
            Self::Safetensors(weights) => weights.read_elements(name, range, buffer).map_err(failure),
            Self::Gguf(gguf, sources) => {
                let source = sources.iter().find(|source| source.hf_name == name);
                let missing =
                    || Failure::data(format!("{}: tensor {name} is missing", gguf.path().display()));
                let values = gguf.read(source.ok_or_else(missing)?, range).map_err(failure)?;
                *buffer = slime_weights::encode_f32(name, &values, Dtype::F32).map_err(failure)?;
                Ok(())
            }
        }
    }

    /// Where elements of a tensor lie as they are; nowhere if they are computed.
    pub fn file_range(&self, name: &str, range: Range<usize>) -> Result<Option<FileRange<'_>>, Failure> {
        match self {
            Self::Safetensors(weights) => weights.file_range(name, range).map_err(failure),
            Self::Gguf(..) => Ok(None),
        }
    }

    /// Whether a tensor can be read in pieces, so that nobody holds all of it: all but quantised ones.
    pub fn is_read_in_pieces(&self, name: &str) -> bool {
        match self {
            Self::Safetensors(weights) => !weights.is_quantised(name),
            Self::Gguf(..) => true,
        }
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        match self {
            Self::Safetensors(weights) => weights.path(),
            Self::Gguf(gguf, _) => gguf.path(),
        }
    }

    /// The configuration, generation settings and tokenizer that belong to the weights, in files named as by Hugging Face.
    pub fn side_files(&self) -> Result<SideFiles, Failure> {
        match self {
            Self::Safetensors(weights) => SideFiles::of_dir(weights.path()),
            Self::Gguf(gguf, _) => {
                let file = |name: &str, value: serde_json::Value| (name.to_owned(), pretty(&value));
                Ok(SideFiles(vec![
                    file("config.json", gguf.config_json(Dtype::F32).map_err(failure)?),
                    file("generation_config.json", gguf.generation_config_json()),
                    file("tokenizer.json", gguf.tokenizer_json().map_err(failure)?),
                    file("tokenizer_config.json", gguf.tokenizer_config_json().map_err(failure)?),
                ]))
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
