//! A kernel in a GPU's memory, ready to be launched on a stream.
#![expect(unsafe_code, reason = "calls into the CUDA driver")]

use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};

use crate::driver::{checked, set_current};
use crate::{CubinCache, Device, Error, Program, Result};

/// A loaded kernel. Its module stays loaded until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    function: sys::CUfunction,
    context: sys::CUcontext,
}

// SAFETY: handles of the process, valid in every thread.
unsafe impl Send for Function {}
// SAFETY: as above; never changed.
unsafe impl Sync for Function {}

/// How a kernel is spread out.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// The stream, as libtorch hands it out.
    pub stream: usize,
}

impl Function {
    /// Loads the functions `names` of `program` into `device`.
    ///
    /// # Errors
    /// Those of the compiler; the driver refuses.
    pub fn load(
        device: &Device,
        cache: &CubinCache,
        program: &Program<'_>,
        names: &[&str],
    ) -> Result<Vec<Self>> {
        let cubin = cache.load(program, &device.arch()?)?;
        set_current(device.context)?;
        // SAFETY: the image is a whole cubin; the driver copies it.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast::<c_void>()) };
        let module = checked("cuModuleLoadData", module)?;
        let load = |name: &&str| {
            let name = CString::new(*name).map_err(|_| Error::Text { what: "a kernel's name" })?;
            // SAFETY: the module was just loaded and is never unloaded.
            let function =
                checked("cuModuleGetFunction", unsafe { result::module::get_function(module, name) })?;
            Ok(Self { function, context: device.context })
        };
        names.iter().map(load).collect()
    }

    /// Queues the kernel on a stream.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel declares, in its order; addresses among them hold what
    /// the kernel reads and writes, until the stream is past it.
    pub unsafe fn launch(&self, launch: &Launch, arguments: &mut [*mut c_void]) -> Result<()> {
        let current = checked("cuCtxGetCurrent", result::ctx::get_current())?;
        if current != Some(self.context) {
            set_current(self.context)?;
        }
        let [x, y, z] = launch.grid;
        let stream = launch.stream as sys::CUstream;
        // SAFETY: the caller's promise.
        let code = unsafe {
            result::launch_kernel(self.function, (x, y, z), (launch.block, 1, 1), 0, stream, arguments)
        };
        checked("cuLaunchKernel", code)
    }
}
