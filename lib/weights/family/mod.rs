//! The table of tensors of each family as storages under Hugging Face names.

mod glm4;
mod glm4_moe;
mod layer_table;
mod llama;
mod mimo;
mod minimax_m2;
mod qwen3_moe;

use slime_config::{Family, HfConfig};

use crate::{Error, Result, StorageSpec, WeightDir};
use layer_table::LayerTable;

/// The storages of a model in the order of the forward pass; with a tied output head there is no `head`.
///
/// Names: `embed`, per layer `input_norm`, `qkv` (rows q, k, v), `qkv_bias`, `q_norm` and `k_norm` where the family has
/// them, `o_proj`, `post_attn_norm` (GLM-4), `post_norm`, then `gate_up` (rows gate, up) and `down`, or `router`,
/// `router_bias`, `experts_gate_up` (for each expert rows gate, up), `experts_down`, `shared_gate_up` and `shared_down`;
/// `post_mlp_norm` (GLM-4); at the end `final_norm` and `head`. Matrices are `[out, in]`. The names and shapes of the
/// tensors are those of the hub (`LlamaForCausalLM` and its siblings).
pub fn storages(config: &HfConfig) -> Vec<StorageSpec> {
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let mut specs = vec![StorageSpec::single("embed", "model.embed_tokens.weight", &[vocab, hidden])];
    for layer in 0..config.num_hidden_layers {
        let mut table = LayerTable::new(&mut specs, config, layer);
        match config.family {
            Family::Llama | Family::Qwen2 | Family::Qwen3 => llama::layer(&mut table),
            Family::Qwen3Moe => qwen3_moe::layer(&mut table),
            Family::Glm4 => glm4::layer(&mut table),
            Family::Glm4Moe => glm4_moe::layer(&mut table),
            Family::MinimaxM2 => minimax_m2::layer(&mut table),
            Family::Mimo => mimo::layer(&mut table),
        }
    }
    specs.push(StorageSpec::single("final_norm", "model.norm.weight", &[hidden]));
    if !config.tie_word_embeddings {
        specs.push(StorageSpec::single("head", "lm_head.weight", &[vocab, hidden]));
    }
    specs
}

/// The storages of a head that gives each hidden state one number, a value or a score: `score` `[1, hidden]` under the
/// name that `transformers` gives the head of its `...ForSequenceClassification` models, and `score_bias` `[1]`.
pub fn value_head(config: &HfConfig) -> [StorageSpec; 2] {
    [
        StorageSpec::single("score", "score.weight", &[1, config.hidden_size]),
        StorageSpec::single("score_bias", "score.bias", &[1]),
    ]
}

/// Whether a tensor that the table does not know belongs to a layer that predicts further tokens: it is no part of the
/// computation and goes from the weights a model started from into those it becomes, as it is.
pub fn is_carried(config: &HfConfig, name: &str) -> bool {
    match config.family {
        Family::Glm4Moe => glm4_moe::is_mtp(config, name),
        Family::Mimo => mimo::is_mtp(name),
        _ => false,
    }
}

/// The storages of the layer that predicts the token after the next one, where it is known how to compute it.
pub fn mtp(config: &HfConfig) -> Option<Vec<StorageSpec>> {
    (config.family == Family::Mimo && config.num_mtp_layers == 1).then(|| mimo::mtp(config))
}

/// Whether a tensor keeps its f32 when the others are cast to less: the correction bias of a router, of which half a percent
/// decides between experts.
pub fn is_f32(name: &str) -> bool {
    name.ends_with("e_score_correction_bias")
}

