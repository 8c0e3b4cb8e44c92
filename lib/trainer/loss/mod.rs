//! Losses: tensor functions over the rows of a micro-batch, one file for each formula.
//!
//! Suffixes: r rows (trained tokens), s sequences (samples of the micro-batch), p pairs. Every loss here is per row,
//! sequence or pair; the denominator is that of [`reducer`].

pub mod correction;
pub mod kl;
pub mod policy_loss;
pub mod preference;
pub mod reducer;
mod sequences;
pub mod sft;
pub mod value_loss;

pub use sequences::Sequences;
