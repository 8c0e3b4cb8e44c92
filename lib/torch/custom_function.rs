//! A differentiable operation whose forward and backward are Rust code.
#![expect(unsafe_code, reason = "callbacks from libtorch's autograd engine")]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, Pointers, RawSink, RawTensor, Sink};

/// What the forward of a custom function gives back.
#[derive(Debug)]
pub struct Forward {
    /// The results, new tensors (never an input itself).
    pub outputs: Vec<Tensor>,
    /// What backward needs. libtorch keeps these with the graph and frees them with it.
    pub saved: Vec<Tensor>,
}

/// The two halves of an operation. The value itself lives as long as the graph node, so it holds numbers and handles
/// of collectives but never a tensor: tensors go through [`Forward::saved`], or memory would leak in a cycle.
///
/// On CUDA the backward runs on another thread than the forward, hence `Send`.
pub trait CustomFunction: Send + 'static {
    /// Computes the outputs; runs without gradient.
    ///
    /// # Errors
    /// What it returns reaches the caller of [`custom_function`] as text.
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String>;

    /// Gradients of the inputs, in their order, `None` where an input needs none. `grads[i]` is `None` when output
    /// `i` has no gradient.
    ///
    /// # Errors
    /// What it returns reaches the caller of backward as text.
    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String>;
}

fn defined(tensors: Vec<Option<Tensor>>) -> std::result::Result<Vec<Tensor>, String> {
    tensors.into_iter().collect::<Option<_>>().ok_or_else(|| "an undefined tensor was passed".to_owned())
}

/// Keeps a panic on this side and reports it, like an error, as text.
///
/// # Safety
/// `error` points to `ffi::ERROR_BYTES` writable bytes.
unsafe fn fenced(error: *mut c_char, body: impl FnOnce() -> std::result::Result<(), String>) -> c_int {
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(message)) => message,
        Err(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "panicked".to_owned()),
    };
    // SAFETY: the caller's promise.
    unsafe { ffi::write_error(error, &message) };
    1
}

unsafe extern "C" fn call_forward<F: CustomFunction>(
    function: *mut c_void,
    inputs: *const *mut RawTensor,
    count: usize,
    outputs: *mut RawSink,
    saved: *mut RawSink,
    error: *mut c_char,
) -> c_int {
    let body = || {
        // SAFETY: the pointer is the boxed function, alive until the node is released; the lists are live.
        let (function, inputs) = unsafe { (&*function.cast::<F>(), ffi::shared(inputs, count)) };
        let forward = function.forward(&defined(inputs)?)?;
        for tensor in &forward.outputs {
            // SAFETY: the sink is the one of this call.
            unsafe { ffi::push(outputs, Some(tensor)) };
        }
        for tensor in &forward.saved {
            // SAFETY: as above.
            unsafe { ffi::push(saved, Some(tensor)) };
        }
        Ok(())
    };
    // SAFETY: the shim passes a buffer of that size.
    unsafe { fenced(error, body) }
}

unsafe extern "C" fn call_backward<F: CustomFunction>(
    function: *mut c_void,
    saved: *const *mut RawTensor,
    saved_count: usize,
    grads: *const *mut RawTensor,
    grad_count: usize,
    input_grads: *mut RawSink,
    error: *mut c_char,
) -> c_int {
    let body = || {
        // SAFETY: the pointer is the boxed function, alive until the node is released.
        let function = unsafe { &*function.cast::<F>() };
        // SAFETY: both lists are live during this call.
        let (saved, grads) = unsafe { (ffi::shared(saved, saved_count), ffi::shared(grads, grad_count)) };
        for grad in function.backward(&defined(saved)?, &grads)? {
            // SAFETY: the sink is the one of this call.
            unsafe { ffi::push(input_grads, grad.as_ref()) };
        }
        Ok(())
    };
    // SAFETY: the shim passes a buffer of that size.
    unsafe { fenced(error, body) }
}

unsafe extern "C" fn release<F: CustomFunction>(function: *mut c_void) {
    // SAFETY: made by `Box::into_raw` of the same type; the shim calls this once. A panic in a destructor stops here.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(function.cast::<F>()) })));
}

