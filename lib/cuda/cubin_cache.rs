//! Compiled kernels in a folder, named by the hash of all that made them, so each is compiled once for a kind of GPU.

use std::fs;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::program::{Program, compile};
use crate::{Error, Result};

/// Chooses the folder; ranks and nodes may share it.
const VARIABLE: &str = "SLIME_KERNEL_CACHE";

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub struct CubinCache {
    dir: Option<PathBuf>,
}

impl CubinCache {
    /// The folder that `SLIME_KERNEL_CACHE` names, else `slime/kernel` in the user's cache folder; without either, none
    /// is kept.
    pub fn from_env() -> Self {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let users = || {
            let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
            Some(cache?.join("slime/kernel"))
        };
        Self { dir: named(VARIABLE).or_else(users) }
    }

    /// The folder `dir`.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()) }
    }

    /// Machine code of `program` for `arch`: kept, or compiled now and kept for the next process.
    ///
    /// # Errors
    /// Those of [`compile`]; a folder that cannot be written costs only time.
    pub fn load(&self, program: &Program<'_>, arch: &str) -> Result<Vec<u8>> {
        self.load_with(program, arch, || compile(program, arch))
    }

    fn load_with(
        &self,
        program: &Program<'_>,
        arch: &str,
        compile: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let path = self.dir.as_ref().map(|dir| dir.join(file_name(program, arch)));
        if let Some(cubin) = path.as_ref().and_then(|path| fs::read(path).ok()) {
            return Ok(cubin);
        }
        let cubin = compile()?;
        if let Some(path) = path {
            // A read-only home is no reason not to run.
            let _ = keep(&path, &cubin);
        }
        Ok(cubin)
    }
}

/// `paged_attention.sm_90.<hash>.cubin`
fn file_name(program: &Program<'_>, arch: &str) -> String {
    let mut hash = Xxh3::new();
    for part in program.options(arch).iter().map(String::as_str).chain([program.source]) {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let stem = program.name.trim_end_matches(".cu");
    format!("{stem}.{arch}.{:032x}.cubin", hash.digest128())
}

/// Appears whole: ranks that compile at the same time write the same bytes under their own names first.
fn keep(path: &Path, cubin: &[u8]) -> Result<()> {
    let failed = |source| Error::Cache { path: path.to_owned(), source };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    let temporary = path.with_extension(format!("tmp.{}", std::process::id()));
    fs::write(&temporary, cubin).and_then(|()| fs::rename(&temporary, path)).map_err(|source| {
        let _ = fs::remove_file(&temporary);
        failed(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: Program<'static> = Program { name: "k.cu", source: "source", defines: &[("N", 4)] };

    #[test]
    fn kernels_are_compiled_once_for_each_source_and_arch() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::at(folder.path().join("new"));
        let cubin = |program: &Program<'_>, arch: &str, made: &[u8]| {
            let mut is_compiled = false;
            let load = cache.load_with(program, arch, || {
                is_compiled = true;
                Ok(made.to_vec())
            });
            (load.unwrap(), is_compiled)
        };
        assert_eq!(cubin(&PROGRAM, "sm_90", b"a"), (b"a".to_vec(), true));
        assert_eq!(cubin(&PROGRAM, "sm_90", b"b"), (b"a".to_vec(), false));
        assert_eq!(cubin(&PROGRAM, "sm_80", b"c"), (b"c".to_vec(), true));
        assert_eq!(cubin(&Program { defines: &[("N", 5)], ..PROGRAM }, "sm_90", b"d"), (b"d".to_vec(), true));
        assert_eq!(cubin(&Program { source: "other", ..PROGRAM }, "sm_90", b"e"), (b"e".to_vec(), true));
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 4);
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_only_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = CubinCache::at(file.path().join("below-a-file"));
        assert_eq!(cache.load_with(&PROGRAM, "sm_90", || Ok(vec![1])).unwrap(), [1]);
    }
}
