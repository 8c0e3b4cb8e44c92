//! A loss over tokens whose slopes are known as soon as the log-probs are: logits are computed once, chunk of rows by chunk
//! of rows, and leave their gradient behind, three products in all where `train` takes four.

use slime_torch::{CustomFunction, Forward, custom_function};
use tch::{Device, Kind, Tensor};

use super::chunk::Chunks;
use super::outcome::{Grads, Outcome, State};
use super::products::{Buffer, add_product, packed_elements};
use super::shaping::Shaping;
use super::shard::{Ids, Shard};
use super::train::prepare;
use super::wide;
use crate::{Error, Result};

/// Logits held at once, in elements: 640 MB of f32. A chunk of rows has all ids, and the more rows, the less often the
/// gradient of the weight is read and written. Tests have few, and several chunks.
const CHUNK_ELEMENTS: i64 = if cfg!(test) { 500 } else { 160 << 20 };
/// The same on a GPU: 1 GB of f32.
const DEVICE_CHUNK_ELEMENTS: i64 = 256 << 20;
/// Rows of a chunk are a multiple of it where there are that many, for the products.
const CHUNK_STEP: i64 = 64;

/// Rows whose log-probs and entropy are known.
#[derive(Debug)]
pub struct Rows<'a> {
    /// The number of the first.
    pub start: i64,
    /// Their log-probs, without gradient.
    pub log_probs_r: &'a Tensor,
    /// Their entropy, without gradient.
    pub entropy_r: &'a Tensor,
}

/// What a loss makes of them.
#[derive(Debug)]
pub struct Slopes {
    /// Their part of the loss, one number.
    pub loss: Tensor,
    /// Its slope in each log-prob, `[r]`.
    pub log_probs_r: Tensor,
    /// Its slope in each entropy, `[r]`; `None` where it has none.
    pub entropy_r: Option<Tensor>,
}

/// A loss and what it was made of.
#[derive(Debug)]
pub struct Fused {
    /// The sum of all parts, one number in f32 or f64, under autograd.
    pub loss: Tensor,
    /// `[r]`, without gradient.
    pub log_probs_r: Tensor,
    /// `[r]`, without gradient.
    pub entropy_r: Tensor,
}

