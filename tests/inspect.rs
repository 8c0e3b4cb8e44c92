//! `slime-convert inspect` of everything a run leaves, as tables and as JSON, and of what is none of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use slime_checkpoint::{Dtype, Shard, Snapshot, complete, write};
use slime_record::{Column, ColumnValues, Provenance, Sample, Status, VersionRun, encode_segment};

fn inspect(path: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-convert"));
    command.arg("inspect").arg(path).args(more).output().expect("slime-convert starts")
}

/// The JSON and the table of a path.
fn both(path: &Path) -> (Value, String) {
    let (json, text) = (inspect(path, &["--json"]), inspect(path, &[]));
    assert!(json.status.success(), "{}", String::from_utf8_lossy(&json.stderr));
    (serde_json::from_slice(&json.stdout).expect("JSON"), String::from_utf8(text.stdout).expect("text"))
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn samples() -> Vec<Sample> {
    let sample = |i: u32| Sample {
        step: 3,
        group: i / 2,
        index: i % 2,
        source: "math".to_owned(),
        tokens: (0..4 + i).collect(),
        prompt_len: 3,
        loss_mask: vec![1; 1 + i as usize],
        rollout_log_probs: vec![-0.5; 1 + i as usize],
        weight_versions: vec![VersionRun { version: 2, len: 1 }, VersionRun { version: 3, len: i }],
        status: if i == 3 { Status::Truncated } else { Status::Completed },
        ..Sample::default()
    };
    (0..4).map(sample).collect()
}

#[test]
fn gguf_is_shown_with_its_own_names_types_and_metadata() {
    let (json, text) = both(&fixture("gguf/mixed.gguf"));
    assert_eq!((&json["kind"], &json["format"]), (&json!("weights"), &json!("gguf")));
    assert_eq!(json["metadata"]["general.architecture"], "llama");
    assert_eq!(json["parameters_by_dtype"]["Q4_K"], 32 * 256);
    let row =
        json["tensors"].as_array().expect("rows").iter().find(|row| row["name"] == "blk.0.attn_q.weight");
    assert_eq!(
        *row.expect("there"),
        json!({"name": "blk.0.attn_q.weight", "dtype": "Q4_K", "shape": [32, 256], "num_bytes": 32 * 144})
    );
    assert!(
        text.lines().any(|line| line.starts_with("blk.0.attn_q.weight") && line.ends_with(" 4608")),
        "{text}"
    );
}

#[test]
fn weights_are_shown_with_hashes_in_aligned_columns() {
    let (json, text) = both(&fixture("models/llama"));
    assert_eq!(json["format"], "safetensors");
    let rows = json["tensors"].as_array().expect("rows");
    let bytes: u64 = rows.iter().map(|row| row["num_bytes"].as_u64().expect("a size")).sum();
    assert_eq!(json["num_bytes"], bytes);
    let at = text
        .lines()
        .find(|line| line.starts_with("tensor "))
        .and_then(|line| line.find("xxh3"))
        .expect("a header");
    for row in rows {
        let name = row["name"].as_str().expect("a name");
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("a line");
        assert_eq!(line[at..], *row["xxh3"].as_str().expect("a hash"));
    }
}

#[test]
fn segments_and_columns_tell_samples_provenance_and_types() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("replica-0.000001.000000.arrow");
    let mut provenance = Provenance { tool: "slime-rollout".to_owned(), seed: 9, ..Provenance::default() };
    provenance.extra.insert("replica".to_owned(), "0".to_owned());
    fs::write(&path, encode_segment(&samples(), &provenance).expect("encodes")).expect("writable");
    let (json, text) = both(&path);
    assert_eq!(json["kind"], "segment");
    assert_eq!(
        (&json["num_samples"], &json["num_groups"], &json["steps"]),
        (&json!(4), &json!(2), &json!([3]))
    );
    assert_eq!(json["response_len"], json!({"min": 1, "mean": 2.5, "max": 4}));
    assert_eq!(json["statuses"], json!({"completed": 3, "truncated": 1}));
    assert_eq!(json["sources"], json!({"math": 4}));
    assert_eq!(json["tokens_by_version"], json!({"2": 4, "3": 6}));
    assert_eq!(
        (&json["provenance"]["seed"], &json["provenance"]["extra"]["replica"]),
        (&json!(9), &json!("0"))
    );
    assert_eq!(
        json["columns"][0],
        json!({"name": "step", "dtype": "UInt64", "nullable": false, "num_bytes": 32})
    );
    for part in ["completed 3, truncated 1", "2: 4, 3: 6", "1 to 4 tokens, mean 2.5", "slime-rollout"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let values = ColumnValues::F32(vec![1.0, 0.0, 0.5, 0.5]);
    let column = Column::new("reward", &samples(), values).encode(&provenance).expect("encodes");
    fs::write(&path, column).expect("writable");
    let (json, _) = both(&path);
    assert_eq!(
        (&json["kind"], &json["column"], &json["num_rows"]),
        (&json!("column"), &json!("reward"), &json!(4))
    );
    assert_eq!(json["values"], json!({"min": 0.0, "mean": 0.5, "max": 1.0}));
}

#[test]
fn checkpoints_tell_ranks_tensors_and_whether_they_are_complete() {
    let root = tempfile::tempdir().expect("a folder");
    let dir = root.path().join("checkpoint/000040.e003");
    fs::create_dir_all(&dir).expect("writable");
    let shards = vec![Shard::whole("model/norm", Dtype::F32, &[3, 2], vec![0; 24])];
    let snapshot =
        Snapshot { rank: 0, world_size: 1, token: "e003.1".to_owned(), meta: json!({"step": 40}), shards };
    write(&dir, &snapshot, Duration::from_secs(20)).expect("writes");
    let (json, text) = both(&dir);
    assert_eq!((&json["complete"], &json["version"], &json["epoch"]), (&json!(false), &json!(40), &json!(3)));
    assert!(
        json["files"].as_array().expect("files").iter().any(|file| file["name"] == "rank_00000.h5"),
        "{json}"
    );
    assert!(text.contains("no: its writing was cut off"), "{text}");
    complete(&dir).expect("completes");
    let (json, text) = both(&dir);
    assert_eq!(
        (&json["complete"], &json["world_size"], &json["num_bytes"]),
        (&json!(true), &json!(1), &json!(24))
    );
    assert_eq!(
        json["tensors"],
        json!([{"name": "model/norm", "dtype": "f32", "shape": [3, 2], "num_bytes": 24}])
    );
    assert_eq!((&json["meta"]["step"], &json["files"][0]["num_datasets"]), (&json!(40), &json!(1)));
    assert!(text.contains("model/norm") && text.contains("40 of epoch 3"), "{text}");
    fs::write(dir.join("rank_00000.h5"), "short").expect("writable");
    let output = inspect(&dir, &[]);
    assert_eq!(output.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&output.stderr).contains("rank_00000.h5: expected "), "{output:?}");
}

