//! Host views of f32 tensors, for collectives and files.
#![expect(unsafe_code, reason = "a tensor's memory as a slice")]

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};

fn check(tensor: &Tensor) -> Result<()> {
    if tensor.kind() == Kind::Float && tensor.device() == Device::Cpu && tensor.is_contiguous() {
        return Ok(());
    }
    let message =
        format!("expected contiguous f32 on the CPU, got {:?} on {:?}", tensor.kind(), tensor.device());
    Err(Error::Torch { operation: "view of floats", message })
}

/// The elements of a contiguous f32 tensor on the CPU, to be changed in place. Other handles of the tensor must not be
/// used meanwhile, which the exclusive borrow of this one stands for.
///
/// # Errors
/// Another dtype, device or layout.
pub fn floats_mut(tensor: &mut Tensor) -> Result<&mut [f32]> {
    check(tensor)?;
    // SAFETY: checked above; the storage holds `numel` elements and lives as long as the borrowed tensor.
    Ok(unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel()) })
}

/// The bytes of a contiguous tensor on the CPU, of any dtype, to be read.
///
/// # Errors
/// Another device or layout.
pub fn bytes_of(tensor: &Tensor) -> Result<&[u8]> {
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        let message = format!("expected a contiguous tensor on the CPU, got one on {:?}", tensor.device());
        return Err(Error::Torch { operation: "view of bytes", message });
    }
    let len = tensor.numel() * tensor.kind().elt_size_in_bytes();
    // SAFETY: checked above; the storage holds `len` bytes and lives as long as the borrowed tensor.
    Ok(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_share_the_memory_of_the_tensor() {
        let mut tensor = Tensor::from_slice(&[1.0f32, 2.0]);
        floats_mut(&mut tensor).unwrap()[1] = 5.0;
        assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), [1.0, 5.0]);
        assert_eq!(bytes_of(&tensor).unwrap()[4..], 5.0f32.to_le_bytes());
    }

    #[test]
    fn strided_and_wide_tensors_are_refused() {
        let mut strided = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]).view((2, 2)).tr();
        assert!(floats_mut(&mut strided).is_err());
        assert!(bytes_of(&strided).is_err());
        assert!(floats_mut(&mut Tensor::from_slice(&[1.0f64])).is_err());
    }
}
