//! `AdamW` over the storages of a model, with f32 master weights and f32 gradient sums.
//!
//! Bytes for each parameter: an f32 model 16 (weight, gradient, two moments), a bf16 model 20 (bf16 weight and
//! gradient, f32 master, gradient sum and two moments).

use slime_config::Train;
use slime_model::ParamStore;
use slime_torch::{AdamW, ParamState, adamw_step, clip_coefficient};
use slime_weights::StorageSpec;
use tch::{Device, Kind, Tensor};

use crate::gradient_groups::GradientGroups;
use crate::{Error, Result};

/// The state of one storage.
#[derive(Debug)]
struct State {
    spec: StorageSpec,
    param: Tensor,
    /// The parameter itself when that is f32 or f64.
    master: Tensor,
    first: Tensor,
    second: Tensor,
    /// The f32 sum of a bf16 parameter's gradients.
    grad_sum: Option<Tensor>,
}

/// The optimizer of one rank; it shares memory with the [`ParamStore`] it was made from.
#[derive(Debug)]
pub struct Optimizer {
    states: Vec<State>,
    step: u64,
}

/// The names of a storage's buffers: `master/<storage>`, `exp_avg/<storage>`, `exp_avg_sq/<storage>`.
const BUFFERS: [&str; 3] = ["master", "exp_avg", "exp_avg_sq"];

impl Optimizer {
    /// Zero moments over what is trained of `params` (f32, bf16, or f64 for tests), whose gradients are switched on.
    ///
    /// # Errors
    /// Another dtype, or no room.
    pub fn new(params: &ParamStore) -> Result<Self> {
        params.set_requires_grad(true);
        let states =
            params.trained().map(|(spec, param)| State::new(spec, param)).collect::<Result<Vec<_>>>()?;
        Ok(Self { states, step: 0 })
    }

    /// Updates done so far.
    pub fn step_count(&self) -> u64 {
        self.step
    }

    /// Continues at this number of updates, after a resume.
    pub fn set_step_count(&mut self, step: u64) {
        self.step = step;
    }

