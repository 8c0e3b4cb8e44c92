//! The layer that predicts the token after the next one. Suffixes: t tokens, d hidden size.

use slime_config::HfConfig;
use tch::Tensor;

use crate::ops::add_norm::{add_norm, rms_norm};
use crate::ops::linear::Linear;
use crate::{Context, Layer, ParamStore, Result};

/// That of `mimo`: the residual behind the last layer and the next token, each normed, through one layer more.
#[derive(Debug)]
pub(crate) struct Mtp {
    token_norm_d: Tensor,
    hidden_norm_d: Tensor,
    input_proj: Linear,
    layer: Layer,
    final_norm_d: Tensor,
    eps: f64,
}

impl Mtp {
    /// That of the model in `params`, if it was read.
    pub fn new(params: &ParamStore, config: &HfConfig) -> Result<Option<Self>> {
        if params.find("mtp.input_proj").is_none() {
            return Ok(None);
        }
        let get = |suffix: &str| params.get(&format!("mtp.{suffix}"));
        Ok(Some(Self {
            token_norm_d: get("token_norm")?,
            hidden_norm_d: get("hidden_norm")?,
            input_proj: Linear::new(get("input_proj")?, None),
            layer: Layer::below("mtp", params, config, config.num_hidden_layers)?,
            final_norm_d: get("final_norm")?,
            eps: config.rms_norm_eps,
        }))
    }

    /// The hidden states `[t, d]` that predict the token after the next one, of the residual `[t, d]` behind the last layer
    /// and the embedding `[t, d]` of the next token.
    pub fn forward(
        &self,
        context: &mut Context<'_>,
        residual_td: &Tensor,
        next_td: &Tensor,
        cos_sin: &(Tensor, Tensor),
    ) -> Result<Tensor> {
        let hidden_td = rms_norm(residual_td, &self.hidden_norm_d, self.eps)?;
        let token_td = rms_norm(next_td, &self.token_norm_d, self.eps)?;
        let workspace = context.workspace();
        let x_td = self.input_proj.forward(&workspace, &Tensor::f_cat(&[hidden_td, token_td], 1)?)?;
        let (x_td, delta_td) = self.layer.forward(context, x_td, None, cos_sin)?;
        Ok(add_norm(&workspace, x_td, Some(&delta_td), &self.final_norm_d, self.eps)?.1)
    }
}
