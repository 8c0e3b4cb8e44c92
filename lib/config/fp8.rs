//! `[train.fp8]`: matrix products of a training in fp8.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::Result;
use crate::data::Dtype;
use crate::load::RunConfig;
use crate::run::Device;

/// Which values have one scale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fp8Scaling {
    /// The whole tensor, by its largest magnitude in earlier steps (Transformer Engine's delayed scaling, its format `HYBRID`).
    #[default]
    Tensor,
    /// 1 x 128 values of activations and gradients, 128 x 128 of weights (DeepSeek-V3, arXiv 2412.19437, section 3.3); of experts
    /// each row.
    Block,
}

/// `[train.fp8]`: the products of attention, MLPs and experts take fp8 in place of the model's dtype. Embedding, head, router, norms
/// and the layer for further tokens stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fp8 {
    /// `tensor` or `block`.
    pub scaling: Fp8Scaling,
    /// Optimizer steps whose largest magnitudes `tensor` looks back on.
    pub amax_history_len: u32,
}

impl Default for Fp8 {
    fn default() -> Self {
        Self { scaling: Fp8Scaling::Tensor, amax_history_len: 16 }
    }
}

/// That products in fp8 are possible where training runs.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    let Some(fp8) = &config.train.fp8 else { return Ok(()) };
    if !(1..=1024).contains(&fp8.amax_history_len) {
        return Err(Error::value("train.fp8.amax_history_len", "1 to 1024", fp8.amax_history_len));
    }
    if config.run.device == Device::Cuda && config.model.dtype != Dtype::Bf16 {
        return Err(Error::Conflict(
            "[train.fp8] on a GPU needs model.dtype \"bf16\": the products give bf16".to_owned(),
        ));
    }
    Ok(())
}
