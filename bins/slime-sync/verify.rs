//! Verifies the versions of a run, and which of them its engines say they hold; or a weight directory by itself.

use std::io::Write;
use std::path::Path;

use slime_cli::{Failure, exit};
use slime_config::paths::Physical;
use slime_config::{HfConfig, RunDir, paths};
use slime_exchange::FsStore;
use slime_record::Publication;
use slime_transport::Ways;
use slime_weights::{Error, WeightDir, check};

use crate::failure;
use crate::read_publications::{Acknowledged, open_ways, place_of, read_acknowledged, read_publications};

/// Verifies what lies at `path` and prints a line for each version and each engine.
pub fn verify(path: &Path, version: Option<u64>) -> Result<(), Failure> {
    if !RunDir::new(path).join(paths::VERSIONS).is_dir() && version.is_none() {
        return verify_dir(path);
    }
    let publications = read_publications(path, version)?;
    let (mut store, mut ways) = open_ways(path)?;
    let versions =
        publications.iter().map(|p| (place_of(p).to_string(), verify_version(p, &mut store, &mut ways)));
    let mut first_broken = tell(versions)?;
    if version.is_none() {
        let engines = read_acknowledged(path)?;
        let engines =
            engines.iter().map(|engine| (engine.owner.clone(), verify_engine(engine, &publications)));
        first_broken = first_broken.or(tell(engines)?);
    }
    first_broken.map_or(Ok(()), Err)
}

/// Prints what was found; gives the first thing that is broken.
fn tell(found: impl Iterator<Item = (String, Result<String, Failure>)>) -> Result<Option<Failure>, Failure> {
    let mut first_broken = None;
    for (name, outcome) in found {
        match outcome {
            Ok(line) => print(&format!("{name} {line}"))?,
            Err(broken) => {
                print(&format!("{name} broken: {}", broken.message))?;
                first_broken.get_or_insert(broken);
            }
        }
    }
    Ok(first_broken)
}

fn verify_version(
    publication: &Publication,
    store: &mut FsStore,
    ways: &mut Ways,
) -> Result<String, Failure> {
    if let Some(version) = publication.same_as {
        return Ok(format!("same as {version}"));
    }
    if ways.receive_published(store, publication).map_err(failure)?.is_some() {
        let told = publication.base.map_or(String::new(), |base| format!(", changes of {}", base.version));
        let (num_tensors, transport) = (publication.tensors.len(), &publication.transport);
        return Ok(format!("ok {num_tensors} tensors {:016x} {transport}{told}", publication.hash));
    }
    match &publication.memory {
        Some(memory) => Ok(format!("gone from the memory of {}", memory.host)),
        None => Err(Failure::new(exit::NO_INPUT, "its weights are not there")),
    }
}

/// An engine holds what was published; a version that was pruned meanwhile cannot be held against anything.
fn verify_engine(engine: &Acknowledged, publications: &[Publication]) -> Result<String, Failure> {
    let Acknowledged { version, epoch, hash, .. } = *engine;
    let place = Physical { version, epoch };
    match publications.iter().find(|publication| place_of(publication) == place) {
        Some(publication) if publication.hash != hash => Err(Failure::data(format!(
            "version {place}: expected the weights {:016x}, got {hash:016x}",
            publication.hash
        ))),
        Some(_) => Ok(format!("holds {place} {hash:016x} by {}, as published", engine.transport)),
        None => Ok(format!("held {place} {hash:016x} by {}", engine.transport)),
    }
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
