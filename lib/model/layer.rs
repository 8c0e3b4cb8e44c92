//! One decoder layer, composed once for every family.

use slime_config::{HfConfig, QkNormScope};
use slime_weights::{Place, kv_heads};
use tch::Tensor;

use crate::fp8_products::Product;
use crate::mlp::Mlp;
use crate::ops::add_norm::{add_norm, rms_norm};
use crate::ops::attention::attention;
use crate::ops::linear::Linear;
use crate::ops::qk_norm_rope::{Heads, QkNorm};
use crate::ops::sequence::Sequence;
use crate::{Context, ParamStore, Result};

/// The parameters of one layer; tensors share memory with the [`ParamStore`].
#[derive(Debug)]
pub struct Layer {
    at: usize,
    heads: Heads,
    sequence: Sequence,
    eps: f64,
    input_norm: Tensor,
    qkv: Linear,
    qk_norm: Option<QkNorm>,
    o_proj: Linear,
    /// Of what attention gives, before it is added (GLM-4).
    post_attn_norm: Option<Tensor>,
    post_norm: Tensor,
    mlp: Mlp,
    /// Of what the MLP gives (GLM-4).
    post_mlp_norm: Option<Tensor>,
}

impl Layer {
    /// The layer `at` of the model in `params`.
    ///
    /// # Errors
    /// A storage is missing.
    pub fn new(params: &ParamStore, config: &HfConfig, at: usize) -> Result<Self> {
        Self::below(&format!("layers.{at}"), params, config, at)
    }

    /// The layer whose storages are called `<prefix>.*`.
    pub(crate) fn below(prefix: &str, params: &ParamStore, config: &HfConfig, at: usize) -> Result<Self> {
        let name = |suffix: &str| format!("{prefix}.{suffix}");
        let get = |suffix: &str| params.get(&name(suffix));
        let eps = config.rms_norm_eps;
        let sequence = params.sequence();
        let Place { tp, .. } = params.place();
        let qk_norm = match config.qk_norm {
            Some(scope) => {
                let group = sequence.group().filter(|_| scope == QkNormScope::AllHeads).cloned();
                Some(QkNorm { q_k: get("q_norm")?, k_k: get("k_norm")?, scope, eps, group })
            }
            None => None,
        };
        let is_interleaved = config.is_rope_interleaved;
        Ok(Self {
            at,
            heads: Heads {
                num_q: tp.of(config.num_attention_heads).len() as i64,
                num_kv: kv_heads(config, tp).len() as i64,
                head_dim: config.head_dim as i64,
                is_interleaved,
            },
            sequence,
            eps,
            input_norm: get("input_norm")?,
            qkv: Linear::new(get("qkv")?, params.find(&name("qkv_bias")))
                .with_adapters(params.adapters_of(&name("qkv"))?),
            qk_norm,
            o_proj: Linear::new(get("o_proj")?, None).with_adapters(params.adapters_of(&name("o_proj"))?),
            post_attn_norm: params.find(&name("post_attn_norm")),
            post_norm: get("post_norm")?,
            mlp: Mlp::new(prefix, params, config, at)?,
            post_mlp_norm: params.find(&name("post_mlp_norm")),
        })
    }

    /// The residual and the delta after this layer, both `[t, d]`, or this rank's share of their rows; `cos_sin` of all rows
    /// as `Rope::cos_sin` makes them.
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
        let h_td = self.sequence.gather(&h_td, context.num_tokens())?;
        let qkv = self.qkv.forward(&workspace, &h_td)?;
        let attended = attention(context, self.at, qkv, (self.heads, self.qk_norm.as_ref()), cos_sin)?;
        let delta_td = self.sequence.scatter(self.o_proj.forward(&workspace, &attended)?)?;
        let delta_td = self.normed(delta_td, self.post_attn_norm.as_ref())?;
        let (x_td, h_td) = add_norm(&workspace, x_td, Some(&delta_td), &self.post_norm, self.eps)?;
        let delta_td = self.mlp.forward(context, &h_td)?;
        Ok((x_td, self.normed(delta_td, self.post_mlp_norm.as_ref())?))
    }

    fn normed(&self, delta_td: Tensor, weight_d: Option<&Tensor>) -> Result<Tensor> {
        match weight_d {
            Some(weight_d) => rms_norm(&delta_td, weight_d, self.eps),
            None => Ok(delta_td),
        }
    }

    /// How the names of its storages begin.
    pub(crate) fn prefix(&self) -> String {
        format!("layers.{}.", self.at)
    }

    /// The products that fp8 can take, with their names.
    pub(crate) fn each_product(&mut self, f: &mut dyn FnMut(&str, Product<'_>) -> Result<()>) -> Result<()> {
        let prefix = self.prefix();
        f(&format!("{prefix}qkv"), Product::Linear(&mut self.qkv))?;
        f(&format!("{prefix}o_proj"), Product::Linear(&mut self.o_proj))?;
        self.mlp.each_product(&mut |name, product| f(&format!("{prefix}{name}"), product))
    }

    /// The products of the layer, to be packed or unpacked.
    pub(crate) fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        [&mut self.qkv, &mut self.o_proj].into_iter().chain(self.mlp.linears_mut())
    }
}
