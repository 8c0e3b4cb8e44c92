//! `model.safetensors.index.json`: which file holds which tensor.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::unique_keys::UniqueKeys;
use crate::{Error, Result};

/// A file of `dir` that is named as a shard is and that is none of `files`.
pub(crate) fn unlisted_shard(dir: &Path, files: &[PathBuf]) -> Result<Option<String>> {
    let entries = fs::read_dir(dir).map_err(Error::read(dir))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let is_shard =
        |name: &String| name.starts_with("model-") && name.contains("-of-") && name.ends_with(".safetensors");
    Ok(names.into_iter().filter(is_shard).find(|name| !files.contains(&dir.join(name))))
}

#[derive(Deserialize)]
struct Index {
    weight_map: Option<UniqueKeys>,
}

/// The file of each tensor.
pub(crate) fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read(path).map_err(Error::read(path))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| Error::corrupt(path, format!("the index is not JSON of tensors: {error}")))?;
    let UniqueKeys(map) =
        index.weight_map.ok_or_else(|| Error::corrupt(path, "key weight_map is missing"))?;
    map.iter()
        .map(|(name, file)| match file.as_str() {
            Some(file) if !file.contains(['/', '\\']) && file != ".." => Ok((name.clone(), file.to_owned())),
            _ => Err(Error::corrupt(path, format!("tensor {name}: expected a file name, got {file}"))),
        })
        .collect()
}
