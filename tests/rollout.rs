//! slime-rollout as a user runs it: samples, scores, and what it says about bad input.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

#[path = "fixtures/published.rs"]
mod published;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A tiny model of the fixtures with a tokenizer of one word for each token.
fn weights(dir: &TempDir) -> PathBuf {
    let weights = dir.path().join("weights");
    fs::create_dir(&weights).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(fixture.join(name), weights.join(name)).unwrap();
    }
    let config: Value = serde_json::from_slice(&fs::read(weights.join("config.json")).unwrap()).unwrap();
    let vocab: serde_json::Map<String, Value> =
        (0..config["vocab_size"].as_u64().unwrap()).map(|id| (format!("w{id}"), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    });
    fs::write(weights.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
    let settings = json!({"chat_template": template});
    fs::write(weights.join("tokenizer_config.json"), settings.to_string()).unwrap();
    weights
}

fn rollout(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slime-rollout"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A tool that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "expected {part:?} in {stderr}");
    }
}

const PROMPTS: &str = "{\"prompt\": \"w3 w5\", \"label\": \"w7\", \"metadata\": {\"a\": 1}}\n\
    {\"prompt\": [{\"role\": \"user\", \"content\": \"w9 w2 w4\"}]}\n{\"prompt\": \"w8\"}\n";
const SAMPLING: [&str; 4] =
    ["--set", "rollout.max_response_len=9", "--set", "rollout.n_samples_per_prompt=3"];

fn sample(weights: &Path, more: &[&str], prompts: &str) -> Output {
    let mut args = vec!["--weights", weights.to_str().unwrap(), "--prompts", "-"];
    args.extend(SAMPLING);
    args.extend(more);
    rollout(&args, prompts)
}

#[test]
fn groups_come_in_the_order_of_their_prompts_with_everything_a_trainer_needs() {
    let dir = TempDir::new().unwrap();
    let rows = rows(&sample(&weights(&dir), &[], PROMPTS));
    assert_eq!(rows.len(), 9);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!((row["group"].as_u64(), row["index"].as_u64()), (Some(i as u64 / 3), Some(i as u64 % 3)));
        let len = |key: &str| row[key].as_array().unwrap().len() as u64;
        let response_len = len("tokens") - row["prompt_len"].as_u64().unwrap();
        assert!(response_len > 0 && response_len <= 9);
        assert_eq!((len("rollout_log_probs"), len("loss_mask")), (response_len, response_len));
        assert_eq!(row["weight_versions"], json!([{"version": 0, "len": response_len}]));
        let is_cut = row["finish_reason"] == "length";
        assert_eq!(row["status"], if is_cut { "truncated" } else { "completed" });
    }
    assert_eq!(rows[0]["tokens"].as_array().unwrap()[..2], [json!(3), json!(5)]);
    assert_eq!((&rows[0]["label"], &rows[0]["metadata"]), (&json!("w7"), &json!({"a": 1})));
    assert_eq!(rows[3]["prompt"], json!([{"role": "user", "content": "w9 w2 w4"}]));
}

#[test]
fn samples_depend_on_the_seed_and_not_on_the_batch() {
    let dir = TempDir::new().unwrap();
    let weights = weights(&dir);
    let tokens = |more: &[&str]| -> Vec<Value> {
        rows(&sample(&weights, more, PROMPTS)).into_iter().map(|row| row["tokens"].clone()).collect()
    };
    let first = tokens(&[]);
    assert_eq!(first, tokens(&["--set", "rollout.max_in_flight=2"]));
    assert_ne!(first, tokens(&["--set", "run.seed=1"]));
}