/// Checks that `weights` holds every tensor of the model with its shape; tensors that are neither the model's nor carried
/// along are named in the answer.
///
/// # Errors
/// A tensor is absent or has another shape.
pub fn check(config: &HfConfig, weights: &WeightDir) -> Result<Vec<String>> {
    let mut unused: std::collections::BTreeSet<&str> = weights.names().collect();
    for spec in storages(config) {
        for view in spec.views_in(weights) {
            let got = &weights.info(&view.name)?.shape;
            if *got != view.shape {
                return Err(Error::Shape {
                    path: weights.path().to_owned(),
                    tensor: view.name.clone(),
                    expected: view.shape.clone(),
                    got: got.clone(),
                });
            }
            unused.remove(view.name.as_str());
        }
    }
    Ok(unused.into_iter().filter(|name| !is_carried(config, name)).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(model_type: &str, tied: bool) -> HfConfig {
        let text = format!(
            r#"{{"model_type":"{model_type}","hidden_size":8,"intermediate_size":12,"num_hidden_layers":2,
            "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":10,"tie_word_embeddings":{tied}}}"#
        );
        HfConfig::parse(&text, std::path::Path::new("config.json")).unwrap()
    }

    fn names(config: &HfConfig) -> Vec<String> {
        storages(config).into_iter().map(|s| s.name).collect()
    }

    #[test]
    fn tied_llama_has_no_head() {
        let names = names(&config("llama", true));
        assert_eq!((names.len(), names[0].as_str(), names[12].as_str()), (14, "embed", "layers.1.down"));
        assert!(!names.contains(&"head".to_owned()) && !names.contains(&"layers.0.qkv_bias".to_owned()));
    }

    #[test]
    fn families_differ_in_bias_and_head_norms() {
        assert!(names(&config("qwen2", false)).contains(&"layers.1.qkv_bias".to_owned()));
        let qwen3 = names(&config("qwen3", false));
        assert!(qwen3.contains(&"layers.0.k_norm".to_owned()) && qwen3.contains(&"head".to_owned()));
    }

    #[test]
    fn qkv_rows_follow_the_heads() {
        let specs = storages(&config("llama", true));
        let qkv = specs.iter().find(|s| s.name == "layers.0.qkv").unwrap();
        assert_eq!(qkv.shape, [16, 8]);
        assert_eq!(qkv.views[2].offset_rows, 12);
        assert_eq!(qkv.views[2].name, "model.layers.0.self_attn.v_proj.weight");
    }

    const MOE: &str = r#"{"model_type":"glm4_moe","hidden_size":8,"intermediate_size":12,"num_hidden_layers":3,
        "num_attention_heads":4,"num_key_value_heads":2,"head_dim":4,"vocab_size":10,"n_routed_experts":3,"num_experts_per_tok":2,
        "moe_intermediate_size":5,"n_shared_experts":2,"first_k_dense_replace":1,"num_nextn_predict_layers":1}"#;

    #[test]
    fn experts_are_one_storage_with_a_view_for_each_tensor() {
        let config = HfConfig::parse(MOE, std::path::Path::new("config.json")).unwrap();
        let specs = storages(&config);
        let find = |name: &str| specs.iter().find(|spec| spec.name == name);
        assert!(find("layers.0.gate_up").is_some() && find("layers.0.router").is_none());
        let gate_up = find("layers.1.experts_gate_up").unwrap();
        assert_eq!((gate_up.shape.as_slice(), gate_up.views.len()), ([30, 8].as_slice(), 6));
        assert_eq!(gate_up.views[3].name, "model.layers.1.mlp.experts.1.up_proj.weight");
        assert_eq!(gate_up.views[3].offset_rows, 15);
        assert_eq!(gate_up.fused[0].shape, [3, 10, 8]);
        assert_eq!(find("layers.2.experts_down").unwrap().views[2].shape, [8, 5]);
        assert_eq!(find("layers.2.shared_down").unwrap().shape, [8, 10]);
        let bias = find("layers.2.router_bias").unwrap();
        assert!(bias.is_frozen && bias.is_f32);
        assert_eq!(bias.views[0].name, "model.layers.2.mlp.gate.e_score_correction_bias");
        assert!(is_carried(&config, "model.layers.3.eh_proj.weight"));
        assert!(!is_carried(&config, "model.layers.4.eh_proj.weight"));
    }
}
