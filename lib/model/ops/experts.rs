//! The experts of a mixture over the tokens that were routed to them, none dropped.
//!
//! `reference` runs every expert over every token; `train` sorts (token, expert) pairs by expert, so that each expert runs
//! over its own rows and all of them are one grouped product, and has a gradient of its own. Suffixes: t tokens, k experts
//! of a token, n pairs (t k), d hidden size, e experts, m width of an expert.

use slime_kernel::fake_int4::fake_int4;
use slime_kernel::fp8_cast::{Codes, Copies};
use slime_kernel::silu_mul::{self, ExpertGradients, expert_backward};
use slime_kernel::sum_rows::{Lists, sum_rows};
use slime_torch::{CustomFunction, Forward, custom_function};
use tch::{Kind, Tensor};

use super::fp8::{Caster, Fp8, Mode, Role, grouped_product, one};
use super::grouped_product::{Groups, grouped, grouped_outer};
use super::route::Routed;
use super::{can_serve, can_serve_on_gpu};
use crate::{Error, Result, Workspace};

/// The weights of a layer's experts, shared with their owner.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "counts are called num_*")]
pub struct Experts {
    gate_up: Tensor,
    down: Tensor,
    num_experts: i64,
    /// How the two products compute, where that is in fp8.
    fp8: Option<[Fp8; 2]>,
    /// The size of the groups of four-bit codes that the weights are taken behind, where they are.
    int4_group: Option<i64>,
}

impl Experts {
    /// Experts of the storages `experts_gate_up` `[e 2 m, d]` (for each expert rows gate, up) and `experts_down` `[e d, m]`.
    ///
    /// # Errors
    /// The storages are not of `num_experts` experts.
    pub fn new(gate_up: Tensor, down: Tensor, num_experts: usize) -> Result<Self> {
        let experts = Self { gate_up, down, num_experts: num_experts as i64, fp8: None, int4_group: None };
        experts.matrices().map(|_| experts)
    }

    /// From now on [`train`] computes in fp8; the gradients of the weights, sums over the rows of each expert, stay as they are.
    pub fn set_fp8(&mut self, fp8: Option<[Fp8; 2]>) {
        self.fp8 = fp8;
    }

    /// From now on [`train`] takes the weights as they are behind groups of four-bit codes ([`fake_int4`]), and gives the storages the
    /// gradients of these.
    pub fn set_fake_int4(&mut self, group_size: i64) {
        self.int4_group = Some(group_size);
    }

    /// The storages.
    pub fn weights(&self) -> [&Tensor; 2] {
        [&self.gate_up, &self.down]
    }

    /// `[e, 2 m, d]` and `[e, d, m]`, made anew for every pass so that gradients reach the storages.
    fn matrices(&self) -> Result<(Tensor, Tensor)> {
        let (e, (_, d), (_, m)) = (self.num_experts, self.gate_up.size2()?, self.down.size2()?);
        Ok((self.gate_up.f_view((e, 2 * m, d))?, self.down.f_view((e, d, m))?))
    }
}

/// The weighted sum `[t, d]` of what the experts of each token give, the definition.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(experts: &Experts, x_td: &Tensor, routed: &Routed) -> Result<Tensor> {
    let (gate_up_emd, down_edm) = experts.matrices()?;
    let mut sum_td = x_td.f_zeros_like()?;
    for e in 0..experts.num_experts {
        let is_own_tk = routed.ids_tk.f_eq(e)?.f_to_kind(routed.weights_tk.kind())?;
        let weight_t1 = routed.weights_tk.f_mul(&is_own_tk)?.f_sum_dim_intlist(-1, true, None::<Kind>)?;
        let h = x_td.f_linear(&gate_up_emd.f_select(0, e)?, None::<&Tensor>)?;
        let out_td = super::silu_mul::reference(&h)?.f_linear(&down_edm.f_select(0, e)?, None::<&Tensor>)?;
        sum_td = sum_td.f_add(&out_td.f_mul(&weight_t1.f_to_kind(x_td.kind())?)?)?;
    }
    Ok(sum_td)
}

