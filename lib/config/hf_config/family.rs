//! The architectures that are composed from the op vocabulary, and what is special about each.

use super::error::Refused;

/// Types further apart than this share of the written one are not suggested.
const FARTHEST: f64 = 0.7;

/// The architectures that are composed from the op vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `model_type = "llama"` (also `SmolLM2`).
    Llama,
    /// `model_type = "qwen2"`: biases on q, k and v.
    Qwen2,
    /// `model_type = "qwen3"`: an RMS norm over each head of q and k.
    Qwen3,
    /// `model_type = "qwen3_moe"`: Qwen3 with a mixture of experts behind a softmax router.
    Qwen3Moe,
    /// `model_type = "glm4"` (GLM-4-0414, GLM-Z1): norms behind attention and MLP too, pairs of neighbours rotated.
    Glm4,
    /// `model_type = "glm4_moe"` (GLM-4.5 to 4.7): a sigmoid router with a correction bias, a shared expert.
    Glm4Moe,
    /// `model_type = "minimax_m2"`: a sigmoid router with a correction bias, norms over all heads of q and of k.
    MinimaxM2,
    /// `model_type = "mimo"`: Qwen2 with a layer that predicts one more token.
    Mimo,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 8] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Glm4,
        Self::Glm4Moe,
        Self::MinimaxM2,
        Self::Mimo,
    ];

    /// The `model_type` of this family in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Glm4 => "glm4",
            Self::Glm4Moe => "glm4_moe",
            Self::MinimaxM2 => "minimax_m2",
            Self::Mimo => "mimo",
        }
    }

    pub(super) fn of(model_type: &str) -> Result<Self, Refused> {
        let found = Self::ALL.into_iter().find(|family| family.model_type() == model_type);
        found.ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.map(Self::model_type).into();
            let (last, others) = known.split_last().unwrap_or((&"", &[]));
            let near = known.iter().map(|name| (strsim::jaro_winkler(model_type, name), name));
            let nearest =
                near.filter(|(likeness, _)| *likeness >= FARTHEST).max_by(|a, b| a.0.total_cmp(&b.0));
            let hint = nearest.map_or(String::new(), |(_, name)| format!(" (the nearest is {name})"));
            let expected = format!("{} or {last}", others.join(", "));
            Refused::new("model_type", expected, format_args!("{model_type:?}{hint}"))
        })
    }

    /// The epsilon where the file names none, as the configuration classes of `transformers` have it.
    pub(super) fn rms_norm_eps(self) -> f64 {
        match self {
            Self::Glm4 => 1.562_5e-7,
            Self::Glm4Moe => 1e-5,
            _ => 1e-6,
        }
    }

    /// The rotated share of a head where the file names none.
    pub(super) fn partial_rotary_factor(self) -> f64 {
        match self {
            Self::Glm4 | Self::Glm4Moe => 0.5,
            _ => 1.0,
        }
    }

    /// Whether q, k and v carry a bias where the file says nothing; `None` where only this is computed.
    pub(super) fn attention_bias(self, given: Option<bool>) -> Result<bool, Refused> {
        match self {
            Self::Qwen2 => Ok(true),
            Self::Mimo => Ok(given.unwrap_or(true)),
            Self::Glm4 | Self::Glm4Moe => Ok(given.unwrap_or(false)),
            _ if given == Some(true) => Err(Refused::new("attention_bias", "false", true)),
            _ => Ok(false),
        }
    }

    /// The norms of q and k, where the file may switch them off.
    pub(super) fn qk_norm(self, use_qk_norm: Option<bool>) -> Option<QkNormScope> {
        match self {
            Self::Qwen3 | Self::Qwen3Moe => Some(QkNormScope::Head),
            Self::Glm4Moe if use_qk_norm == Some(true) => Some(QkNormScope::Head),
            Self::MinimaxM2 if use_qk_norm != Some(false) => Some(QkNormScope::AllHeads),
            _ => None,
        }
    }
}

/// Over what the RMS norm of q or k runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormScope {
    /// Each head by itself, with one weight for all.
    Head,
    /// All heads of a token together (MiniMax-M2).
    AllHeads,
}
