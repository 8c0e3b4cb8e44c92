//! GLM-4.5, 4.5-Air, 4.6 and 4.7: `Glm4MoeForCausalLM` of `transformers`. The layers that predict further tokens stand
//! behind the last one under the same names.

use slime_config::HfConfig;

use super::layer_table::{LayerTable, USUAL_EXPERTS};

pub(super) fn layer(table: &mut LayerTable<'_>) {
    table.attention();
    table.norm("post_norm", "post_attention_layernorm.weight");
    match &table.config.moe {
        Some(moe) if moe.layers.contains(&table.layer) => {
            table.experts(moe, &USUAL_EXPERTS, true);
            if moe.shared_intermediate_size > 0 {
                table.gated_mlp("shared_", "mlp.shared_experts", moe.shared_intermediate_size);
            }
        }
        _ => table.mlp(),
    }
}

/// Whether a tensor belongs to a layer that predicts further tokens.
pub(super) fn is_mtp(config: &HfConfig, name: &str) -> bool {
    let first = config.num_hidden_layers;
    (first..first + config.num_mtp_layers).any(|layer| name.starts_with(&format!("model.layers.{layer}.")))
}
