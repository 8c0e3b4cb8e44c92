//! MiniMax-M2 and M2.5: `MiniMaxM2ForCausalLM` of `transformers`, experts split under the names of Mixtral as on the hub.

use slime_config::Scoring;

use super::layer_table::{ExpertNames, LayerTable};

const NAMES: ExpertNames = ExpertNames {
    block: "block_sparse_moe",
    gate: "w1",
    up: "w3",
    down: "w2",
    bias: "e_score_correction_bias",
};

pub(super) fn layer(table: &mut LayerTable<'_>) {
    table.attention();
    table.norm("post_norm", "post_attention_layernorm.weight");
    if let Some(moe) = &table.config.moe {
        table.experts(moe, &NAMES, moe.scoring == Scoring::Sigmoid { has_bias: true });
    }
}
