//! `[train]`: how weights are updated.

use serde::{Deserialize, Serialize};

use crate::fp8::Fp8;
use crate::lora::Lora;

/// The learning rate over optimizer steps, after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// `lr` throughout.
    Constant,
    /// Straight from `lr` to `min_lr`.
    Linear,
    /// Half a cosine from `lr` to `min_lr`.
    Cosine,
}

/// Which activations are dropped in the forward pass and computed again for the backward pass (Megatron's
/// `recompute_granularity`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// None: the most memory, the least work.
    #[default]
    None,
    /// Those between the products of a layer: norms of heads, rotation, attention, the gate of the MLP.
    Selective,
    /// All of a layer but the residual before it: a third more work.
    Full,
}

/// `[train]`: the optimizer and its batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// Samples of one optimizer step; part of the batch identity.
    pub global_batch_size: Option<u32>,
    /// Optimizer steps of one rollout; part of the batch identity.
    pub num_steps_per_rollout: Option<u32>,
    /// Tokens of one packed micro-batch on one rank; context-parallel ranks have as many times the tokens in one (a longer group is a micro-batch by itself).
    pub max_tokens_per_gpu: u32,
    /// `none`, `selective` or `full`.
    pub recompute: Recompute,
    /// Whether masters and moments are kept and updated in the memory of the host.
    pub optimizer_offload: bool,
    /// Whether two runs on the same machine and layout give the same bits, also on a GPU, where that costs time.
    pub deterministic: bool,
    /// Peak learning rate.
    pub lr: f64,
    /// `constant`, `linear` or `cosine`.
    pub schedule: Schedule,
    /// Optimizer steps of linear warm-up from 0.
    pub warmup_steps: u64,
    /// The learning rate at the end of a decaying schedule.
    pub min_lr: f64,
    /// Decoupled weight decay of `AdamW`.
    pub weight_decay: f64,
    /// First moment's decay.
    pub adam_beta1: f64,
    /// Second moment's decay.
    pub adam_beta2: f64,
    /// Added to the root of the second moment.
    pub adam_eps: f64,
    /// Largest global gradient norm; 0 does not clip.
    pub clip_grad: f64,
    /// Patterns of Hugging Face names of the policy, with `*` for any characters: what they match is never trained.
    pub freeze: Vec<String>,
    /// Weight of the loss of the layer that predicts the token after the next one (`mimo`; slime takes 0.2); missing leaves
    /// that layer as it is.
    pub mtp_loss_coef: Option<f64>,
    /// `[train.lora]`: adapters that are trained in place of the policy's parameters; missing trains these.
    pub lora: Option<Lora>,
    /// Whether experts are computed as engines have them under `[rollout.weights]`, while gradients go straight to the weights behind
    /// them (quantisation-aware training).
    pub qat: bool,
    /// `[train.fp8]`: matrix products in fp8; missing computes in `model.dtype`.
    pub fp8: Option<Fp8>,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            global_batch_size: None,
            num_steps_per_rollout: None,
            max_tokens_per_gpu: 8192,
            recompute: Recompute::None,
            optimizer_offload: false,
            deterministic: false,
            lr: 1e-6,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            min_lr: 0.0,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: 1.0,
            freeze: Vec::new(),
            mtp_loss_coef: None,
            lora: None,
            qat: false,
            fp8: None,
        }
    }
}
