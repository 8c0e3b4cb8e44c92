//! A mark in a stream that the host waits for without spinning.
#![expect(unsafe_code, reason = "calls into the CUDA driver")]

use cudarc::driver::{result, sys};

use crate::driver::{checked, set_current};
use crate::{Device, Result};

/// A mark.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
    context: sys::CUcontext,
}

// SAFETY: handles of the process, valid in every thread.
unsafe impl Send for Event {}

impl Event {
    /// One that is nowhere yet.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(device: &Device) -> Result<Self> {
        set_current(device.context)?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32
            | sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: writes a handle.
        checked("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) }.result())?;
        Ok(Self { event, context: device.context })
    }

    /// Puts it behind what the stream has to do so far.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record(&self, stream: usize) -> Result<()> {
        // SAFETY: the event is alive; the stream is libtorch's own.
        checked("cuEventRecord", unsafe { result::event::record(self.event, stream as sys::CUstream) })
    }

    /// Waits until the stream is past it.
    ///
    /// # Errors
    /// What the stream did before failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is alive.
        checked("cuEventSynchronize", unsafe { result::event::synchronize(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = set_current(self.context);
        // SAFETY: made in `new`, given back once. Nothing can be done about a refusal.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
