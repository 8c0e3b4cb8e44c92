//! `x W^T` in fp8, with both gradients in fp8. Suffixes: t tokens, i inputs, o outputs.
//!
//! Of the input the codes along its columns are kept for the gradient of the weight: a byte an element. The weight is cast again in
//! the backward pass.

use slime_kernel::fp8_cast::{Codes, Copies};
use slime_torch::{CustomFunction, Forward, custom_function};
use tch::Tensor;

use super::fp8::{Caster, Mode, Role, one, product};
use crate::{Error, Result};

/// `[t, o]` of `x_ti` and `weight_oi`; `state` is what [`super::fp8::Fp8::tensors`] gave.
///
/// # Errors
/// Widths that are no multiple of 16, or in blocks of 128; a GPU older than `sm_89`, in blocks than `sm_90`; no room.
pub fn train(x_ti: &Tensor, weight_oi: &Tensor, mode: Mode, state: &[&Tensor]) -> Result<Tensor> {
    let trains = [x_ti.requires_grad(), weight_oi.requires_grad()];
    let inputs: Vec<&Tensor> = [x_ti, weight_oi].into_iter().chain(state.iter().copied()).collect();
    let outputs = custom_function(&inputs, Fp8Linear { mode, trains })?;
    let got = outputs.len();
    outputs.into_iter().next().ok_or(Error::Context { what: "outputs of a product in fp8", expected: 1, got })
}

struct Fp8Linear {
    mode: Mode,
    /// Whether input and weight have a gradient.
    trains: [bool; 2],
}

impl Fp8Linear {
    fn output(&self, inputs: &[Tensor]) -> Result<Forward> {
        let [x_ti, weight_oi, state @ ..] = inputs else { return Err(missing(inputs.len())) };
        let caster = Caster::new(self.mode, state, false)?;
        let weight = one(caster.codes(weight_oi, Role::Weight, Copies::Rows)?)?;
        let is_kept = self.trains[1];
        let copies = if is_kept { Copies::Both } else { Copies::Rows };
        let [x, turned] = caster.codes(x_ti, Role::Input, copies)?;
        let x = one([x, None])?;
        let num_tokens = x_ti.size2()?.0;
        let out_to = product(&x, &weight, x_ti.kind(), caster.is_fast())?;
        // Not a view, so that adapters may add to it.
        let out_to = out_to.f_narrow(0, 0, num_tokens)?.f_data()?;
        let kept = turned.into_iter().flat_map(|Codes { codes, scales }| [codes, scales]);
        let saved = inputs[1..].iter().map(Tensor::shallow_clone).chain(kept).collect();
        Ok(Forward { outputs: vec![out_to], saved })
    }

    fn gradients(&self, saved: &[Tensor], grad_to: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let num_state = if self.mode == Mode::Block { 0 } else { 2 };
        let (Some((weight_oi, state)), Some(kept)) =
            (saved.get(..=num_state).and_then(<[Tensor]>::split_first), saved.get(num_state + 1..))
        else {
            return Err(missing(saved.len()));
        };
        let caster = Caster::new(self.mode, state, false)?;
        let (num_tokens, kind) = (grad_to.size2()?.0, grad_to.kind());
        let copies = match self.trains {
            [true, true] => Copies::Both,
            [true, false] => Copies::Rows,
            [false, true] => Copies::Columns,
            [false, false] => return Ok(none(2 + num_state)),
        };
        let [grad, turned] = caster.codes(grad_to, Role::Gradient, copies)?;
        let of_x = grad.map(|grad| {
            let weight = one(caster.codes(weight_oi, Role::Weight, Copies::Columns)?)?;
            Ok::<_, Error>(product(&grad, &weight, kind, false)?.f_narrow(0, 0, num_tokens)?)
        });
        let of_weight = turned.map(|turned| {
            let [codes, scales] = kept else { return Err(missing(saved.len())) };
            let x = Codes { codes: codes.shallow_clone(), scales: scales.shallow_clone() };
            product(&turned, &x, weight_oi.kind(), false)
        });
        Ok([of_x.transpose()?, of_weight.transpose()?].into_iter().chain(none(num_state)).collect())
    }
}

fn none(len: usize) -> Vec<Option<Tensor>> {
    (0..len).map(|_| None).collect()
}

fn missing(got: usize) -> Error {
    Error::Context { what: "tensors of a product in fp8", expected: 2, got }
}

