//! Log-probs and entropy whose backward computes the logits again, chunk of ids by chunk of ids, so that neither they nor
//! their gradient ever exist for all ids. The gradient of the weight is written once, slice by slice.

use slime_torch::{CustomFunction, Forward, custom_function};
use tch::{Device, Tensor};

use super::chunk::Chunks;
use super::outcome::{Grads, State};
use super::products::{Buffer, add_product};
use super::shaping::{Shaping, check_targets};
use super::shard::{Ids, Shard};
use super::sparse::Sparse;
use super::{refused, wide};
use crate::{Error, Result};

/// Logits held at once, in elements: 16 MB of f32, so a chunk mostly stays in a CPU's caches; tests have few, and several chunks.
const CHUNK_ELEMENTS: i64 = if cfg!(test) { 1 } else { 4 << 20 };
/// The same on a GPU, where a chunk has to be large enough to keep it busy: 512 MB of f32.
const DEVICE_CHUNK_ELEMENTS: i64 = 128 << 20;
/// Ids of a chunk are a multiple of it, for aligned rows.
const CHUNK_STEP: i64 = 64;

/// The same numbers and gradients as `reference`, without the logits of all rows and ids.
///
/// # Errors
/// As `reference`.
pub fn train(
    hidden_rd: &Tensor,
    weight_vd: &Tensor,
    targets_r: &Tensor,
    shaping: &Shaping<'_>,
) -> Result<(Tensor, Tensor)> {
    head(hidden_rd, weight_vd, targets_r, shaping, None)
}

/// The same on a shard of the vocabulary: every rank of the group calls it with the same rows and its own rows of the
/// weight, and gets all log-probs and entropies, the gradient of its weight and that of the hidden states as the shard says.
///
/// # Errors
/// As `reference`; a shard outside the vocabulary; another rank is gone.
pub fn train_sharded(
    hidden_rd: &Tensor,
    weight_nd: &Tensor,
    targets_r: &Tensor,
    shaping: &Shaping<'_>,
    shard: &Shard,
) -> Result<(Tensor, Tensor)> {
    head(hidden_rd, weight_nd, targets_r, shaping, Some(shard))
}

fn head(
    hidden_rd: &Tensor,
    weight_nd: &Tensor,
    targets_r: &Tensor,
    shaping: &Shaping<'_>,
    shard: Option<&Shard>,
) -> Result<(Tensor, Tensor)> {
    let (ids, sparse) = prepare(hidden_rd, weight_nd, targets_r, shaping, shard)?;
    let num_rows = hidden_rd.size2()?.0 as usize;
    // Asked here: within the function nothing requires a gradient.
    let is_trained = weight_nd.requires_grad();
    let function = Head { ids, sparse: sparse(0..num_rows)?, temperature: shaping.temperature, is_trained };
    let outputs = custom_function(&[hidden_rd, weight_nd, targets_r], function)?;
    match outputs.as_slice() {
        [log_probs_r, entropy_r] => Ok((log_probs_r.shallow_clone(), entropy_r.shallow_clone())),
        _ => Err(Error::Context { what: "outputs of the head", expected: 2, got: outputs.len() }),
    }
}

/// Checks what does not depend on values of the model; the ids of the weight, and a maker of lists for a range of rows.
pub(super) fn prepare<'a>(
    hidden_rd: &Tensor,
    weight_nd: &Tensor,
    targets_r: &Tensor,
    shaping: &'a Shaping<'a>,
    shard: Option<&Shard>,
) -> Result<(Ids, impl Fn(std::ops::Range<usize>) -> Result<Sparse> + use<'a>)> {
    let ids = check_weight(hidden_rd, weight_nd, shard)?;
    let num_rows = hidden_rd.size2()?.0 as usize;
    shaping.check(num_rows, ids.vocab)?;
    check_targets(targets_r, num_rows, ids.vocab)?;
    // On the host only where something there depends on them.
    let targets = match shaping.kept {
        Some(_) => Vec::<i64>::try_from(targets_r)?,
        None => Vec::new(),
    };
    let shaping = *shaping;
    Ok((ids, move |rows| Ok(Sparse::new(&shaping, rows, &targets))))
}

/// The ids of a weight that fits the hidden states.
pub(super) fn check_weight(hidden_rd: &Tensor, weight_nd: &Tensor, shard: Option<&Shard>) -> Result<Ids> {
    let is_matrix = |x: &Tensor| x.dim() == 2;
    let fits = is_matrix(hidden_rd) && is_matrix(weight_nd) && hidden_rd.size()[1] == weight_nd.size()[1];
    if !fits || hidden_rd.kind() != weight_nd.kind() || hidden_rd.device() != weight_nd.device() {
        let expected = format!("[ids, d] like the hidden states {hidden_rd:?}");
        return Err(refused("weight of the head", expected, format!("{weight_nd:?}")));
    }
    Ids::new(weight_nd.size2()?.0, shard)
}

