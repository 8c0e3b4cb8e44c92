//! Packing, so that a kill at any moment loses nothing: the archive is written, synced, verified and renamed, then its
//! manifest, which makes it exist; only what can be read from there is removed from its own place.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use slime_config::paths::{self, ARCHIVE};
use xxhash_rust::xxh3::Xxh3;

use crate::manifest::{FORMAT, VERSION, hash};
use crate::packed::read_member;
use crate::seekable::{Writer, read_table};
use crate::{Error, Manifest, Member, Packed, Result, Selection};

/// How far packing has come; whoever observes sees each once, the last once for every file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The archive is written and synced under a temporary name.
    Written,
    /// Every member was read back and compared.
    Verified,
    /// The archive has its name.
    Renamed,
    /// The manifest has its name: the archive exists.
    Committed,
    /// One more original is gone.
    Removed,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The archive that was made; none when everything was packed before.
    pub archive: Option<String>,
    /// Files packed into it, their size, and that of the archive.
    pub num_packed: usize,
    /// Bytes of the packed files.
    pub num_bytes: u64,
    /// Bytes of the archive.
    pub packed_bytes: u64,
    /// Originals that were removed, also those an earlier call had packed and left.
    pub num_removed: usize,
}

/// Packs the files of `selection` that are not packed yet and removes the originals of all of them. Only one process
/// may pack a run at a time. Files that vanish meanwhile were pruned, and are left out.
///
/// # Errors
/// A file cannot be read, written or removed, or differs from what is packed under its name.
pub fn pack(run: &Path, selection: &Selection, observe: &mut dyn FnMut(Phase)) -> Result<Outcome> {
    let packed = Packed::open(run)?;
    let names: Vec<&str> =
        selection.names.iter().map(String::as_str).filter(|name| packed.member(name).is_none()).collect();
    let mut outcome = Outcome::default();
    remove_orphans(run, &packed)?;
    if !names.is_empty() {
        make_archive(run, &selection.stem, &names, &mut outcome, observe)?;
    }
    remove_originals(run, selection, &mut outcome, observe)?;
    Ok(outcome)
}

/// Removes archives without manifest, which a kill left: nothing was removed for them.
fn remove_orphans(run: &Path, packed: &Packed) -> Result<()> {
    let folder = run.join(ARCHIVE);
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_known = packed.manifests().iter().any(|manifest| entry.file_name() == *manifest.file);
        if path.extension().is_some_and(|extension| extension == "zst") && !is_known {
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

fn make_archive(
    run: &Path,
    stem: &str,
    names: &[&str],
    outcome: &mut Outcome,
    observe: &mut dyn FnMut(Phase),
) -> Result<()> {
    let folder = run.join(ARCHIVE);
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    // A second archive of the same steps holds what came later, such as the logs of another attempt.
    let stem = (1..=u32::MAX)
        .map(|n| if n == 1 { stem.to_owned() } else { format!("{stem}.{n}") })
        .find(|stem| !folder.join(format!("{stem}.json")).exists())
        .unwrap_or_default();
    let target = folder.join(format!("{stem}.zst"));
    let temporary = Temporary(slime_cli::temporary_beside(&target));
    let (members, num_bytes) = write_members(run, names, &temporary.0)?;
    if members.is_empty() {
        return Ok(());
    }
    observe(Phase::Written);
    verify(&temporary.0, &members)?;
    observe(Phase::Verified);
    fs::rename(&temporary.0, &target).map_err(Error::io("rename into", &target))?;
    sync(&folder)?;
    observe(Phase::Renamed);
    let config = fs::read(paths::RunDir::new(run).run_toml());
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        version: VERSION,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        config_hash: config.map(|text| hash(&text)).unwrap_or_default(),
        file: format!("{stem}.zst"),
        num_bytes,
        members,
    };
    let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::from);
    let path = folder.join(format!("{stem}.json"));
    write_whole(&path, &text.map_err(Error::io("write", &path))?)?;
    observe(Phase::Committed);
    outcome.num_packed = manifest.members.len();
    outcome.num_bytes = manifest.members.iter().map(|member| member.num_bytes).sum();
    outcome.packed_bytes = num_bytes;
    outcome.archive = Some(manifest.file);
    Ok(())
}

/// Packs the files into `path` and syncs it; gives the members and the size.
fn write_members(run: &Path, names: &[&str], path: &Path) -> Result<(Vec<Member>, u64)> {
    let file = File::create(path).map_err(Error::io("create", path))?;
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file));
    let mut members = Vec::with_capacity(names.len());
    for name in names {
        let original = run.join(name);
        let input = match File::open(&original) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            input => input.map_err(Error::io("open", &original))?,
        };
        let (mut hasher, mut num_bytes) = (Xxh3::new(), 0);
        let frames = writer.add(input, |part| {
            hasher.update(part);
            num_bytes += part.len() as u64;
        });
        let frames = frames.map_err(Error::io("pack", &original))?;
        let xxh3 = format!("{:016x}", hasher.digest());
        members.push(Member { name: (*name).to_owned(), num_bytes, xxh3, frames });
    }
    let (out, num_bytes) = writer.finish().map_err(Error::io("write", path))?;
    let file = out.into_inner().map_err(|error| Error::io("write", path)(error.into_error()))?;
    file.sync_all().map_err(Error::io("sync", path))?;
    Ok((members, num_bytes))
}

/// Reads everything back: the table and each member.
fn verify(path: &Path, members: &[Member]) -> Result<()> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let frames = read_table(&file).map_err(|error| Error::corrupt(path, error.to_string()))?;
    if !frames.iter().eq(members.iter().flat_map(|member| &member.frames)) {
        return Err(Error::corrupt(path, "its seek table tells other frames than were written"));
    }
    members.iter().try_for_each(|member| read_member(path, &file, member).map(drop))
}

fn remove_originals(
    run: &Path,
    selection: &Selection,
    outcome: &mut Outcome,
    observe: &mut dyn FnMut(Phase),
) -> Result<()> {
    // What counts is what any reader finds by now, not what this process believes to have written.
    let packed = Packed::open(run)?;
    for name in selection.names.iter().filter(|name| packed.member(name).is_some()) {
        let path = run.join(name);
        let original = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            bytes => bytes.map_err(Error::io("read", &path))?,
        };
        if packed.read(name)? != original {
            let archive = packed.archive_of(name).unwrap_or_default().to_owned();
            return Err(Error::Differs { path, archive });
        }
        fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        if let Some(folder) = path.parent() {
            // Of a column's step nothing is left; other folders hold more and stay.
            let _ = fs::remove_dir(folder);
        }
        outcome.num_removed += 1;
        observe(Phase::Removed);
    }
    Ok(())
}

/// Writes a file under a temporary name, syncs it and renames it into place.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = Temporary(slime_cli::temporary_beside(path));
    let write = || {
        let mut file = File::create(&temporary.0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary.0, path)
    };
    write().map_err(Error::io("write", path))?;
    path.parent().map_or(Ok(()), sync)
}

fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io("sync", folder))
}

/// A file that is removed unless it was renamed away.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Not there after the rename.
        let _ = fs::remove_file(&self.0);
    }
}
