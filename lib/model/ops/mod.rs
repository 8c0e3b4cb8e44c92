//! The operations layers are composed of, one file each; `reference` is the definition on any device, under autograd.

pub mod add_norm;
pub mod attend;
pub mod embed;
pub mod head_log_probs;
pub mod linear;
pub mod paged_attention;
pub mod qk_norm_rope;
pub mod silu_mul;