#[test]
fn score_gives_back_the_recorded_log_probs_and_keeps_every_field() {
    let dir = TempDir::new().unwrap();
    let weights = weights(&dir);
    let sampled = sample(&weights, &["--set", "rollout.temperature=0.7"], PROMPTS);
    let args = ["score", "--weights", weights.to_str().unwrap(), "--set", "rollout.temperature=0.7"];
    let input = String::from_utf8(sampled.stdout.clone()).unwrap();
    let scored = rows(&rollout(&args, &input));
    for (before, after) in rows(&sampled).iter().zip(&scored) {
        let log_probs: Vec<f64> = serde_json::from_value(after["log_probs"].clone()).unwrap();
        assert_eq!(log_probs.len() + 1, before["tokens"].as_array().unwrap().len());
        let recorded: Vec<f64> = serde_json::from_value(before["rollout_log_probs"].clone()).unwrap();
        let prompt_len = before["prompt_len"].as_u64().unwrap() as usize;
        for (a, b) in log_probs[prompt_len - 1..].iter().zip(&recorded) {
            assert!((a - b).abs() < 1e-4, "{a} is not {b}");
        }
        assert_eq!(before["response"], after["response"]);
    }
    let foreign =
        rows(&rollout(&args, "{\"tokens\": [3, 4, 5], \"prompt_len\": 1, \"mine\": {\"x\": [1]}}\n"));
    assert_eq!(foreign[0]["mine"], json!({"x": [1]}));
    assert_eq!(foreign[0]["log_probs"].as_array().unwrap().len(), 2);
}

#[test]
fn arrow_holds_the_same_samples_on_a_pipe_and_in_a_file() {
    let dir = TempDir::new().unwrap();
    let weights = weights(&dir);
    let file = dir.path().join("samples.arrow");
    let jsonl = rows(&sample(&weights, &[], PROMPTS));
    let stream = sample(&weights, &["--format", "arrow"], PROMPTS);
    sample(&weights, &["--format", "arrow", "--output", file.to_str().unwrap()], PROMPTS);
    let segment = slime_record::read_segment(&file).unwrap();
    let piped = slime_record::RowReader::new(std::io::Cursor::new(stream.stdout)).unwrap();
    let piped: Vec<_> = piped.map(|row| row.unwrap().sample).collect();
    assert_eq!(segment.samples().unwrap(), piped);
    assert_eq!(piped.len(), jsonl.len());
    assert_eq!(json!(piped[4].tokens), jsonl[4]["tokens"]);
    assert_eq!(segment.provenance().tool, "slime-rollout");
}

#[test]
fn environment_gives_prompts_and_files_only_get_their_name_when_complete() {
    let dir = TempDir::new().unwrap();
    let (weights, file) = (weights(&dir), dir.path().join("out.jsonl"));
    let mut args = vec!["--weights", weights.to_str().unwrap(), "--output", file.to_str().unwrap()];
    args.extend(["--set", "data.environment=arithmetic", "--num-prompts", "2"]);
    args.extend(SAMPLING);
    assert!(rollout(&args, "").status.success());
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 6);
    assert!(text.contains("Compute "));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing temporary stays: {names:?}");
}

#[test]
fn bad_input_gives_one_clear_error_and_its_exit_code() {
    let dir = TempDir::new().unwrap();
    let weights = weights(&dir);
    let missing = dir.path().join("none");
    assert_refused(&sample(&missing, &[], PROMPTS), 66, &["none"]);
    let broken = "{\"prompt\": \"w1\"}\n{\"prompt\": \"w1\",\n";
    assert_refused(&sample(&weights, &[], broken), 65, &["stdin: line 2"]);
    assert_refused(&sample(&weights, &[], "{\"question\": \"w1\"}\n"), 65, &["\"prompt\"", "question"]);
    assert_refused(&sample(&weights, &[], ""), 65, &["stdin", "no prompts"]);
    let long = format!("{{\"prompt\": \"{}\"}}\n", "w1 ".repeat(5000));
    assert_refused(&sample(&weights, &[], &long), 65, &["5000 tokens", "stdin:1", "the context"]);
    let typo = ["--set", "rollout.temprature=1"];
    assert_refused(&sample(&weights, &typo, PROMPTS), 78, &["rollout.temprature", "temperature"]);
    assert_refused(&sample(&weights, &["--set", "rollout.top_p=2"], PROMPTS), 78, &["top_p"]);
    let nowhere = dir.path().join("no/where.jsonl");
    assert_refused(
        &sample(&weights, &["--output", nowhere.to_str().unwrap()], PROMPTS),
        73,
        &["where.jsonl"],
    );
    assert_refused(&rollout(&[], ""), 64, &["no weights", "hint:"]);
}

