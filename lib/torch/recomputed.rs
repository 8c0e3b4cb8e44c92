//! A part of a graph whose results in between are dropped and computed again for the backward pass (arXiv 1604.06174).

use tch::Tensor;

use crate::backward::backward_with;
use crate::custom_function::{CustomFunction, Forward, custom_function};
use crate::error::{Error, Result};

/// The one result of `function` over `inputs`, of which only the inputs are kept. The function runs twice and gives the
/// same both times; all tensors that have a gradient are among the inputs, and collectives in it run again in backward.
///
/// # Errors
/// Those of `function`, as text.
pub fn recomputed<F>(inputs: &[&Tensor], function: F) -> Result<Tensor>
where
    F: Fn(&[Tensor]) -> std::result::Result<Tensor, String> + Send + 'static,
{
    let is_trained = inputs.iter().map(|input| input.requires_grad()).collect();
    let outputs = custom_function(inputs, Recomputed { function, is_trained })?;
    let missing = || Error::Torch { operation: "recomputation", message: "no result".to_owned() };
    outputs.into_iter().next().ok_or_else(missing)
}

struct Recomputed<F> {
    function: F,
    /// Which inputs have a gradient.
    is_trained: Vec<bool>,
}

impl<F> CustomFunction for Recomputed<F>
where
    F: Fn(&[Tensor]) -> std::result::Result<Tensor, String> + Send + 'static,
{
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        let output = (self.function)(inputs)?;
        Ok(Forward { outputs: vec![output], saved: inputs.iter().map(Tensor::shallow_clone).collect() })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let [Some(grad)] = grads else { return Ok(saved.iter().map(|_| None).collect()) };
        let leaf = |(input, is_trained): (&Tensor, &bool)| input.detach().set_requires_grad(*is_trained);
        let leaves: Vec<Tensor> = saved.iter().zip(&self.is_trained).map(leaf).collect();
        let output = tch::with_grad(|| (self.function)(&leaves))?;
        backward_with(&[&output], &[grad]).map_err(|error| error.to_string())?;
        Ok(leaves.iter().map(|leaf| Some(leaf.grad()).filter(Tensor::defined)).collect())
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn function(inputs: &[Tensor]) -> std::result::Result<Tensor, String> {
        let [x, w, shift] = inputs else { return Err(format!("expected 3 inputs, got {}", inputs.len())) };
        Ok((x.matmul(&w.tr()) + shift).silu().square())
    }

    #[test]
    fn gradients_have_the_bits_of_those_without() {
        let leaf = |step: f64, is_trained| {
            let wave = (Tensor::arange(12, (Kind::Float, Device::Cpu)) * step).sin().view([3, 4]);
            wave.set_requires_grad(is_trained)
        };
        let of = |is_recomputed: bool| {
            let inputs =
                [leaf(0.7, true), leaf(1.3, true), Tensor::full([3], 0.25, (Kind::Float, Device::Cpu))];
            // Something before it and behind it, and an input that is used twice.
            let x = &inputs[0] * 1.5;
            let list = [&x, &inputs[1], &inputs[2]];
            let y = if is_recomputed {
                recomputed(&list, function).unwrap()
            } else {
                function(&list.map(Tensor::shallow_clone)).unwrap()
            };
            (y.sin() + x.sum(None)).sum(None).backward();
            [inputs[0].grad(), inputs[1].grad(), y.detach()]
        };
        for (got, expected) in of(true).into_iter().zip(of(false)) {
            assert!(got.equal(&expected));
        }
    }

    #[test]
    fn an_error_of_the_function_is_told() {
        let x = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let error = recomputed(&[&x], function).unwrap_err().to_string();
        assert!(error.contains("expected 3 inputs, got 1"), "{error}");
    }
}