/// The loss that `slopes` makes of the log-probs and entropy of `reference`, for losses that are sums over rows: `slopes`
/// is called for one chunk of rows after the other, so its denominator has to be known beforehand. The gradients are those
/// of `reference` under that loss. They are computed here, where the hidden states or the weight want one (that of a weight
/// only where it wants one); backward only multiplies them. Sharded, every rank has to give the same slopes.
///
/// # Errors
/// As `reference`, and those of `slopes`.
pub fn fused<E: From<Error>>(
    hidden_rd: &Tensor,
    weight_nd: &Tensor,
    targets_r: &Tensor,
    (shaping, shard): (&Shaping<'_>, Option<&Shard>),
    slopes: &mut dyn FnMut(Rows<'_>) -> std::result::Result<Slopes, E>,
) -> std::result::Result<Fused, E> {
    let (ids, sparse_of) = prepare(hidden_rd, weight_nd, targets_r, shaping, shard)?;
    let is_weight_tracked = is_tracked(weight_nd)?;
    let needs_grad = is_weight_tracked || is_tracked(hidden_rd)?;
    let mut sums = tch::no_grad(|| Sums::new(hidden_rd, weight_nd, needs_grad.then_some(is_weight_tracked)))?;
    let mut buffer = Buffer::default();
    for (start, len) in row_chunks(hidden_rd.size()[0], ids.mean_len(), hidden_rd.device()) {
        let sparse = sparse_of(start as usize..(start + len) as usize)?;
        let rows = |x: &Tensor| x.detach().f_narrow(0, start, len).map_err(Error::from);
        let (hidden_rd, weight_nd, targets_r) = (rows(hidden_rd)?, weight_nd.detach(), rows(targets_r)?);
        let chunks = Chunks {
            hidden_rd: &hidden_rd,
            weight_nd: &weight_nd,
            targets_r: &targets_r,
            start: ids.start,
            temperature: shaping.temperature,
            sparse: &sparse,
        };
        let chunk = chunks.chunk(&mut buffer, 0, ids.len)?;
        let mut state = State::new(len, sparse.has_kept(), (wide(hidden_rd.kind()), hidden_rd.device()))?;
        chunks.absorb(&state, &chunk)?;
        state.all_reduce(&ids)?;
        let outcome = state.finish(&sparse)?;
        let (log_probs_r, entropy_r) = (&outcome.log_probs_r, &outcome.entropy_r);
        let slopes = slopes(Rows { start, log_probs_r, entropy_r })?;
        tch::no_grad(|| -> Result<()> {
            if needs_grad {
                let grads =
                    Grads { log_probs_r: Some(&slopes.log_probs_r), entropy_r: slopes.entropy_r.as_ref() };
                let known = [&outcome.lse_r, &outcome.entropy_r, &outcome.kept_lse_r];
                let grad_rn = chunks.slope(chunk, &grads.slope(known, &sparse)?)?;
                sums.add_grad(&grad_rn, &chunks, start)?;
            }
            sums.add(&slopes.loss, &outcome, start)
        })?;
    }
    Ok(sums.finish(hidden_rd, weight_nd, &ids)?)
}

/// Whether autograd would follow what is computed from a tensor here.
fn is_tracked(tensor: &Tensor) -> Result<bool> {
    Ok(tensor.f_alias()?.requires_grad())
}

/// Bytes that [`fused`] holds at most beside its inputs and their gradients, for hidden states `[r, d]` of a kind and `n` ids:
/// the logits of a chunk with what their product needs on the way.
pub fn chunk_bytes([r, d, n]: [i64; 3], kind: Kind, is_gpu: bool) -> u64 {
    let rows = r.min(chunk_rows(n, is_gpu));
    let product = match kind {
        _ if is_gpu => 2 * rows * n,
        Kind::BFloat16 => 2 * (rows * n).max(n * d),
        _ => packed_elements([rows, d, n]) * 4,
    };
    (4 * rows * n + product) as u64
}

/// Rows of a chunk of `num_ids` ids, where there are so many.
fn chunk_rows(num_ids: i64, is_gpu: bool) -> i64 {
    let elements = if is_gpu { DEVICE_CHUNK_ELEMENTS } else { CHUNK_ELEMENTS };
    let most = (elements / num_ids.max(1)).max(1);
    if most > CHUNK_STEP { most / CHUNK_STEP * CHUNK_STEP } else { most }
}

/// First row and number of rows of every chunk; ranks that share a vocabulary get the same.
fn row_chunks(num_rows: i64, num_ids: i64, device: Device) -> impl Iterator<Item = (i64, i64)> {
    let len = chunk_rows(num_ids, device != Device::Cpu);
    (0..num_rows).step_by(len as usize).map(move |start| (start, len.min(num_rows - start)))
}

/// Gradients of the hidden states and, where it wants one, of the weight.
struct Gradients {
    hidden_rd: Tensor,
    weight_nd: Option<Tensor>,
}

/// What the chunks add up to.
struct Sums {
    loss: Tensor,
    log_probs_r: Tensor,
    entropy_r: Tensor,
    /// In f32 or f64.
    grads: Option<Gradients>,
}

impl Sums {
    /// Zeros; `has_weight` says whether there are gradients, and among them that of the weight.
    fn new(hidden_rd: &Tensor, weight_nd: &Tensor, has_weight: Option<bool>) -> Result<Self> {
        let options = (wide(hidden_rd.kind()), hidden_rd.device());
        let zeros = |size: &[i64]| Tensor::f_zeros(size, options);
        let num_rows = hidden_rd.size2()?.0;
        let gradients = |has_weight: bool| {
            let of_weight = has_weight.then(|| zeros(&weight_nd.size()));
            Ok::<_, Error>(Gradients {
                hidden_rd: zeros(&hidden_rd.size())?,
                weight_nd: of_weight.transpose()?,
            })
        };
        let grads = has_weight.map(gradients).transpose()?;
        Ok(Self {
            loss: zeros(&[])?,
            log_probs_r: zeros(&[num_rows])?,
            entropy_r: zeros(&[num_rows])?,
            grads,
        })
    }

    fn add(&mut self, loss: &Tensor, outcome: &Outcome, start: i64) -> Result<()> {
        let _ = self.loss.f_add_(&loss.f_detach()?)?;
        for (all_r, chunk_r) in
            [(&self.log_probs_r, &outcome.log_probs_r), (&self.entropy_r, &outcome.entropy_r)]
        {
            all_r.f_narrow(0, start, chunk_r.size1()?)?.f_copy_(chunk_r)?;
        }
        Ok(())
    }

    fn add_grad(&mut self, grad_rn: &Tensor, chunks: &Chunks<'_>, start: i64) -> Result<()> {
        let Some(grads) = &mut self.grads else { return Ok(()) };
        let mut rows_rd = grads.hidden_rd.f_narrow(0, start, grad_rn.size2()?.0)?;
        add_product(&mut rows_rd, grad_rn, chunks.weight_nd)?;
        match &mut grads.weight_nd {
            Some(weight_nd) => add_product(weight_nd, &grad_rn.f_tr()?, chunks.hidden_rd),
            None => Ok(()),
        }
    }

    fn finish(self, hidden_rd: &Tensor, weight_nd: &Tensor, ids: &Ids) -> Result<Fused> {
        let Self { loss, log_probs_r, entropy_r, grads } = self;
        let Some(mut grads) = grads else {
            return Ok(Fused { loss, log_probs_r, entropy_r });
        };
        tch::no_grad(|| ids.sum_hidden_grad(&mut grads.hidden_rd))?;
        let inputs: Vec<&Tensor> =
            [hidden_rd, weight_nd, &loss, &grads.hidden_rd].into_iter().chain(&grads.weight_nd).collect();
        let carried = Carried { kinds: [hidden_rd.kind(), weight_nd.kind()] };
        let loss = custom_function(&inputs, carried)?.pop();
        let loss = loss.ok_or(Error::Context { what: "outputs of the head's loss", expected: 1, got: 0 })?;
        Ok(Fused { loss, log_probs_r, entropy_r })
    }
}

/// Gives a loss the gradients that were computed with it.
struct Carried {
    /// Of the hidden states and the weight.
    kinds: [Kind; 2],
}

impl CustomFunction for Carried {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        let [_, _, loss, grads @ ..] = inputs else {
            return Err("the head's loss takes hidden states, weight, loss and gradients".to_owned());
        };
        let loss = loss.f_detach_copy().map_err(|error| error.to_string())?;
        let saved = grads.iter().map(Tensor::shallow_clone).collect();
        Ok(Forward { outputs: vec![loss], saved })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let mut all: Vec<Option<Tensor>> = (0..3 + saved.len()).map(|_| None).collect();
        let [Some(grad)] = grads else { return Ok(all) };
        let times_grad = |(saved, kind): (&Tensor, Kind)| {
            let product = Tensor::f_empty(saved.size(), (kind, saved.device()))?;
            saved.f_mul_out(&product, grad)
        };
        for (place, saved) in all.iter_mut().zip(saved.iter().zip(self.kinds)) {
            *place = Some(times_grad(saved).map_err(|error| error.to_string())?);
        }
        Ok(all)
    }
}
