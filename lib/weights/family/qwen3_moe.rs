//! Qwen3-30B-A3B, Qwen3-235B-A22B: `Qwen3MoeForCausalLM` of `transformers`, experts split as on the hub.

use super::layer_table::{LayerTable, USUAL_EXPERTS};

pub(super) fn layer(table: &mut LayerTable<'_>) {
    table.attention();
    table.norm("post_norm", "post_attention_layernorm.weight");
    match &table.config.moe {
        Some(moe) if moe.layers.contains(&table.layer) => table.experts(moe, &USUAL_EXPERTS, false),
        _ => table.mlp(),
    }
}
