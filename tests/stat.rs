//! `slime-stat` from outside: tables, curves and JSON from a run directory or stdin, the job and its ranks.

#[path = "stat/export.rs"]
mod export;
#[path = "stat/live.rs"]
mod live;
#[path = "stat/python.rs"]
mod python;
#[path = "stat/readers.rs"]
mod readers;
#[path = "stat/report.rs"]
mod report;
#[path = "stat/synthetic.rs"]
mod synthetic;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use slime_record::{Column, ColumnValues, Provenance, Sample, Status, VersionRun, encode_segment};

fn stat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slime-stat"))
        .args(arguments)
        .env("COLUMNS", "80")
        .output()
        .expect("it starts")
}

fn run_with(train: &str, eval: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let metrics = folder.path().join("metrics");
    fs::create_dir(&metrics).expect("writable");
    fs::write(metrics.join("train.jsonl"), train).expect("writable");
    fs::write(metrics.join("eval.jsonl"), eval).expect("writable");
    folder
}

fn name(path: &Path) -> &str {
    path.to_str().expect("the path is text")
}

const TRAIN: &str = "{\"step\":0,\"tool\":\"train\",\"rollout/raw_reward\":0.25,\"train/lr-pg_0\":2e-5}\n\
                     {\"step\":1,\"tool\":\"train\",\"rollout/raw_reward\":0.5,\"train/lr-pg_0\":2e-5}\n\
                     {\"step\":1,\"tool\":\"train\",\"rollout/raw_reward\":0.75,\"train/lr-pg_0\":2e-5}\n\
                     {\"step\":2,\"tool\":\"tra";
const EVAL: &str = "{\"version\":0,\"tool\":\"eval\",\"set\":\"held_out\",\"reward_mean\":0.1}\n\
                    {\"version\":2,\"tool\":\"eval\",\"set\":\"held_out\",\"reward_mean\":0.6}\n";

#[test]
fn json_joins_steps_and_evaluations() {
    let run = run_with(TRAIN, EVAL);
    fs::create_dir(run.path().join("attempt-0")).expect("writable");
    fs::write(run.path().join("attempt-0/outcome"), "drained\n").expect("writable");
    let output = stat(&[name(run.path()), "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        value,
        json!({
            "steps": [
                {"step": 0, "rollout/raw_reward": 0.25, "train/lr-pg_0": 2e-5, "reward_mean": 0.25},
                {"step": 1, "rollout/raw_reward": 0.75, "train/lr-pg_0": 2e-5, "reward_mean": 0.75}
            ],
            "eval": [
                {"version": 0, "set": "held_out", "reward_mean": 0.1},
                {"version": 2, "set": "held_out", "reward_mean": 0.6}
            ],
            "outcome": "drained",
            "job": null,
            "attempts": [{"attempt": 0, "outcome": "drained", "job_id": null, "failures": []}],
            "phases": null,
            "efficiency": {"roles": [], "silent": []}
        })
    );
}

#[test]
fn page_has_tables_curves_and_outcome() {
    let run = run_with(TRAIN, EVAL);
    let output = stat(&[name(run.path())]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("step  raw_reward   lr-pg_0\n   0      0.2500  2.000e-5\n"), "{text}");
    for part in ["rollout/raw_reward by step", "reward_mean of held_out by version", "outcome: unfinished"] {
        assert!(text.contains(part), "{text}");
    }
    let old = run_with("{\"step\":0,\"reward_mean\":0.1}\n{\"step\":1,\"reward_mean\":0.3}\n", "");
    let output = stat(&[name(old.path())]);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("\nreward_mean by step"),
        "its own name: {output:?}"
    );
    let only = stat(&[name(run.path()), "--eval"]);
    assert!(String::from_utf8_lossy(&only.stdout).starts_with("version       set"), "{only:?}");
}

