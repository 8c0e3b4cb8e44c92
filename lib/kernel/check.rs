//! What every kernel asks of its tensors.

use tch::{Device, Kind, Tensor};

use crate::{Error, Result};

/// An error about an argument of a kernel.
pub(crate) fn refused(
    kernel: &'static str,
    what: &'static str,
    expected: impl Into<String>,
    got: impl Into<String>,
) -> Error {
    Error::Argument { kernel, what, expected: expected.into(), got: got.into() }
}

/// The number of the GPU of a tensor.
pub(crate) fn device_of(kernel: &'static str, tensor: &Tensor) -> Result<usize> {
    match tensor.device() {
        Device::Cuda(device) => Ok(device),
        other => Err(refused(kernel, "device", "a GPU", format!("{other:?}"))),
    }
}

/// That a tensor has this kind and size and lies there without gaps.
pub(crate) fn is_as(
    kernel: &'static str,
    what: &'static str,
    tensor: &Tensor,
    (kind, size, device): (Kind, &[i64], Device),
) -> Result<()> {
    let fits = tensor.kind() == kind && tensor.size() == size && tensor.device() == device;
    if fits && tensor.is_contiguous() {
        return Ok(());
    }
    let expected = format!("contiguous {kind:?} {size:?} on {device:?}");
    Err(refused(kernel, what, expected, format!("{tensor:?}")))
}

/// Whether the kernels of layers take elements of this kind there.
pub fn is_element(kind: Kind, device: Device) -> bool {
    matches!(kind, Kind::Float | Kind::BFloat16) && device.is_cuda()
}

/// The macro that tells bf16 from f32.
pub(crate) fn bf16(kind: Kind) -> (&'static str, i64) {
    ("BF16", i64::from(kind == Kind::BFloat16))
}

/// Compiles a program for the kinds of GPU that are supported; says so where there is no compiler.
#[cfg(test)]
pub(crate) fn compiles(name: &str, source: &str, defines: &[(&str, i64)]) {
    compiles_for(&["sm_80", "sm_90", "sm_100"], name, source, defines);
}

/// The same for these.
#[cfg(test)]
pub(crate) fn compiles_for(archs: &[&str], name: &str, source: &str, defines: &[(&str, i64)]) {
    let program = slime_cuda::Program { name, source, defines };
    for arch in archs {
        match slime_cuda::compile(&program, arch) {
            Ok(cubin) => assert!(cubin.starts_with(b"\x7fELF")),
            Err(slime_cuda::Error::NoCompiler) => {
                eprintln!("skipped: no libnvrtc.so");
                return;
            }
            Err(error) => panic!("{defines:?}, {arch}: {error}"),
        }
    }
}
