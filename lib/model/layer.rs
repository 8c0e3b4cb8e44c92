//! One decoder layer, composed once for every dense family.

use slime_config::HfConfig;
use tch::Tensor;

use crate::ops::add_norm::add_norm;
use crate::ops::attention::attention;
use crate::ops::linear::Linear;
use crate::ops::qk_norm_rope::{Heads, QkNorm};
use crate::ops::silu_mul::silu_mul;
use crate::{Context, ParamStore, Result};

/// The parameters of one layer; tensors share memory with the [`ParamStore`].
#[derive(Debug)]
pub struct Layer {
    at: usize,
    heads: Heads,
    eps: f64,
    input_norm: Tensor,
    qkv: Linear,
    qk_norm: Option<QkNorm>,
    o_proj: Linear,
    post_norm: Tensor,
    gate_up: Linear,
    down: Linear,
}

impl Layer {
    /// The layer `at` of the model in `params`.
    ///
    /// # Errors
    /// A storage is missing.
    pub fn new(params: &ParamStore, config: &HfConfig, at: usize) -> Result<Self> {
        let name = |suffix: &str| format!("layers.{at}.{suffix}");
        let get = |suffix: &str| params.get(&name(suffix));
        let eps = config.rms_norm_eps;
        let qk_norm = match (params.find(&name("q_norm")), params.find(&name("k_norm"))) {
            (Some(q_k), Some(k_k)) => Some(QkNorm { q_k, k_k, eps }),
            _ => None,
        };
        Ok(Self {
            at,
            heads: Heads {
                num_q: config.num_attention_heads as i64,
                num_kv: config.num_key_value_heads as i64,
                head_dim: config.head_dim as i64,
            },
            eps,
            input_norm: get("input_norm")?,
            qkv: Linear::new(get("qkv")?, params.find(&name("qkv_bias"))),
            qk_norm,
            o_proj: Linear::new(get("o_proj")?, None),
            post_norm: get("post_norm")?,
            gate_up: Linear::new(get("gate_up")?, None),
            down: Linear::new(get("down")?, None),
        })
    }

    /// The residual and the delta after this layer, both `[t, d]`; `cos_sin` as `Rope::cos_sin` makes them.
    ///
    /// # Errors
    /// The shapes do not fit the context, or libtorch has no room.
    pub fn forward(
        &self,
        context: &mut Context<'_>,
        x_td: Tensor,
        delta_td: Option<&Tensor>,
        cos_sin: &(Tensor, Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let workspace = context.workspace();
        workspace.turn();
        let (x_td, h_td) = add_norm(&workspace, x_td, delta_td, &self.input_norm, self.eps)?;
        let qkv = self.qkv.forward(&workspace, &h_td)?;
        let attended = attention(context, self.at, qkv, (self.heads, self.qk_norm.as_ref()), cos_sin)?;
        let delta_td = self.o_proj.forward(&workspace, &attended)?;
        let (x_td, h_td) = add_norm(&workspace, x_td, Some(&delta_td), &self.post_norm, self.eps)?;
        let gate_up = self.gate_up.forward(&workspace, &h_td)?;
        let delta_td = self.down.forward(&workspace, &silu_mul(&workspace, &gate_up)?)?;
        Ok((x_td, delta_td))
    }

    /// The products of the layer, to be packed or unpacked.
    pub(crate) fn linears_mut(&mut self) -> [&mut Linear; 4] {
        [&mut self.qkv, &mut self.o_proj, &mut self.gate_up, &mut self.down]
    }
}