#[test]
fn narrow_terminals_are_told_what_is_left_out() {
    let wide: Vec<String> = (0..12).map(|i| format!("\"some_long_name_{i:02}\":{i}")).collect();
    let run = run_with(&format!("{{\"step\":0,\"reward_mean\":0.5,{}}}\n", wide.join(",")), "");
    let output = stat(&[name(run.path())]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().next().is_some_and(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("--json also has") && text.contains("some_long_name_11"), "{text}");
}

#[test]
fn missing_runs_and_broken_lines_are_errors() {
    let missing = stat(&["/no/such/run"]);
    assert_eq!(missing.status.code(), Some(66));
    let run = run_with("{\"step\":\nno line is whole\n", "");
    let output = stat(&[name(run.path())]);
    assert_eq!(output.status.code(), Some(65), "a file of which nothing can be read");
    assert!(String::from_utf8_lossy(&output.stderr).contains("train.jsonl: line 1: "), "{output:?}");
    let output = stat_of(b"{\"step\":0}\n{\"step\":\n{\"step\":1}\n", &[]);
    assert_eq!(output.status.code(), Some(65), "a pipe has no lines that a killed writer left");
    assert!(String::from_utf8_lossy(&output.stderr).contains("stdin: line 2: "), "{output:?}");
    let empty = tempfile::tempdir().expect("a folder can be made");
    let output = stat(&[name(empty.path())]);
    assert_eq!(output.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a run directory"), "{output:?}");
    fs::write(empty.path().join("run.toml"), "").expect("writable");
    let output = stat(&[name(empty.path())]);
    assert!(output.status.success() && output.stdout.starts_with(b"no steps yet"));
}

/// An evaluation of set `greedy` at `version`: two questions with these answers and rewards.
fn evaluate(run: &Path, version: u64, epoch: u64, answers: [(&str, f32); 2]) {
    let samples: Vec<Sample> = (0..2)
        .map(|group| Sample {
            step: version,
            group,
            prompt_id: format!("p{group}"),
            prompt: format!("[{{\"role\":\"user\",\"content\":\"Compute {group} + 1.\"}}]"),
            label: Some((group + 1).to_string()),
            response: answers[group as usize].0.to_owned(),
            tokens: vec![1, 2],
            prompt_len: 1,
            loss_mask: vec![1],
            rollout_log_probs: vec![-0.5],
            weight_versions: vec![VersionRun { version, len: 1 }],
            status: Status::Completed,
            ..Sample::default()
        })
        .collect();
    let folder = run.join(format!("eval/{version:06}.e{epoch:03}/greedy"));
    fs::create_dir_all(&folder).expect("writable");
    let provenance = Provenance::default();
    let segment = encode_segment(&samples, &provenance).expect("samples are whole");
    fs::write(folder.join("samples.arrow"), segment).expect("writable");
    let rewards = answers.map(|(_, reward)| reward).to_vec();
    let column = Column::new("reward", &samples, ColumnValues::F32(rewards));
    fs::write(folder.join("reward.arrow"), column.encode(&provenance).expect("columns are whole"))
        .expect("writable");
}

#[test]
fn answers_of_the_first_and_the_newest_version_stand_side_by_side() {
    let run = tempfile::tempdir().expect("a folder can be made");
    evaluate(run.path(), 0, 1, [("about 5", 0.0), ("2", 1.0)]);
    evaluate(run.path(), 4, 1, [("never shown", 0.0), ("never shown", 0.0)]);
    evaluate(run.path(), 8, 2, [("1", 1.0), ("2", 1.0)]);
    let output = stat(&[name(run.path()), "--answers", "greedy"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "answers of set greedy (+ has a reward above 0)\n\
         question        expected  version 0  version 8\n\
         Compute 0 + 1.  1         - about 5  + 1\n\
         Compute 1 + 1.  2         + 2        + 2\n\
         right before: 1 of 2 answers\n\
         right after:  2 of 2 answers\n"
    );
    let other = stat(&[name(run.path()), "--answers", "gredy"]);
    assert_eq!(other.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&other.stderr).contains("no evaluation of set gredy"), "{other:?}");
    fs::write(run.path().join("eval/000008.e002/greedy/reward.arrow"), b"ARROW1 no more").expect("writable");
    let broken = stat(&[name(run.path()), "--answers", "greedy"]);
    assert_eq!(broken.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&broken.stderr).contains("reward.arrow"), "{broken:?}");
}

#[test]
fn watch_prints_what_comes_and_ends_with_the_run() {
    let run = run_with(
        "{\"step\":0,\"tool\":\"train\",\"rollout/raw_reward\":0.25,\"train/loss\":0.5}\n",
        "{\"version\":0,\"tool\":\"eval\",\"set\":\"held_out\",\"reward_mean\":0.1}\n",
    );
    fs::write(run.path().join("run.toml"), "[run]\nnum_steps = 2\n").expect("writable");
    let mut child = Command::new(env!("CARGO_BIN_EXE_slime-stat"))
        .args([name(run.path()), "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines =
        BufReader::new(child.stdout.take().expect("a pipe")).lines().map(Result::unwrap_or_default);
    assert_eq!(lines.next().as_deref(), Some("     version 0, held_out: reward 0.100"));
    assert_eq!(lines.next().as_deref(), Some("1/2  step 0: reward 0.250"));
    let mut train =
        fs::File::options().append(true).open(run.path().join("metrics/train.jsonl")).expect("it is there");
    train
        .write_all(b"{\"step\":1,\"tool\":\"train\",\"rollout/raw_reward\":0.5,\"train/loss\":0.5}\n")
        .expect("writable");
    fs::create_dir(run.path().join("control")).expect("writable");
    fs::write(run.path().join("control/done"), "").expect("writable");
    assert_eq!(lines.next().as_deref(), Some("2/2  step 1: reward 0.500"));
    assert_eq!(lines.next(), None);
    assert!(child.wait().expect("our own child").success());
}

/// A program of this name in `folder`.
fn program(folder: &Path, name: &str, script: &str) {
    fs::create_dir_all(folder).expect("writable");
    fs::write(folder.join(name), format!("#!/bin/sh\n{script}")).expect("writable");
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).expect("our own file");
}

/// `slime-stat RUN` with the programs of RUN/bin before all others.
fn stat_with_programs(run: &Path, more: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new(env!("CARGO_BIN_EXE_slime-stat"))
        .arg(run)
        .args(more)
        .env("PATH", format!("{}:{path}", run.join("bin").display()))
        .output()
        .expect("it starts")
}

/// Writes the note of a rank that was written so many seconds ago.
fn note(attempt: &Path, role: &str, pid: u32, section: &str, ago: f64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let note = json!({
        "role": role, "host": "n1", "pid": pid, "section": section, "section_s": 12.3, "wall_s": 100.0,
        "cpu_s": 150.0, "num_cpus": 2, "max_rss_bytes": 1_230_000_000_u64, "written": now - ago,
    });
    fs::create_dir_all(attempt.join("rank")).expect("writable");
    fs::write(attempt.join(format!("rank/{role}.n1.{pid}.json")), note.to_string()).expect("writable");
}

/// A run in its third attempt: the first drained, the second failed, the third runs.
fn run_of_a_job() -> tempfile::TempDir {
    let run =
        run_with("{\"step\":0,\"train/loss\":0.5,\"perf/actor_train_time\":2.5,\"perf/step_time\":10}\n", "");
    let attempt = |number: u32| run.path().join(format!("attempt-{number}"));
    for (number, outcome) in [(0, Some("drained\n")), (1, Some("failed\n")), (2, None)] {
        fs::create_dir(attempt(number)).expect("writable");
        fs::write(attempt(number).join("env.txt"), "SLIME_HOME=/x\nSLURM_JOB_ID=1234\n").expect("writable");
        if let Some(outcome) = outcome {
            fs::write(attempt(number).join("outcome"), outcome).expect("writable");
        }
    }
    let failed = "code 74\nrank 2: a/b: No space left on device\nmore\nhint: free some space\n";
    fs::write(attempt(1).join("failed.trainer.2"), failed).expect("writable");
    note(&attempt(2), "trainer.0", 10, "train", 5.0);
    note(&attempt(2), "trainer.3", 11, "train", 120.0);
    note(&attempt(2), "replica.0", 12, "load", 300.0);
    note(&attempt(2), "replica.0", 13, "generate", 2.0);
    fs::write(attempt(2).join("rank/reward.0.n1.14.json"), "{\"role\":").expect("writable");
    run
}

const RUNNING: &str = "echo \"$@\" >>\"${0%/*}/asked\"\n\
    echo 'JobId=1234 JobName=a b JobState=RUNNING Reason=None Restarts=2 RunTime=00:28:50 TimeLimit=01:00:00 NumNodes=4'\n";

#[test]
fn job_attempts_phases_and_ranks_stand_below_the_table() {
    let run = run_of_a_job();
    program(&run.path().join("bin"), "scontrol", RUNNING);
    let output = stat_with_programs(run.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = "job 1234 RUNNING on 4 nodes, 00:31:10 left\n\
        attempts: 3 (drained, failed: trainer.2 code 74: rank 2: a/b: No space left on device, running), \
        tools restarted in the newest: 1\n\
        time by phase: train 25 %, other 75 % (of 1 step, 00:00:10)\n\
        role     ranks  restarts   cpu  peak memory  newest note\n\
        replica      1         1  75 %      1.23 GB  2 s ago, in generate\n\
        trainer      2         0  75 %      1.23 GB  5 s ago, in train\n\
        trainer.3 silent for 120 s in train (on n1)\n\
        outcome: unfinished\n";
    assert!(text.ends_with(expected), "{text}");
    let asked = fs::read_to_string(run.path().join("bin/asked")).expect("it was asked");
    assert_eq!(asked, "--oneliner show job 1234\n", "one question for each call");
    assert!(String::from_utf8_lossy(&output.stderr).contains("reward.0.n1.14.json: left out"), "{output:?}");

    let json = stat_with_programs(run.path(), &["--json"]);
    let value: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((&value["job"]["id"], &value["job"]["left_s"]), (&json!("1234"), &json!(1870)));
    assert_eq!(value["job"]["num_requeues"], 2);
    let failure = &value["attempts"][1]["failures"][0];
    assert_eq!((&failure["code"], &failure["hint"]), (&json!(74), &json!("free some space")));
    assert_eq!(value["phases"]["parts"]["train"], json!({"seconds": 2.5, "share": 0.25}));
    let trainer = &value["efficiency"]["roles"][1];
    assert_eq!((&trainer["role"], &trainer["cpu_efficiency"]), (&json!("trainer"), &json!(0.75)));
    assert_eq!(value["efficiency"]["silent"][0]["role"], "trainer.3");
}

#[test]
fn queue_that_does_not_answer_or_know_the_job_is_no_error() {
    let run = run_of_a_job();
    let bin = run.path().join("bin");
    for (script, line, attempt) in [
        (
            "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n",
            "job 1234: the queue does not know it any more\n",
            "running",
        ),
        (
            "echo 'scontrol: error: no controller' >&2; exit 1\n",
            "job 1234: scontrol: scontrol: error: no",
            "running",
        ),
        ("exit 127\n", "job 1234: there is no scontrol here\n", "running"),
        (
            "echo 'JobState=PENDING Reason=Resources StartTime=2026-11-30T10:00:00 NumNodes=2 RunTime=00:00:00'\n",
            "job 1234 PENDING (Resources) on 2 nodes, expected to start 2026-11-30T10:00:00\n",
            "lost",
        ),
        ("exec sleep 60\n", "job 1234: scontrol did not answer in 5 s\n", "running"),
    ] {
        program(&bin, "scontrol", script);
        let output = stat_with_programs(run.path(), &[]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(line), "{text}");
        assert!(text.contains(&format!("No space left on device, {attempt})")), "{text}");
    }
}

/// `slime-stat - MORE` with `input` on stdin.
fn stat_of(input: &[u8], more: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slime-stat"))
        .arg("-")
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // A tool that finds an error early does not read on.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("our own child")
}

/// The tiny model of the fixtures with a tokenizer whose every token is a number.
fn weights(dir: &Path) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    fs::create_dir(dir.join("weights")).expect("writable");
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(fixture.join(name), dir.join("weights").join(name)).expect("the fixture is there");
    }
    let vocab: serde_json::Map<String, Value> = (0..96).map(|id| (id.to_string(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "0"},
    });
    fs::write(dir.join("weights/tokenizer.json"), tokenizer.to_string()).expect("writable");
    let settings = json!({"chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"});
    fs::write(dir.join("weights/tokenizer_config.json"), settings.to_string()).expect("writable");
}

/// What a tool writes for `input`.
fn tool(program: &str, dir: &Path, words: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(words)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    let output = child.wait_with_output().expect("our own child");
    assert!(output.status.success(), "{program}");
    output.stdout
}

#[test]
fn samples_of_the_pipe_are_counted_in_both_formats() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    weights(dir.path());
    let prompts = b"{\"prompt\":\"3 5\",\"label\":\"7\"}\n{\"prompt\":\"9 2\",\"label\":\"8\"}\n";
    let (mut answers, mut rows) = (Vec::new(), Vec::new());
    for format in ["jsonl", "arrow"] {
        let words = [
            "--weights",
            "weights",
            "--prompts",
            "-",
            "--format",
            format,
            "--set",
            "rollout.n_samples_per_prompt=4",
            "--set",
            "rollout.max_response_len=4",
        ];
        let samples = tool(env!("CARGO_BIN_EXE_slime-rollout"), dir.path(), &words, prompts);
        let unscored = stat_of(&samples, &[]);
        assert_eq!(unscored.status.code(), Some(65));
        assert!(
            String::from_utf8_lossy(&unscored.stderr).contains("1: a sample without reward"),
            "{unscored:?}"
        );
        let types = ["--type", "number:0.5,format:regex=[02468]$"];
        let scored = tool(env!("CARGO_BIN_EXE_slime-reward"), dir.path(), &types, &samples);
        if format == "jsonl" {
            let lines = String::from_utf8(scored.clone()).expect("text");
            rows.extend(lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")));
        }
        let text = stat_of(&scored, &[]);
        assert!(text.status.success(), "{text:?}");
        let shown = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(shown.starts_with("samples          8 in 2 groups, "), "{shown}");
        let json = stat_of(&scored, &["--json"]);
        let value: Value = serde_json::from_slice(&json.stdout).expect("JSON");
        answers.push((shown, value));
    }
    assert_eq!(answers[0], answers[1], "the same samples");
    let mean = |number: &dyn Fn(&Value) -> f64| rows.iter().map(number).sum::<f64>() / rows.len() as f64;
    let samples = &answers[0].1["samples"];
    assert_eq!((&samples["num_samples"], &samples["num_groups"]), (&json!(8), &json!(2)));
    let close = |got: &Value, expected: f64| {
        assert!(got.as_f64().is_some_and(|got| (got - expected).abs() < 1e-6), "{got} is not {expected}");
    };
    close(&samples["reward_mean"], mean(&|row| row["reward"].as_f64().expect("a number")));
    let parts = rows[0]["rewards"].as_object().expect("two parts");
    assert_eq!(parts.len(), 2);
    for name in parts.keys() {
        let part = |row: &Value| row["rewards"][name].as_f64().expect("a number");
        close(&samples["rewards"][name]["mean"], mean(&part));
        close(&samples["rewards"][name]["positive_share"], mean(&|row| f64::from(u8::from(part(row) > 0.0))));
    }
    let len = |row: &Value| row["loss_mask"].as_array().expect("a list").len() as f64;
    close(&samples["response_len_mean"], mean(&len));
    close(&samples["response_len_max"], rows.iter().map(len).fold(0.0, f64::max));
    close(&samples["truncated_share"], mean(&|row| f64::from(u8::from(row["status"] == "truncated"))));
}

#[test]
fn stdin_with_metric_lines_is_a_table_as_before() {
    let lines = "{\"step\":0,\"tool\":\"train\",\"reward_mean\":0.25}\n";
    let output = stat_of(lines.as_bytes(), &[]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "step  reward_mean\n   0       0.2500\n\noutcome: unfinished\n"
    );
    let json = stat_of(lines.as_bytes(), &["--json"]);
    let value: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        value,
        json!({"steps": [{"step": 0, "reward_mean": 0.25}], "eval": [], "outcome": "unfinished"})
    );
}

