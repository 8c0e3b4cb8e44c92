//! Backward from several outputs with given gradients, and a scope without gradients.
#![expect(unsafe_code, reason = "calls into the shim")]

use tch::Tensor;

use crate::error::Result;
use crate::ffi::{self, Pointers};

/// Accumulates into the leaves the gradient of `sum_i <outputs[i], grads[i]>`; the graph is freed.
///
/// # Errors
/// Lists of different lengths, shapes that differ, an output outside the graph, or an error in a custom function.
pub fn backward_with(outputs: &[&Tensor], grads: &[&Tensor]) -> Result<()> {
    if outputs.len() != grads.len() {
        let message = format!("expected {} gradients, got {}", outputs.len(), grads.len());
        return Err(crate::Error::Torch { operation: "backward", message });
    }
    let (outputs, grads) = (Pointers::new(outputs.iter().copied()), Pointers::new(grads.iter().copied()));
    ffi::checked("backward", |error| {
        // SAFETY: both lists have the same length and outlive the call.
        unsafe { ffi::slime_backward(outputs.as_ptr(), grads.as_ptr(), outputs.len(), 0, error) }
    })
}

/// Forgets the gradient of a leaf, so that the next one is taken as it comes instead of being added to zeros.
///
/// # Errors
/// The tensor is no leaf that can have one.
pub fn forget_grad(tensor: &Tensor) -> Result<()> {
    // SAFETY: the tensor outlives the call.
    ffi::checked("gradient", |error| unsafe { ffi::slime_forget_grad(tensor.as_ptr().cast(), error) })
}

/// Runs `body` without recording a graph.
pub fn no_grad<T>(body: impl FnOnce() -> T) -> T {
    tch::no_grad(body)
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;

    #[test]
    fn given_gradients_weigh_the_outputs() {
        let x = Tensor::from_slice(&[1.0f64, 2.0]).set_requires_grad(true);
        let (square, double) = (x.square(), &x * 2.0);
        let grads = [Tensor::from_slice(&[1.0f64, 3.0]), Tensor::from_slice(&[10.0f64, 20.0])];
        backward_with(&[&square, &double], &[&grads[0], &grads[1]]).unwrap();
        assert_eq!(Vec::<f64>::try_from(x.grad()).unwrap(), [22.0, 52.0]);
    }

    #[test]
    fn a_forgotten_gradient_is_not_there() {
        let x = Tensor::from_slice(&[1.0f64, 2.0]).set_requires_grad(true);
        for _ in 0..2 {
            x.square().sum(None).backward();
            assert_eq!(Vec::<f64>::try_from(x.grad()).unwrap(), [2.0, 4.0]);
            forget_grad(&x).unwrap();
            assert!(!x.grad().defined());
        }
    }

    #[test]
    fn wrong_shape_is_an_error() {
        let x = Tensor::from_slice(&[1.0f64, 2.0]).set_requires_grad(true);
        let error = backward_with(&[&x.square()], &[&Tensor::from_slice(&[1.0f64])]).unwrap_err();
        assert!(error.to_string().starts_with("backward: "), "{error}");
        assert!(backward_with(&[&x.square()], &[]).is_err());
    }
}
