//! Reading packed files: only the frames of the one that is asked for.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slime_config::paths::ARCHIVE;

use crate::manifest::hash;
use crate::stream::unpack_bytes;
use crate::{Error, Manifest, Member, Result};

/// The archives of a run.
#[derive(Debug)]
pub struct Packed {
    run: PathBuf,
    manifests: Vec<Manifest>,
    /// Archive and member of every packed name.
    places: BTreeMap<String, (usize, usize)>,
}

impl Packed {
    /// Reads the manifests of all archives of `run`; a run without any is fine.
    ///
    /// # Errors
    /// A manifest that cannot be read or is broken.
    pub fn open(run: &Path) -> Result<Self> {
        let folder = run.join(ARCHIVE);
        let mut paths = Vec::new();
        match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            entries => {
                for entry in entries.map_err(Error::io("list", &folder))? {
                    let path = entry.map_err(Error::io("list", &folder))?.path();
                    let is_hidden =
                        path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
                    if !is_hidden && path.extension().is_some_and(|extension| extension == "json") {
                        paths.push(path);
                    }
                }
            }
        }
        paths.sort();
        let mut packed = Self { run: run.to_owned(), manifests: Vec::new(), places: BTreeMap::new() };
        for path in paths {
            let text = fs::read(&path).map_err(Error::io("read", &path))?;
            let manifest = Manifest::parse(&path, &text)?;
            for (i, member) in manifest.members.iter().enumerate() {
                // The oldest archive wins; later ones of the same name hold the same bytes.
                let place = (packed.manifests.len(), i);
                packed.places.entry(member.name.clone()).or_insert(place);
            }
            packed.manifests.push(manifest);
        }
        Ok(packed)
    }

    /// All packed files by name.
    pub fn list(&self) -> impl Iterator<Item = &Member> {
        self.places.values().map(|(archive, member)| &self.manifests[*archive].members[*member])
    }

    /// The manifests, by name.
    pub fn manifests(&self) -> &[Manifest] {
        &self.manifests
    }

    /// Whether nothing is packed.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A packed file by its name below the run directory.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.places.get(name).map(|(archive, member)| &self.manifests[*archive].members[*member])
    }

    /// The name of the archive that holds `name`.
    pub fn archive_of(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|(archive, _)| self.manifests[*archive].file.as_str())
    }

    /// The bytes of a packed file, checked against its hash; nothing else of the archive is read.
    ///
    /// # Errors
    /// It is not packed, or the archive cannot be read or is broken.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let missing = || Error::NoMember { run: self.run.clone(), name: name.to_owned() };
        let (archive, member) = self.places.get(name).ok_or_else(missing)?;
        let manifest = &self.manifests[*archive];
        let path = self.run.join(ARCHIVE).join(&manifest.file);
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        read_member(&path, &file, &manifest.members[*member])
    }
}

/// A member of the open archive `path`.
pub(crate) fn read_member(path: &Path, file: &File, member: &Member) -> Result<Vec<u8>> {
    let broken = |reason: String| Error::corrupt(path, format!("member {}: {reason}", member.name));
    let mut bytes = Vec::with_capacity(member.num_bytes as usize);
    for frame in &member.frames {
        let mut packed = vec![0; frame.packed_bytes as usize];
        file.read_exact_at(&mut packed, frame.offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => broken(format!("the file ends before byte {}", frame.offset)),
            _ => Error::io("read", path)(error),
        })?;
        let part = unpack_bytes(&packed, frame.num_bytes as usize);
        bytes.extend(part.map_err(|error| broken(format!("frame at byte {}: {error}", frame.offset)))?);
    }
    let got = hash(&bytes);
    if bytes.len() as u64 != member.num_bytes || got != member.xxh3 {
        let (len, expected) = (bytes.len(), &member.xxh3);
        return Err(broken(format!(
            "expected {} bytes with checksum {expected}, got {len} with {got}",
            member.num_bytes
        )));
    }
    Ok(bytes)
}

/// A file of a run by its name below the run directory: from its own place, else out of an archive. Readers of many
/// packed files open [`Packed`] once instead.
///
/// # Errors
/// It is in neither place, or cannot be read.
pub fn read_run_file(run: &Path, name: &str) -> Result<Vec<u8>> {
    let path = run.join(name);
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match Packed::open(run)?.read(name) {
            // What is nowhere is missing from its own place.
            Err(Error::NoMember { .. }) => Err(Error::io("read", &path)(error)),
            outcome => outcome,
        },
        outcome => outcome.map_err(Error::io("read", &path)),
    }
}

/// The same for a path: the run is the nearest folder above it that has archives.
///
/// # Errors
/// As [`read_run_file`].
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let of_run = path.ancestors().skip(1).find(|folder| folder.join(ARCHIVE).is_dir());
    let name = of_run.and_then(|run| path.strip_prefix(run).ok()).and_then(Path::to_str);
    match (of_run, name) {
        (Some(run), Some(name)) => read_run_file(run, name),
        _ => fs::read(path).map_err(Error::io("read", path)),
    }
}
