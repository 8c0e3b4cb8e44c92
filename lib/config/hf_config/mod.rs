//! The Hugging Face `config.json` of a decoder of one of the known families.

mod error;
mod family;
mod moe;
mod rope;

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use error::Refused;
use moe::RawMoe;
use rope::{RawRope, rotary_dim};

pub use error::HfConfigError;
pub use family::{Family, QkNormScope};
pub use moe::{Moe, Scoring};
pub use rope::RopeScaling;

/// What the model code needs of a Hugging Face `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a claim of its own about the model")]
pub struct HfConfig {
    /// The architecture.
    pub family: Family,
    /// The `model_type` as the file spells it.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP of layers without experts.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads.
    pub num_key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// The epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// The scaling of the rotary frequencies, if any.
    pub rope_scaling: Option<RopeScaling>,
    /// Dimensions of a head that are rotated; those behind them stay as they are.
    pub rotary_dim: usize,
    /// Rotation pairs neighbours (2 i, 2 i + 1), not the two halves of the rotated dimensions.
    pub is_rope_interleaved: bool,
    /// The output head is the embedding.
    pub tie_word_embeddings: bool,
    /// q, k and v carry a bias (always so in Qwen2).
    pub attention_bias: bool,
    /// The norms of q and k, if any.
    pub qk_norm: Option<QkNormScope>,
    /// What attention and MLP give is normed before it is added to the residual (GLM-4).
    pub has_post_norms: bool,
    /// The mixture of experts, if any.
    pub moe: Option<Moe>,
    /// Layers behind the last one that predict further tokens: their tensors are carried along, not computed.
    pub num_mtp_layers: usize,
    /// Longest supported context in tokens.
    pub max_position_embeddings: usize,
    /// Tokens that end a response (`generation_config.json` first, then `config.json`).
    pub eos_token_ids: Vec<u32>,
    /// Token that opens a text, if the model has one.
    pub bos_token_id: Option<u32>,
}

#[derive(Deserialize)]
struct Raw {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    partial_rotary_factor: Option<f64>,
    rotary_dim: Option<usize>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    use_qk_norm: Option<bool>,
    qk_norm_type: Option<String>,
    num_nextn_predict_layers: Option<usize>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    eos_token_id: Option<Ids>,
    bos_token_id: Option<Ids>,
    #[serde(flatten)]
    moe: RawMoe,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

impl HfConfig {
    /// Reads `dir/config.json`, and the end tokens of `dir/generation_config.json` when it exists.
    ///
    /// # Errors
    /// [`HfConfigError`] when the file is missing, malformed or describes an architecture outside [`Family`].
    pub fn load(dir: impl AsRef<Path>) -> Result<Self, HfConfigError> {
        let dir = dir.as_ref();
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| HfConfigError::Read { path: path.clone(), source })?;
        let mut config = Self::parse(&text, &path)?;
        if let Ok(text) = std::fs::read_to_string(dir.join("generation_config.json"))
            && let Ok(value) = serde_json::from_str::<Value>(&text)
            && let Some(ids) = value.get("eos_token_id")
            && let Ok(ids) = serde_json::from_value::<Ids>(ids.clone())
        {
            config.eos_token_ids = ids.into_vec();
        }
        Ok(config)
    }

