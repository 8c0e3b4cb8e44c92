//! The arguments of a launch, kept alive until it is queued.

use std::ffi::c_void;

use tch::Tensor;

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

    /// A `float`.
    pub fn float(mut self, value: f32) -> Self {
        self.words.push(u64::from(value.to_bits()));
        self
    }

    /// Where the driver finds them.
    pub fn pointers(&mut self) -> Vec<*mut c_void> {
        self.words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect()
    }
}
