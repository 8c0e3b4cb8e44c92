//! Log-probs and entropy of target tokens under the output head, in chunks of rows.
//!
//! Suffixes: r rows (tokens whose next token is a target), d hidden size, v vocabulary.

use tch::{Kind, Tensor};

use crate::Result;

/// Logits held at once, in elements (64 MB of f32).
const CHUNK_ELEMENTS: i64 = 16 << 20;

/// `(log_probs_r, entropy_r)` of `targets_r` (i64) under `softmax(hidden_rd W_vd^T / temperature)`, in f32 or f64.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(
    hidden_rd: &Tensor,
    weight_vd: &Tensor,
    targets_r: &Tensor,
    temperature: f64,
) -> Result<(Tensor, Tensor)> {
    let (num_rows, vocab) = (hidden_rd.size2()?.0, weight_vd.size2()?.0);
    let kind = if hidden_rd.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    if num_rows == 0 {
        let empty = Tensor::f_zeros(0, (kind, hidden_rd.device()))?;
        return Ok((empty.shallow_clone(), empty));
    }
    let chunk = (CHUNK_ELEMENTS / vocab).max(1);
    let (mut log_probs, mut entropies) = (Vec::new(), Vec::new());
    for start in (0..num_rows).step_by(chunk as usize) {
        let len = chunk.min(num_rows - start);
        let logits_rv =
            hidden_rd.f_narrow(0, start, len)?.f_linear(weight_vd, None::<&Tensor>)?.f_to_kind(kind)?;
        let logits_rv = logits_rv.f_div_scalar(temperature)?;
        let log_softmax_rv = logits_rv.f_log_softmax(-1, None)?;
        let picked =
            log_softmax_rv.f_gather(1, &targets_r.f_narrow(0, start, len)?.f_unsqueeze(1)?, false)?;
        log_probs.push(picked.f_squeeze_dim(1)?);
        let entropy =
            log_softmax_rv.f_exp()?.f_mul(&log_softmax_rv)?.f_sum_dim_intlist(-1, false, None)?.f_neg()?;
        entropies.push(entropy);
    }
    Ok((Tensor::f_cat(&log_probs, 0)?, Tensor::f_cat(&entropies, 0)?))
}