    /// Takes the gradients of a micro-batch: a bf16 gradient moves into its f32 sum, an f32 one is summed by autograd.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn accumulate(&mut self) -> Result<()> {
        tch::no_grad(|| {
            for state in &mut self.states {
                let grad = state.param.f_grad()?;
                if let Some(sum) = state.grad_sum.as_mut().filter(|_| grad.defined()) {
                    let _ = sum.f_add_(&grad.f_to_kind(Kind::Float)?)?;
                    state.param.zero_grad();
                }
            }
            Ok(())
        })
    }

    /// The summed gradients, f32 (f64 of an f64 model), one for each storage; zeros where no gradient arrived.
    fn grads(&self) -> Result<Vec<Tensor>> {
        let grad = |state: &State| {
            if let Some(sum) = &state.grad_sum {
                return Ok(sum.shallow_clone());
            }
            let grad = state.param.f_grad()?;
            Ok(if grad.defined() { grad.f_contiguous()? } else { state.master.f_zeros_like()? })
        };
        self.states.iter().map(grad).collect()
    }

    /// Sums gradients over the ranks and returns them by storage name: in rank order through the host, in NCCL's order
    /// between GPUs.
    ///
    /// # Errors
    /// A failed collective.
    pub(crate) fn reduce_grads(&self, groups: &GradientGroups) -> Result<Vec<(String, Tensor)>> {
        let mut grads = self.grads()?;
        for (state, grad) in self.states.iter().zip(&mut grads) {
            groups.sum(&state.spec, grad)?;
        }
        Ok(self.states.iter().map(|state| state.spec.name.clone()).zip(grads).collect())
    }

    /// One `AdamW` update from reduced gradients, clipped to `train.clip_grad`; gradients are forgotten afterwards.
    /// Returns the norm before clipping.
    ///
    /// # Errors
    /// [`Error::NotFinite`] when the norm is not finite; nothing is changed then.
    pub(crate) fn update(
        &mut self,
        grads: &[(String, Tensor)],
        groups: &GradientGroups,
        train: &Train,
        lr: f64,
    ) -> Result<f64> {
        let specs = self.states.iter().map(|state| &state.spec);
        let norm = groups.norm(specs.zip(grads.iter().map(|(_, grad)| grad)))?;
        if !norm.is_finite() {
            return Err(Error::NotFinite {
                step: self.step,
                what: "gradient norm",
                value: norm,
                samples: vec![],
            });
        }
        let adamw = AdamW {
            lr,
            beta1: train.adam_beta1,
            beta2: train.adam_beta2,
            eps: train.adam_eps,
            weight_decay: train.weight_decay,
        };
        let states: Vec<ParamState> =
            self.states.iter().zip(grads).map(|(s, (_, grad))| s.with(grad)).collect();
        adamw_step(&states, &adamw, self.step + 1, clip_coefficient(norm, train.clip_grad))?;
        self.step += 1;
        self.zero_grads()?;
        Ok(norm)
    }

    /// Forgets the gradients.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn zero_grads(&mut self) -> Result<()> {
        tch::no_grad(|| {
            for state in &mut self.states {
                state.param.zero_grad();
                if let Some(sum) = &mut state.grad_sum {
                    let _ = sum.f_zero_()?;
                }
            }
            Ok(())
        })
    }

    /// The names and sizes (elements of f32) of all state buffers, in a fixed order.
    pub fn buffers(&self) -> Vec<(String, usize)> {
        let names = |state: &State| {
            let (name, len) = (state.spec.name.clone(), state.master.numel());
            BUFFERS.map(|buffer| (format!("{buffer}/{name}"), len))
        };
        self.states.iter().flat_map(names).collect()
    }

    /// The elements of one buffer, flat.
    ///
    /// # Errors
    /// No such buffer.
    pub fn read_buffer(&self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.find(name)?.f_to_device(Device::Cpu)?.f_flatten(0, -1)?;
        Ok(Vec::try_from(tensor)?)
    }

    /// Overwrites one buffer; a master buffer sets the weights of the model too.
    ///
    /// # Errors
    /// No such buffer, or another number of elements.
    pub fn write_buffer(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let mut target = self.find(name)?;
        if target.numel() != values.len() {
            let (expected, got) = (format!("{} elements", target.numel()), values.len().to_string());
            return Err(Error::State { name: name.to_owned(), expected, got });
        }
        tch::no_grad(|| {
            target.f_copy_(&Tensor::f_from_slice(values)?.f_view(target.size().as_slice())?)?;
            if let Some(state) =
                self.states.iter_mut().find(|state| name == format!("master/{}", state.spec.name))
            {
                state.param.f_copy_(&state.master)?;
            }
            Ok(())
        })
    }

    fn find(&self, name: &str) -> Result<Tensor> {
        let missing = || Error::State {
            name: name.to_owned(),
            expected: "a buffer of this model".to_owned(),
            got: "an unknown name".to_owned(),
        };
        let (buffer, storage) = name.split_once('/').ok_or_else(missing)?;
        let state = self.states.iter().find(|state| state.spec.name == storage).ok_or_else(missing)?;
        match buffer {
            "master" => Ok(state.master.shallow_clone()),
            "exp_avg" => Ok(state.first.shallow_clone()),
            "exp_avg_sq" => Ok(state.second.shallow_clone()),
            _ => Err(missing()),
        }
    }
}

impl State {
    fn new(spec: &StorageSpec, param: &Tensor) -> Result<Self> {
        let is_wide = matches!(param.kind(), Kind::Float | Kind::Double);
        let detached = param.f_detach()?;
        let master = if is_wide { detached } else { detached.f_to_kind(Kind::Float)? };
        let zeros = || master.f_zeros_like();
        let (first, second) = (zeros()?, zeros()?);
        let grad_sum = if is_wide { None } else { Some(zeros()?) };
        Ok(Self { spec: spec.clone(), param: param.shallow_clone(), master, first, second, grad_sum })
    }

    fn with<'a>(&'a self, grad: &'a Tensor) -> ParamState<'a> {
        ParamState {
            param: &self.param,
            grad,
            master: &self.master,
            first: &self.first,
            second: &self.second,
        }
    }
}
