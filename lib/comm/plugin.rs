//! The C ABI of `libslime_mpi.so`: where it is looked for, and its functions, bound once.
#![expect(unsafe_code, reason = "binds the functions of a C library")]

use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::{Error, Result};

/// The version `slime_mpi_abi` must return.
const ABI: c_int = 2;
const NAME: &str = "libslime_mpi.so";

/// `struct slime_part` of `mpi_plugin.c`.
#[repr(C)]
pub(crate) struct Part {
    pub data: *mut c_void,
    pub len: usize,
    pub peer: c_int,
}

type World = unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *mut c_int) -> c_int;
type Split =
    unsafe extern "C" fn(*mut c_void, c_int, c_int, *mut *mut c_void, *mut c_int, *mut c_int) -> c_int;
type Exchange = unsafe extern "C" fn(*mut c_void, c_int, c_int, *const Part, c_int, *const Part) -> c_int;

/// The functions of `mpi_plugin.c`; the library stays open for the life of the process.
pub(crate) struct Plugin {
    pub init: World,
    pub split: Split,
    pub exchange: Exchange,
    pub post: unsafe extern "C" fn(*mut c_void, c_int, *const Part) -> c_int,
    pub barrier: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub finalize: unsafe extern "C" fn() -> c_int,
    pub abort: unsafe extern "C" fn(c_int),
    error: unsafe extern "C" fn(c_int, *mut c_char, c_int),
}

impl Plugin {
    /// Opens the first plug-in found: `SLIME_MPI_PLUGIN`, beside the executable, in `../lib`, where it was built.
    pub(crate) fn open() -> Result<Self> {
        Self::open_at(&place()?)
    }

    fn open_at(path: &Path) -> Result<Self> {
        let wrong = |reason: String| Error::Plugin { path: path.to_path_buf(), reason };
        // SAFETY: the plug-in has no constructors of its own; MPI's are those of any MPI program. RTLD_GLOBAL,
        // because an MPI opens components that look for the MPI library's symbols in the global scope.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library = std::mem::ManuallyDrop::new(library.map_err(|e| wrong(e.to_string()))?);
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the signatures are those of `mpi_plugin.c`; `slime_mpi_abi` guards against another version.
                let symbol = unsafe { library.get($name) };
                *symbol.map_err(|e| wrong(e.to_string()))?
            }};
        }
        let abi: unsafe extern "C" fn() -> c_int = symbol!(b"slime_mpi_abi\0");
        // SAFETY: takes nothing, returns a constant.
        let version = unsafe { abi() };
        if version != ABI {
            return Err(wrong(format!("expected ABI {ABI}, got {version}")));
        }
        Ok(Self {
            init: symbol!(b"slime_mpi_init\0"),
            split: symbol!(b"slime_mpi_split\0"),
            exchange: symbol!(b"slime_mpi_exchange\0"),
            post: symbol!(b"slime_mpi_post\0"),
            barrier: symbol!(b"slime_mpi_barrier\0"),
            free: symbol!(b"slime_mpi_free\0"),
            finalize: symbol!(b"slime_mpi_finalize\0"),
            abort: symbol!(b"slime_mpi_abort\0"),
            error: symbol!(b"slime_mpi_error\0"),
        })
    }

    /// `Ok` for `MPI_SUCCESS`, else MPI's text.
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0u8; 512];
        // SAFETY: the function writes at most the given number of bytes, the last of them 0.
        unsafe { (self.error)(code, text.as_mut_ptr().cast(), text.len() as c_int) };
        let len = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        Err(Error::Mpi { call, message: String::from_utf8_lossy(&text[..len]).into_owned() })
    }
}

/// The plug-in this process would use, opened with the MPI library behind it; MPI itself is not started.
///
/// # Errors
/// There is none, or the loader refuses it.
pub fn check_plugin() -> Result<PathBuf> {
    let path = place()?;
    Plugin::open_at(&path).map(|_| path)
}

fn place() -> Result<PathBuf> {
    let tried = candidates();
    let found = tried.iter().find(|path| path.exists()).cloned();
    found.ok_or(Error::NoPlugin { tried })
}

fn candidates() -> Vec<PathBuf> {
    // Who names one means that one.
    if let Some(named) = std::env::var_os("SLIME_MPI_PLUGIN") {
        return vec![named.into()];
    }
    let mut places = Vec::new();
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(folder.join(NAME));
        places.push(folder.join("../lib").join(NAME));
    }
    places.extend(option_env!("SLIME_MPI_PLUGIN_BUILT").map(PathBuf::from));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_named_with_a_hint() {
        let path = std::env::current_dir().unwrap().join("Cargo.toml");
        let error = Plugin::open_at(&path).err().unwrap();
        assert!(error.to_string().contains("Cargo.toml"), "{error}");
        assert_eq!(error.exit_code(), 69);
        assert!(error.hint().is_some());
    }
}