/// The same numbers and gradients, with work and memory of `k` experts for each token. On CUDA in bf16 nothing is read on
/// the host, so without gradient it runs in a graph; elsewhere the number of rows of each expert is.
///
/// # Errors
/// The shapes do not fit, or there is no room.
pub fn train(experts: &Experts, x_td: &Tensor, routed: &Routed) -> Result<Tensor> {
    let (gate_up_emd, down_edm) = experts.matrices()?;
    let mut inputs = vec![x_td, &routed.weights_tk, &gate_up_emd, &down_edm, &routed.ids_tk];
    inputs.extend(experts.fp8.iter().flatten().flat_map(Fp8::tensors));
    let int4_group = experts.int4_group;
    let fp8 = experts.fp8.as_ref().map(|[of_both, _]| of_both.mode);
    // Asked here: within the function nothing requires a gradient, and training must round alike in all of its passes.
    let read = [x_td, &gate_up_emd, &down_edm];
    let is_served = can_serve(read) || can_serve_on_gpu(read);
    let outputs = custom_function(&inputs, Dispatch { is_served, fp8, int4_group })?;
    match outputs.as_slice() {
        [sum_td] => Ok(sum_td.shallow_clone()),
        _ => Err(Error::Context { what: "outputs of the experts", expected: 1, got: outputs.len() }),
    }
}

/// Pairs (token, expert) in the order of their experts.
struct Order {
    /// The pair (t k + place) at each sorted row, `[n]`.
    pair_n: Tensor,
    /// The token at each sorted row, `[n]`.
    token_n: Tensor,
    /// The sorted row of each pair, `[n]`.
    row_n: Tensor,
    groups: Groups,
    shape: [i64; 2],
}

impl Order {
    fn new(ids_tk: &Tensor, down_edm: &Tensor, kind: Kind) -> Result<Self> {
        let ((t, k), (num_experts, d, m)) = (ids_tk.size2()?, down_edm.size3()?);
        let flat_n = ids_tk.f_reshape([t * k])?;
        // Stable, so the sums of an expert's gradients run over tokens in order. Short numbers are sorted sooner.
        let pair_n = flat_n.f_to_kind(Kind::Int16)?.f_argsort_stable(true, 0, false)?;
        let sorted_n = Tensor::f_arange(t * k, (Kind::Int64, ids_tk.device()))?;
        let row_n = pair_n.f_empty_like()?.f_scatter_(0, &pair_n, &sorted_n)?;
        let token_n = pair_n.f_div_scalar_mode(k, "floor")?;
        let groups = Groups::new(&flat_n.f_index_select(0, &pair_n)?, num_experts, kind, [d, m])?;
        Ok(Self { pair_n, token_n, row_n, groups, shape: [t, k] })
    }

    /// What [`Self::of_tensors`] takes.
    fn tensors(&self) -> [&Tensor; 4] {
        [&self.pair_n, &self.token_n, &self.row_n, self.groups.ends()]
    }

    /// The order that these tensors are of.
    fn of_tensors(tensors: [&Tensor; 4], shape: [i64; 2], down_edm: &Tensor) -> Result<Self> {
        let [pair_n, token_n, row_n, ends_e] = tensors.map(Tensor::shallow_clone);
        let (_, d, m) = down_edm.size3()?;
        let groups = Groups::of_ends(ends_e, down_edm.kind(), [d, m])?;
        Ok(Self { pair_n, token_n, row_n, groups, shape })
    }

    /// Rows of tokens as rows of pairs in sorted order.
    fn scatter(&self, x_td: &Tensor) -> Result<Tensor> {
        Ok(x_td.f_index_select(0, &self.token_n)?)
    }

    /// Sorted rows of pairs as `[t, k, d]`.
    fn gather(&self, y_nd: &Tensor) -> Result<Tensor> {
        let [t, k] = self.shape;
        Ok(y_nd.f_index_select(0, &self.row_n)?.f_view((t, k, y_nd.size2()?.1))?)
    }

