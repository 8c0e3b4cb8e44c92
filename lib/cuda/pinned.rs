//! Memory of the host that a GPU copies from and to while the host goes on.
#![expect(unsafe_code, reason = "calls into the CUDA driver")]

use cudarc::driver::{result, sys};

use crate::driver::{checked, set_current};
use crate::{Device, Result};

/// Page-locked bytes, aligned for any number.
#[derive(Debug)]
pub struct Pinned {
    address: *mut u8,
    len: usize,
    context: sys::CUcontext,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `len` bytes, zeroed.
    ///
    /// # Errors
    /// There is no room.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        set_current(device.context)?;
        // SAFETY: allocates; freed in drop.
        let address = checked("cuMemHostAlloc", unsafe { result::malloc_host(len.max(1), 0) })?.cast::<u8>();
        // SAFETY: just allocated with this length.
        unsafe { std::ptr::write_bytes(address, 0, len) };
        Ok(Self { address, len, context: device.context })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this length and initialised.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }

    /// Queues a copy of the first `len` bytes to `target`, an address on the GPU.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// There are fewer bytes.
    ///
    /// # Safety
    /// `target` has `len` bytes until the stream is past the copy; nobody writes these bytes before that.
    pub unsafe fn copy_to(&self, target: u64, len: usize, stream: usize) -> Result<()> {
        assert!(len <= self.len, "a copy of {len} bytes from {}", self.len);
        // SAFETY: the caller's promise.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(target, self.address.cast(), len, stream as sys::CUstream) };
        checked("cuMemcpyHtoDAsync", code.result())
    }

    /// Queues a copy of the `len` bytes at `source` on the GPU to the first ones here.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// There are fewer bytes.
    ///
    /// # Safety
    /// `source` has `len` bytes until the stream is past the copy; nobody reads these bytes before that.
    pub unsafe fn copy_from(&mut self, source: u64, len: usize, stream: usize) -> Result<()> {
        assert!(len <= self.len, "a copy of {len} bytes to {}", self.len);
        // SAFETY: the caller's promise.
        let code =
            unsafe { sys::cuMemcpyDtoHAsync_v2(self.address.cast(), source, len, stream as sys::CUstream) };
        checked("cuMemcpyDtoHAsync", code.result())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = set_current(self.context);
        // SAFETY: allocated in `new`, given back once. Nothing can be done about a refusal.
        let _ = unsafe { result::free_host(self.address.cast()) };
    }
}
