//! GLM-4-0414 and GLM-Z1: `Glm4ForCausalLM` of `transformers`, with norms behind attention and MLP.

use super::layer_table::LayerTable;

pub(super) fn layer(table: &mut LayerTable<'_>) {
    table.attention();
    table.norm("post_attn_norm", "post_self_attn_layernorm.weight");
    table.norm("post_norm", "post_attention_layernorm.weight");
    table.fused_mlp();
    table.norm("post_mlp_norm", "post_mlp_layernorm.weight");
}
