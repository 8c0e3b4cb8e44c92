//! The exact Kullback-Leibler divergence of a head from another, over the whole vocabulary, in chunks of ids.
//!
//! Backward computes the logits of both again, so neither logits nor their gradient ever exist for all ids.

use slime_comm::Op;
use slime_torch::{CustomFunction, Forward, custom_function};
use tch::Tensor;

use super::products::{Buffer, add_product, product, product_into};
use super::shard::{Ids, Shard};
use super::train::{check_weight, id_chunks};
use super::{refused, wide};
use crate::{Error, Result};

/// Hidden states `[r, d]` and the weight `[v, d]` of a head, or a shard's rows of it.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// What the head reads.
    pub hidden_rd: &'a Tensor,
    /// Its weight.
    pub weight_vd: &'a Tensor,
}

/// Below any logit.
const LOWEST: f64 = -1e30;

/// `KL(policy || reference) = sum_v p (log p - log q)` of every row, `[r]` in f32 or f64, under autograd in both; both
/// distributions at `temperature`.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(policy: Head<'_>, reference: Head<'_>, temperature: f64) -> Result<Tensor> {
    let log_softmax = |head: Head<'_>| {
        let logits_rv = product(head.hidden_rd, head.weight_vd)?.f_div_scalar(temperature)?;
        Ok::<_, Error>(logits_rv.f_log_softmax(-1, None)?)
    };
    let (log_p_rv, log_q_rv) = (log_softmax(policy)?, log_softmax(reference)?);
    Ok(log_p_rv.f_exp()?.f_mul(&log_p_rv.f_sub(&log_q_rv)?)?.f_sum_dim_intlist(-1, false, None)?)
}

/// The same numbers in chunks, with a gradient in the policy's hidden states and weight alone. Both hidden sizes may
/// differ. On a shard both weights are those of the same ids, and every rank gets the whole sum; gradients are as in
/// [`super::train_sharded`].
///
/// # Errors
/// Shapes that do not fit, a temperature that is none, a shard outside the vocabulary; another rank is gone.
pub fn train(
    policy: Head<'_>,
    reference: Head<'_>,
    temperature: f64,
    shard: Option<&Shard>,
) -> Result<Tensor> {
    let ids = check_weight(policy.hidden_rd, policy.weight_vd, shard)?;
    check_weight(reference.hidden_rd, reference.weight_vd, shard)?;
    let size = |head: Head<'_>| [head.hidden_rd.size()[0], head.weight_vd.size()[0]];
    if size(policy) != size(reference) {
        let text = |[rows, ids]: [i64; 2]| format!("{rows} rows and {ids} ids");
        return Err(refused("reference's head", text(size(policy)), text(size(reference))));
    }
    super::Shaping::at(temperature).check(size(policy)[0] as usize, ids.vocab)?;
    let inputs = [policy.hidden_rd, policy.weight_vd, reference.hidden_rd, reference.weight_vd];
    let mut outputs = custom_function(&inputs, Divergence { ids, temperature })?;
    outputs.pop().ok_or(Error::Context { what: "outputs of the divergence", expected: 1, got: 0 })
}

struct Divergence {
    ids: Ids,
    temperature: f64,
}

/// Logits of both heads that lie in memory used again.
#[derive(Default)]
struct Buffers {
    policy: Buffer,
    reference: Buffer,
}

/// Both heads' softmax over what was seen so far, each `[r]`.
struct State {
    /// Largest logits of policy and reference.
    tops: [Tensor; 2],
    /// `sum e^(x - top)` of both.
    sums: [Tensor; 2],
    /// `sum e^(x - top) (x - y)` of the policy's logits x and the reference's y.
    cross: Tensor,
}

impl Divergence {
    /// The logits `[r, n]` of both over the temperature, and the policy's rows of the weight.
    fn logits(
        &self,
        inputs: &[Tensor; 4],
        buffers: &mut Buffers,
        (first, len): (i64, i64),
    ) -> Result<[Tensor; 2]> {
        let [hidden_rd, weight_nd, ref_hidden_rd, ref_weight_nd] = inputs;
        let logits = |buffer: &mut Buffer, hidden_rd: &Tensor, weight_nd: &Tensor| {
            let mut logits_rn = product_into(buffer, hidden_rd, &weight_nd.f_narrow(0, first, len)?)?;
            Ok::<_, Error>(logits_rn.f_div_scalar_(self.temperature)?)
        };
        Ok([
            logits(&mut buffers.policy, hidden_rd, weight_nd)?,
            logits(&mut buffers.reference, ref_hidden_rd, ref_weight_nd)?,
        ])
    }

    fn outputs(&self, inputs: &[Tensor; 4]) -> Result<Forward> {
        let hidden_rd = &inputs[0];
        let num_rows = hidden_rd.size2()?.0;
        let options = (wide(hidden_rd.kind()), hidden_rd.device());
        let filled = |value: f64| Tensor::f_full([num_rows], value, options);
        let mut state = State {
            tops: [filled(LOWEST)?, filled(LOWEST)?],
            sums: [filled(0.0)?, filled(0.0)?],
            cross: filled(0.0)?,
        };
        let mut buffers = Buffers::default();
        for range in id_chunks(num_rows, self.ids.len, hidden_rd.device()) {
            state.absorb(self.logits(inputs, &mut buffers, range)?)?;
        }
        state.all_reduce(&self.ids)?;
        let lse = |at: usize| state.sums[at].f_log()?.f_add(&state.tops[at]);
        let (lse_r, ref_lse_r) = (lse(0)?, lse(1)?);
        let mean_r = state.cross.f_div(&state.sums[0])?;
        let kl_r = mean_r.f_sub(&lse_r.f_sub(&ref_lse_r)?)?;
        let mut saved: Vec<Tensor> = inputs.iter().map(Tensor::shallow_clone).collect();
        saved.extend([lse_r, mean_r]);
        Ok(Forward { outputs: vec![kl_r], saved })
    }