    /// The sums `[t, d]` of the sorted rows of each token's pairs.
    fn sum(&self, y_nd: &Tensor) -> Result<Tensor> {
        if has_kernels(y_nd)? {
            return Ok(sum_rows(y_nd, Lists::Even(self.shape[1]), &self.row_n, None)?);
        }
        Ok(self.gather(y_nd)?.f_sum_dim_intlist(1, false, None::<Kind>)?)
    }

    /// The same, each row times the weight of its pair.
    fn weighted_sum(&self, y_nd: &Tensor, weights_tk: &Tensor) -> Result<Tensor> {
        if has_kernels(y_nd)? {
            let weights_n = weights_tk.f_reshape([-1])?;
            return Ok(sum_rows(y_nd, Lists::Even(self.shape[1]), &self.row_n, Some(&weights_n))?);
        }
        let weight_n1 = self.weights(weights_tk)?.f_unsqueeze(1)?.f_to_kind(y_nd.kind())?;
        self.sum(&y_nd.f_mul(&weight_n1)?)
    }

    /// Weights of tokens as those of sorted pairs, `[n]`.
    fn weights(&self, weights_tk: &Tensor) -> Result<Tensor> {
        Ok(weights_tk.f_reshape([-1])?.f_index_select(0, &self.pair_n)?)
    }
}

/// Whether the kernels of a GPU take rows like these.
fn has_kernels(rows_nd: &Tensor) -> Result<bool> {
    let (kind, device) = (rows_nd.kind(), rows_nd.device());
    let width = rows_nd.size2()?.1;
    Ok(slime_kernel::sum_rows::is_supported(kind, width, device) && rows_nd.is_contiguous())
}

/// Number of tensors of an [`Order`], and of what is saved beside the inputs.
const NUM_SAVED: usize = 5;

struct Dispatch {
    /// Whether the fast gate may be taken.
    is_served: bool,
    /// Which values have one scale, where products are in fp8.
    fp8: Option<Mode>,
    /// The groups of four-bit codes that weights are taken behind, where they are.
    int4_group: Option<i64>,
}

/// The matrices of all experts in a product, and how it computes.
struct Matrices<'a> {
    weight_eoi: &'a Tensor,
    fp8: Option<Caster<'a>>,
}

impl Matrices<'_> {
    /// `[n, o]` of the rows `[n, i]`.
    fn forward(&self, x_ni: &Tensor, groups: &Groups) -> Result<Tensor> {
        match &self.fp8 {
            None => grouped(x_ni, &self.weight_eoi.f_transpose(1, 2)?, groups),
            Some(caster) => {
                Self::in_fp8(caster, (x_ni, Role::Input), (self.weight_eoi, Copies::Rows), groups)
            }
        }
    }

    /// The gradient `[n, i]` of the rows from that of the result, `[n, o]`.
    fn backward(&self, grad_no: &Tensor, groups: &Groups) -> Result<Tensor> {
        match &self.fp8 {
            None => grouped(grad_no, self.weight_eoi, groups),
            Some(caster) => {
                Self::in_fp8(caster, (grad_no, Role::Gradient), (self.weight_eoi, Copies::Columns), groups)
            }
        }
    }

    fn in_fp8(
        caster: &Caster<'_>,
        (rows, role): (&Tensor, Role),
        (weight, copies): (&Tensor, Copies),
        groups: &Groups,
    ) -> Result<Tensor> {
        let weight = one(caster.codes(weight, Role::Weight, copies)?)?;
        let Codes { codes, scales } = one(caster.codes(rows, role, Copies::Rows)?)?;
        let codes = codes.f_narrow(0, 0, rows.size2()?.0)?;
        grouped_product(&Codes { codes, scales }, &weight, groups, rows.kind())
    }
}

