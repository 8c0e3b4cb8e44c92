//! `[rollout.weights]`: the form in which engines get the weights.

use serde::{Deserialize, Serialize};

use crate::load::RunConfig;
use crate::{Error, Result};

/// A form of matrices in fewer bits; the names are those of `slime-convert --dtype`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightForm {
    /// fp8 with a scale for each block of 128 x 128.
    #[default]
    Fp8Block,
    /// fp8 with one scale for a matrix.
    Fp8Tensor,
    /// Codes of four bits with a scale for each group, as compressed-tensors.
    Int4Ct,
}

/// `[rollout.weights]`: what is published is quantised as it is written, to the bytes of `slime-convert`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineWeights {
    /// `fp8_block`, `fp8_tensor` or `int4_ct`.
    pub form: WeightForm,
    /// Columns that share a scale (`int4_ct`).
    pub group_size: u32,
    /// Whether attention, dense MLPs and shared experts stay as they are.
    pub only_experts: bool,
}

impl Default for EngineWeights {
    fn default() -> Self {
        Self { form: WeightForm::Fp8Block, group_size: 128, only_experts: false }
    }
}

/// That groups can be packed, and that training computes what engines get.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    let weights = config.rollout.weights.as_ref();
    let is_int4 = |weights: &&EngineWeights| weights.form == WeightForm::Int4Ct;
    if let Some(weights) = weights.filter(is_int4)
        && (weights.group_size == 0 || !weights.group_size.is_multiple_of(8))
    {
        let got = weights.group_size;
        return Err(Error::value("rollout.weights.group_size", "a multiple of 8, above 0", got));
    }
    if !config.train.qat {
        return Ok(());
    }
    if !weights.filter(is_int4).is_some_and(|weights| weights.only_experts) {
        let text = "train.qat computes experts as engines have them, in four bits, and everything else as it is: expected \
                    [rollout.weights] with form = \"int4_ct\" and only_experts = true";
        return Err(Error::Conflict(text.to_owned()));
    }
    if config.train.fp8.is_some() {
        return Err(Error::Conflict("[train.fp8] rules out train.qat".to_owned()));
    }
    Ok(())
}
