//! `AdamW` over the storages of a model, its state divided over the ranks that hold the same weights (`ZeRO` stage 1).
//!
//! Every rank sums the gradients of its own micro-batches. Then each gets the sum over the ranks of its share of every
//! storage, updates that share of the weights, and all ranks gather the new weights. What an element becomes does not depend
//! on which rank updates it.
//!
//! Bytes for each parameter on one of n ranks: an f32 model 8 + 8/n (weight, gradient; two moments), a bf16 model
//! 8 + 12/n (bf16 weight and gradient, f32 gradient sum; f32 master and two moments). With `train.optimizer_offload` the
//! 12/n, those of an f32 model too, are the host's, which makes the update (ZeRO-Offload, arXiv 2101.06840).

mod buffers;
mod gradients;
mod masters;
mod norm;
mod share;
mod state;

use std::sync::Arc;

use slime_config::Train;
use slime_kernel::adamw;
use slime_model::ParamStore;
use slime_torch::{AdamW, ParamState, adamw_step, clip_coefficient, forget_grad};

use self::gradients::{Gradient, flat_gradient};
use self::state::{State, flat, gather, part};
use crate::gradient_groups::GradientGroups;
use crate::{Error, NotFinite, Result};

pub use self::buffers::Buffer;
pub(crate) use self::buffers::{Replica, missing, read};
pub use self::gradients::Gradients;

/// The optimizer of one rank; it shares memory with the [`ParamStore`] it was made from.
#[derive(Debug)]
pub struct Optimizer {
    states: Vec<State>,
    groups: Arc<GradientGroups>,
    step: u64,
    is_offloaded: bool,
}

impl Optimizer {
    /// Zero moments over what is trained of `params` (f32, bf16, or f64 for tests), whose gradients are switched on. The
    /// state of a storage is divided over the ranks of `groups` that hold the same; `is_offloaded` puts it on the host.
    ///
    /// # Errors
    /// Another dtype, or no room.
    pub(crate) fn new(params: &ParamStore, groups: Arc<GradientGroups>, is_offloaded: bool) -> Result<Self> {
        params.set_requires_grad(true);
        let counts = share::counts(params.trained(), &groups);
        let states = params
            .trained()
            .zip(counts)
            .map(|((spec, param), counts)| State::new(spec, param, counts, groups.of(spec), is_offloaded))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { states, groups, step: 0, is_offloaded })
    }

    /// The ranks that share the state.
    pub(crate) fn groups(&self) -> &GradientGroups {
        &self.groups
    }

    /// Updates done so far.
    pub fn step_count(&self) -> u64 {
        self.step
    }

    /// Takes the gradients of a micro-batch: a bf16 gradient moves into its f32 sum, an f32 one is summed by autograd.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn accumulate(&mut self) -> Result<()> {
        tch::no_grad(|| {
            for state in &mut self.states {
                let grad = state.param.f_grad()?;
                if let Some(sum_n) = state.grad_sum_n.as_mut().filter(|_| grad.defined()) {
                    let _ = sum_n.f_add_(&grad.f_contiguous()?.f_view(-1)?)?;
                    forget_grad(&state.param)?;
                }
            }
            Ok(())
        })
    }

    /// Sums the gradients over the ranks, each rank getting its share.
    ///
    /// # Errors
    /// A failed collective.
    pub fn reduce_grads(&self) -> Result<Gradients> {
        let reduce = |state: &State| {
            let flat_n = match &state.grad_sum_n {
                Some(sum_n) => sum_n.shallow_clone(),
                None => flat_gradient(&state.param)?,
            };
            let size = state.param.size();
            self.groups.sum_copies(&state.spec, &flat_n.f_view(size.as_slice())?)?;
            let group = self.groups.of(&state.spec);
            if group.size() > 1 {
                let mut own_n = part(&flat_n, &state.counts, group.rank())?;
                own_n.f_copy_(&group.reduce_scatter_rows(&flat_n, &state.counts)?)?;
            }
            Ok(Gradient { spec: state.spec.clone(), size, counts: state.counts.clone(), flat_n })
        };
        let all = tch::no_grad(|| self.states.iter().map(reduce).collect::<Result<Vec<_>>>())?;
        Ok(Gradients { groups: self.groups.clone(), all })
    }

    /// One `AdamW` update from reduced gradients, clipped to `train.clip_grad`; gradients are forgotten afterwards.
    /// Returns the norm before clipping.
    ///
    /// # Errors
    /// [`Error::NotFinite`], without samples, when the norm is not finite; nothing is changed then.
    pub fn update(&mut self, grads: &Gradients, train: &Train, lr: f64) -> Result<f64> {
        let norm = norm::norm(grads)?;
        if !norm.is_finite() {
            let (step, what) = (self.step, "gradient norm");
            return Err(Error::NotFinite(NotFinite { step, what, value: norm, samples: vec![] }));
        }
        let rates = AdamW {
            lr,
            beta1: train.adam_beta1,
            beta2: train.adam_beta2,
            eps: train.adam_eps,
            weight_decay: train.weight_decay,
        };
        let shares = grads.shares()?;
        let (step, scale) = (self.step + 1, clip_coefficient(norm, train.clip_grad));
        let mut pairs = self.states.iter().zip(&shares).filter(|(_, grad)| grad.numel() > 0);
        if self.is_offloaded {
            // One storage after the other, so that the host holds one gradient at a time.
            pairs.try_for_each(|(state, grad)| state.update_on_host(grad, &rates, step, scale))?;
        } else {
            let states: Vec<ParamState> = pairs.map(|(state, grad)| state.with(grad)).collect();
            if shares.iter().all(adamw::is_supported) {
                adamw::step(&states, &rates, step, scale).map_err(slime_model::Error::from)?;
            } else {
                adamw_step(&states, &rates, step, scale)?;
            }
        }
        self.step = step;
        self.gather_weights()?;
        self.zero_grads()?;
        Ok(norm)
    }

    /// Every rank gets the weights that the others have updated.
    fn gather_weights(&self) -> Result<()> {
        let gather = |state: &State| gather(&flat(&state.param)?, &state.counts, self.groups.of(&state.spec));
        tch::no_grad(|| self.states.iter().try_for_each(gather))
    }

    /// Forgets the gradients.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn zero_grads(&mut self) -> Result<()> {
        tch::no_grad(|| {
            for state in &mut self.states {
                forget_grad(&state.param)?;
                if let Some(sum_n) = &mut state.grad_sum_n {
                    let _ = sum_n.f_zero_()?;
                }
            }
            Ok(())
        })
    }
}
