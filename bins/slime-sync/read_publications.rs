//! Reads what a run directory says about its published versions.

use std::fs;
use std::path::{Component, Path, PathBuf};

use slime_cli::{Failure, exit};
use slime_config::paths::{self, Physical, RunDir};
use slime_record::Publication;

/// A published version and where its weights lie.
pub struct Published {
    /// The publication.
    pub publication: Publication,
    /// Its weight directory; none when it repeats an earlier version.
    pub dir: Option<PathBuf>,
}

impl Published {
    /// `000042.e003`.
    pub fn name(&self) -> String {
        Physical { version: self.publication.version, epoch: self.publication.epoch }.to_string()
    }
}

/// The publications of the run at `root`, oldest first; only those of `version` where it is given.
pub fn read_publications(root: &Path, version: Option<u64>) -> Result<Vec<Published>, Failure> {
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

fn read_publication(root: &Path, place: Physical) -> Result<Published, Failure> {
    let path = RunDir::new(root).join(paths::version(place));
    let text = fs::read(&path).map_err(|error| Failure::open(path.display(), &error))?;
    let publication: Publication = serde_json::from_slice(&text)
        .map_err(|error| Failure::data(format!("{}: not a publication: {error}", path.display())))?;
    let dir = match &publication.path {
        Some(dir) if Path::new(dir).components().all(|part| matches!(part, Component::Normal(_))) => {
            Some(root.join(dir))
        }
        Some(dir) => {
            let message =
                format!("{}: path: expected one below the run directory, got {dir}", path.display());
            return Err(Failure::data(message));
        }
        None => None,
    };
    Ok(Published { publication, dir })
}
