//! Reads what a run directory says about its published versions, and which of them its engines hold.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use slime_cli::{Failure, exit};
use slime_config::paths::{self, Physical, RunDir};
use slime_config::{Sync, load};
use slime_exchange::FsStore;
use slime_record::Publication;
use slime_transport::Ways;

use crate::failure;

/// The publications of the run at `root`, oldest first; only those of `version` where it is given.
pub fn read_publications(root: &Path, version: Option<u64>) -> Result<Vec<Publication>, Failure> {
    let folder = RunDir::new(root).join(paths::VERSIONS);
    let mut places = Vec::new();
    for entry in fs::read_dir(&folder).map_err(|error| Failure::open(folder.display(), &error))? {
        let entry = entry.map_err(|error| Failure::io(folder.display(), &error))?;
        places.extend(entry.file_name().to_str().and_then(paths::parse_physical));
    }
    places.retain(|place| version.is_none_or(|version| version == place.version));
    places.sort_unstable();
    if places.is_empty() {
        let which = version.map_or("a version".to_owned(), |version| format!("version {version}"));
        return Err(Failure::new(
            exit::NO_INPUT,
            format!("{}: expected {which}, found none", folder.display()),
        ));
    }
    places.into_iter().map(|place| read_publication(root, place)).collect()
}

fn read_publication(root: &Path, place: Physical) -> Result<Publication, Failure> {
    let path = RunDir::new(root).join(paths::version(place));
    let text = fs::read(&path).map_err(|error| Failure::open(path.display(), &error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::data(format!("{}: not a publication: {error}", path.display())))
}

/// The place of a publication.
pub fn place_of(publication: &Publication) -> Physical {
    Physical { version: publication.version, epoch: publication.epoch }
}

/// The store and the ways of the run at `root`, as its configuration names them.
pub fn open_ways(root: &Path) -> Result<(FsStore, Ways), Failure> {
    let run_dir = RunDir::new(root);
    let run_toml = run_dir.run_toml();
    let config = if run_toml.exists() {
        load(Some(&run_toml), &[]).map_err(|error| Failure::from_error(error.exit_code(), &error))?.sync
    } else {
        Sync::default()
    };
    let store = FsStore::open(root).map_err(|error| failure(error.into()))?;
    Ok((store, Ways::new(&run_dir, &config)))
}

/// What an engine says of the version that it took last.
#[derive(Debug, Deserialize)]
pub struct Acknowledged {
    /// The replica, from the file's name.
    #[serde(skip)]
    pub owner: String,
    /// The version.
    pub version: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its weights, every byte of which the engine verified.
    pub hash: u64,
    /// How they came.
    pub transport: String,
}

/// What the engines of the run at `root` say, in the order of their names.
pub fn read_acknowledged(root: &Path) -> Result<Vec<Acknowledged>, Failure> {
    let folder = RunDir::new(root).join(paths::SYNC);
    let mut files: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(owner) = name.strip_suffix(".json").filter(|_| !name.starts_with('.')) else { continue };
        let text = fs::read(&path).map_err(|error| Failure::open(path.display(), &error))?;
        let acknowledged: Acknowledged = serde_json::from_slice(&text)
            .map_err(|error| Failure::data(format!("{}: {error}", path.display())))?;
        found.push(Acknowledged { owner: owner.to_owned(), ..acknowledged });
    }
    Ok(found)
}
