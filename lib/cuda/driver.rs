//! The driver's library, opened and initialised once, and its errors under their names.
#![expect(unsafe_code, reason = "calls into the CUDA driver")]

use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::{Error, Result};

/// Opens and initialises it; later calls cost nothing.
pub(crate) fn open() -> Result<()> {
    static IS_PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: the driver's library is made to be opened at run time.
    if !*IS_PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Err(Error::NoDriver);
    }
    checked("cuInit", result::init())
}

/// A result of the driver with its error under its name.
pub(crate) fn checked<T>(call: &'static str, result: std::result::Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| {
        let name = error.error_name();
        let name =
            name.map_or_else(|_| "unknown error".to_owned(), |name| name.to_string_lossy().into_owned());
        Error::Call { call, name, code: error.0 as u32 }
    })
}

/// A context of this thread's calls from now on.
pub(crate) fn set_current(context: sys::CUcontext) -> Result<()> {
    // SAFETY: the handle is the driver's own, or refused by it.
    checked("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })
}
