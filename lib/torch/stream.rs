//! Streams of a GPU that libtorch's operations may be sent to instead of the one they start with.
#![expect(unsafe_code, reason = "calls into the shim")]

use std::marker::PhantomData;

use crate::error::Result;
use crate::ffi;

/// A stream of libtorch's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    device: usize,
    id: i64,
    handle: usize,
}

impl Stream {
    /// One of GPU `device`; libtorch hands out the same again after some dozens.
    ///
    /// # Errors
    /// CUDA is not open.
    pub fn new(device: usize) -> Result<Self> {
        let (mut id, mut handle) = (0, 0);
        ffi::checked("stream", |error| {
            // SAFETY: writes two numbers.
            unsafe { ffi::slime_pool_stream(device as i64, &raw mut id, &raw mut handle, error) }
        })?;
        Ok(Self { device, id, handle })
    }

    /// The stream as a `cudaStream_t`, which is the driver's `CUstream`.
    pub fn handle(&self) -> usize {
        self.handle
    }

    /// Sends this thread's operations there until the answer is dropped.
    ///
    /// # Errors
    /// CUDA is not open.
    pub fn enter(&self) -> Result<EnteredStream> {
        let previous = exchange(self.device, self.id)?;
        Ok(EnteredStream { device: self.device, previous, of_thread: PhantomData })
    }
}

/// A stream that is this thread's current one; the one before is current again when this is dropped.
#[derive(Debug)]
pub struct EnteredStream {
    device: usize,
    previous: i64,
    of_thread: PhantomData<*const ()>,
}

impl Drop for EnteredStream {
    fn drop(&mut self) {
        // It was current before, so it can be again; nothing could be done about a refusal.
        let _ = exchange(self.device, self.previous);
    }
}

fn exchange(device: usize, id: i64) -> Result<i64> {
    let mut previous = 0;
    ffi::checked("stream", |error| {
        // SAFETY: writes a number; `id` is a stream that libtorch handed out for this device.
        unsafe { ffi::slime_exchange_stream(device as i64, id, &raw mut previous, error) }
    })?;
    Ok(previous)
}
