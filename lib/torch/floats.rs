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
    // An empty tensor may have no memory to point to.
    if tensor.numel() == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked above; the storage holds `numel` elements and lives as long as the borrowed tensor.
    Ok(unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel()) })
}

/// The elements of a contiguous f32 tensor on the CPU, to be read.
///
/// # Errors
/// Another dtype, device or layout.
pub fn floats(tensor: &Tensor) -> Result<&[f32]> {
    check(tensor)?;
    if tensor.numel() == 0 {
        return Ok(&[]);
    }
    // SAFETY: checked above; the storage holds `numel` elements and lives as long as the borrowed tensor.
    Ok(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), tensor.numel()) })
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
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: checked above; the storage holds `len` bytes and lives as long as the borrowed tensor.
    Ok(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), len) })
}

/// The bytes of a contiguous tensor on the CPU, of any dtype, to be changed in place; other handles of it as for
/// [`floats_mut`].
///
/// # Errors
/// Another device or layout.
pub fn bytes_mut(tensor: &mut Tensor) -> Result<&mut [u8]> {
    let len = bytes_of(tensor)?.len();
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: `bytes_of` checked device, layout and size; the exclusive borrow keeps other views away.
    Ok(unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), len) })
}

/// Rows of f32 that follow each other at a fixed distance.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    /// Row `at`.
    ///
    /// # Panics
    /// There is no such row.
    #[inline]
    pub fn row(&self, at: usize) -> &'a [f32] {
        &self.values[at * self.stride..][..self.width]
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// The rows (first dimension) of an f32 tensor on the CPU whose rows are contiguous, to be read; the rows themselves may
/// lie apart, as in a range of the columns of a wider tensor.
///
/// # Errors
/// Another dtype, device or layout.
pub fn rows_of(tensor: &Tensor) -> Result<Rows<'_>> {
    let (size, strides) = (tensor.size(), tensor.stride());
    let width: i64 = size.iter().skip(1).product();
    let mut expected = 1;
    let mut is_dense = !size.is_empty();
    for (len, stride) in size.iter().zip(&strides).skip(1).rev() {
        is_dense &= *len == 1 || *stride == expected;
        expected *= len;
    }
    let stride = strides.first().copied().unwrap_or(0);
    if tensor.kind() != Kind::Float || tensor.device() != Device::Cpu || !is_dense || stride < 0 {
        let message = format!("expected f32 rows on the CPU, got {tensor:?} with strides {strides:?}");
        return Err(Error::Torch { operation: "view of rows", message });
    }
    let num_rows = size.first().copied().unwrap_or(0);
    let len = if num_rows * width == 0 { 0 } else { (num_rows - 1) * stride + width };
    // SAFETY: checked above; the storage reaches from the first element of the first row to the last one of the last
    // row and lives as long as the borrowed tensor.
    let values: &[f32] = match len {
        // Without elements there is no memory.
        0 => &[],
        _ => unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), len as usize) },
    };
    Ok(Rows { values, stride: stride as usize, width: width as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_wider_tensor_are_rows_and_its_transpose_is_not() {
        let tensor = Tensor::arange(24, (Kind::Float, Device::Cpu)).view((2, 6, 2));
        let middle = tensor.narrow(1, 2, 3);
        let rows = rows_of(&middle).unwrap();
        assert_eq!(
            (rows.row(0), rows.row(1)),
            (&[4.0, 5., 6., 7., 8., 9.][..], &[16.0, 17., 18., 19., 20., 21.][..])
        );
        assert!(rows_of(&tensor.transpose(1, 2)).is_err());
        assert!(rows_of(&tensor.to_kind(Kind::Double)).is_err());
    }

    #[test]
    fn views_share_the_memory_of_the_tensor() {
        let mut tensor = Tensor::from_slice(&[1.0f32, 2.0]);
        floats_mut(&mut tensor).unwrap()[1] = 5.0;
        assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), [1.0, 5.0]);
        assert_eq!(bytes_of(&tensor).unwrap()[4..], 5.0f32.to_le_bytes());
        bytes_mut(&mut tensor).unwrap()[4..].copy_from_slice(&7.0f32.to_le_bytes());
        assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), [1.0, 7.0]);
    }

    #[test]
    fn strided_and_wide_tensors_are_refused() {
        let mut strided = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]).view((2, 2)).tr();
        assert!(floats_mut(&mut strided).is_err());
        assert!(bytes_of(&strided).is_err());
        assert!(floats_mut(&mut Tensor::from_slice(&[1.0f64])).is_err());
    }
}
