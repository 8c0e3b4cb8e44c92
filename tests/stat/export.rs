//! `slime-stat --export`: each form is read back, where possible by the program it is for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::python::check;
use super::synthetic::Synthetic;
use super::{name, run_with, stat};

/// A run of 12 steps and a folder for what is exported.
fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (run, out) = (folder.path().join("run"), folder.path().join("out"));
    fs::create_dir_all(&run).expect("writable");
    fs::create_dir_all(&out).expect("writable");
    Synthetic::default().write(&run);
    (folder, run, out)
}

fn export(run: &Path, target: &str) {
    let output = stat(&[name(run), "--export", target]);
    assert!(output.status.success(), "{target}: {output:?}");
}

#[test]
fn csv_has_a_row_a_step_and_the_evaluations_beside_it() {
    let (_folder, run, out) = folders();
    export(&run, name(&out.join("steps.csv")));
    let text = fs::read_to_string(out.join("steps.csv")).expect("it is there");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 13);
    assert!(lines[0].starts_with("step,time,rollout/raw_reward,rollout/reward_std,"), "{}", lines[0]);
    let columns = lines[0].split(',').count();
    assert!(columns > 40 && lines.iter().all(|line| line.split(',').count() == columns));
    assert!(!lines[0].contains("reward_mean"), "one number has one name");
    let evals = fs::read_to_string(out.join("steps.eval.csv")).expect("it is there");
    assert!(evals.starts_with("version,set,time,reward_mean,"), "{evals}");
    assert_eq!(evals.lines().count(), 1 + 2 * 7);
    assert!(evals.contains("\n12,held_out,"), "{evals}");
}

#[test]
fn older_names_are_exported_under_todays() {
    let run = run_with("{\"step\":0,\"reward_mean\":0.25,\"loss\":0.5,\"step_s\":3}\n", "");
    let target = run.path().join("a.csv");
    export(run.path(), name(&target));
    assert_eq!(
        fs::read_to_string(&target).expect("it is there"),
        "step,time,rollout/raw_reward,train/loss,perf/step_time\n0,,0.25,0.5,3\n"
    );
    assert!(!run.path().join("a.eval.csv").exists(), "no evaluations, no file");
}

#[test]
fn pandas_polars_and_duckdb_open_the_tables() {
    let (_folder, run, out) = folders();
    let paths = ["a.csv", "a.parquet", "a.eval.parquet"].map(|file| out.join(file));
    export(&run, name(&paths[0]));
    export(&run, name(&paths[1]));
    let mut seen = Vec::new();
    for package in ["pandas", "polars", "duckdb"] {
        let arguments = [package, name(&paths[0]), name(&paths[1]), name(&paths[2])];
        let Some(tables) = check(package, "tables.py", &arguments) else { continue };
        assert_eq!(tables[0]["columns"], tables[1]["columns"], "{package}");
        assert_eq!(tables[0]["rows"].as_array().map(Vec::len), Some(12), "{package}");
        let cell = |table: usize, row: usize, column: &str| {
            let at = tables[table]["columns"].as_array()?.iter().position(|name| name == column)?;
            tables[table]["rows"][row][at].as_f64()
        };
        assert_eq!(cell(1, 11, "rollout/raw_reward"), cell(0, 11, "rollout/raw_reward"), "{package}");
        assert!(cell(1, 11, "rollout/raw_reward").is_some_and(|reward| reward > 0.8), "{package}");
        assert_eq!(tables[2]["rows"][13][1], "held_out", "{package}");
        seen.push(tables[1]["rows"].clone());
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "all read the same numbers");
}

#[test]
fn tensorboard_reads_the_scalars() {
    let (_folder, run, out) = folders();
    export(&run, &format!("tensorboard:{}", name(&out)));
    // Again: the file is replaced, so that nothing is there twice.
    export(&run, &format!("tensorboard:{}", name(&out)));
    let Some(scalars) = check("tensorboard", "tensorboard_scalars.py", &[name(&out)]) else { return };
    assert_eq!(scalars["rollout/raw_reward"].as_array().map(Vec::len), Some(12));
    assert_eq!(scalars["eval/held_out"].as_array().map(Vec::len), Some(7));
    assert_eq!(scalars["eval/held_out"][6][0], 12);
    assert!(scalars["eval/held_out"][6][1].as_f64().is_some_and(|reward| reward > 0.89));
    assert_eq!(scalars["train/staleness"][0][1], 0.0, "zeros are told too");
}

