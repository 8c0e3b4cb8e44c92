//! Attention of whole sequences on a GPU, all of them in one call, with a gradient of its own. Suffixes: t tokens, s keys of all
//! sequences, h query heads, g key-value heads, k `head_dim`.
//!
//! `attend` takes queries, keys and values; `train` the fused projection, and computes norms of heads and rotation again for the
//! backward pass, so that nothing but the projection and the result is kept.

use slime_kernel::qk_norm_rope::{Norm, Places};
use slime_kernel::sum_rows::{Lists, sum_rows};
use slime_kernel::{qk_norm_rope, train_rope};
use slime_torch::{
    CustomFunction, Forward, custom_function, varlen_attention_backward, varlen_attention_kept,
};
use tch::Tensor;

use super::qk_norm_rope::{Heads, QkNorm};
use crate::packed_lists::{ListsShape, PackedLists};
use crate::{Error, Result};

/// Attention `[t, h * k]` of `q_thk` over `k_tgk` and `v_tgk`, bf16.
///
/// # Errors
/// libtorch refuses the shapes.
pub(crate) fn attend(lists: &PackedLists, q_thk: &Tensor, k_tgk: &Tensor, v_tgk: &Tensor) -> Result<Tensor> {
    let (shape, tensors) = lists.parts();
    let inputs: Vec<&Tensor> = [q_thk, k_tgk, v_tgk].into_iter().chain(&tensors).collect();
    one(custom_function(&inputs, Attend { shape })?)
}

/// The same of the projection `qkv` `[t, (h + 2 g) k]`; `cos_sin` as `Rope::cos_sin` makes them.
///
/// # Errors
/// Heads that the kernels do not know, shapes that do not fit.
pub(crate) fn train(
    lists: &PackedLists,
    qkv: &Tensor,
    (heads, norm): (Heads, Option<&QkNorm>),
    (cos_tr, sin_tr): &(Tensor, Tensor),
) -> Result<Tensor> {
    let (shape, tensors) = lists.parts();
    let mut inputs = vec![qkv, cos_tr, sin_tr];
    inputs.extend(norm.iter().flat_map(|norm| [&norm.q_k, &norm.k_k]));
    inputs.extend(&tensors);
    one(custom_function(&inputs, Fused { shape, heads, eps: norm.map(|norm| norm.eps) })?)
}

fn one(outputs: Vec<Tensor>) -> Result<Tensor> {
    let got = outputs.len();
    outputs.into_iter().next().ok_or(Error::Context { what: "outputs of attention", expected: 1, got })
}

/// Queries, keys and values.
type Qkv = (Tensor, Tensor, Tensor);

/// The result with what is kept for [`backward`]. Keys and values that several sequences see are gathered for each of them.
fn forward(lists: &PackedLists, (q_thk, k_tgk, v_tgk): &Qkv) -> Result<[Tensor; 4]> {
    let (k, v) = gathered(lists, k_tgk, v_tgk)?;
    Ok(varlen_attention_kept(&q_thk.f_contiguous()?, &k, &v, &lists.chunks)?)
}

/// Gradients of queries, keys and values, each as large as these.
fn backward(lists: &PackedLists, grad_thk: &Tensor, qkv: &Qkv, kept: &[Tensor; 4]) -> Result<Qkv> {
    let (q_thk, k_tgk, v_tgk) = qkv;
    let (k, v) = gathered(lists, k_tgk, v_tgk)?;
    let [grad_q, grad_k, grad_v] =
        varlen_attention_backward(grad_thk, (&q_thk.f_contiguous()?, &k, &v), kept, &lists.chunks)?;
    let Some(shared) = &lists.shared else { return Ok((grad_q, grad_k, grad_v)) };
    let size = k_tgk.size();
    let sum = |grad: &Tensor| {
        let rows = grad.f_contiguous()?.f_flatten(1, 2)?;
        let sums = sum_rows(&rows, Lists::Offsets(&shared.offsets), &shared.key_s, None)?;
        Ok::<_, Error>(sums.f_view(size.as_slice())?)
    };
    Ok((grad_q, sum(&grad_k)?, sum(&grad_v)?))
}

fn gathered(lists: &PackedLists, k_tgk: &Tensor, v_tgk: &Tensor) -> Result<(Tensor, Tensor)> {
    let rows = |x: &Tensor| match &lists.shared {
        Some(shared) => x.f_index_select(0, &shared.token_s),
        None => x.f_contiguous(),
    };
    Ok((rows(k_tgk)?, rows(v_tgk)?))
}

/// What the forward pass saves: its inputs, then the result and what stands behind it.
fn saved(inputs: &[Tensor], result: &Tensor, kept: &[Tensor; 4]) -> Vec<Tensor> {
    inputs.iter().chain([result]).chain(&kept[1..]).map(Tensor::shallow_clone).collect()
}

/// The inputs and, as `[t, h, k]` again, what [`forward`] gave.
fn kept<'a>(saved: &'a [Tensor], size: &[i64]) -> Result<(&'a [Tensor], [Tensor; 4])> {
    let Some((inputs, [out, lse, seed, offset])) = saved.split_last_chunk::<4>() else {
        return Err(Error::Context { what: "saved tensors of attention", expected: 4, got: saved.len() });
    };
    let [lse, seed, offset] = [lse, seed, offset].map(Tensor::shallow_clone);
    Ok((inputs, [out.f_view(size)?, lse, seed, offset]))
}