struct Head {
    ids: Ids,
    sparse: Sparse,
    temperature: f64,
    /// Whether the weight has a gradient.
    is_trained: bool,
}

impl Head {
    fn chunks<'a>(
        &'a self,
        hidden_rd: &'a Tensor,
        weight_nd: &'a Tensor,
        targets_r: &'a Tensor,
    ) -> Chunks<'a> {
        let (start, sparse) = (self.ids.start, &self.sparse);
        Chunks { hidden_rd, weight_nd, targets_r, start, temperature: self.temperature, sparse }
    }

    fn outputs(&self, inputs: &[Tensor]) -> Result<Forward> {
        let [hidden_rd, weight_nd, targets_r] = inputs else {
            return Err(Error::Context { what: "inputs of the head", expected: 3, got: inputs.len() });
        };
        let (num_rows, device) = (hidden_rd.size2()?.0, hidden_rd.device());
        let chunks = self.chunks(hidden_rd, weight_nd, targets_r);
        let mut state = State::new(num_rows, self.sparse.has_kept(), (wide(hidden_rd.kind()), device))?;
        let mut buffer = Buffer::default();
        for (first, len) in id_chunks(num_rows, self.ids.len, device) {
            chunks.absorb(&state, &chunks.chunk(&mut buffer, first, len)?)?;
        }
        state.all_reduce(&self.ids)?;
        let outcome = state.finish(&self.sparse)?;
        let saved =
            [hidden_rd, weight_nd, targets_r, &outcome.lse_r, &outcome.entropy_r, &outcome.kept_lse_r];
        let saved = saved.map(Tensor::shallow_clone).into();
        Ok(Forward { outputs: vec![outcome.log_probs_r, outcome.entropy_r], saved })
    }

    fn gradients(&self, saved: &[Tensor], grads: &Grads<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let [hidden_rd, weight_nd, targets_r, lse_r, entropy_r, kept_lse_r] = saved else {
            return Err(Error::Context { what: "saved tensors of the head", expected: 6, got: saved.len() });
        };
        let (num_rows, device) = (hidden_rd.size2()?.0, hidden_rd.device());
        let slope = grads.slope([lse_r, entropy_r, kept_lse_r], &self.sparse)?;
        let chunks = self.chunks(hidden_rd, weight_nd, targets_r);
        let mut grad_hidden_rd = Tensor::f_zeros(hidden_rd.size(), (wide(hidden_rd.kind()), device))?;
        let grad_weight_nd = self.is_trained.then(|| weight_nd.f_empty_like()).transpose()?;
        let mut buffer = Buffer::default();
        for (first, len) in id_chunks(num_rows, self.ids.len, device) {
            let grad_rn = chunks.slope(chunks.chunk(&mut buffer, first, len)?, &slope)?;
            add_product(&mut grad_hidden_rd, &grad_rn, &weight_nd.f_narrow(0, first, len)?)?;
            if let Some(grad_weight_nd) = &grad_weight_nd {
                let _ = grad_rn.f_tr()?.f_mm_out(&grad_weight_nd.f_narrow(0, first, len)?, hidden_rd)?;
            }
        }
        self.ids.sum_hidden_grad(&mut grad_hidden_rd)?;
        Ok((grad_hidden_rd.f_to_kind(hidden_rd.kind())?, grad_weight_nd))
    }
}

impl CustomFunction for Head {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        self.outputs(inputs).map_err(|error| error.to_string())
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let [log_probs_r, entropy_r] = grads else { return Err("the head has two outputs".to_owned()) };
        let grads = Grads { log_probs_r: log_probs_r.as_ref(), entropy_r: entropy_r.as_ref() };
        let (hidden, weight) = self.gradients(saved, &grads).map_err(|error| error.to_string())?;
        Ok(vec![Some(hidden), weight, None])
    }
}

/// First id and number of ids of every chunk.
pub(super) fn id_chunks(num_rows: i64, num_ids: i64, device: Device) -> impl Iterator<Item = (i64, i64)> {
    let elements = if device == Device::Cpu { CHUNK_ELEMENTS } else { DEVICE_CHUNK_ELEMENTS };
    let len = (elements / num_rows.max(1) / CHUNK_STEP).max(1) * CHUNK_STEP;
    (0..num_ids).step_by(len as usize).map(move |first| (first, len.min(num_ids - first)))
}
