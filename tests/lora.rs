//! Adapters from outside: merged weights, PEFT directories from a step by hand and from a checkpoint, on ranks and in a loop.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixtures/launcher.rs"]
mod launcher;
#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use slime_weights::{WeightDir, decode_f32};
use tiny_loop::{NUM_STEPS, TOGETHER, kill, newest, run_dir, start_all, wait_until, whole};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name)
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two groups of four samples over the fixtures' vocabulary, as rewarded JSON lines.
fn samples() -> String {
    let row = |group: u32, index: u32| {
        let tokens: Vec<u32> = (0..7 + index).map(|at| (group * 17 + index * at + at * 5) % 96).collect();
        let response_len = tokens.len() - 3;
        let reward = f64::from(index % 2);
        json!({"group": group, "index": index, "status": "completed", "tokens": tokens, "prompt_len": 3,
            "loss_mask": vec![1; response_len], "rollout_log_probs": vec![-4.5; response_len], "reward": reward})
        .to_string()
            + "\n"
    };
    (0..8).map(|at| row(at / 4, at % 4)).collect()
}

fn args<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let sets = [
        "train.lora.rank=3",
        "train.lora.alpha=6.0",
        "train.lr=1e-2",
        "rollout.rollout_batch_size=2",
        "rollout.n_samples_per_prompt=4",
    ];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    ["--weights", model, "--samples", "samples.jsonl"]
        .into_iter()
        .chain(sets)
        .chain(more.iter().copied())
        .collect()
}

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn tensors(path: &Path) -> Tensors {
    let weights = WeightDir::open(path).unwrap();
    let tensor = |name: &str| {
        let view = weights.tensor(name).unwrap();
        (name.to_owned(), (view.shape.to_vec(), decode_f32(name, &view.bytes, view.dtype).unwrap()))
    };
    weights.names().map(tensor).collect()
}

/// `base + scale B A`, from a PEFT directory.
fn merged(mut base: Tensors, adapter: &Path) -> Tensors {
    let config: Value =
        serde_json::from_slice(&fs::read(adapter.join("adapter_config.json")).unwrap()).unwrap();
    let scale = config["lora_alpha"].as_f64().unwrap() / config["r"].as_f64().unwrap();
    let adapters = tensors(&adapter.join("adapter_model.safetensors"));
    for (name, (shape, a)) in &adapters {
        let Some(module) = name.strip_suffix(".lora_A.weight") else { continue };
        let (_, b) = &adapters[&format!("{module}.lora_B.weight")];
        let matrix = format!("{}.weight", module.strip_prefix("base_model.model.").unwrap());
        let (rank, columns) = (shape[0], shape[1]);
        let (_, values) = base.get_mut(&matrix).unwrap();
        for (at, value) in values.iter_mut().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let product =
                (0..rank).map(|r| f64::from(b[row * rank + r]) * f64::from(a[r * columns + column]));
            *value = (f64::from(*value) + scale * product.sum::<f64>()) as f32;
        }
    }
    base
}

fn assert_near(got: &Tensors, expected: &Tensors, bound: f32) {
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, (_, values)) in expected {
        let apart = got[name].1.iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart <= bound, "{name} differs by {apart}");
    }
}

#[test]
fn a_step_writes_merged_weights_and_the_adapters_beside_them() {
    for model in ["qwen3", "glm4_moe"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("samples.jsonl"), samples()).unwrap();
        let model = fixture(model);
        let path = model.to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_slime-train"));
        let alone = args(path, &["--output", "alone", "--dump", "dump"]);
        let output =
            command.current_dir(dir.path()).env("OMP_NUM_THREADS", "1").args(alone).output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        let out = dir.path().join("alone");
        let (base, new) = (tensors(&model), tensors(&out));
        assert_near(&new, &merged(base.clone(), &out.join("adapter")), 1e-6);
        assert!(
            new["model.layers.0.self_attn.v_proj.weight"] != base["model.layers.0.self_attn.v_proj.weight"]
        );
        assert!(new["model.norm.weight"] == base["model.norm.weight"]);
        let grads = tensors(&dir.path().join("dump/grads.safetensors"));
        assert!(grads.keys().all(|name| name.contains(".lora_")), "{:?}", grads.keys());
        // What the engine samples from is an ordinary model of the same tensors.
        let Some(mut mpirun) = launcher::mpirun(2) else { return };
        mpirun.current_dir(dir.path()).env("OMP_NUM_THREADS", "1").arg(env!("CARGO_BIN_EXE_slime-train"));
        let split = args(path, &["--output", "split", "--set", "parallel.tp=2"]);
        let output = mpirun.args(split).output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        let split = tensors(&dir.path().join("split/adapter/adapter_model.safetensors"));
        // Where a gradient is next to nothing, AdamW's first update may go either way.
        assert_near(&split, &tensors(&out.join("adapter/adapter_model.safetensors")), 2.1e-2);
    }
}

