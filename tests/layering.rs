//! The crates depend downwards only, each foreign library has its home, and unsafe code stands only where allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The layers from the ground up. A crate may use crates of lower layers, and those named in `WITHIN`.
const LAYERS: [&[&str]; 7] = [
    &["cli", "config", "record"],
    &["archive", "exchange", "tokenizer", "weights", "checkpoint", "comm", "cuda", "sandbox", "metrics"],
    &["torch", "kernel"],
    &["model", "transport"],
    &["engine", "environment", "verifier", "trainer"],
    &["server"],
    &["slime"],
];

/// Arrows inside one layer.
const WITHIN: [(&str, &str); 2] = [("trainer", "environment"), ("kernel", "torch")];

/// Crates that must stay free of torch, so the tools on them run on a bare node.
const WITHOUT_TORCH: [&str; 13] = [
    "archive",
    "cli",
    "config",
    "record",
    "exchange",
    "tokenizer",
    "weights",
    "checkpoint",
    "comm",
    "environment",
    "verifier",
    "sandbox",
    "metrics",
];

/// Foreign libraries and the crates that may name them.
const HOMES: [(&str, &[&str]); 40] = [
    ("axum", &["server"]),
    ("hyper", &["server"]),
    ("hyper-util", &["server"]),
    ("llguidance", &["server"]),
    ("tokio", &["server"]),
    ("toktrie", &["server"]),
    ("backtrace", &["cli"]),
    ("tch", &["torch", "model", "engine", "trainer", "transport", "kernel", "slime"]),
    ("cudarc", &["comm", "cuda"]),
    ("memmap2", &["exchange", "transport", "weights"]),
    ("hdf5-metno", &["checkpoint"]),
    ("arrow-array", &["record"]),
    ("arrow-buffer", &["record"]),
    ("arrow-ipc", &["record"]),
    ("arrow-schema", &["record"]),
    ("arrow-json", &["environment"]),
    ("parquet", &["environment", "slime"]),
    ("zstd", &["archive", "transport"]),
    ("tokenizers", &["tokenizer"]),
    ("minijinja", &["tokenizer"]),
    ("minijinja-contrib", &["tokenizer"]),
    ("quick-xml", &["verifier"]),
    ("astro-float-num", &["verifier"]),
    ("num-bigint", &["verifier"]),
    ("num-rational", &["verifier"]),
    ("jsonschema", &["verifier"]),
    ("ureq", &["verifier", "slime"]),
    ("whatlang", &["verifier"]),
    ("toml", &["config"]),
    ("crc32c", &["metrics"]),
    ("flate2", &["metrics"]),
    ("prost", &["metrics", "slime"]),
    ("signal-hook", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("crc32fast", &["slime"]),
    ("landlock", &["sandbox"]),
    ("seccompiler", &["sandbox"]),
    ("maud", &["slime"]),
    ("ratatui", &["slime"]),
];

/// Crates whose files may opt in to unsafe code.
const UNSAFE: [&str; 10] =
    ["cli", "comm", "cuda", "torch", "kernel", "model", "exchange", "weights", "sandbox", "transport"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The dependencies of every crate by its short name, those of tests left out.
fn manifests() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("lib")).expect("lib/ exists") {
        let folder = entry.expect("lib/ is readable").path();
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        found.insert(name, dependencies(&folder.join("Cargo.toml")));
    }
    found.insert("slime".to_owned(), dependencies(&root().join("Cargo.toml")));
    found
}

fn dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(manifest).unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]";
        } else if inside && let Some(end) = line.find(['.', ' ', '=']) {
            let name = line[..end].trim();
            if !name.is_empty() && !name.starts_with('#') {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

fn layer(name: &str) -> usize {
    LAYERS.iter().position(|layer| layer.contains(&name)).unwrap_or_else(|| panic!("{name} is in no layer"))
}

#[test]
fn dependencies_point_down_only() {
    for (name, names) in manifests() {
        for below in names.iter().filter_map(|dependency| dependency.strip_prefix("slime-")) {
            let is_down = layer(below) < layer(&name) || WITHIN.contains(&(name.as_str(), below));
            assert!(is_down, "{name} depends on {below}, which is not below it");
        }
    }
}

#[test]
fn foreign_libraries_stay_at_home() {
    let manifests = manifests();
    for (library, homes) in HOMES {
        for (name, names) in &manifests {
            assert!(!names.contains(library) || homes.contains(&name.as_str()), "{name} names {library}");
        }
    }
}

#[test]
fn crates_of_bare_nodes_reach_no_torch() {
    let manifests = manifests();
    for name in WITHOUT_TORCH {
        let Some(names) = manifests.get(name) else { continue };
        // Dependencies point down, so a crate reaches torch only through one that is checked here too.
        for dependency in
            ["tch", "slime-torch", "slime-model", "slime-engine", "slime-trainer", "slime-transport"]
        {
            assert!(!names.contains(dependency), "{name} depends on {dependency}");
        }
    }
}

#[test]
fn tools_of_bare_nodes_do_not_link_torch() {
    for program in [
        env!("CARGO_BIN_EXE_slime-convert"),
        env!("CARGO_BIN_EXE_slime-reward"),
        env!("CARGO_BIN_EXE_slime-stat"),
        env!("CARGO_BIN_EXE_slime-sync"),
    ] {
        let output = Command::new("ldd").arg(program).output().expect("ldd starts");
        let libraries = String::from_utf8_lossy(&output.stdout);
        assert!(libraries.contains("libc.so"), "{program}: {libraries}");
        assert!(!libraries.contains("torch"), "{program}: {libraries}");
    }
}

#[test]
fn unsafe_code_opts_in_by_file_in_few_crates() {
    for file in sources(&root().join("lib")).into_iter().chain(sources(&root().join("bins"))) {
        let text = fs::read_to_string(&file).expect("a source file is readable");
        let opts_in = text.contains(concat!("expect(", "unsafe_code"))
            || text.contains(concat!("allow(", "unsafe_code"));
        let allowed = UNSAFE.iter().any(|name| file.starts_with(root().join("lib").join(name)));
        assert!(!opts_in || allowed, "{} opts in to unsafe code", file.display());
        if opts_in {
            assert!(text.contains("SAFETY:"), "{} does not say why its unsafe code is sound", file.display());
        }
    }
}

#[test]
fn every_file_opens_with_its_sentence() {
    for file in sources(&root().join("lib")).into_iter().chain(sources(&root().join("bins"))) {
        let text = fs::read_to_string(&file).expect("a source file is readable");
        assert!(text.starts_with("//! "), "{} does not say what it does", file.display());
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a source folder is readable") {
        let path = entry.expect("a source folder is readable").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
