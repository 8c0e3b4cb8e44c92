//! The table of tensors of each dense family (Llama, Qwen2, Qwen3) as storages under Hugging Face names.

use slime_config::{Family, HfConfig};

use crate::{Error, Result, StorageSpec, WeightDir};

/// The storages of a model in the order of the forward pass; with a tied output head there is no `head`.
///
/// Names: `embed`, per layer `input_norm`, `qkv` (rows q, k, v), `qkv_bias` (Qwen2), `q_norm` and `k_norm` (Qwen3),
/// `o_proj`, `post_norm`, `gate_up` (rows gate, up), `down`, then `final_norm` and `head`. Matrices are `[out, in]`.
/// The names and shapes of the tensors are those of `transformers` (`LlamaForCausalLM` and its siblings).
pub fn storages(config: &HfConfig) -> Vec<StorageSpec> {
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let mut specs = vec![StorageSpec::single("embed", "model.embed_tokens.weight", &[vocab, hidden])];
    for layer in 0..config.num_hidden_layers {
        push_layer(&mut specs, config, layer);
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

fn push_layer(specs: &mut Vec<StorageSpec>, config: &HfConfig, layer: usize) {
    let (hidden, head_dim) = (config.hidden_size, config.head_dim);
    let q_rows = config.num_attention_heads * head_dim;
    let kv_rows = config.num_key_value_heads * head_dim;
    let name = |suffix: &str| format!("layers.{layer}.{suffix}");
    let hf = |suffix: &str| format!("model.layers.{layer}.{suffix}");
    let qkv = |kind: &str| {
        [
            (hf(&format!("self_attn.q_proj.{kind}")), q_rows),
            (hf(&format!("self_attn.k_proj.{kind}")), kv_rows),
            (hf(&format!("self_attn.v_proj.{kind}")), kv_rows),
        ]
    };
    specs.push(StorageSpec::single(name("input_norm"), hf("input_layernorm.weight"), &[hidden]));
    specs.push(StorageSpec::stacked(name("qkv"), &qkv("weight"), &[hidden]));
    if config.attention_bias {
        specs.push(StorageSpec::stacked(name("qkv_bias"), &qkv("bias"), &[]));
    }
    if config.family == Family::Qwen3 {
        specs.push(StorageSpec::single(name("q_norm"), hf("self_attn.q_norm.weight"), &[head_dim]));
        specs.push(StorageSpec::single(name("k_norm"), hf("self_attn.k_norm.weight"), &[head_dim]));
    }
    specs.push(StorageSpec::single(name("o_proj"), hf("self_attn.o_proj.weight"), &[hidden, q_rows]));
    specs.push(StorageSpec::single(name("post_norm"), hf("post_attention_layernorm.weight"), &[hidden]));
    let gate_up = [
        (hf("mlp.gate_proj.weight"), config.intermediate_size),
        (hf("mlp.up_proj.weight"), config.intermediate_size),
    ];
    specs.push(StorageSpec::stacked(name("gate_up"), &gate_up, &[hidden]));
    specs.push(StorageSpec::single(
        name("down"),
        hf("mlp.down_proj.weight"),
        &[hidden, config.intermediate_size],
    ));
}

/// Checks that `weights` holds every tensor of the model with its shape; other tensors are named in the answer.
///
/// # Errors
/// A tensor is absent or has another shape.
pub fn check(config: &HfConfig, weights: &WeightDir) -> Result<Vec<String>> {
    let mut unused: std::collections::BTreeSet<&str> = weights.names().collect();
    for spec in storages(config) {
        for view in &spec.views {
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
    Ok(unused.into_iter().map(str::to_owned).collect())
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
}