#[test]
fn what_adapters_rule_out_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("samples.jsonl"), samples()).unwrap();
    let model = fixture("qwen3_moe");
    let refused = |set: &str, code: i32, text: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slime-train"));
        let all = args(model.to_str().unwrap(), &["--output", "out", "--set", set]);
        let output = command.current_dir(dir.path()).args(all).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", told(&output));
        assert!(told(&output).contains(text), "{}", told(&output));
        assert!(!dir.path().join("out").exists());
    };
    refused("train.lora.rank=0", 78, "train.lora.rank: expected at least 1, got 0");
    refused("train.lora.ranks=2", 78, "did you mean train.lora.rank?");
    refused("train.freeze=[\"model.norm.weight\"]", 78, "[train.lora] rules out train.freeze");
    refused("train.lora.targets=[\"*up_proj.weight\"]", 78, "up_proj.weight, which has no adapter");
    refused("train.lora.targets=[\"*.w_proj.weight\"]", 78, "matches no parameter of the model\n");
}

#[test]
fn a_run_publishes_merged_weights_and_its_checkpoint_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_dir(&dir, "run", &["train.lora.rank=4", "algorithm.kl_loss_coef=0.01"]);
    whole(&run, &TOGETHER);
    let checkpoint = newest(&run.join("checkpoint"), NUM_STEPS).unwrap();
    let out = dir.path().join("adapter");
    let export = |more: &[&Path]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slime-convert"));
        command.arg("export").arg(&checkpoint).args(more).output().unwrap()
    };
    let output = export(&[&out]);
    assert!(output.status.success(), "{}", told(&output));
    let published = tensors(&newest(&run.join("weights"), NUM_STEPS).unwrap());
    let base = tensors(&dir.path().join("weights"));
    assert_near(&published, &merged(base.clone(), &out), 1e-6);
    assert!(published != base);
    let config: Value = serde_json::from_slice(&fs::read(out.join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!(config["base_model_name_or_path"], dir.path().join("weights").to_str().unwrap());
    // Elsewhere nothing says which model it was.
    let moved = dir.path().join("moved");
    fs::rename(&checkpoint, &moved).unwrap();
    let again = |more: &[&Path]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slime-convert"));
        command.arg("export").arg(&moved).arg(dir.path().join("again")).args(more).output().unwrap()
    };
    let output = again(&[]);
    assert_eq!(output.status.code(), Some(66), "{}", told(&output));
    assert!(told(&output).contains("hint: --origin-hf DIR"), "{}", told(&output));
    let output = again(&[Path::new("--origin-hf"), &dir.path().join("weights")]);
    assert!(output.status.success(), "{}", told(&output));
    let file = |dir: &Path| fs::read(dir.join("adapter_model.safetensors")).unwrap();
    assert_eq!(file(&dir.path().join("again")), file(&out));
}

#[test]
fn checkpoints_of_a_run_without_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_dir(&dir, "run", &[]);
    let mut tools = start_all(&TOGETHER, &run);
    let complete = || newest(&run.join("checkpoint"), 1).filter(|path| path.join("COMPLETE").exists());
    wait_until(&run, "a checkpoint", || complete().is_some());
    for tool in &mut tools {
        kill(&mut tool.child);
    }
    let mut export = Command::new(env!("CARGO_BIN_EXE_slime-convert"));
    let output = export.arg("export").arg(complete().unwrap()).arg(dir.path().join("out")).output().unwrap();
    assert_eq!(output.status.code(), Some(65), "{}", told(&output));
    assert!(told(&output).contains("a checkpoint of a run without [train.lora]"), "{}", told(&output));
    let text = fs::read_to_string(run.join("run.toml")).unwrap();
    for (section, expected) in [
        ("[train.lora]\nrank = 4\n", "expected train.lora {\"rank\":4,"),
        ("[train.fp8]\nscaling = \"tensor\"\n", "expected train.fp8 {\"scaling\":\"tensor\","),
    ] {
        fs::write(run.join("run.toml"), format!("{text}\n{section}")).unwrap();
        let mut trainer = Command::new(env!("CARGO_BIN_EXE_slime-train"));
        let output = trainer.env("OMP_NUM_THREADS", "1").arg("--follow").arg(&run).output().unwrap();
        assert_eq!(output.status.code(), Some(65), "{}", told(&output));
        assert!(told(&output).contains(expected), "{}", told(&output));
        assert!(told(&output).contains("it was trained with null"), "{}", told(&output));
    }
}
