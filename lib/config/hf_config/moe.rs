//! The mixture of experts of a `config.json`: which layers have one, how its router chooses, how wide its experts are.

use serde::Deserialize;

use super::Family;
use super::error::Refused;

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit; a frozen correction bias may shift the choice, never the weight (arXiv 2408.15664).
    Sigmoid {
        /// Whether there is one.
        has_bias: bool,
    },
}

/// The mixture of experts in place of the MLP.
#[derive(Debug, Clone, PartialEq)]
pub struct Moe {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Width of an expert's gated MLP.
    pub intermediate_size: usize,
    /// Width of the MLP that every token goes through beside its experts; 0 where there is none.
    pub shared_intermediate_size: usize,
    /// How logits become scores.
    pub scoring: Scoring,
    /// Groups of experts that follow each other; only the best `topk_group` of them are chosen from.
    pub n_group: usize,
    /// Groups that are chosen from.
    pub topk_group: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// What the weights are multiplied with.
    pub routed_scaling_factor: f64,
    /// The layers with experts, in order.
    pub layers: Vec<usize>,
}

impl Moe {
    /// Which of the layers with experts `layer` is.
    pub fn place_of(&self, layer: usize) -> Option<usize> {
        self.layers.iter().position(|at| *at == layer)
    }
}

/// The keys of all families with experts.
#[derive(Deserialize)]
pub(super) struct RawMoe {
    num_experts: Option<usize>,
    n_routed_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    n_shared_experts: Option<usize>,
    norm_topk_prob: Option<bool>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    routed_scaling_factor: Option<f64>,
    first_k_dense_replace: Option<usize>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
    scoring_func: Option<String>,
    use_routing_bias: Option<bool>,
    shared_intermediate_size: Option<usize>,
    attn_type_list: Option<Vec<usize>>,
}

impl RawMoe {
    pub fn of(
        self,
        family: Family,
        num_layers: usize,
        intermediate_size: usize,
    ) -> Result<Option<Moe>, Refused> {
        let moe = match family {
            Family::Qwen3Moe => self.qwen3(num_layers)?,
            Family::Glm4Moe => self.glm4(num_layers)?,
            Family::MinimaxM2 => self.minimax(num_layers, intermediate_size)?,
            Family::Llama | Family::Qwen2 | Family::Qwen3 | Family::Glm4 | Family::Mimo => return Ok(None),
        };
        check(&moe).map(|()| Some(moe))
    }

    fn qwen3(self, num_layers: usize) -> Result<Moe, Refused> {
        let step = self.decoder_sparse_step.unwrap_or(1);
        if step == 0 {
            return Err(Refused::new("decoder_sparse_step", "at least 1", 0));
        }
        let dense = self.mlp_only_layers.unwrap_or_default();
        let is_sparse = |layer: &usize| (layer + 1).is_multiple_of(step) && !dense.contains(layer);
        Ok(Moe {
            num_experts: need("num_experts", self.num_experts.or(self.num_local_experts))?,
            top_k: need("num_experts_per_tok", self.num_experts_per_tok)?,
            intermediate_size: need("moe_intermediate_size", self.moe_intermediate_size)?,
            shared_intermediate_size: 0,
            scoring: Scoring::Softmax,
            n_group: 1,
            topk_group: 1,
            norm_topk_prob: self.norm_topk_prob.unwrap_or(false),
            routed_scaling_factor: 1.0,
            layers: (0..num_layers).filter(is_sparse).collect(),
        })
    }

    fn glm4(self, num_layers: usize) -> Result<Moe, Refused> {
        let intermediate_size = need("moe_intermediate_size", self.moe_intermediate_size)?;
        Ok(Moe {
            num_experts: need("n_routed_experts", self.n_routed_experts.or(self.num_local_experts))?,
            top_k: need("num_experts_per_tok", self.num_experts_per_tok)?,
            intermediate_size,
            shared_intermediate_size: self.n_shared_experts.unwrap_or(1) * intermediate_size,
            scoring: Scoring::Sigmoid { has_bias: true },
            n_group: self.n_group.unwrap_or(1),
            topk_group: self.topk_group.unwrap_or(1),
            norm_topk_prob: self.norm_topk_prob.unwrap_or(true),
            routed_scaling_factor: self.routed_scaling_factor.unwrap_or(1.0),
            layers: (self.first_k_dense_replace.unwrap_or(1)..num_layers).collect(),
        })
    }

    fn minimax(self, num_layers: usize, intermediate_size: usize) -> Result<Moe, Refused> {
        if let Some(other) = self.scoring_func.filter(|word| word != "sigmoid") {
            return Err(Refused::new("scoring_func", "\"sigmoid\"", format_args!("{other:?}")));
        }
        if let Some(size) = self.shared_intermediate_size.filter(|size| *size != 0) {
            return Err(Refused::new("shared_intermediate_size", "0", size));
        }
        // 1 is softmax attention, 0 the linear attention of MiniMax-Text-01.
        if let Some(other) = self.attn_type_list.iter().flatten().find(|word| **word != 1) {
            return Err(Refused::new("attn_type_list", "1 for every layer", other));
        }
        Ok(Moe {
            num_experts: need("num_local_experts", self.num_local_experts.or(self.num_experts))?,
            top_k: need("num_experts_per_tok", self.num_experts_per_tok)?,
            intermediate_size,
            shared_intermediate_size: 0,
            scoring: Scoring::Sigmoid { has_bias: self.use_routing_bias.unwrap_or(true) },
            n_group: 1,
            topk_group: 1,
            norm_topk_prob: true,
            routed_scaling_factor: 1.0,
            layers: (0..num_layers).collect(),
        })
    }
}

fn need(key: &'static str, value: Option<usize>) -> Result<usize, Refused> {
    value.filter(|value| *value > 0).ok_or_else(|| Refused::new(key, "a positive number", "none"))
}

fn check(moe: &Moe) -> Result<(), Refused> {
    let Moe { num_experts, top_k, n_group, topk_group, .. } = *moe;
    // Recorded as 16 bits with a sign, which marks what is not recorded.
    if num_experts > 1 << 15 {
        return Err(Refused::new("num_experts", format!("at most {}", 1 << 15), num_experts));
    }
    if n_group == 0 || !num_experts.is_multiple_of(n_group) {
        return Err(Refused::new("n_group", format!("a divisor of the {num_experts} experts"), n_group));
    }
    if topk_group == 0 || topk_group > n_group {
        return Err(Refused::new("topk_group", format!("from 1 to n_group = {n_group}"), topk_group));
    }
    // A group is judged by its two best experts.
    if n_group > 1 && num_experts / n_group < 2 {
        return Err(Refused::new("n_group", "groups of at least 2 experts", n_group));
    }
    let choice = num_experts / n_group * topk_group;
    if top_k > choice {
        return Err(Refused::new("num_experts_per_tok", format!("at most {choice}"), top_k));
    }
    Ok(())
}