    /// Parses the text of a `config.json`; `path` only names the file in errors.
    ///
    /// # Errors
    /// As [`HfConfig::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, HfConfigError> {
        let raw: Raw = serde_json::from_str(text)
            .map_err(|source| HfConfigError::Parse { path: path.to_path_buf(), source })?;
        Self::of(raw).map_err(|refused| refused.in_file(path))
    }

    fn of(raw: Raw) -> Result<Self, Refused> {
        let family = Family::of(&raw.model_type)?;
        raw.check_switches()?;
        let attention_bias = family.attention_bias(raw.attention_bias)?;
        let num_key_value_heads = raw.num_key_value_heads.unwrap_or(raw.num_attention_heads);
        raw.check_sizes(num_key_value_heads)?;
        let head_dim = raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(Refused::new("head_dim", "a positive even number", head_dim));
        }
        let rope = raw.rope_parameters.or(raw.rope_scaling);
        let rope_theta = rope.as_ref().and_then(|r| r.rope_theta).or(raw.rope_theta).unwrap_or(10_000.0);
        let rope_scaling = rope.as_ref().map(RawRope::scaling).transpose()?.flatten();
        let factor = rope.and_then(|r| r.partial_rotary_factor).or(raw.partial_rotary_factor);
        let factor = factor.unwrap_or(family.partial_rotary_factor());
        Ok(Self {
            family,
            model_type: raw.model_type,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            num_hidden_layers: raw.num_hidden_layers,
            num_attention_heads: raw.num_attention_heads,
            num_key_value_heads,
            head_dim,
            vocab_size: raw.vocab_size,
            rms_norm_eps: raw.rms_norm_eps.unwrap_or(family.rms_norm_eps()),
            rope_theta,
            rope_scaling,
            rotary_dim: rotary_dim(head_dim, raw.rotary_dim, factor)?,
            is_rope_interleaved: family == Family::Glm4,
            tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(false),
            attention_bias,
            qk_norm: family.qk_norm(raw.use_qk_norm),
            has_post_norms: family == Family::Glm4,
            moe: raw.moe.of(family, raw.num_hidden_layers, raw.intermediate_size)?,
            num_mtp_layers: raw.num_nextn_predict_layers.unwrap_or(0),
            max_position_embeddings: raw.max_position_embeddings.unwrap_or(2048),
            eos_token_ids: raw.eos_token_id.map(Ids::into_vec).unwrap_or_default(),
            bos_token_id: raw.bos_token_id.and_then(|ids| ids.into_vec().first().copied()),
        })
    }
}

impl Raw {
    /// What would change the computation in a way that is not composed here.
    fn check_switches(&self) -> Result<(), Refused> {
        for (key, value) in [("use_sliding_window", self.use_sliding_window), ("mlp_bias", self.mlp_bias)] {
            if value == Some(true) {
                return Err(Refused::new(key, "false", true));
            }
        }
        for (key, expected, value) in
            [("hidden_act", "silu", &self.hidden_act), ("qk_norm_type", "per_layer", &self.qk_norm_type)]
        {
            if let Some(word) = value.as_deref().filter(|word| *word != expected) {
                return Err(Refused::new(key, format!("{expected:?}"), format_args!("{word:?}")));
            }
        }
        Ok(())
    }

    fn check_sizes(&self, num_key_value_heads: usize) -> Result<(), Refused> {
        for (key, value) in [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", num_key_value_heads),
            ("vocab_size", self.vocab_size),
        ] {
            if value == 0 {
                return Err(Refused::new(key, "a positive number", 0));
            }
        }
        if !self.num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads = {}", self.num_attention_heads);
            return Err(Refused::new("num_key_value_heads", expected, num_key_value_heads));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMOLLM2: &str = r#"{"model_type":"llama","hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30,
        "num_attention_heads":9,"num_key_value_heads":3,"vocab_size":49152,"rms_norm_eps":1e-05,"rope_theta":100000,
        "rope_scaling":null,"tie_word_embeddings":true,"max_position_embeddings":8192,"eos_token_id":2,"bos_token_id":1}"#;

    fn parse(text: &str) -> Result<HfConfig, HfConfigError> {
        HfConfig::parse(text, Path::new("config.json"))
    }

    #[test]
    fn head_dim_follows_from_hidden_size_when_absent() {
        let config = parse(SMOLLM2).unwrap();
        assert_eq!((config.family, config.head_dim, config.num_key_value_heads), (Family::Llama, 64, 3));
        assert_eq!((config.eos_token_ids.as_slice(), config.rope_scaling), ([2].as_slice(), None));
    }

    #[test]
    fn both_spellings_of_rope_parameters_are_read() {
        let scaling = r#"{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}"#;
        let old =
            parse(&SMOLLM2.replace("\"rope_scaling\":null", &format!("\"rope_scaling\":{scaling}"))).unwrap();
        let new = scaling.replace('{', "{\"rope_theta\":100000.0,");
        let new =
            parse(&SMOLLM2.replace("\"rope_scaling\":null", &format!("\"rope_parameters\":{new}"))).unwrap();
        assert_eq!(old, new);
        assert!(matches!(old.rope_scaling, Some(RopeScaling::Llama3 { .. })));
    }