#[test]
fn wandb_reads_the_offline_run() {
    let (_folder, run, out) = folders();
    export(&run, &format!("wandb:{}", name(&out)));
    let folder = fs::read_dir(&out).expect("readable").next().expect("one run").expect("readable").path();
    let folder_name = folder.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(folder_name.starts_with("offline-run-20231114_2213"), "{folder_name}");
    let id = folder_name.rsplit('-').next().expect("an id").to_owned();
    let log = folder.join(format!("run-{id}.wandb"));
    let bytes = fs::read(&log).expect("it is there");
    assert_eq!(&bytes[..7], b":W&B\xe1\xbe\x00");
    let Some(read) = check("wandb", "wandb_records.py", &[name(&log)]) else { return };
    let kinds: Vec<&str> =
        read["kinds"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!((kinds[0], kinds[1], kinds[kinds.len() - 1]), ("header", "run", "exit"));
    assert_eq!((&read["run"]["id"], &read["run"]["name"]), (&json!(id), &json!("run")));
    assert_eq!(read["run"]["config"]["run"]["seed"], 7);
    let history = read["history"].as_array().expect("a list");
    assert_eq!(history.len(), 13, "12 steps, and the evaluation of version 12");
    assert_eq!(history[12]["_step"], 12);
    assert!(history[12]["eval/held_out"].as_f64().is_some_and(|reward| reward > 0.89), "{}", history[12]);
    assert!(history[11]["train/grad_norm"].is_number());
}

#[test]
fn prometheus_gets_the_newest_values_under_legal_names() {
    let (_folder, run, out) = folders();
    let target = out.join("slime.prom");
    export(&run, &format!("prometheus:{}", name(&target)));
    let text = fs::read_to_string(&target).expect("it is there");
    assert!(text.contains("slime_train_grad_norm{run=\"run\",tool=\"train\"} 0."), "{text}");
    assert!(text.contains("slime_eval_reward_mean{run=\"run\",set=\"held_out\"} 0.9"), "{text}");
    assert!(text.contains("slime_engine_kv_used{run=\"run\",tool=\"replica.1\"} "), "{text}");
    assert!(
        text.contains("slime_step{run=\"run\"} 11\n") && text.contains("slime_done{run=\"run\"} 1\n"),
        "{text}"
    );
    for help in [
        "# HELP slime_train_entropy_loss entropy of the policy, with the reducer's denominator (nats)\n",
        "# HELP slime_rollout_raw_reward mean reward of the samples; only where they have one\n",
        "# HELP slime_eval_response_len_mean mean length of responses (tokens)\n",
        "# HELP slime_rollout_zero_std_count_1 committed groups whose rewards are all this",
        "# HELP slime_engine_version version of a replica\n",
    ] {
        assert!(text.contains(help), "{help} in {text}");
    }
    // The rules of the format: HELP, TYPE, then the values of that name; names of letters, digits and underscores.
    let (mut known, mut seen) = (String::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            known = rest.split(' ').next().expect("a name").to_owned();
            assert!(seen.insert(known.clone()), "{known} stands twice");
            assert!(known.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{known}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert_eq!(rest, format!("{known} gauge"));
        } else {
            let (name, rest) = line.split_once('{').expect("labels");
            let (_, value) = rest.rsplit_once("} ").expect("a value");
            assert_eq!(name, known);
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}

#[test]
fn trace_is_one_array_with_names() {
    let (_folder, run, out) = folders();
    let target = out.join("all.json");
    export(&run, &format!("trace:{}", name(&target)));
    let events: Vec<Value> =
        serde_json::from_slice(&fs::read(&target).expect("it is there")).expect("one array");
    let processes: Vec<&Value> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| &event["args"]["name"])
        .collect();
    assert_eq!(processes, [&json!("replica.0 (000001)"), &json!("trainer.0 (000001)")]);
    let spans = |pid: u64| events.iter().filter(|e| e["ph"] == "X" && e["pid"] == pid).count();
    assert_eq!((spans(1), spans(2)), (24, 48), "the torn last line is left out");
    let threads: Vec<&Value> =
        events.iter().filter(|e| e["name"] == "thread_name").map(|e| &e["args"]["name"]).collect();
    assert_eq!(threads, [&json!("main"), &json!("main")], "each is named once, as its tool did");
}

#[test]
fn targets_that_cannot_be_written_are_errors_and_leave_nothing() {
    let (folder, run, out) = folders();
    for (target, code, part) in [
        ("steps.xlsx".to_owned(), 64, "no form is known"),
        ("tensorboard:".to_owned(), 64, "no place"),
        (name(&out.join("no/where.csv")).to_owned(), 73, "cannot create"),
        (format!("prometheus:{}", name(&out.join("no/where.prom"))), 73, "cannot create"),
        (format!("trace:{}", name(&out)), 73, "cannot create"),
        (format!("wandb:{}", name(&run.join("run.toml"))), 73, "cannot create"),
    ] {
        let output = stat(&[name(&run), "--export", &target]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{target}: {message}");
        assert!(message.contains(part), "{target}: {message}");
    }
    assert_eq!(fs::read_dir(&out).expect("readable").count(), 0);
    fs::remove_dir_all(run.join("trace")).expect("ours");
    let output = stat(&[name(&run), "--export", &format!("trace:{}", name(&out.join("t.json")))]);
    assert_eq!(output.status.code(), Some(66), "{output:?}");
    let full = Command::new(env!("CARGO_BIN_EXE_slime-stat"))
        .args([name(&run), "--export", "prometheus:/dev/full"])
        .output();
    assert_eq!(full.expect("it starts").status.code(), Some(74));
    drop(folder);
}
