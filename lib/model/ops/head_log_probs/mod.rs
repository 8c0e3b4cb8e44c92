//! Log-probs and entropy of target tokens under the output head, in chunks of the vocabulary.
//!
//! `reference` is the definition; `train` gives its numbers and gradients and never holds the logits of all tokens and ids;
//! `fused` also takes the loss, so that the logits are computed once; `kl` compares two heads over the whole vocabulary.
//! All but the definition run on a shard of the vocabulary too. Suffixes: r rows (tokens whose next token is a target), d
//! hidden size, v vocabulary, n ids of a shard or of a chunk, e entries of a list.

mod chunk;
mod fused;
pub mod kl;
mod outcome;
mod reference;
mod row_kernels;
mod shaping;
mod shard;
mod sparse;
#[cfg(test)]
mod tests;
mod train;

pub use fused::{Fused, Rows, Slopes, fused};
pub use reference::reference;
pub use shaping::{KeptIds, Penalties, Seen, Shaping};
pub use shard::Shard;
pub use train::{train, train_sharded};

use tch::{Kind, Tensor};

use crate::{Error, Result};

/// `hidden_rd W_vd^T` in f32 or f64. Logits of bf16 factors that were rounded to bf16 would be off by a hundredth and more:
/// where the product can give its sums in f32, it does.
///
/// # Errors
/// The shapes do not fit.
pub fn product(hidden_rd: &Tensor, weight_vd: &Tensor) -> Result<Tensor> {
    if gives_wide_sums(hidden_rd) {
        return Ok(hidden_rd.f_mm_dtype(&weight_vd.f_tr()?, Kind::Float)?);
    }
    Ok(hidden_rd.f_linear(weight_vd, None::<&Tensor>)?.f_to_kind(wide(hidden_rd.kind()))?)
}

/// Whether a product of bf16 matrices can leave its sums in f32.
fn gives_wide_sums(factor: &Tensor) -> bool {
    factor.kind() == Kind::BFloat16 && factor.device().is_cuda()
}

/// The kind of logits and sums.
fn wide(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

fn refused(what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Argument { what, expected: expected.into(), got: got.into() }
}
