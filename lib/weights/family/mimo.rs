//! MiMo-7B: the layers of Qwen2, and beside them layers that predict further tokens (`modeling_mimo.py` of the model's
//! own repository).

use slime_config::HfConfig;

use super::layer_table::LayerTable;
use super::llama;
use crate::StorageSpec;

pub(super) use super::llama::layer;

/// Whether a tensor belongs to a layer that predicts further tokens.
pub(super) fn is_mtp(name: &str) -> bool {
    name.starts_with("model.mtp_layers.")
}

/// `mtp.token_norm`, `mtp.hidden_norm`, `mtp.input_proj` (columns of the hidden state, then of the token), the storages of a
/// layer as `mtp.*`, and `mtp.final_norm`.
pub(super) fn mtp(config: &HfConfig) -> Vec<StorageSpec> {
    let mut specs = Vec::new();
    let mut table = LayerTable::below(&mut specs, config, "mtp", "model.mtp_layers.0");
    table.norm("token_norm", "token_layernorm.weight");
    table.norm("hidden_norm", "hidden_layernorm.weight");
    table.single("input_proj", "input_proj.weight", &[config.hidden_size, 2 * config.hidden_size]);
    llama::layer(&mut table);
    table.norm("final_norm", "final_layernorm.weight");
    specs
}