#[test]
fn manifests_tell_their_account_and_other_files_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("MANIFEST.json");
    let manifest = json!({
        "step": 7, "builder": 2, "epoch": 3, "min_version": 5, "groups": [], "carried": [],
        "refused": [{"step": 7, "group": 1, "cursor": 4, "reason": "all equal", "num_tokens": 9}],
        "outstanding": [{"step": 7, "group": 2, "cursor": 5, "attempt": 0}], "returned": [], "next_group": {"7": 3},
        "cursor": 6, "account": {"response": 10, "trained": 8, "masked": 2, "refused": 9, "expired": 0, "surplus": 0, "carried": 0},
    });
    fs::write(&path, manifest.to_string()).expect("writable");
    let (json, text) = both(&path);
    assert_eq!((&json["kind"], &json["step"], &json["cursor"]), (&json!("manifest"), &json!(7), &json!(6)));
    assert_eq!((&json["refused"], &json["num_outstanding"]), (&json!({"all equal": 1}), &json!(1)));
    assert_eq!(json["account"]["trained"], 8);
    assert!(text.contains("response 10, trained 8, masked 2"), "{text}");
    for (bytes, code) in [("{\"step\":7}", 65), ("{", 65), ("ARROW1 and no more", 65)] {
        fs::write(&path, bytes).expect("writable");
        assert_eq!(inspect(&path, &[]).status.code(), Some(code), "{bytes}");
    }
    assert_eq!(inspect(&root.path().join("none"), &[]).status.code(), Some(66));
}
