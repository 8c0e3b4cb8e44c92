//! Opens the CUDA half of libtorch at run time: the binaries link only its CPU half.
#![expect(unsafe_code, reason = "loads a foreign library")]

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Result};

/// The library that registers CUDA with libtorch; the dynamic linker finds it on its usual path.
const LIBRARY: &str = "libtorch_cuda.so";

/// Loads CUDA into this process once; later calls repeat the first answer. After `Ok`, `tch::Cuda` sees the devices.
///
/// # Errors
/// [`Error::CudaLibrary`] when a library is missing, [`Error::NoDevice`] when none is visible.
pub fn open() -> Result<()> {
    static OPENED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    OPENED
        .get_or_init(|| load(LIBRARY))
        .clone()
        .map_err(|message| Error::CudaLibrary { library: LIBRARY.to_owned(), message })?;
    if tch::Cuda::is_available() { Ok(()) } else { Err(Error::NoDevice) }
}

fn load(name: &str) -> std::result::Result<(), String> {
    // SAFETY: the initialisers of libtorch_cuda only register kernels with the libtorch_cpu already loaded.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| {
        // The linker's own words, which name the file, are the source of libloading's error.
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })?;
    // Registered kernels point into the library, so it stays loaded until the process ends.
    std::mem::forget(library);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_named() {
        let message = load("libslime_no_such_library.so").unwrap_err();
        assert!(message.contains("libslime_no_such_library.so"), "{message}");
    }

    #[test]
    fn opening_agrees_with_the_devices_that_are_there() {
        match open() {
            Ok(()) => assert!(tch::Cuda::device_count() > 0),
            Err(error) => {
                assert_eq!(error.exit_code(), 69);
                assert!(error.to_string().starts_with("CUDA is not available"));
                assert!(error.hint().is_some());
            }
        }
    }
}
