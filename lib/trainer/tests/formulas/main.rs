//! Every formula: golden values, gradient, invariance, learning; and the README's table of them.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that says what it measured")]

mod golden;
mod gradient;
mod invariance;
mod learns;
mod rollout;
mod table;
