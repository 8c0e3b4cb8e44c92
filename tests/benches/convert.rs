//! slime-convert against `cp` of the same bytes on the same disk, by turns, both until the bytes are durable.
//!
//! `cargo bench --bench convert [-- GIB]`: a model of GIB (default 2) in four files below the folder of temporary files (TMPDIR).
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use slime_weights::{Dtype, TensorSpec, WeightWriter};

const ROWS: usize = 16;
const ROUNDS: usize = 3;

/// `gib` GiB of bf16 that no file system can shorten, in tensors of 256 MiB.
fn write_model(dir: &Path, gib: usize) {
    let names: Vec<String> = (0..4 * gib).map(|i| format!("model.layers.{i}.mlp.down_proj.weight")).collect();
    let width = (256 << 20) / 2 / ROWS;
    let spec =
        |name: &String| TensorSpec { name: name.clone(), dtype: Dtype::BF16, shape: vec![ROWS, width] };
    let mut writer = WeightWriter::create(dir, names.iter().map(spec).collect(), gib << 28).unwrap();
    let mut state = 1_u64;
    let mut bytes = vec![0; 256 << 20];
    for name in &names {
        for element in bytes.as_chunks_mut::<2>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Below the exponent of infinities.
            *element = ((state >> 40) as u16 & 0xbfff).to_le_bytes();
        }
        writer.write(name, &bytes).unwrap();
    }
    let config = r#"{"model_type":"llama","hidden_size":8,"intermediate_size":8,"num_hidden_layers":0,"num_attention_heads":1,"vocab_size":8}"#;
    writer.add_file("config.json", config.as_bytes()).unwrap();
    writer.finish().unwrap();
}

fn seconds(command: &mut Command) -> f64 {
    let start = Instant::now();
    assert!(command.status().unwrap().success());
    start.elapsed().as_secs_f64()
}

fn main() {
    let gib = std::env::args().filter_map(|word| word.parse().ok()).next_back().unwrap_or(2);
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    write_model(&path("src"), gib);
    // An origin with the same tensors: nothing is checked against sizes, nothing is filled in.
    let (mut ours, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut convert = Command::new(env!("CARGO_BIN_EXE_slime-convert"));
        convert.arg("export").args([path("src"), path("ours")]).arg("--origin-hf").arg(path("src"));
        convert.args(["--max-shard-size", &format!("{}MiB", gib * 256), "-q"]);
        ours.push(seconds(&mut convert));
        let line = format!("cp -r {0}/src {0}/copy && sync {0}/copy/*", root.path().display());
        copies.push(seconds(Command::new("bash").args(["-c", &line])));
        fs::remove_dir_all(path("ours")).unwrap();
        fs::remove_dir_all(path("copy")).unwrap();
    }
    for times in [&mut ours, &mut copies] {
        times.sort_by(f64::total_cmp);
    }
    let (ours, copy) = (ours[ROUNDS / 2], copies[ROUNDS / 2]);
    println!("{gib} GiB: slime-convert {ours:.2} s, cp {copy:.2} s: {:.2} of its speed", copy / ours);
}
