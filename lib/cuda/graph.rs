//! What was sent to a stream once, to be sent again as a whole.
#![expect(unsafe_code, reason = "calls into the CUDA driver")]

use cudarc::driver::{result, sys};

use crate::Result;
use crate::driver::checked;

/// A recorded sequence of kernels.
#[derive(Debug)]
pub struct Graph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

// SAFETY: handles of the process, valid in every thread; launched through `&mut self` alone.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` sends to `stream`, which is not the default one; nothing of it runs. Kernels of it read and write the
    /// addresses they were given, whenever the graph runs.
    ///
    /// # Errors
    /// Those of `work`, made of the driver's with `From`; the driver refuses something of it.
    pub fn record<E: From<crate::Error>>(
        stream: usize,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let stream = stream as sys::CUstream;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is libtorch's own.
        checked("cuStreamBeginCapture", unsafe { result::stream::begin_capture(stream, mode) })?;
        let worked = work();
        // SAFETY: capturing since above; it ends in any case, or the stream could not be used again.
        let ended = unsafe { result::stream::end_capture(stream) };
        worked?;
        let graph = checked("cuStreamEndCapture", ended)?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was just recorded; writes a handle.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
        if let Err(error) = checked("cuGraphInstantiate", code.result()) {
            // SAFETY: recorded above, given back once.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
            return Err(error.into());
        }
        Ok(Self { graph, exec })
    }

    /// Queues all of it.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// Every address that was recorded holds what its kernel reads and writes, until the stream is past it.
    pub unsafe fn launch(&mut self, stream: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        checked("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream as sys::CUstream) }.result())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `record`, given back once; the driver waits for a launch that runs. Nothing can be done about a
        // refusal.
        unsafe {
            let _ = sys::cuGraphExecDestroy(self.exec);
            let _ = sys::cuGraphDestroy(self.graph);
        }
    }
}
