//! Verifies the versions of a run, or a weight directory by itself.

use std::io::Write;
use std::path::Path;

use slime_cli::Failure;
use slime_config::{HfConfig, RunDir, paths};
use slime_transport::DiskReader;
use slime_weights::{Error, WeightDir, check};

use crate::failure;
use crate::read_publications::{Published, read_publications};

/// Verifies what lies at `path` and prints a line for each version.
pub fn verify(path: &Path, version: Option<u64>) -> Result<(), Failure> {
    if !RunDir::new(path).join(paths::VERSIONS).is_dir() && version.is_none() {
        return verify_dir(path);
    }
    let publications = read_publications(path, version)?;
    let mut first_broken = None;
    for published in &publications {
        match verify_version(published) {
            Ok(line) => print(&format!("{} {line}", published.name()))?,
            Err(broken) => {
                print(&format!("{} broken: {}", published.name(), broken.message))?;
                first_broken.get_or_insert(broken);
            }
        }
    }
    first_broken.map_or(Ok(()), Err)
}

fn verify_version(published: &Published) -> Result<String, Failure> {
    let Some(dir) = &published.dir else {
        let same_as = published.publication.same_as;
        return Ok(same_as.map_or("not on disk".to_owned(), |version| format!("same as {version}")));
    };
    let reader = DiskReader::open(dir, &published.publication).map_err(failure)?;
    let digest = reader.verify().map_err(failure)?;
    Ok(format!("ok {} tensors {:016x}", digest.tensors.len(), digest.hash))
}

fn verify_dir(path: &Path) -> Result<(), Failure> {
    let library = |error: Error| failure(error.into());
    let weights = WeightDir::open(path).map_err(library)?;
    let config = HfConfig::load(path).map_err(|error| library(error.into()))?;
    for name in check(&config, &weights).map_err(library)? {
        tracing::warn!("{}: the model does not use tensor {name}", path.display());
    }
    weights.check_finite().map_err(library)?;
    let (tensors, parameters) = (weights.names().count(), weights.num_parameters());
    print(&format!("{} ok {tensors} tensors {parameters} parameters", path.display()))
}

fn print(line: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure::io("stdout", &error))
}
