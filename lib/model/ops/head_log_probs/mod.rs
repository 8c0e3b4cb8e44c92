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
mod products;
mod reference;
mod row_kernels;
mod shaping;
mod shard;
mod sparse;
#[cfg(test)]
mod tests;
mod train;

pub use fused::{Fused, Rows, Slopes, chunk_bytes, fused};
pub use products::{product, product_to};
pub use reference::reference;
pub use shaping::{KeptIds, Penalties, Seen, Shaping};
pub use shard::Shard;
pub use train::{train, train_sharded};

use tch::Kind;

use crate::Error;

/// The kind of logits and sums.
fn wide(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

fn refused(what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Argument { what, expected: expected.into(), got: got.into() }
}
