//! The files beside the weights: configuration, generation settings, tokenizer, chat template.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_config::HfConfig;
use slime_weights::Dtype;

const CONFIG: &str = "config.json";

/// Names and contents.
pub struct SideFiles(pub Vec<(String, Vec<u8>)>);

/// What a conversion changes in `config.json`.
#[derive(Default)]
pub struct Changes {
    pub dtype: Option<Dtype>,
    pub vocab_size: Option<usize>,
    pub quantization_config: Option<Value>,
}

impl SideFiles {
    /// Those of a Hugging Face directory.
    pub fn of_dir(dir: &Path) -> Result<Self, Failure> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(dir).map_err(|error| Failure::open(dir.display(), &error))? {
            let path = entry.map_err(|error| Failure::io(dir.display(), &error))?.path();
            if path.is_file() && is_side_file(&path) {
                paths.push(path);
            }
        }
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let content = fs::read(path).map_err(|error| Failure::io(path.display(), &error))?;
            Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), content))
        };
        paths.iter().map(read).collect::<Result<_, Failure>>().map(Self)
    }

    fn json(&self, name: &str) -> Result<Option<Value>, Failure> {
        let file = self.0.iter().find(|(file, _)| file == name);
        let broken = |error| Failure::data(format!("{name}: not JSON: {error}"));
        file.map(|(_, content)| serde_json::from_slice(content).map_err(broken)).transpose()
    }

    /// The sizes of the model, if the files say them and they are those of a known family.
    pub fn hf_config(&self, dir: &Path) -> Option<HfConfig> {
        let (_, text) = self.0.iter().find(|(file, _)| file == CONFIG)?;
        HfConfig::parse(std::str::from_utf8(text).ok()?, &dir.join(CONFIG)).ok()
    }

    /// One more than the largest id of the tokenizer, 0 without one.
    pub fn num_tokens(&self) -> Result<usize, Failure> {
        let Some(tokenizer) = self.json("tokenizer.json")? else { return Ok(0) };
        let vocab = match &tokenizer["model"]["vocab"] {
            Value::Object(vocab) => vocab.values().filter_map(Value::as_u64).max(),
            Value::Array(vocab) => (vocab.len() as u64).checked_sub(1),
            _ => None,
        };
        let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
        let largest = added.filter_map(|token| token["id"].as_u64()).chain(vocab).max();
        Ok(largest.map_or(0, |id| id as usize + 1))
    }

    /// Writes the changes into `config.json`; a quantisation that is not among them is taken out. Without changes the file
    /// stays byte by byte.
    pub fn change(&mut self, changes: Changes) -> Result<(), Failure> {
        let Some(value) = self.json(CONFIG)? else { return Ok(()) };
        let wrong = || Failure::data(format!("{CONFIG}: expected an object"));
        let before: Map<String, Value> = value.as_object().cloned().ok_or_else(wrong)?;
        let mut config = before.clone();
        if let Some(dtype) = changes.dtype.and_then(Dtype::torch_name) {
            // `dtype` is the newer spelling of transformers; a file that has it keeps it.
            let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
            config.insert(key.to_owned(), dtype.into());
        }
        if let Some(vocab_size) = changes.vocab_size {
            config.insert("vocab_size".to_owned(), vocab_size.into());
        }
        match changes.quantization_config {
            Some(quantisation) => _ = config.insert("quantization_config".to_owned(), quantisation),
            None => _ = config.shift_remove("quantization_config"),
        }
        if config != before
            && let Some((_, content)) = self.0.iter_mut().find(|(file, _)| file == CONFIG)
        {
            *content = pretty(&config.into());
        }
        Ok(())
    }
}

fn is_side_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    !name.ends_with(".index.json") && matches!(&*extension, "json" | "txt" | "jinja" | "model")
}

/// JSON for people.
pub fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}