fn parts(tensors: &[Tensor]) -> Result<(&[Tensor; 5], &[Tensor])> {
    match tensors.split_first_chunk::<5>() {
        Some(parts) => Ok(parts),
        None => Err(Error::Context { what: "inputs of the experts", expected: 5, got: tensors.len() }),
    }
}

impl Dispatch {
    /// Tensors of scales among the inputs.
    fn num_scales(&self) -> usize {
        if self.fp8.is_some_and(|mode| mode != Mode::Block) { 4 } else { 0 }
    }

    /// A storage as the products take it. It is made anew in the backward pass rather than kept.
    fn taken(&self, weight: &Tensor) -> Result<Tensor> {
        match self.int4_group {
            Some(group_size) => Ok(fake_int4(weight, group_size)?),
            None => Ok(weight.shallow_clone()),
        }
    }

    /// Both products.
    fn matrices<'a>(
        &self,
        [gate_up, down]: [&'a Tensor; 2],
        scales: &'a [Tensor],
    ) -> Result<[Matrices<'a>; 2]> {
        let (of_gate_up, of_down) = scales.split_at(scales.len() / 2);
        let with = |weight_eoi, scales| {
            let fp8 = self.fp8.map(|mode| Caster::new(mode, scales, true)).transpose()?;
            Ok::<_, Error>(Matrices { weight_eoi, fp8 })
        };
        Ok([with(gate_up, of_gate_up)?, with(down, of_down)?])
    }

    fn outputs(&self, inputs: &[Tensor]) -> Result<Forward> {
        let ([x_td, weights_tk, gate_up_emd, down_edm, ids_tk], scales) = parts(inputs)?;
        let (gate_up_emd, down_edm) = (self.taken(gate_up_emd)?, self.taken(down_edm)?);
        let [gate_up, down] = self.matrices([&gate_up_emd, &down_edm], scales)?;
        let order = Order::new(ids_tk, &down_edm, x_td.kind())?;
        let h = gate_up.forward(&order.scatter(x_td)?, &order.groups)?;
        let act_nm = if self.is_served || x_td.device().is_cuda() {
            super::silu_mul::silu_mul(&Workspace::default(), &h)?
        } else {
            super::silu_mul::reference(&h)?
        };
        let out_nd = down.forward(&act_nm, &order.groups)?;
        let sum_td = order.weighted_sum(&out_nd, weights_tk)?;
        let saved = inputs.iter().chain([&h]).chain(order.tensors()).map(Tensor::shallow_clone).collect();
        Ok(Forward { outputs: vec![sum_td], saved })
    }

    fn gradients(&self, saved: &[Tensor], grad_td: &Tensor) -> Result<[Tensor; 4]> {
        let ([x_td, weights_tk, gate_up_emd, down_edm, _], rest) = parts(saved)?;
        let Some((scales, [h, a, b, c, d])) = rest.split_last_chunk::<NUM_SAVED>() else {
            let (expected, got) = (NUM_SAVED, rest.len());
            return Err(Error::Context { what: "saved tensors of the experts", expected, got });
        };
        let (gate_up_emd, down_edm) = (self.taken(gate_up_emd)?, self.taken(down_edm)?);
        let [gate_up, down] = self.matrices([&gate_up_emd, &down_edm], scales)?;
        let ((t, k), kind) = (weights_tk.size2()?, x_td.kind());
        let order = Order::of_tensors([a, b, c, d], [t, k], &down_edm)?;
        let grad_nd = order.scatter(grad_td)?;
        // Of the activation as if every weight were 1: times the activation that is the slope of the weight.
        let slope_nm = down.backward(&grad_nd, &order.groups)?;
        let weight_n = order.weights(weights_tk)?;
        let Gate { grad_h, act_nm, is_weighted, grad_weight_n } = Gate::new(h, &slope_nm, &weight_n)?;
        drop(slope_nm);
        let grad_weights_tk = order.gather(&grad_weight_n.f_unsqueeze(1)?)?.f_view((t, k))?;
        let grad_nd =
            if is_weighted { grad_nd } else { grad_nd.f_mul(&weight_n.f_unsqueeze(1)?.f_to_kind(kind)?)? };
        let grad_down_edm = grouped_outer(&grad_nd, &act_nm, &order.groups)?;
        drop((grad_nd, act_nm));
        let grad_gate_up_emd = grouped_outer(&grad_h, &order.scatter(x_td)?, &order.groups)?;
        let grad_x_td = order.sum(&gate_up.backward(&grad_h, &order.groups)?)?;
        Ok([grad_x_td, grad_weights_tk, grad_gate_up_emd, grad_down_edm])
    }
}

