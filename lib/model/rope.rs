//! Rotary position frequencies, including the scalings of `transformers`.
//!
//! Shape suffixes: t tokens, r half of the rotated dimensions of a head.

use slime_config::{HfConfig, RopeScaling};
use tch::{Device, Kind, Tensor};

use crate::Result;

/// The rotary frequencies of a model.
#[derive(Debug)]
pub struct Rope {
    inv_freq_r: Tensor,
}

impl Rope {
    /// The frequencies of `config` in f32 (f64 for f64 models), as `transformers` computes them.
    ///
    /// # Errors
    /// libtorch has no room.
    pub fn new(config: &HfConfig, kind: Kind, device: Device) -> Result<Self> {
        let kind = if kind == Kind::Double { Kind::Double } else { Kind::Float };
        let inv_freq_r = Tensor::f_from_slice(&inv_freq(config))?.f_to_kind(kind)?.f_to_device(device)?;
        Ok(Self { inv_freq_r })
    }

    /// `theta^(-2i / head_dim)` as the configuration scales it, `[r]`.
    pub(crate) fn inv_freq(&self) -> &Tensor {
        &self.inv_freq_r
    }

    /// cos and sin `[t, r]` of `positions_t` (i64), in f32 or f64.
    ///
    /// # Errors
    /// libtorch has no room.
    pub fn cos_sin(&self, positions_t: &Tensor) -> Result<(Tensor, Tensor)> {
        let angle_tr = positions_t.f_to_kind(self.inv_freq_r.kind())?.f_outer(&self.inv_freq_r)?;
        Ok((angle_tr.f_cos()?, angle_tr.f_sin()?))
    }
}

/// `theta^(-2i / rotary_dim)`, divided or interpolated as the configuration says.
fn inv_freq(config: &HfConfig) -> Vec<f64> {
    let dim = config.rotary_dim;
    (0..dim / 2)
        .map(|i| config.rope_theta.powf(-((2 * i) as f64) / dim as f64))
        .map(|freq| match config.rope_scaling {
            None => freq,
            Some(RopeScaling::Linear { factor }) => freq / factor,
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            }) => {
                let turns = original_max_position_embeddings * freq / (2.0 * std::f64::consts::PI);
                let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let smooth = smooth.clamp(0.0, 1.0);
                (1.0 - smooth) * freq / factor + smooth * freq
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let text = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":8,"num_hidden_layers":1,
            "num_attention_heads":1,"vocab_size":8,"rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3",
            "factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}}"#;
        let scaled = HfConfig::parse(text, std::path::Path::new("config.json")).unwrap();
        let plain = HfConfig { rope_scaling: None, ..scaled.clone() };
        let (scaled, plain) = (inv_freq(&scaled), inv_freq(&plain));
        assert!((scaled[0] - plain[0]).abs() < 1e-15);
        assert!((scaled[31] * 8.0 - plain[31]).abs() < 1e-15);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]));
    }
}
