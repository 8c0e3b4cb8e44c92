//! The rotary part of a `config.json`, in the older and the newer spelling of `transformers`.

use serde::Deserialize;

use super::error::Refused;

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

#[derive(Deserialize)]
pub(super) struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    pub rope_theta: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

impl RawRope {
    pub fn scaling(&self) -> Result<Option<RopeScaling>, Refused> {
        let expected = "default, linear or llama3, complete";
        let need = |name: &'static str, value: Option<f64>| {
            value.ok_or_else(|| Refused::new(name, expected, "nothing"))
        };
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
            Some(other) => Err(Refused::new("rope_scaling.rope_type", expected, format_args!("{other:?}"))),
        }
    }
}

/// The rotated dimensions of a head.
pub(super) fn rotary_dim(head_dim: usize, given: Option<usize>, factor: f64) -> Result<usize, Refused> {
    // As `transformers` does: the product is cut off, not rounded.
    let dim = given.unwrap_or((head_dim as f64 * factor) as usize);
    if dim == 0 || !dim.is_multiple_of(2) || dim > head_dim {
        let expected = format!("an even number of rotated dimensions, at most head_dim = {head_dim}");
        return Err(Refused::new("partial_rotary_factor", expected, dim));
    }
    Ok(dim)
}
