//! The arguments of a launch, kept alive until it is queued.
#![expect(unsafe_code, reason = "launches a kernel")]

use std::ffi::c_void;

use slime_cuda::{Launch, Program};
use slime_torch::cuda::current_stream;
use tch::Tensor;

use crate::Result;
use crate::check::refused;
use crate::registry::functions;

/// Values in the order of a kernel's parameters.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    // Each in the low bytes of a word; the driver reads as many bytes as the parameter has.
    words: Vec<u64>,
}

impl Arguments {
    /// The address of a tensor.
    pub fn tensor(mut self, tensor: &Tensor) -> Self {
        self.words.push(tensor.data_ptr() as u64);
        self
    }

    /// The address of a tensor, or null.
    pub fn optional(mut self, tensor: Option<&Tensor>) -> Self {
        self.words.push(tensor.map_or(0, |tensor| tensor.data_ptr() as u64));
        self
    }

    /// An `int`.
    pub fn int(mut self, value: i32) -> Self {
        self.words.push(u64::from(value as u32));
        self
    }

    /// A `long long`.
    pub fn long(mut self, value: i64) -> Self {
        self.words.push(value.cast_unsigned());
        self
    }

    /// A `float`.
    pub fn float(mut self, value: f32) -> Self {
        self.words.push(u64::from(value.to_bits()));
        self
    }

    /// Queues the kernel `name` of a program on the current stream of GPU `device`.
    ///
    /// # Errors
    /// No compiler or driver, or they refuse.
    ///
    /// # Safety
    /// The values are those of the kernel's parameters, in its order; addresses among them hold what it reads and writes.
    pub unsafe fn launch(
        mut self,
        device: usize,
        (program, name): (&Program<'_>, &'static str),
        (grid, block): ([u32; 3], i64),
    ) -> Result<()> {
        let loaded = functions(device, program, &[name])?;
        let function = loaded.first().ok_or_else(|| refused(name, "functions", "1", "none"))?;
        let launch = Launch { grid, block: block as u32, stream: current_stream(device)? };
        let mut pointers: Vec<*mut c_void> =
            self.words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        // SAFETY: the caller's promise; libtorch keeps memory that this stream still uses from others when a tensor is
        // dropped.
        unsafe { function.launch(&launch, &mut pointers)? };
        Ok(())
    }
}