/// Applies `function` to `inputs` under autograd: gradients flow from the outputs to the inputs through its backward.
///
/// # Errors
/// An error or a panic in `forward`, as text.
pub fn custom_function<F: CustomFunction>(inputs: &[&Tensor], function: F) -> Result<Vec<Tensor>> {
    let pointers = Pointers::new(inputs.iter().copied());
    let boxed = Box::into_raw(Box::new(function)).cast::<c_void>();
    let mut outputs = Sink::new();
    ffi::checked("custom function", |error| {
        // SAFETY: the inputs outlive the call; the shim owns `boxed` from here on and releases it once.
        unsafe {
            ffi::slime_custom_function(
                pointers.as_ptr(),
                pointers.len(),
                boxed,
                call_forward::<F>,
                boxed,
                call_backward::<F>,
                release::<F>,
                outputs.as_mut_ptr(),
                error,
            )
        }
    })
    .map_err(|error| match error {
        Error::Torch { message, .. } => Error::Closure(message),
        other => other,
    })?;
    Ok(outputs.into_tensors())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tch::{Kind, Tensor};

    use super::*;
    use crate::backward_with;

    struct Product {
        dropped: Arc<AtomicUsize>,
    }

    impl Drop for Product {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl CustomFunction for Product {
        fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
            let (a, b) = (&inputs[0], &inputs[1]);
            Ok(Forward { outputs: vec![a * b, a + b], saved: vec![a.shallow_clone(), b.shallow_clone()] })
        }

        fn backward(
            &self,
            saved: &[Tensor],
            grads: &[Option<Tensor>],
        ) -> std::result::Result<Vec<Option<Tensor>>, String> {
            let zero = saved[0].zeros_like();
            let product = grads[0].as_ref().unwrap_or(&zero);
            let sum = grads[1].as_ref().unwrap_or(&zero);
            Ok(vec![Some(product * &saved[1] + sum), Some(product * &saved[0] + sum)])
        }
    }

    struct Failing;

    impl CustomFunction for Failing {
        fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
            if inputs[0].numel() == 1 {
                return Err("one element is too few".to_owned());
            }
            Ok(Forward { outputs: vec![&inputs[0] * 2.0], saved: vec![] })
        }

        fn backward(
            &self,
            _: &[Tensor],
            _: &[Option<Tensor>],
        ) -> std::result::Result<Vec<Option<Tensor>>, String> {
            panic!("the backward of this test panics")
        }
    }

    #[test]
    fn gradients_equal_those_of_autograd() {
        tch::manual_seed(1);
        let a = Tensor::randn([3, 4], (Kind::Double, tch::Device::Cpu)).set_requires_grad(true);
        let b = Tensor::randn([3, 4], (Kind::Double, tch::Device::Cpu)).set_requires_grad(true);
        let loss = |product: &Tensor, sum: &Tensor| (product.sin() * sum).sum(Kind::Double);
        loss(&(&a * &b), &(&a + &b)).backward();
        let expected = (a.grad().copy(), b.grad().copy());
        for mut tensor in [a.grad(), b.grad()] {
            let _ = tensor.zero_();
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let outputs = custom_function(&[&a, &b], Product { dropped: dropped.clone() }).unwrap();
        loss(&outputs[0], &outputs[1]).backward();
        assert!(a.grad().allclose(&expected.0, 1e-12, 1e-12, false));
        assert!(b.grad().allclose(&expected.1, 1e-12, 1e-12, false));
        drop(outputs);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "the function is freed with its node");
    }

    #[test]
    fn output_without_gradient_counts_as_zero() {
        let a = Tensor::from_slice(&[2.0f64, 3.0]).set_requires_grad(true);
        let b = Tensor::from_slice(&[5.0f64, 7.0]);
        let dropped = Arc::new(AtomicUsize::new(0));
        let outputs = custom_function(&[&a, &b], Product { dropped }).unwrap();
        backward_with(&[&outputs[0]], &[&Tensor::from_slice(&[1.0f64, 10.0])]).unwrap();
        assert_eq!(Vec::<f64>::try_from(a.grad()).unwrap(), [5.0, 70.0]);
    }

    #[test]
    fn errors_and_panics_come_back_as_errors() {
        let one = Tensor::from_slice(&[1.0f32]).set_requires_grad(true);
        let error = custom_function(&[&one], Failing).unwrap_err();
        assert!(error.to_string().contains("one element is too few"), "{error}");
        let two = Tensor::from_slice(&[1.0f32, 2.0]).set_requires_grad(true);
        let outputs = custom_function(&[&two], Failing).unwrap();
        let error = backward_with(&[&outputs[0]], &[&two.ones_like()]).unwrap_err();
        assert!(error.to_string().contains("panics"), "{error}");
    }
}