#[test]
fn bad_rows_to_score_are_named_by_line() {
    let dir = TempDir::new().unwrap();
    let weights = weights(&dir);
    let score = |input: &str| rollout(&["score", "--weights", weights.to_str().unwrap()], input);
    assert_refused(&score(""), 65, &["empty"]);
    assert_refused(&score("{\"tokens\": [1, 2]}\n{\"text\": 1}\n"), 65, &["line 2", "tokens", "text"]);
    assert_refused(&score("{\"tokens\": [1, -2]}\n"), 65, &["line 1"]);
    assert_refused(&score("{\"tokens\": [1, 2], \"prompt_len\": 3}\n"), 65, &["line 1", "prompt_len"]);
    assert_refused(&score("{\"tokens\": [1, 99999]}\n"), 65, &["99999", "vocabulary"]);
}

#[test]
fn truncated_weights_are_refused() {
    let dir = TempDir::new().unwrap();
    let weights = weights(&dir);
    let path = weights.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    assert_refused(&sample(&weights, &[], PROMPTS), 65, &["model.safetensors"]);
}

#[test]
fn dry_run_prints_the_plan_and_a_configuration_that_reads_back() {
    let dir = TempDir::new().unwrap();
    let args =
        ["--weights", "w", "--prompts", "p.jsonl", "--set", "rollout.rollout_batch_size=3", "--dry-run"];
    let output = rollout(&args, "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("# "), "{text}");
    assert!(text.contains("each of 3 prompts x 8 samples = 24"), "{text}");
    let path = dir.path().join("run.toml");
    fs::write(&path, &text).unwrap();
    let again = rollout(&["--config", path.to_str().unwrap(), "--dry-run"], "");
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
}

/// A run with one step, whose version 0 is published as a trainer does.
fn run_dir(dir: &TempDir) -> PathBuf {
    let (weights, run) = (weights(dir), dir.path().join("run"));
    for folder in ["epoch", "version", "control"] {
        fs::create_dir_all(run.join(folder)).unwrap();
    }
    let config = format!(
        "[run]\nnum_steps = 1\n[model]\npath = \"{}\"\n[data]\nenvironment = \"arithmetic\"\n[rollout]\n\
         rollout_batch_size = 2\nn_samples_per_prompt = 3\nmax_response_len = 6\n\
         [eval.held_out]\nnum_prompts = 2\nmax_response_len = 4\n",
        weights.display()
    );
    fs::write(run.join("run.toml"), config).unwrap();
    fs::write(run.join("epoch/000001"), json!({"epoch": 1, "parent": null, "checkpoint": 0}).to_string())
        .unwrap();
    published::publish_first(&run, &weights);
    run
}

fn wait_for(path: &Path) {
    for _ in 0..600 {
        if path.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{} never appeared", path.display());
}

fn follow(run: &Path, roles: &[&str]) -> std::process::Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-rollout"));
    command.arg("--follow").arg(run).args(roles).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn builder_and_replica_commit_a_step_and_evaluate_in_one_process_or_two() {
    let mut manifests = Vec::new();
    for roles in [vec![vec![]], vec![vec!["--builder"], vec!["--replica", "0"]]] {
        let dir = TempDir::new().unwrap();
        let run = run_dir(&dir);
        let children: Vec<_> = roles.iter().map(|roles| follow(&run, roles)).collect();
        let manifest = run.join("rollout/000000/MANIFEST.json");
        wait_for(&manifest);
        wait_for(&run.join("eval/000000.e001/DONE"));
        fs::write(run.join("control/done"), "").unwrap();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let manifest: Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
        let groups = manifest["groups"].as_array().unwrap();
        assert_eq!(groups.len(), 2);
        manifests.push(groups.iter().map(|group| group["samples"].clone()).collect::<Vec<_>>());
        let metrics = fs::read_to_string(run.join("metrics/rollout.jsonl")).unwrap();
        assert!(metrics.contains("\"set\":\"held_out\"") && metrics.contains("\"step\":0"), "{metrics}");
    }
    assert_eq!(manifests[0], manifests[1], "the same samples whoever generates them");
}

#[test]
fn stop_drains_and_a_second_owner_is_refused_while_the_first_lives() {
    let dir = TempDir::new().unwrap();
    let run = run_dir(&dir);
    let first = follow(&run, &[]);
    wait_for(&run.join("rollout/000000/MANIFEST.json"));
    let second = follow(&run, &[]).wait_with_output().unwrap();
    assert_refused(&second, 73, &["builder.0", "alive", "--takeover"]);
    fs::write(run.join("control/stop"), "").unwrap();
    assert_refused(&first.wait_with_output().unwrap(), 75, &["stopped between steps"]);
}

#[test]
fn weighted_sources_of_parquet_and_packed_lines_are_drawn_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let weights = weights(&dir);
    let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/prompts/chat.parquet");
    let packed = dir.path().join("easy.jsonl.zst");
    fs::write(&packed, slime_archive::pack_bytes(b"{\"prompt\":\"w1\"}\n{\"prompt\":\"w2\"}\n").unwrap())
        .unwrap();
    let config = dir.path().join("run.toml");
    let sources = format!(
        "[[data.source]]\npath = \"{}\"\nweight = 3\n\
         [[data.source]]\npath = \"{}@[:9]\"\nweight = 1\nname = \"chat\"\ninput_key = \"messages\"\nlabel_key = \"answer\"\n",
        packed.display(),
        chat.display()
    );
    fs::write(&config, &sources).unwrap();
    let mut args = vec!["--weights", weights.to_str().unwrap(), "--config", config.to_str().unwrap()];
    args.extend(["--set", "rollout.max_response_len=2", "--set", "rollout.n_samples_per_prompt=1"]);
    args.extend(["--num-prompts", "11"]);
    let drawn = rows(&rollout(&args, ""));
    let chats: Vec<&Value> = drawn.iter().filter(|row| row["source"] == "chat").collect();
    assert_eq!(drawn.len(), 11);
    assert!((2..=3).contains(&chats.len()), "{}", chats.len());
    for row in chats {
        assert!(row["prompt"].as_array().unwrap().iter().all(|message| message["role"].is_string()));
        assert!(row["prompt_id"].as_str().unwrap().starts_with("chat:") && row["label"].is_string());
    }
    fs::write(&config, sources.replace("weight = 3", "weight = 0")).unwrap();
    assert_refused(&rollout(&args, ""), 78, &["data.source[0].weight: expected a number above 0, got 0"]);
    fs::remove_file(&packed).unwrap();
    fs::write(&config, sources).unwrap();
    assert_refused(&rollout(&args, ""), 66, &["easy.jsonl.zst: No such file"]);
}

#[test]
fn quantised_directories_give_the_samples_of_what_they_hold() {
    let dir = TempDir::new().unwrap();
    let weights = weights(&dir);
    let convert = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_slime-convert")).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let place = |name: &str| dir.path().join(name).display().to_string();
    let plain = rows(&sample(&weights, &[], PROMPTS));
    for form in ["fp8_block", "fp8_tensor", "int4_awq", "int4_gptq", "int4_ct"] {
        let (low, back) = (place(form), place(&format!("{form}.back")));
        convert(&["export", weights.to_str().unwrap(), &low, "--dtype", form, "--group-size", "16"]);
        convert(&["import", &low, &back]);
        let of = |dir: &str| rows(&sample(Path::new(dir), &[], PROMPTS));
        let samples = of(&low);
        assert_eq!(samples, of(&back), "{form}");
        assert_ne!(samples, plain, "{form}");
    }
}
