//! The TOML schema of a run, layout arithmetic and the Hugging Face config.json.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod hf_config;

pub use hf_config::{Family, HfConfig, HfConfigError, RopeScaling};