impl CustomFunction for Fp8Linear {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        self.output(inputs).map_err(|error| error.to_string())
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        match grads {
            [Some(grad_to)] => self.gradients(saved, grad_to).map_err(|error| error.to_string()),
            _ => Ok(none(if self.mode == Mode::Block { 2 } else { 4 })),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::ops::fp8::{NUM_ROLES, STEP};

    /// Numbers around 0, a tenth to ten times as large as others.
    fn drawn(size: [i64; 2], seed: i64) -> Tensor {
        // Uniform numbers that depend on the seed alone.
        let len = size.iter().product::<i64>();
        let uniform = |seed: f64| {
            let at = Tensor::arange(len, (Kind::Double, Device::Cpu)) * 12.9898 + seed;
            (at.sin() * 43_758.545_3).frac().abs()
        };
        let sum: Tensor =
            uniform(seed as f64) + uniform(seed as f64 + 0.1) + uniform(seed as f64 + 0.2) - 1.5;
        (sum * ((uniform(seed as f64 + 0.3) - 0.5) * 4.6).exp()).view(size)
    }

    fn apart_by_step(scales: [f32; 3]) -> Tensor {
        Tensor::from_slice(&scales.map(|scale| [scale, 0.0, 0.0, 0.0]).concat())
    }

    fn apart(got: &Tensor, expected: &Tensor) -> f64 {
        ((got - expected).norm() / expected.norm()).double_value(&[])
    }

    /// Output and gradients of 100 tokens, and the largest magnitudes that were seen.
    fn run(mode: Option<Mode>, scales: [f32; 3], trains: [bool; 2]) -> (Vec<Tensor>, Vec<f32>) {
        let x = drawn([100, 256], 1).set_requires_grad(trains[0]);
        let weight = (drawn([128, 256], 2) * 0.02).set_requires_grad(trains[1]);
        let largest = Tensor::zeros([(NUM_ROLES * STEP) as i64], (Kind::Float, Device::Cpu));
        let out = match mode {
            None => x.linear(&weight, None::<&Tensor>),
            Some(Mode::Block) => train(&x, &weight, Mode::Block, &[]).unwrap(),
            Some(mode) => train(&x, &weight, mode, &[&apart_by_step(scales), &largest]).unwrap(),
        };
        (&out * (drawn([100, 128], 3) * 1e-6)).sum(None).backward();
        let grads = [&x, &weight].into_iter().filter(|leaf| leaf.requires_grad()).map(Tensor::grad);
        let largest = Vec::<f32>::try_from(largest).unwrap();
        (std::iter::once(out.detach()).chain(grads).collect(), largest.into_iter().step_by(STEP).collect())
    }

    #[test]
    fn output_and_gradients_are_near_those_without() {
        let (expected, _) = run(None, [0.0; 3], [true; 2]);
        let largest = |x: Tensor| x.abs().max().double_value(&[]) as f32;
        let known =
            [drawn([100, 256], 1), drawn([128, 256], 2) * 0.02, drawn([100, 128], 3) * 1e-6].map(largest);
        let scales = [known[0] / 448.0, known[1] / 448.0, known[2] / 57344.0];
        for (mode, bounds) in [
            // Half a step of three bits of mantissa in both factors; in gradients, of two bits in one.
            (Mode::Block, [0.045, 0.045, 0.045]),
            (Mode::Own, [0.045, 0.08, 0.08]),
            (Mode::Delayed, [0.045, 0.08, 0.08]),
        ] {
            let (got, seen) = run(Some(mode), scales, [true; 2]);
            for (at, ((got, expected), bound)) in got.iter().zip(&expected).zip(bounds).enumerate() {
                let apart = apart(got, expected);
                assert!(apart > 0.005 && apart < bound, "{mode:?}, {at}: {apart}");
            }
            if mode != Mode::Block {
                assert_eq!(seen, [known[0], 0.0, known[2]], "weights stand still within a step");
            }
        }
    }

    #[test]
    fn only_what_is_trained_has_a_gradient() {
        let (both, _) = run(Some(Mode::Block), [0.0; 3], [true; 2]);
        for (trains, at) in [([true, false], 1), ([false, true], 2)] {
            let (got, _) = run(Some(Mode::Block), [0.0; 3], trains);
            assert!(got.len() == 2 && got[1].equal(&both[at]) && got[0].equal(&both[0]), "{trains:?}");
        }
    }

    #[test]
    fn no_tokens_give_no_rows_and_gradients_of_zeros() {
        for mode in [Mode::Block, Mode::Own] {
            let state = [1.0, 0.0].map(|value| Tensor::full([12], value, (Kind::Float, Device::Cpu)));
            let state: Vec<&Tensor> = if mode == Mode::Block { vec![] } else { state.iter().collect() };
            let weight = drawn([128, 256], 2).set_requires_grad(true);
            let x = Tensor::zeros([0, 256], (Kind::Double, Device::Cpu)).set_requires_grad(true);
            let out = train(&x, &weight, mode, &state).unwrap();
            assert_eq!(out.size(), [0, 128]);
            out.sum(None).backward();
            assert!(weight.grad().equal(&weight.zeros_like()) && x.grad().size() == [0, 256]);
        }
    }
}