    fn gradients(&self, inputs: &[Tensor; 4], [lse_r, mean_r, grad_r]: [&Tensor; 3]) -> Result<[Tensor; 2]> {
        let [hidden_rd, weight_nd, ..] = inputs;
        let (num_rows, device) = (hidden_rd.size2()?.0, hidden_rd.device());
        let scale_r1 = grad_r.f_div_scalar(self.temperature)?.f_unsqueeze(1)?;
        let mut grad_hidden_rd = Tensor::f_zeros(hidden_rd.size(), (wide(hidden_rd.kind()), device))?;
        let grad_weight_nd = weight_nd.f_empty_like()?;
        let mut buffers = Buffers::default();
        for (first, len) in id_chunks(num_rows, self.ids.len, device) {
            // d KL / d x = p ((x - y) - E[x - y]).
            let [mut x_rn, mut y_rn] = self.logits(inputs, &mut buffers, (first, len))?;
            let difference_rn = y_rn.f_neg_()?.f_add_(&x_rn)?.f_sub_(&mean_r.f_unsqueeze(1)?)?;
            let mut probs_rn = x_rn.f_sub_(&lse_r.f_unsqueeze(1)?)?.f_exp_()?;
            let grad_rn = probs_rn.f_mul_(&difference_rn.shallow_clone().f_mul_(&scale_r1)?)?;
            let grad_rn = grad_rn.f_to_kind(weight_nd.kind())?;
            add_product(&mut grad_hidden_rd, &grad_rn, &weight_nd.f_narrow(0, first, len)?)?;
            let _ = grad_rn.f_tr()?.f_mm_out(&grad_weight_nd.f_narrow(0, first, len)?, hidden_rd)?;
        }
        self.ids.sum_hidden_grad(&mut grad_hidden_rd)?;
        Ok([grad_hidden_rd.f_to_kind(hidden_rd.kind())?, grad_weight_nd])
    }
}

impl State {
    /// Takes a chunk of logits of policy and reference in, and overwrites them.
    fn absorb(&mut self, logits: [Tensor; 2]) -> Result<()> {
        let difference_rn = logits[0].f_sub(&logits[1])?;
        let total = |x: &Tensor| x.f_sum_dim_intlist(-1, false, None);
        for (at, mut logits_rn) in logits.into_iter().enumerate() {
            let top_r = logits_rn.f_amax(-1, false)?.f_maximum(&self.tops[at])?;
            let keep_r = self.tops[at].f_sub(&top_r)?.f_exp()?;
            let mut weights_rn = logits_rn.f_sub_(&top_r.f_unsqueeze(1)?)?.f_exp_()?;
            self.sums[at] = self.sums[at].f_mul(&keep_r)?.f_add(&total(&weights_rn)?)?;
            if at == 0 {
                let cross_r = total(&weights_rn.f_mul_(&difference_rn)?)?;
                self.cross = self.cross.f_mul(&keep_r)?.f_add(&cross_r)?;
            }
            self.tops[at] = top_r;
        }
        Ok(())
    }

    fn all_reduce(&mut self, ids: &Ids) -> Result<()> {
        if !ids.is_sharded() {
            return Ok(());
        }
        let mut tops = Tensor::f_stack(&self.tops, 0)?;
        ids.all_reduce(&mut tops, Op::Max)?;
        let keep = |at: i64| self.tops[at as usize].f_sub(&tops.f_get(at)?)?.f_exp();
        let (keep_r, ref_keep_r) = (keep(0)?, keep(1)?);
        let parts =
            [self.sums[0].f_mul(&keep_r)?, self.sums[1].f_mul(&ref_keep_r)?, self.cross.f_mul(&keep_r)?];
        let mut sums = Tensor::f_stack(&parts, 0)?;
        ids.all_reduce(&mut sums, Op::Sum)?;
        self.tops = [tops.f_get(0)?, tops.f_get(1)?];
        self.sums = [sums.f_get(0)?, sums.f_get(1)?];
        self.cross = sums.f_get(2)?;
        Ok(())
    }
}

/// The first four of the tensors that forward got or saved.
fn first_four(tensors: &[Tensor]) -> std::result::Result<[Tensor; 4], String> {
    match tensors {
        [a, b, c, d, ..] => Ok([a, b, c, d].map(Tensor::shallow_clone)),
        _ => Err("the divergence takes hidden states and weight of two heads".to_owned()),
    }
}

impl CustomFunction for Divergence {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        self.outputs(&first_four(inputs)?).map_err(|error| error.to_string())
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let ([_, _, _, _, lse_r, mean_r], [Some(grad_r)]) = (saved, grads) else {
            return Ok(vec![None, None, None, None]);
        };
        let [hidden, weight] = self
            .gradients(&first_four(saved)?, [lse_r, mean_r, grad_r])
            .map_err(|error| error.to_string())?;
        Ok(vec![Some(hidden), Some(weight), None, None])
    }
}