/// The backward pass of the gate.
struct Gate {
    /// Gradient of gate and up, `[n, 2 m]`.
    grad_h: Tensor,
    /// The activation, `[n, m]`.
    act_nm: Tensor,
    /// Whether it is times the weight of its pair.
    is_weighted: bool,
    /// Gradient of the weights, `[n]`.
    grad_weight_n: Tensor,
}

impl Gate {
    /// From gate and up `h`, the gradient of the activation as if every weight were 1, and the weights.
    fn new(h: &Tensor, slope_nm: &Tensor, weight_n: &Tensor) -> Result<Self> {
        if silu_mul::is_supported(h.kind(), slope_nm.size2()?.1, h.device()) {
            let ExpertGradients { gate_up, weighted_nm, weight_n } = expert_backward(h, slope_nm, weight_n)?;
            let (grad_h, act_nm, grad_weight_n) = (gate_up, weighted_nm, weight_n);
            return Ok(Self { grad_h, act_nm, is_weighted: true, grad_weight_n });
        }
        let m = h.size2()?.1 / 2;
        let weight_n1 = weight_n.f_unsqueeze(1)?.f_to_kind(h.kind())?;
        let (gate, up) = (h.f_narrow(1, 0, m)?, h.f_narrow(1, m, m)?);
        let sigmoid = gate.f_sigmoid()?;
        let silu = gate.f_mul(&sigmoid)?;
        let act_nm = silu.f_mul(&up)?;
        let grad_weight_n = slope_nm.f_mul(&act_nm)?.f_sum_dim_intlist(-1, false, weight_n.kind())?;
        let slope_nm = slope_nm.f_mul(&weight_n1)?;
        // silu' = s + silu (1 - s).
        let silu_slope = sigmoid.f_add(&silu.f_mul(&sigmoid.f_neg()?.f_add_scalar(1.0)?)?)?;
        let grad_h = Tensor::f_cat(&[slope_nm.f_mul(&up)?.f_mul(&silu_slope)?, slope_nm.f_mul(&silu)?], 1)?;
        Ok(Self { grad_h, act_nm, is_weighted: false, grad_weight_n })
    }
}

impl CustomFunction for Dispatch {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        self.outputs(inputs).map_err(|error| error.to_string())
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let num_scales = self.num_scales();
        let [Some(grad_td)] = grads else { return Ok((0..5 + num_scales).map(|_| None).collect()) };
        let grads = self.gradients(saved, grad_td).map_err(|error| error.to_string())?;
        Ok(grads.into_iter().map(Some).chain((0..=num_scales).map(|_| None)).collect())
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn wave(size: &[i64], step: f64) -> Tensor {
        let count: i64 = size.iter().product();
        (Tensor::arange(count, (Kind::Double, Device::Cpu)) * step).sin().view(size)
    }

    /// Six experts, of which the last gets no token; the second token goes twice to the same.
    fn case() -> (Experts, Tensor, Routed) {
        let (e, d, m) = (6, 5, 3);
        let leaf = |x: Tensor| x.set_requires_grad(true);
        let gate_up = leaf(wave(&[e * 2 * m, d], 12.9898));
        let experts = Experts::new(gate_up, leaf(wave(&[e * d, m], 78.233)), 6).unwrap();
        let ids_tk = Tensor::from_slice(&[4i64, 0, 2, 2, 1, 4, 3, 0]).view([4, 2]);
        (experts, leaf(wave(&[4, d], 4.137)), Routed { ids_tk, weights_tk: leaf(wave(&[4, 2], 3.77)) })
    }