    #[test]
    fn unknown_architecture_is_refused_by_name() {
        let error = parse(&SMOLLM2.replace("llama", "mamba")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "config.json: key model_type: expected llama, qwen2, qwen3, qwen3_moe, glm4, glm4_moe, minimax_m2 or mimo, \
             got \"mamba\" (the nearest is llama)"
        );
        assert_eq!(error.exit_code(), 65);
    }

    #[test]
    fn missing_key_is_named() {
        let error = parse(&SMOLLM2.replace("\"hidden_size\":576,", "")).unwrap_err();
        assert!(error.to_string().contains("hidden_size"), "{error}");
    }

    const MOE: &str = r#"{"model_type":"qwen3_moe","hidden_size":64,"intermediate_size":96,"num_hidden_layers":4,
        "num_attention_heads":4,"head_dim":32,"vocab_size":128,"num_experts":8,"num_experts_per_tok":2,
        "moe_intermediate_size":24,"norm_topk_prob":true,"decoder_sparse_step":2,"mlp_only_layers":[3]}"#;

    #[test]
    fn qwen3_moe_layers_follow_step_and_exceptions() {
        let moe = parse(MOE).unwrap().moe.unwrap();
        assert_eq!(
            (moe.layers.as_slice(), moe.place_of(1), moe.place_of(3)),
            ([1].as_slice(), Some(0), None)
        );
        assert_eq!((moe.scoring, moe.shared_intermediate_size), (Scoring::Softmax, 0));
        let error = parse(&MOE.replace("per_tok\":2", "per_tok\":9")).unwrap_err();
        assert_eq!(error.to_string(), "config.json: key num_experts_per_tok: expected at most 8, got 9");
    }

    #[test]
    fn glm4_moe_reads_groups_shared_experts_and_dense_layers() {
        let text = MOE
            .replace("qwen3_moe", "glm4_moe")
            .replace("\"num_experts\":8", "\"n_routed_experts\":8,\"n_group\":4,\"topk_group\":2")
            .replace("\"norm_topk_prob\":true", "\"n_shared_experts\":2,\"first_k_dense_replace\":3")
            .replace("\"vocab_size\"", "\"num_nextn_predict_layers\":1,\"use_qk_norm\":true,\"vocab_size\"");
        let config = parse(&text).unwrap();
        assert_eq!((config.rotary_dim, config.qk_norm), (16, Some(QkNormScope::Head)));
        assert_eq!((config.num_mtp_layers, config.rms_norm_eps), (1, 1e-5));
        let moe = config.moe.unwrap();
        assert_eq!((moe.n_group, moe.topk_group, moe.layers.as_slice()), (4, 2, [3].as_slice()));
        assert_eq!((moe.shared_intermediate_size, moe.norm_topk_prob), (48, true));
        let error = parse(&text.replace("n_group\":4", "n_group\":3")).unwrap_err();
        assert!(error.to_string().contains("n_group: expected a divisor of the 8 experts, got 3"), "{error}");
    }

    #[test]
    fn minimax_takes_the_mlp_width_for_experts_and_rotary_dim_as_it_is() {
        let text = MOE.replace("qwen3_moe", "minimax_m2").replace(
            "\"num_experts\"",
            "\"rotary_dim\":8,\"scoring_func\":\"sigmoid\",\"num_local_experts\"",
        );
        let config = parse(&text).unwrap();
        assert_eq!((config.rotary_dim, config.qk_norm), (8, Some(QkNormScope::AllHeads)));
        let moe = config.moe.unwrap();
        assert_eq!((moe.intermediate_size, moe.layers.len()), (96, 4));
        assert_eq!(moe.scoring, Scoring::Sigmoid { has_bias: true });
        let error = parse(&text.replace("\"sigmoid\"", "\"softmax\"")).unwrap_err();
        assert!(error.to_string().contains("scoring_func: expected \"sigmoid\""), "{error}");
    }

    #[test]
    fn glm4_norms_twice_and_rotates_half_of_a_head_in_pairs() {
        let text = SMOLLM2
            .replace("\"llama\"", "\"glm4\"")
            .replace("\"vocab_size\"", "\"attention_bias\":true,\"vocab_size\"");
        let config = parse(&text).unwrap();
        assert!(config.has_post_norms && config.is_rope_interleaved && config.attention_bias);
        assert_eq!((config.rotary_dim, config.qk_norm, config.moe), (32, None, None));
        assert!(parse(&text.replace("glm4", "llama")).unwrap_err().to_string().contains("attention_bias"));
    }
}
