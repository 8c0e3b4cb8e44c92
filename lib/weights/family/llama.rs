//! Llama 3, 3.1, 3.2, `SmolLM2`: `LlamaForCausalLM` of `transformers`. Qwen2 and Qwen3 share the table: the bias of the one
//! and the head norms of the other follow from the configuration.

use super::layer_table::LayerTable;

pub(super) fn layer(table: &mut LayerTable<'_>) {
    table.attention();
    table.norm("post_norm", "post_attention_layernorm.weight");
    table.mlp();
}
