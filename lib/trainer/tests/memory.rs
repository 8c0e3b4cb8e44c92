//! A training rank holds less than 20 bytes for each parameter, activations apart.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

use slime_comm::Single;
use slime_config::Train;
use slime_model::Model;
use slime_record::Sample;
use slime_trainer::{Scored, Settings, Trainer};
use tch::{Device, Kind};

const HIDDEN: usize = 768;
const INTERMEDIATE: usize = 3072;
const VOCAB: usize = 512;
const NUM_LAYERS: usize = 3;
/// The limit of a training rank.
const MOST_BYTES: f64 = 20.0;

/// A model that is nearly all matrices, so that what a handful of tokens activates does not count.
fn write_model(dir: &Path) {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..NUM_LAYERS {
        for (name, shape) in [
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![HIDDEN / 3, HIDDEN]),
            ("self_attn.v_proj", vec![HIDDEN / 3, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
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
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": 12,
        "num_key_value_heads": 4, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

fn train(dir: &Path) -> f64 {
    let model = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    let num_parameters = model.params().num_parameters() as f64;
    let settings = Settings {
        train: Train { lr: 1e-4, max_tokens_per_gpu: 16, ..Train::default() },
        num_optimizer_steps: 10,
        ..Settings::default()
    };
    let mut trainer = Trainer::new(model, Arc::new(Single), settings).unwrap();
    let scored: Vec<Scored> = (0..4u32)
        .map(|index| {
            let tokens = vec![5, 6, 7, 8 + index, 9, 10 + index];
            let (loss_mask, prompt_len) = (vec![1; 3], 3);
            let sample = Sample { index, tokens, prompt_len, loss_mask, ..Sample::default() };
            Scored::new(sample, (index % 2) as f32)
        })
        .collect();
    for _ in 0..3 {
        trainer.train_rollout(&scored).unwrap();
    }
    num_parameters
}

#[test]
fn training_rank_stays_below_20_bytes_for_each_parameter() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path());
    // libtorch's own code and threads come into memory with the first step of any model.
    train(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama"));
    // Sets the peak back to what is resident now.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_bytes("VmRSS:");
    let num_parameters = train(dir.path());
    let bytes = (status_bytes("VmHWM:") - before) / num_parameters;
    println!("{bytes:.2} bytes for each of {num_parameters:.2e} parameters at the peak");
    // Weights, gradients and two moments alone take 16: less would mean that nothing was measured.
    assert!((16.0..MOST_BYTES).contains(&bytes), "{bytes:.2} bytes for each parameter");
}
