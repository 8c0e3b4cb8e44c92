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
const ROUNDS: usize = 5;

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

/// Puts the bytes of the source out of the memory of the system, so that both read them from the disk.
fn forget(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let file = format!("if={}", entry.unwrap().path().display());
        Command::new("dd").args([file.as_str(), "iflag=nocache", "count=0", "status=none"]).status().unwrap();
    }
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
    let convert = || {
        let mut convert = Command::new(env!("CARGO_BIN_EXE_slime-convert"));
        convert.arg("export").args([path("src"), path("to")]).arg("--origin-hf").arg(path("src"));
        convert.args(["--max-shard-size", &format!("{}MiB", gib * 256), "-q"]);
        convert
    };
    let copy = || {
        let mut copy = Command::new("bash");
        copy.args(["-c", &format!("cp -r {0}/src {0}/to && sync {0}/to/*", root.path().display())]);
        copy
    };
    for is_cold in [false, true] {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            // Who begins changes: a disk may be slower after much was written.
            for tool in [round % 2, (round + 1) % 2] {
                if is_cold {
                    forget(&path("src"));
                }
                times[tool].push(seconds(&mut if tool == 0 { convert() } else { copy() }));
                fs::remove_dir_all(path("to")).unwrap();
            }
        }
        let [ours, copies] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        let source = if is_cold { "on disk" } else { "in memory" };
        println!(
            "{gib} GiB, source {source}: slime-convert {ours:.2} s, cp {copies:.2} s: {:.2} of its speed",
            copies / ours
        );
    }
}
