//! Models large enough to weigh, and what a process weighs.

use std::path::Path;

/// The sizes of a model with tied embeddings.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub hidden: usize,
    pub intermediate: usize,
    pub vocab: usize,
    pub num_layers: usize,
    /// Query heads, key-value heads.
    pub heads: [usize; 2],
}

impl Shape {
    /// Writes such a model, of f32 numbers without meaning.
    pub fn write(self, dir: &Path) {
        let Self { hidden, intermediate, vocab, num_layers, heads: [num_q, num_kv] } = self;
        let kv = hidden / num_q * num_kv;
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ];
        for layer in 0..num_layers {
            for (name, shape) in [
                ("self_attn.q_proj", vec![hidden, hidden]),
                ("self_attn.k_proj", vec![kv, hidden]),
                ("self_attn.v_proj", vec![kv, hidden]),
                ("self_attn.o_proj", vec![hidden, hidden]),
                ("mlp.gate_proj", vec![intermediate, hidden]),
                ("mlp.up_proj", vec![intermediate, hidden]),
                ("mlp.down_proj", vec![hidden, intermediate]),
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
            ] {
                tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
            }
        }
        let (mut header, mut values, mut state) = (serde_json::Map::new(), Vec::new(), 1u32);
        for (name, shape) in tensors {
            let start = values.len();
            for _ in 0..shape.iter().product() {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let value = if shape.len() == 1 { 1.0 } else { (state >> 8) as f32 / 1.7e8 - 0.05 };
                values.extend_from_slice(&f32::to_le_bytes(value));
            }
            let entry =
                serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, values.len()]});
            header.insert(name, entry);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let len = (header.len() as u64).to_le_bytes();
        std::fs::write(dir.join("model.safetensors"), [&len[..], &header, &values].concat()).unwrap();
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": intermediate, "num_hidden_layers": num_layers, "num_attention_heads": num_q,
            "num_key_value_heads": num_kv, "vocab_size": vocab, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": true,
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    }
}

/// A line of `/proc/self/status`, in bytes.
pub fn status_bytes(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}
