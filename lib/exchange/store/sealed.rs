//! The hand-over protocol over raw calls: temporary name, sync, then rename or link, and what to believe on errors.

use std::io::Write;

use slime_config::paths;

use super::{Bytes, Fill, RawFiles, Store};
use crate::{Error, Result};

const NUM_TRIES: u32 = 6;
const FIRST_PAUSE_MS: u64 = 2;

/// Outcome of an exclusive creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// The name is ours.
    Won,
    /// Somebody else has it.
    Lost,
}

/// A store over raw calls. `writer` makes the temporary names of this process unique.
#[derive(Debug, Clone)]
pub struct SealedStore<R> {
    raw: R,
    writer: String,
    next_tmp: u64,
}

impl<R: RawFiles> SealedStore<R> {
    /// A store whose temporary files carry `writer`, which no other process may use.
    pub fn over(raw: R, writer: impl Into<String>) -> Self {
        Self { raw, writer: writer.into(), next_tmp: 0 }
    }

    /// The raw calls below.
    pub fn raw_mut(&mut self) -> &mut R {
        &mut self.raw
    }

    fn tmp_beside(&mut self, path: &str) -> (String, String) {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
        self.next_tmp += 1;
        let name = paths::temporary_name(&self.writer, self.next_tmp);
        let tmp = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        (dir, tmp)
    }

    /// Tries again while handles are stale, with growing pauses.
    fn patiently<T>(&mut self, mut call: impl FnMut(&mut R) -> Result<T>) -> Result<T> {
        let mut pause_ms = FIRST_PAUSE_MS;
        for _ in 1..NUM_TRIES {
            match call(&mut self.raw) {
                Err(error) if error.is_transient() => {
                    self.raw.pause(pause_ms);
                    pause_ms *= 4;
                }
                outcome => return outcome,
            }
        }
        call(&mut self.raw)
    }

    fn replace(&mut self, path: &str, fill: Fill<'_>, durable: bool) -> Result<()> {
        let (dir, tmp) = self.tmp_beside(path);
        if let Err(error) = self.raw.write_tmp(&tmp, fill) {
            let _ = self.raw.remove(&tmp);
            return Err(error);
        }
        if let Err(error) = self.raw.rename(&tmp, path) {
            // A rename may report failure though it was done: the temporary name then is gone. (Or the folder was
            // pruned meanwhile: then nobody needs the file.)
            if self.patiently(|raw| raw.num_links(&tmp))?.is_some() {
                let _ = self.raw.remove(&tmp);
                return Err(error);
            }
        }
        if durable { self.raw.sync_dir(&dir) } else { Ok(()) }
    }
}

impl<R: RawFiles> Store for SealedStore<R> {
    fn now_ms(&self) -> u64 {
        self.raw.now_ms()
    }

    fn writer(&self) -> &str {
        &self.writer
    }

    fn sweep(&mut self, dir: &str, writers: &[String]) -> Result<()> {
        let prefixes: Vec<String> = writers.iter().map(|writer| paths::temporary_prefix(writer)).collect();
        for name in self.patiently(|raw| raw.list(dir))? {
            if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                self.raw.remove(&format!("{dir}/{name}"))?;
            }
        }
        Ok(())
    }

    fn seal_with(&mut self, path: &str, fill: Fill<'_>) -> Result<()> {
        self.replace(path, fill, true)
    }

    fn commit(&mut self, path: &str, bytes: &[u8]) -> Result<Commit> {
        let (dir, tmp) = self.tmp_beside(path);
        if let Err(error) = self.raw.write_tmp(&tmp, &mut all_of(bytes, path)) {
            let _ = self.raw.remove(&tmp);
            return Err(error);
        }
        let linked = self.raw.link(&tmp, path);
        // Whatever link said: two names mean it was done, by this call or by a repeated one.
        let outcome = match self.patiently(|raw| raw.num_links(&tmp))? {
            Some(2) => Ok(Commit::Won),
            _ => linked.map(|_| Commit::Lost),
        };
        let _ = self.raw.remove(&tmp);
        self.raw.sync_dir(&dir)?;
        outcome
    }

    fn hint(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.replace(path, &mut all_of(bytes, path), false)
    }

    fn move_hint(&mut self, from: Option<&str>, to: &str) -> Result<()> {
        if let Some(from) = from {
            let Err(error) = self.raw.rename(from, to) else { return Ok(()) };
            // It may have been done all the same, now or at an earlier try.
            if self.patiently(|raw| raw.num_links(to))?.is_some() {
                return Ok(());
            }
            if self.patiently(|raw| raw.num_links(from))?.is_some() {
                return Err(error);
            }
        }
        // An empty file is whole as soon as it is there, so it needs no temporary name.
        self.raw.write_tmp(to, &mut |_| Ok(()))
    }

    fn read(&mut self, path: &str) -> Result<Option<Bytes>> {
        self.patiently(|raw| raw.read(path))
    }

    fn exists(&mut self, path: &str) -> Result<bool> {
        self.patiently(|raw| raw.exists(path))
    }

    fn list(&mut self, dir: &str) -> Result<Vec<String>> {
        let mut names = self.patiently(|raw| raw.list(dir))?;
        names.retain(|name| !name.starts_with('.'));
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        self.raw.remove(path)
    }

    fn quarantine(&mut self, path: &str, problem: &str) -> Result<()> {
        self.hint(&paths::quarantine(path), problem.as_bytes())
    }
}

/// Content that is there already.
pub(super) fn all_of<'a>(bytes: &'a [u8], path: &'a str) -> impl FnMut(&mut dyn Write) -> Result<()> + 'a {
    move |out| out.write_all(bytes).map_err(|source| Error::io("write", path, source))
}

/// Checks a closed file against the size and xxh3-64 checksum it was pinned with.
pub(crate) fn verify(path: &str, bytes: &[u8], num_bytes: u64, checksum: u64) -> Result<()> {
    let got = xxhash_rust::xxh3::xxh3_64(bytes);
    if bytes.len() as u64 == num_bytes && got == checksum {
        return Ok(());
    }
    let len = bytes.len();
    let problem =
        format!("expected {num_bytes} bytes with checksum {checksum:016x}, got {len} with {got:016x}");
    Err(Error::Broken { path: path.to_owned(), problem })
}