struct Attend {
    shape: ListsShape,
}

impl Attend {
    fn qkv(&self, inputs: &[Tensor]) -> Result<(Qkv, PackedLists)> {
        let [q, k, v, rest @ ..] = inputs else {
            return Err(Error::Context { what: "inputs of attention", expected: 3, got: inputs.len() });
        };
        let (lists, _) = PackedLists::from_parts(self.shape, rest)?;
        Ok(((q.shallow_clone(), k.shallow_clone(), v.shallow_clone()), lists))
    }

    fn outputs(&self, inputs: &[Tensor]) -> Result<Forward> {
        let (qkv, lists) = self.qkv(inputs)?;
        let kept = forward(&lists, &qkv)?;
        let out = kept[0].f_flatten(1, 2)?;
        Ok(Forward { saved: saved(inputs, &out, &kept), outputs: vec![out] })
    }

    fn gradients(&self, saved: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let size = saved.first().map(Tensor::size).unwrap_or_default();
        let (inputs, kept) = kept(saved, &size)?;
        let (qkv, lists) = self.qkv(inputs)?;
        let (q, k, v) = backward(&lists, &grad.f_contiguous()?.f_view(size.as_slice())?, &qkv, &kept)?;
        Ok([q, k, v].map(Some).into_iter().chain(inputs[3..].iter().map(|_| None)).collect())
    }
}

struct Fused {
    shape: ListsShape,
    heads: Heads,
    /// Of the norms of heads, where there are such.
    eps: Option<f64>,
}

/// The inputs of [`Fused`] by name.
struct Inputs<'a> {
    qkv: &'a Tensor,
    cos_tr: &'a Tensor,
    sin_tr: &'a Tensor,
    norm: Option<Norm<'a>>,
    lists: PackedLists,
}

impl Fused {
    fn inputs<'a>(&self, inputs: &'a [Tensor]) -> Result<Inputs<'a>> {
        let missing = || Error::Context { what: "inputs of attention", expected: 5, got: inputs.len() };
        let [qkv, cos_tr, sin_tr, rest @ ..] = inputs else { return Err(missing()) };
        let (norm, rest) = match (self.eps, rest) {
            (None, rest) => (None, rest),
            (Some(eps), [q_k, k_k, rest @ ..]) => (Some(Norm { q_k, k_k, eps }), rest),
            _ => return Err(missing()),
        };
        let (lists, _) = PackedLists::from_parts(self.shape, rest)?;
        Ok(Inputs { qkv, cos_tr, sin_tr, norm, lists })
    }

    /// Normed and rotated heads.
    fn qkv(&self, inputs: &Inputs<'_>) -> Result<Qkv> {
        let Heads { num_q, num_kv, head_dim, .. } = self.heads;
        let (t, options) = (inputs.qkv.size2()?.0, (inputs.qkv.kind(), inputs.qkv.device()));
        let empty = |heads: i64| Tensor::f_empty([t, heads, head_dim], options);
        let (q, k, v) = (empty(num_q)?, empty(num_kv)?, empty(num_kv)?);
        let Inputs { qkv, cos_tr, sin_tr, norm, lists } = inputs;
        let places = Places { cos_tr, sin_tr, slots_t: &lists.numbers_t };
        qk_norm_rope::serve(qkv, *norm, places, &q, (&k, &v))?;
        Ok((q, k, v))
    }

    fn outputs(&self, tensors: &[Tensor]) -> Result<Forward> {
        let inputs = self.inputs(tensors)?;
        let kept = forward(&inputs.lists, &self.qkv(&inputs)?)?;
        let out = kept[0].f_flatten(1, 2)?;
        Ok(Forward { saved: saved(tensors, &out, &kept), outputs: vec![out] })
    }

    fn gradients(&self, saved: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let size = [-1, self.heads.num_q, self.heads.head_dim];
        let (tensors, kept) = kept(saved, &size)?;
        let inputs = self.inputs(tensors)?;
        let qkv = self.qkv(&inputs)?;
        let (q, k, v) = backward(&inputs.lists, &grad.f_contiguous()?.f_view(size)?, &qkv, &kept)?;
        let [q, k, v] = [q.f_contiguous()?, k.f_contiguous()?, v.f_contiguous()?];
        let angles = (inputs.cos_tr, inputs.sin_tr);
        let grads = train_rope::backward(inputs.qkv, inputs.norm, angles, (&q, &k, &v))?;
        let mut all = vec![Some(grads.qkv), None, None];
        if let Some((q_k, k_k)) = grads.weights {
            all.extend([Some(q_k), Some(k_k)]);
        }
        all.resize_with(tensors.len(), || None);
        Ok(all)
    }
}

macro_rules! custom {
    ($function:ty) => {
        impl CustomFunction for $function {
            fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
                self.outputs(inputs).map_err(|error| error.to_string())
            }

            fn backward(
                &self,
                saved: &[Tensor],
                grads: &[Option<Tensor>],
            ) -> std::result::Result<Vec<Option<Tensor>>, String> {
                let [Some(grad)] = grads else { return Ok((4..saved.len()).map(|_| None).collect()) };
                self.gradients(saved, grad).map_err(|error| error.to_string())
            }
        }
    };
}

custom!(Attend);
custom!(Fused);
