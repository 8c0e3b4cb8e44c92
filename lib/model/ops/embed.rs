//! Token ids to rows of the embedding. Suffixes: t tokens, v vocabulary, n ids of a rank, d hidden size.

use tch::Tensor;

use super::head_log_probs::Shard;
use crate::Result;

/// Rows `[t, d]` of `weight_vd` for `tokens_t` (i64).
///
/// # Errors
/// A token is outside the vocabulary.
pub fn reference(weight_vd: &Tensor, tokens_t: &Tensor) -> Result<Tensor> {
    Ok(Tensor::f_embedding(weight_vd, tokens_t, -1, false, false)?)
}

/// The part `[t, d]` of those rows from a rank's ids `weight_nd`: zeros for tokens that other ranks hold, so that the sum
/// over the ranks is the whole.
///
/// # Errors
/// libtorch has no room.
pub fn part(weight_nd: &Tensor, tokens_t: &Tensor, shard: &Shard) -> Result<Tensor> {
    let len = weight_nd.size2()?.0;
    let at_t = tokens_t.f_sub_scalar(shard.start)?;
    let is_own_t = at_t.f_ge(0)?.f_logical_and(&at_t.f_lt(len)?)?;
    let rows_td = reference(weight_nd, &at_t.f_clamp(0, (len - 1).max(0))?)?;
    Ok(rows_td.f_mul(&is_own_t.f_unsqueeze(1)?.f_to_kind(rows_td.kind())?)?)
}
