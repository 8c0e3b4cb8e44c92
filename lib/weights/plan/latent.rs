//! Models with latent attention (DeepSeek-V3 and R1, Kimi-K2, GLM-4.7-Flash, GLM-5 and 5.2), which are planned and not yet
//! computed. Dimensions: `modeling_deepseek_v3.py` and `modeling_glm_moe_dsa.py` of `transformers`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::table::{Entry, Kind, ModelTable};
use crate::{Error, Result};

const TYPES: [&str; 5] = ["deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa"];

/// Whether a configuration is that of such a model.
pub fn is_one(config: &Value) -> bool {
    config["model_type"].as_str().is_some_and(|word| TYPES.contains(&word))
}

#[derive(Deserialize)]
struct Config {
    model_type: String,
    hidden_size: u64,
    intermediate_size: u64,
    moe_intermediate_size: u64,
    num_hidden_layers: usize,
    num_attention_heads: u64,
    vocab_size: u64,
    q_lora_rank: Option<u64>,
    kv_lora_rank: u64,
    qk_nope_head_dim: u64,
    qk_rope_head_dim: u64,
    v_head_dim: u64,
    n_routed_experts: u64,
    num_experts_per_tok: usize,
    n_shared_experts: u64,
    first_k_dense_replace: usize,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    num_nextn_predict_layers: usize,
    /// Heads of the indexer of sparse attention, 0 where there is none.
    #[serde(default)]
    index_n_heads: u64,
    #[serde(default)]
    index_head_dim: u64,
    /// Every so many layers have an indexer, the first of them behind the offset; the others take its choice.
    index_topk_freq: Option<usize>,
    #[serde(default)]
    index_skip_topk_offset: usize,
}

/// The table of such a model.
///
/// # Errors
/// A key is missing or has the wrong type.
pub fn table(config: &Value, path: &Path) -> Result<ModelTable> {
    let config: Config = serde_json::from_value(config.clone())
        .map_err(|error| Error::corrupt(path, format!("not a model configuration: {error}")))?;
    let mut entries = vec![Entry {
        kind: Kind::Embedding,
        layer: None,
        num_elements: config.vocab_size * config.hidden_size,
    }];
    for layer in 0..config.num_hidden_layers {
        let mut push = |kind: Kind, num_elements: u64| {
            entries.push(Entry { kind, layer: Some(layer), num_elements });
        };
        config.attention(&mut push);
        if config.has_indexer(layer) {
            push(Kind::Whole, config.indexer());
        }
        config.mlp(layer, &mut push);
    }
    entries.push(Entry { kind: Kind::FinalNorm, layer: None, num_elements: config.hidden_size });
    if !config.tie_word_embeddings {
        entries.push(Entry {
            kind: Kind::Head,
            layer: None,
            num_elements: config.vocab_size * config.hidden_size,
        });
    }
    let latent = config.kv_lora_rank + config.qk_rope_head_dim;
    let mut table = ModelTable {
        model_type: config.model_type.clone(),
        num_layers: config.num_hidden_layers,
        num_heads: config.num_attention_heads as usize,
        num_key_value_heads: 0,
        vocab_size: config.vocab_size as usize,
        num_experts: config.n_routed_experts as usize,
        top_k: config.num_experts_per_tok,
        entries,
        num_mtp_parameters: 0,
        kv_elements_per_token: config.num_hidden_layers as u64 * latent + config.index_keys(),
    };
    // DeepSeek's checkpoints and GLM-4.5's hold embedding and head again; GLM-5's do not.
    let (hidden, num_mtp) = (config.hidden_size as usize, config.num_nextn_predict_layers);
    table.num_mtp_parameters = table.mtp_like_last_layer(num_mtp, hidden, config.model_type != "glm_moe_dsa");
    if config.index_n_heads > 0 && !config.has_indexer(config.num_hidden_layers.saturating_sub(1)) {
        // Its own layer always has an indexer.
        table.num_mtp_parameters += num_mtp as u64 * config.indexer();
    }
    Ok(table)
}

impl Config {
    fn attention(&self, push: &mut impl FnMut(Kind, u64)) {
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        let of_query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim);
        match self.q_lora_rank {
            Some(rank) => {
                push(Kind::Whole, hidden * rank + rank);
                push(Kind::Attention, rank * of_query);
            }
            None => push(Kind::Attention, hidden * of_query),
        }
        push(Kind::Whole, hidden * (self.kv_lora_rank + self.qk_rope_head_dim) + self.kv_lora_rank);
        push(Kind::Attention, self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim));
        push(Kind::Attention, heads * self.v_head_dim * hidden);
        push(Kind::Whole, 2 * hidden);
    }

    /// Queries from the latent query, one key with its norm's weight and bias, a weight for each head.
    fn indexer(&self) -> u64 {
        let (heads, dim) = (self.index_n_heads, self.index_head_dim);
        self.q_lora_rank.unwrap_or(self.hidden_size) * heads * dim
            + self.hidden_size * dim
            + 2 * dim
            + self.hidden_size * heads
    }

    fn has_indexer(&self, layer: usize) -> bool {
        let frequency = self.index_topk_freq.unwrap_or(1).max(1);
        let behind = (layer + 1).saturating_sub(self.index_skip_topk_offset);
        self.index_n_heads > 0 && behind.is_multiple_of(frequency)
    }

    fn index_keys(&self) -> u64 {
        (0..self.num_hidden_layers).filter(|layer| self.has_indexer(*layer)).count() as u64
            * self.index_head_dim
    }

    fn mlp(&self, layer: usize, push: &mut impl FnMut(Kind, u64)) {
        let (hidden, width) = (self.hidden_size, self.moe_intermediate_size);
        if layer < self.first_k_dense_replace {
            return push(Kind::Mlp, 3 * hidden * self.intermediate_size);
        }
        push(Kind::Experts, self.n_routed_experts * 3 * hidden * width);
        // The router and its correction bias.
        push(Kind::Whole, self.n_routed_experts * (hidden + 1));
        push(Kind::Mlp, self.n_shared_experts * 3 * hidden * width);
    }
}
