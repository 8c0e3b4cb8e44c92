//! The C interface of `shim.cc`, with one safe wrapper for lists of tensors and one for error texts.
#![expect(unsafe_code, reason = "the raw floor under libtorch's C++ interface")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;

use tch::Tensor;

use crate::error::{Error, Result};

/// Must equal `ERROR_BYTES` of `shim.cc`.
pub(crate) const ERROR_BYTES: usize = 1024;

/// An `at::Tensor` behind a pointer; tch's `C_tensor` is the same object.
#[repr(C)]
pub(crate) struct RawTensor {
    _private: [u8; 0],
}

/// A growing list of tensors on the C++ side.
#[repr(C)]
pub(crate) struct RawSink {
    _private: [u8; 0],
}

pub(crate) type ForwardCall = unsafe extern "C" fn(
    *mut c_void,
    *const *mut RawTensor,
    usize,
    *mut RawSink,
    *mut RawSink,
    *mut c_char,
) -> c_int;
pub(crate) type BackwardCall = unsafe extern "C" fn(
    *mut c_void,
    *const *mut RawTensor,
    usize,
    *const *mut RawTensor,
    usize,
    *mut RawSink,
    *mut c_char,
) -> c_int;
pub(crate) type Release = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn slime_sink_new() -> *mut RawSink;
    fn slime_sink_free(sink: *mut RawSink);
    fn slime_sink_len(sink: *const RawSink) -> usize;
    fn slime_sink_take(sink: *mut RawSink, index: usize) -> *mut RawTensor;
    fn slime_sink_push(sink: *mut RawSink, tensor: *const RawTensor);
    fn slime_tensor_share(tensor: *const RawTensor) -> *mut RawTensor;
    pub(crate) fn slime_custom_function(
        inputs: *const *mut RawTensor,
        count: usize,
        forward: *mut c_void,
        call_forward: ForwardCall,
        backward: *mut c_void,
        call_backward: BackwardCall,
        release: Release,
        outputs: *mut RawSink,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_backward(
        outputs: *const *mut RawTensor,
        grads: *const *mut RawTensor,
        count: usize,
        retain_graph: c_int,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_pool_stream(
        device: i64,
        id: *mut i64,
        handle: *mut usize,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_exchange_stream(
        device: i64,
        id: i64,
        previous: *mut i64,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_varlen_attention(
        q: *const RawTensor,
        k: *const RawTensor,
        v: *const RawTensor,
        cu_q: *const RawTensor,
        cu_k: *const RawTensor,
        max_q: i64,
        max_k: i64,
        even: i64,
        outputs: *mut RawSink,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_varlen_attention_backward(
        grad: *const RawTensor,
        q: *const RawTensor,
        k: *const RawTensor,
        v: *const RawTensor,
        kept: *const *mut RawTensor,
        cu_q: *const RawTensor,
        cu_k: *const RawTensor,
        max_q: i64,
        max_k: i64,
        even: i64,
        outputs: *mut RawSink,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_forget_grad(tensor: *const RawTensor, error: *mut c_char) -> c_int;
    pub(crate) fn slime_current_stream(device: i64, stream: *mut usize, error: *mut c_char) -> c_int;
    pub(crate) fn slime_require_deterministic(error: *mut c_char) -> c_int;
    pub(crate) fn slime_is_deterministic() -> c_int;
    pub(crate) fn slime_has_packed_linear() -> c_int;
    pub(crate) fn slime_pack_linear(
        weight: *const RawTensor,
        rows: i64,
        packed: *mut RawSink,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_packed_linear(
        x: *const RawTensor,
        packed: *const RawTensor,
        bias: *const RawTensor,
        outputs: *mut RawSink,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_global_norm(
        tensors: *const *mut RawTensor,
        count: usize,
        norm: *mut f64,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn slime_adamw(
        params: *const *mut RawTensor,
        grads: *const *mut RawTensor,
        masters: *const *mut RawTensor,
        firsts: *const *mut RawTensor,
        seconds: *const *mut RawTensor,
        count: usize,
        lr: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        grad_scale: f64,
        step: i64,
        error: *mut c_char,
    ) -> c_int;
}

/// Pointers to borrowed tensors, as the shim takes them.
pub(crate) struct Pointers<'a> {
    pointers: Vec<*mut RawTensor>,
    borrowed: PhantomData<&'a Tensor>,
}

impl<'a> Pointers<'a> {
    pub(crate) fn new(tensors: impl IntoIterator<Item = &'a Tensor>) -> Self {
        let pointers =
            tensors.into_iter().map(|tensor| tensor.as_ptr().cast::<RawTensor>().cast_mut()).collect();
        Self { pointers, borrowed: PhantomData }
    }

    pub(crate) fn as_ptr(&self) -> *const *mut RawTensor {
        self.pointers.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.pointers.len()
    }
}

/// A list that the shim fills.
pub(crate) struct Sink(*mut RawSink);

impl Sink {
    pub(crate) fn new() -> Self {
        // SAFETY: allocates; freed in drop.
        Self(unsafe { slime_sink_new() })
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut RawSink {
        self.0
    }

    pub(crate) fn into_tensors(self) -> Vec<Tensor> {
        // SAFETY: the sink lives until this function ends; each index is below its length and taken once, and the
        // new handle belongs to the returned tensor.
        unsafe {
            (0..slime_sink_len(self.0)).map(|i| Tensor::from_ptr(slime_sink_take(self.0, i).cast())).collect()
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // SAFETY: made by `slime_sink_new` and not freed before.
        unsafe { slime_sink_free(self.0) }
    }
}

/// Appends `tensor` (or an undefined one) to a sink the shim lent to a callback.
///
/// # Safety
/// `sink` is the live sink of the running callback.
pub(crate) unsafe fn push(sink: *mut RawSink, tensor: Option<&Tensor>) {
    let pointer = tensor.map_or(std::ptr::null(), |tensor| tensor.as_ptr().cast::<RawTensor>());
    // SAFETY: the caller vouches for the sink; the shim copies the handle and keeps no pointer.
    unsafe { slime_sink_push(sink, pointer) }
}

/// New handles of the tensors the shim lent to a callback; `None` where one is undefined.
///
/// # Safety
/// `tensors` points to `count` pointers, each null or to a live tensor.
pub(crate) unsafe fn shared(tensors: *const *mut RawTensor, count: usize) -> Vec<Option<Tensor>> {
    (0..count)
        .map(|i| {
            // SAFETY: `i < count`, see above.
            let pointer = unsafe { *tensors.add(i) };
            if pointer.is_null() {
                return None;
            }
            // SAFETY: the pointer is live; the new handle belongs to the returned tensor.
            Some(unsafe { Tensor::from_ptr(slime_tensor_share(pointer).cast()) })
        })
        .collect()
}

/// Writes `message` where the shim reads an error text of a callback.
///
/// # Safety
/// `error` points to `ERROR_BYTES` writable bytes.
pub(crate) unsafe fn write_error(error: *mut c_char, message: &str) {
    let bytes = message.as_bytes();
    let len = bytes.len().min(ERROR_BYTES - 1);
    // SAFETY: `len < ERROR_BYTES`, and the two ranges are different memory.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), error, len);
        *error.add(len) = 0;
    }
}

/// Runs a call of the shim and turns its error text into an [`Error`].
pub(crate) fn checked(operation: &'static str, call: impl FnOnce(*mut c_char) -> c_int) -> Result<()> {
    let mut error = [0 as c_char; ERROR_BYTES];
    if call(error.as_mut_ptr()) == 0 {
        return Ok(());
    }
    // SAFETY: the shim ends its message with a zero byte within the array.
    let message = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy();
    Err(Error::Torch { operation, message: message.trim_end().to_owned() })
}