#[test]
fn bad_samples_are_one_error() {
    let cut = &encode_segment(&[], &Provenance::default()).expect("no samples are whole")[..60];
    for (input, more, code, part) in [
        (b"{\"response\":\"a\"}\n".as_slice(), &[][..], 65, "stdin: line 1: a sample without reward"),
        (b"{\"response\":\"a\",\"reward\":1}\n{\"response\":\n", &[], 65, "stdin: line 2: "),
        (cut, &[], 65, "stdin: "),
    ] {
        let output = stat_of(input, more);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(part) && message.matches("error:").count() == 1, "{message}");
    }
}

#[test]
fn samples_on_stdin_are_an_evaluation_when_asked_so() {
    let rows: Vec<String> = [("4", 1, 0), ("4", 1, 0), ("5", 0, 0), ("x", 0, 1), ("x", 0, 1), ("y", 1, 1)]
        .iter()
        .map(|(response, reward, group)| {
            format!("{{\"response\":\"is {response}\",\"reward\":{reward},\"group\":{group},\"tokens\":[1,2,3],\"prompt_len\":1}}\n")
        })
        .collect();
    let output = stat_of(rows.concat().as_bytes(), &["--eval"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "num_samples        6",
        "reward_mean        0.5000",
        "pass@2             0.8333",
        "mean@3             0.5000",
        "majority@3         0.5000",
        "response_len_mean  2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}
