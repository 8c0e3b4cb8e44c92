//! Opens the CUDA half of libtorch at run time: the binaries link only its CPU half.
#![expect(unsafe_code, reason = "loads a foreign library")]

use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use tch::{Device, Kind};

use crate::error::{Error, Result};
use crate::ffi;

/// The library that registers CUDA with libtorch; the dynamic linker finds it on its usual path.
const LIBRARY: &str = "libtorch_cuda.so";
/// There where the kernel half of NVIDIA's driver is loaded.
const DRIVER_FILE: &str = "/dev/nvidiactl";

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

/// What is computed in and where, for people: `bf16 on GPU 0`.
pub fn describe(kind: Kind, device: Device) -> String {
    let kind = match kind {
        Kind::Float => "f32".to_owned(),
        Kind::BFloat16 => "bf16".to_owned(),
        other => format!("{other:?}"),
    };
    match device {
        Device::Cuda(number) => format!("{kind} on GPU {number}"),
        _ => format!("{kind} on the CPU"),
    }
}

/// The device a setting means for the process that has place `place` on its host: places take the GPUs in turn.
///
/// `auto` is the CPU where there is no GPU. On a host that has the driver's device files, libraries that cannot be opened
/// are an error: a run that silently goes on without its GPU costs more than one that ends.
///
/// # Errors
/// As [`open`], for `cuda` and, on such a host, for `auto`.
pub fn choose(wanted: slime_config::Device, place: usize) -> Result<Device> {
    let gpu = || Device::Cuda(place % tch::Cuda::device_count().max(1) as usize);
    match wanted {
        slime_config::Device::Cpu => Ok(Device::Cpu),
        slime_config::Device::Cuda => open().map(|()| gpu()),
        slime_config::Device::Auto => match open() {
            Ok(()) => Ok(gpu()),
            Err(error @ Error::CudaLibrary { .. }) if Path::new(DRIVER_FILE).exists() => Err(error),
            Err(_) => Ok(Device::Cpu),
        },
    }
}

/// The stream of GPU `device` that this thread's operations go to: a `cudaStream_t`, which is the driver's `CUstream`.
///
/// # Errors
/// CUDA is not open.
pub fn current_stream(device: usize) -> Result<usize> {
    let mut stream = 0;
    ffi::checked("current stream", |error| {
        // SAFETY: writes a handle as a number.
        unsafe { ffi::slime_current_stream(device as i64, &raw mut stream, error) }
    })?;
    Ok(stream)
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
    fn the_cpu_needs_no_gpu_and_a_gpu_is_only_taken_where_one_is() {
        assert_eq!(choose(slime_config::Device::Cpu, 3).unwrap(), Device::Cpu);
        match (choose(slime_config::Device::Cuda, 1), choose(slime_config::Device::Auto, 1)) {
            (Ok(gpu), auto) => assert_eq!((gpu, gpu.is_cuda()), (auto.unwrap(), true)),
            (Err(error), Ok(auto)) => assert_eq!((error.exit_code(), auto), (69, Device::Cpu)),
            (Err(_), Err(error)) => assert!(Path::new(DRIVER_FILE).exists(), "{error}"),
        }
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
