//! Every formula: golden values, gradient, invariance, learning; and the README's table of them.
#![allow(clippy::unwrap_used, reason = "a test")]

mod golden;
mod gradient;
mod invariance;
mod learns;
mod rollout;
mod table;
