//! Token ids to rows of the embedding. Suffixes: t tokens, v vocabulary, d hidden size.

use tch::Tensor;

use crate::Result;

/// Rows `[t, d]` of `weight_vd` for `tokens_t` (i64).
///
/// # Errors
/// A token is outside the vocabulary.
pub fn reference(weight_vd: &Tensor, tokens_t: &Tensor) -> Result<Tensor> {
    Ok(Tensor::f_embedding(weight_vd, tokens_t, -1, false, false)?)
}