    #[test]
    fn sorted_experts_give_numbers_and_gradients_of_the_definition() {
        let of = |op: fn(&Experts, &Tensor, &Routed) -> Result<Tensor>| {
            let (experts, x, routed) = case();
            let out = op(&experts, &x, &routed).unwrap();
            (&out * wave(&[4, 5], 1.7)).sum(None).backward();
            let leaves = [&x, &routed.weights_tk, &experts.gate_up, &experts.down];
            std::iter::once(out.detach()).chain(leaves.map(Tensor::grad)).collect::<Vec<_>>()
        };
        for (at, (a, b)) in of(reference).into_iter().zip(of(train)).enumerate() {
            let diff = (a - b).abs().max().double_value(&[]);
            assert!(diff < 1e-12, "{at} differs by {diff}");
        }
    }

    #[test]
    fn expert_without_tokens_has_a_gradient_of_zeros() {
        let (experts, x, routed) = case();
        train(&experts, &x, &routed).unwrap().sum(None).backward();
        let most = |e: i64| experts.down.grad().narrow(0, 5 * e, 5).abs().max().double_value(&[]);
        assert!(most(5) <= 0.0);
        assert!(most(4) > 0.0);
    }

    /// Numbers from -2 to 2.
    fn drawn(size: &[i64], seed: i64) -> Tensor {
        let len = size.iter().product::<i64>();
        let at = Tensor::arange(len, (Kind::Double, Device::Cpu)) * 12.9898 + seed as f64;
        ((at.sin() * 43_758.545_3).frac() * 2.0).view(size)
    }

    /// Three experts of widths that fp8 takes; one gets no token.
    fn wide_case(fp8: Option<Mode>) -> (Experts, Tensor, Routed) {
        let (e, d, m) = (3, 64, 32);
        let leaf = |x: Tensor| x.set_requires_grad(true);
        let (gate_up, down) = (leaf(drawn(&[e * 2 * m, d], 1)), leaf(drawn(&[e * d, m], 2)));
        let mut experts = Experts::new(gate_up, down, 3).unwrap();
        let state = || {
            let of = |value| Tensor::full([12], value, (Kind::Float, Device::Cpu));
            Some([of(1.0 / 448.0), of(0.0)])
        };
        experts.set_fp8(
            fp8.map(|mode| [0, 1].map(|_| Fp8 { mode, state: state().filter(|_| mode != Mode::Block) })),
        );
        let ids_tk = Tensor::from_slice(&[0i64, 2, 2, 0, 0, 2, 2, 0, 2, 0]).view([5, 2]);
        (experts, leaf(drawn(&[5, d], 3)), Routed { ids_tk, weights_tk: leaf(drawn(&[5, 2], 4)) })
    }

    #[test]
    fn experts_in_fp8_are_near_those_without() {
        let of = |fp8: Option<Mode>| {
            let (experts, x, routed) = wide_case(fp8);
            let out = train(&experts, &x, &routed).unwrap();
            (&out * drawn(&[5, 64], 5)).sum(None).backward();
            let leaves = [&x, &routed.weights_tk, &experts.gate_up, &experts.down];
            std::iter::once(out.detach()).chain(leaves.map(Tensor::grad)).collect::<Vec<_>>()
        };
        let expected = of(None);
        for mode in [Mode::Block, Mode::Own] {
            for (at, (got, expected)) in of(Some(mode)).iter().zip(&expected).enumerate() {
                let apart = ((got - expected).norm() / expected.norm()).double_value(&[]);
                // Errors of up to four products come together.
                assert!(apart > 0.005 && apart < 0.13, "{mode:?}, {at}: {apart}");
            }
        }
    }

    #[test]
    fn storages_of_another_number_of_experts_are_refused() {
        assert!(Experts::new(wave(&[10, 4], 1.0), wave(&[8, 3], 1.0), 3).is_err());
    }
}
