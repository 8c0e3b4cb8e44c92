//! The Hugging Face `config.json` of a dense decoder: Llama, Qwen2 and Qwen3.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// Why a `config.json` is not usable.
#[derive(Debug, thiserror::Error)]
pub enum HfConfigError {
    /// The file cannot be read.
    #[error("{path}: cannot read the model configuration: {source}{hint}", path = path.display(), hint = hint(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not JSON, or a key is missing or has the wrong type.
    #[error("{path}: not a model configuration: {source}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause, with line and column or the name of the key.
        #[source]
        source: serde_json::Error,
    },
    /// A key holds a value this implementation does not compute.
    #[error("{path}: key {key}: expected {expected}, got {got}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What would be accepted.
        expected: String,
        /// What stands there.
        got: String,
    },
}

/// What to do about a configuration that is not there.
fn hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => "\nhint: make a weight directory with slime-convert import SRC DST",
        _ => "",
    }
}

impl HfConfigError {
    /// The sysexits code of this cause: 66 when the file is missing, 77 when it may not be read, 74 when reading
    /// failed, else 65.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::NotADirectory
                | std::io::ErrorKind::IsADirectory => 66,
                std::io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            Self::Parse { .. } | Self::Value { .. } => 65,
        }
    }
}

/// The architectures that are composed from the op vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `model_type = "llama"` (also `SmolLM2`).
    Llama,
    /// `model_type = "qwen2"`: biases on q, k and v.
    Qwen2,
    /// `model_type = "qwen3"`: an RMS norm over each head of q and k.
    Qwen3,
}

impl Family {
    /// The `model_type` of this family in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// How the rotary frequencies are stretched beyond the pretraining length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// All frequencies are divided by `factor` (`rope_type = "linear"`).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The smooth interpolation of Llama 3.1 (`rope_type = "llama3"`, as `transformers` defines it).
    Llama3 {
        /// The divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context length of pretraining, in tokens.
        original_max_position_embeddings: f64,
    },
}

/// What the model code needs of a Hugging Face `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct HfConfig {
    /// The architecture.
    pub family: Family,
    /// The `model_type` as the file spells it.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
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
    /// The output head is the embedding.
    pub tie_word_embeddings: bool,
    /// q, k and v carry a bias (always so in Qwen2).
    pub attention_bias: bool,
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
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    eos_token_id: Option<Ids>,
    bos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
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
        let refuse = |key: &'static str, expected: &str, got: String| HfConfigError::Value {
            path: path.to_path_buf(),
            key,
            expected: expected.to_owned(),
            got,
        };
        let family = match raw.model_type.as_str() {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            other => return Err(refuse("model_type", "llama, qwen2 or qwen3", format!("{other:?}"))),
        };
        if raw.use_sliding_window == Some(true) {
            return Err(refuse("use_sliding_window", "false", "true".to_owned()));
        }
        if raw.mlp_bias == Some(true) {
            return Err(refuse("mlp_bias", "false", "true".to_owned()));
        }
        if family != Family::Qwen2 && raw.attention_bias == Some(true) {
            return Err(refuse("attention_bias", "false", "true".to_owned()));
        }
        if let Some(act) = raw.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(refuse("hidden_act", "\"silu\"", format!("{act:?}")));
        }
        let num_key_value_heads = raw.num_key_value_heads.unwrap_or(raw.num_attention_heads);
        for (key, value) in [
            ("hidden_size", raw.hidden_size),
            ("intermediate_size", raw.intermediate_size),
            ("num_hidden_layers", raw.num_hidden_layers),
            ("num_attention_heads", raw.num_attention_heads),
            ("num_key_value_heads", num_key_value_heads),
            ("vocab_size", raw.vocab_size),
        ] {
            if value == 0 {
                return Err(refuse(key, "a positive number", "0".to_owned()));
            }
        }
        if !raw.num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads = {}", raw.num_attention_heads);
            return Err(refuse("num_key_value_heads", &expected, num_key_value_heads.to_string()));
        }
        let head_dim = raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(refuse("head_dim", "a positive even number", head_dim.to_string()));
        }
        let rope = raw.rope_parameters.or(raw.rope_scaling);
        let rope_theta = rope.as_ref().and_then(|r| r.rope_theta).or(raw.rope_theta).unwrap_or(10_000.0);
        let rope_scaling = match rope {
            Some(rope) => rope
                .scaling()
                .map_err(|(key, got)| refuse(key, "default, linear or llama3, complete", got))?,
            None => None,
        };
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
            rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(false),
            attention_bias: family == Family::Qwen2,
            max_position_embeddings: raw.max_position_embeddings.unwrap_or(2048),
            eos_token_ids: raw.eos_token_id.map(Ids::into_vec).unwrap_or_default(),
            bos_token_id: raw.bos_token_id.and_then(|ids| ids.into_vec().first().copied()),
        })
    }
}

impl RawRope {
    fn scaling(&self) -> Result<Option<RopeScaling>, (&'static str, String)> {
        let need = |name: &'static str, value: Option<f64>| value.ok_or((name, "nothing".to_owned()));
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(None),
            Some("linear") => {
                Ok(Some(RopeScaling::Linear { factor: need("rope_scaling.factor", self.factor)? }))
            }
            Some("llama3") => Ok(Some(RopeScaling::Llama3 {
                factor: need("rope_scaling.factor", self.factor)?,
                low_freq_factor: need("rope_scaling.low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: need("rope_scaling.high_freq_factor", self.high_freq_factor)?,
                original_max_position_embeddings: need(
                    "rope_scaling.original_max_position_embeddings",
                    self.original_max_position_embeddings,
                )?,
            })),
            Some(other) => Err(("rope_scaling.rope_type", format!("{other:?}"))),
        }
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
            "config.json: key model_type: expected llama, qwen2 or qwen3, got \"mamba\""
        );
        assert_eq!(error.exit_code(), 65);
    }

    #[test]
    fn missing_key_is_named() {
        let error = parse(&SMOLLM2.replace("\"hidden_size\":576,", "")).unwrap_err();
        assert!(error.to_string().contains("hidden_size"), "{error}");
    }
}
