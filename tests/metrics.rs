//! What a run tells of itself: every number under a known name, spans, token log-probs, `TensorBoard` and Prometheus.

#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use slime_metrics::names::{self, Name};
use slime_record::{Column, ColumnValues, Manifest, decode_segment};
use tempfile::TempDir;
use tiny_loop::{REWARD, ROLLOUT, TRAIN, log, start};

/// Steps of the run.
const NUM_STEPS: u64 = 4;

/// A run directory of a tiny model whose every token is a number.
fn run_dir(dir: &Path, sets: &[&str]) -> PathBuf {
    let (run, weights) = (dir.join("run"), tiny_loop::weights(dir));
    fs::create_dir(&run).expect("writable");
    let path = format!("model.path={}", weights.display());
    let steps = format!("run.num_steps={NUM_STEPS}");
    let ours = [&*path, &*steps, "rollout.rollout_batch_size=3", "rollout.n_samples_per_prompt=4"];
    let output = Command::new(TRAIN)
        .arg("--config")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/tiny.toml"))
        .args(ours.iter().chain(sets).flat_map(|set| ["--set", set]))
        .arg("--dry-run")
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(run.join("run.toml"), output.stdout).expect("writable");
    run
}

fn finish(run: &Path, tools: Vec<Child>) {
    for mut tool in tools {
        let status = tool.wait().expect("our own child");
        assert!(status.success(), "{}", log(run));
    }
}

/// One run with everything switched on, its roles apart, that all tests here look at.
fn whole() -> &'static Path {
    static RUN: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, run) = RUN.get_or_init(|| {
        let dir = TempDir::new().expect("a folder");
        let sets = [
            "metrics.tensorboard=true",
            "metrics.prometheus=true",
            "metrics.peak_tflops=1",
            "metrics.warnings.truncated=0.01",
            "algorithm.kl_loss_coef=0.01",
            "algorithm.correction.weight=truncate",
            "algorithm.correction.high=2",
            "algorithm.correction.veto=1e-9",
            "algorithm.correction.opsm_delta=9",
            "checks.on_failure=fail",
            "reward.placement=separate",
            "reward.types=[\"format:regex=[02468]$\",\"number:0.5\"]",
            "eval.held_out.num_prompts=3",
            "eval.held_out.n_samples_per_prompt=2",
            "eval.held_out.interval=2",
            "train.num_steps_per_rollout=2",
        ];
        let run = run_dir(dir.path(), &sets);
        let tools = vec![
            start(TRAIN, &["--profile", "1"], &run),
            start(ROLLOUT, &["--builder"], &run),
            start(ROLLOUT, &["--replica", "0", "--profile", "1:2"], &run),
            start(REWARD, &[], &run),
        ];
        finish(&run, tools);
        (dir, run)
    });
    run
}

fn rows(run: &Path, tool: &str) -> Vec<serde_json::Map<String, Value>> {
    let path = run.join(format!("metrics/{tool}.jsonl"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Every key of the rows is a field or a name of this family; returns them.
fn known<'a>(
    rows: impl IntoIterator<Item = &'a serde_json::Map<String, Value>>,
    family: &'static [Name],
) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for row in rows {
        for (key, value) in row {
            if !names::FIELDS.contains(&key.as_str()) {
                assert!(names::find_in(family, key).is_some(), "{key} is in no table of names");
                assert!(value.is_number(), "{key} is {value}");
                seen.insert(key.clone());
            }
        }
        assert!(row["time"].as_f64() > Some(1.7e9) && row["tool"].is_string(), "{row:?}");
    }
    seen
}

#[test]
fn every_number_stands_under_a_known_name_and_no_other() {
    let run = whole();
    let train = rows(run, "train");
    assert_eq!(
        train.iter().map(|row| row["step"].as_u64()).collect::<Vec<_>>(),
        (0..NUM_STEPS).map(Some).collect::<Vec<_>>()
    );
    let seen = known(&train, names::TRAIN);
    let missing: Vec<&str> =
        names::TRAIN.iter().map(|name| name.key).filter(|key| !seen.contains(*key)).collect();
    let absent = |key: &&str| {
        let needs = [
            "critic-",
            "train/rewards/",
            "rollout/values",
            "rollout/returns",
            "teacher",
            "opd_",
            "max_gpu",
            "pipeline_bubble",
            "mtp_",
        ];
        !needs.iter().any(|part| key.contains(part) && !key.ends_with("_time"))
    };
    let missing: Vec<&str> = missing.into_iter().filter(absent).collect();
    assert!(
        missing.is_empty(),
        "all but what needs a critic, a teacher, pairs, a layer for further tokens, stages or a GPU: {missing:?}"
    );
    let number = |row: &serde_json::Map<String, Value>, key: &str| row[key].as_f64().expect("a number");
    for row in &train {
        let parts: f64 = [
            "data_preprocess",
            "log_probs",
            "ref_log_probs",
            "teacher_log_probs",
            "values",
            "advantages",
            "critic_train",
            "actor_train",
            "ref_model_update",
        ]
        .iter()
        .map(|part| number(row, &format!("perf/{part}_time")))
        .sum();
        let (train, step) = (number(row, "perf/train_time"), number(row, "perf/step_time"));
        assert!(parts <= train + 1e-6 && parts > 0.0, "{row:?}");
        assert!((step - train - number(row, "perf/train_wait_time")).abs() < 1e-6, "{row:?}");
        assert!(number(row, "rollout/rewards").abs() < 1e-5 && number(row, "rollout/entropy") > 0.0);
        assert!(number(row, "train/train_rollout_logprob_abs_diff") < 1e-4, "{row:?}");
        let (ours, theirs) = (number(row, "rollout/log_probs"), number(row, "rollout/rollout_log_probs"));
        assert!((ours - theirs).abs() < 1e-4 && ours < 0.0, "{row:?}");
    }

    let rollout = rows(run, "rollout");
    let (evals, steps): (Vec<_>, Vec<_>) = rollout.into_iter().partition(|row| row.contains_key("set"));
    assert_eq!(steps.len() as u64, NUM_STEPS);
    let seen = known(&steps, names::ROLLOUT);
    for key in
        ["rollout/reward/number", "passrate/pass@4", "perf/rollout_time", "rollout/prefix_cache_hit_rate"]
    {
        assert!(seen.contains(key), "{key} is not in {seen:?}");
    }
    for (step, train) in steps.iter().zip(&train) {
        // The mean reward is the weighted sum of the means of its parts.
        let parts: f64 = number(step, "rollout/reward/format:regex=[02468]$")
            + 0.5 * number(step, "rollout/reward/number");
        assert!((parts - number(train, "rollout/raw_reward")).abs() < 1e-6, "{step:?}");
        assert!(
            (number(step, "rollout/response_len/mean") - number(train, "rollout/response_lengths")).abs()
                < 1e-6
        );
    }
    assert_eq!(
        evals.iter().map(|row| row["version"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(2), Some(4)]
    );
    let seen = known(&evals, names::EVALUATION);
    assert!(seen.contains("pass@2") && seen.contains("truncated_ratio"), "{seen:?}");

    let engine = rows(run, "engine-0");
    let seen = known(&engine, names::ENGINE);
    assert!(seen.contains("kv_used") && engine[0]["tool"] == "replica.0", "{engine:?}");
}

#[test]
fn warning_is_written_logged_and_told_at_the_end() {
    let run = whole();
    let warnings = rows(run, "warnings");
    known(&warnings, names::WARNINGS);
    let truncation: Vec<_> = warnings.iter().filter(|row| row["kind"] == "truncation").collect();
    assert_eq!(truncation.len(), 1, "once for each onset: {warnings:?}");
    let message = truncation[0]["message"].as_str().expect("words");
    assert!(message.contains("responses are cut off for their length over 3 steps"), "{message}");
    let log = log(run);
    assert!(log.matches(message).count() >= 2 && log.contains(" warning"), "{log}");
}

/// The events of a trace: an array without its end.
fn events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text.starts_with("[\n") && text.ends_with(",\n"), "{text}");
    serde_json::from_str(&format!("{}]", text.trim_end_matches(",\n"))).expect("JSON")
}

fn spans(run: &Path, file: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events(&run.join("trace").join(file)) {
        if event["ph"] == "X" {
            assert!(event["ts"].as_u64() > Some(1_700_000_000_000_000) && event["dur"].is_u64(), "{event}");
            *counts.entry(event["name"].as_str().expect("a name").to_owned()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn spans_of_every_role_are_there() {
    let run = whole();
    let trainer = spans(run, "trainer.0.000001.json");
    let steps = NUM_STEPS as usize;
    for name in ["train_wait", "data_preprocess", "log_probs", "ref_log_probs", "actor_train"] {
        assert_eq!(trainer.get(name), Some(&steps), "{name} in {trainer:?}");
    }
    assert_eq!(trainer.get("update_weights"), Some(&(steps + 1)), "{trainer:?}");
    assert!(trainer.contains_key("save_model"), "{trainer:?}");
    // The profile of step 1 has its two optimizer steps, and micro-batches.
    assert_eq!(trainer.get("optimizer"), Some(&2), "{trainer:?}");
    assert!(trainer["forward"] >= 2 && trainer["forward"] == trainer["backward"], "{trainer:?}");
    let replica = spans(run, "replica.0.000001.json");
    for name in ["queued", "prefill", "decode"] {
        assert_eq!(replica.get(name), Some(&(steps * 12)), "{name} in {replica:?}");
    }
    assert!(replica.contains_key("sealing") && replica["engine step"] >= 2, "{replica:?}");
    let builder = spans(run, "builder.0.000001.json");
    assert_eq!(
        (builder["open step"], builder["commit"], builder["evaluation"]),
        (steps, steps, 3),
        "{builder:?}"
    );
    assert_eq!(builder["filter"], steps * 3, "{builder:?}");
    assert!(spans(run, "reward.0.000001.json")["score"] >= steps);
    assert!(log(run).contains("the profile is in "), "{}", log(run));
}

#[test]
fn log_probs_of_the_first_groups_lie_beside_their_samples() {
    let run = whole();
    for step in 0..NUM_STEPS {
        let folder = run.join(format!("column/log_probs/{step:06}"));
        let bytes = fs::read(folder.join("0.000001.000000.arrow")).expect("the column");
        let (column, _) = Column::decode(bytes).expect("a column");
        let ColumnValues::F32List(values) = &column.values else { panic!("{column:?}") };
        let manifest = fs::read(run.join(format!("rollout/{step:06}/MANIFEST.json"))).expect("a manifest");
        let manifest: Manifest = serde_json::from_slice(&manifest).expect("JSON");
        let mut samples = Vec::new();
        for group in &manifest.groups[..2] {
            let segment =
                decode_segment(fs::read(run.join(&group.segment.path)).expect("a segment")).expect("whole");
            let first = group.first_row as usize;
            samples.extend((first..first + 4).map(|row| segment.sample(row).expect("a row")));
        }
        assert_eq!(column.ids.len(), 8, "two groups of four");
        for (sample, row) in samples.iter().zip(column.rows_of(&samples).expect("they join")) {
            assert_eq!(values[row].len(), sample.response_len());
            for (ours, theirs) in values[row].iter().zip(&sample.rollout_log_probs) {
                assert!((ours - theirs).abs() < 1e-3, "{ours} and {theirs}");
            }
        }
    }
}

#[test]
fn prometheus_holds_the_newest_numbers() {
    let run = whole();
    let text = fs::read_to_string(run.join("metrics/train.prom")).expect("the file");
    assert!(text.contains(&format!("\nslime_step{{tool=\"train\"}} {}\n", NUM_STEPS - 1)), "{text}");
    let loss = rows(run, "train").last().expect("a row")["train/loss"].as_f64();
    let line = text.lines().find_map(|line| line.strip_prefix("slime_train_loss{tool=\"train\"} "));
    assert_eq!(line.and_then(|number| number.parse().ok()), loss, "{text}");
    let text = fs::read_to_string(run.join("metrics/rollout.prom")).expect("the file");
    assert!(text.contains("slime_eval_reward_mean{tool=\"rollout\",set=\"held_out\"} "), "{text}");
}

#[test]
fn tensorboard_reads_every_number_that_the_lines_have() {
    let python = std::env::var("SLIME_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import tensorboard"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        eprintln!("skipped: {python} has no tensorboard (SLIME_TEST_PYTHON names one that has)");
        return;
    }
    let run = whole();
    let script = "import sys, json\n\
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n\
        events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})\n\
        events.Reload()\n\
        print(json.dumps({tag: [[e.step, e.value, e.wall_time] for e in events.Scalars(tag)]\n\
        \x20                 for tag in events.Tags()['scalars']}))\n";
    for tool in ["train", "rollout", "engine-0"] {
        let folder = run.join("tensorboard").join(tool);
        let output = Command::new(&python).args(["-c", script]).arg(&folder).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read: BTreeMap<String, Vec<[f64; 3]>> = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut num = 0;
        for row in rows(run, tool) {
            for (key, value) in row.iter().filter(|(key, _)| !names::FIELDS.contains(&key.as_str())) {
                let tag = match (row.get("set"), key.as_str()) {
                    (None, key) => key.to_owned(),
                    (Some(_), "reward_mean") => "eval/held_out".to_owned(),
                    (Some(_), key) if key.starts_with("pass@") || key == "truncated_ratio" => {
                        format!("eval/held_out-{key}")
                    }
                    (Some(_), key) => format!("eval/held_out/{key}"),
                };
                let (value, time) =
                    (value.as_f64().expect("a number"), row["time"].as_f64().expect("a number"));
                let is_same = |[_, got, at]: &&[f64; 3]| {
                    (got - value).abs() <= 1e-6 * value.abs() && (at - time).abs() < 1e-3
                };
                let found = read.get(&tag).and_then(|scalars| scalars.iter().find(is_same));
                let [step, ..] = found.unwrap_or_else(|| panic!("{tag} {value} is not in {read:?}"));
                if let Some(expected) = row.get("step").or(row.get("version")).filter(|_| tool != "engine-0")
                {
                    assert_eq!(Some(*step), expected.as_f64(), "{tag}");
                }
                num += 1;
            }
        }
        assert_eq!(read.values().map(Vec::len).sum::<usize>(), num, "{tool}: neither more nor less");
    }
}

#[test]
fn measuring_takes_a_small_share_of_a_step() {
    let run = whole();
    let sum = |rows: &[serde_json::Map<String, Value>], key: &str| -> f64 {
        rows.iter().skip(1).filter_map(|row| row[key].as_f64()).sum()
    };
    let train = rows(run, "train");
    let rollout: Vec<_> = rows(run, "rollout").into_iter().filter(|row| row.contains_key("step")).collect();
    let (step_s, trainer_s) = (sum(&train, "perf/step_time"), sum(&train, "perf/metrics_time"));
    let builder_s = sum(&rollout, "perf/builder_metrics_time");
    assert!(trainer_s > 0.0 && builder_s > 0.0, "it is counted");
    // A share of so small a step depends on the disk; it is told, not judged.
    eprintln!(
        "steps of {:.0} ms: measuring took {:.3} % of them in the trainer, {:.3} % in the step builder",
        1e3 * step_s / (NUM_STEPS - 1) as f64,
        100.0 * trainer_s / step_s,
        100.0 * builder_s / step_s
    );
}

#[test]
fn profile_needs_steps_and_a_run() {
    for (program, arguments, part) in [
        (TRAIN, ["--follow", "run", "--profile", "5:3"], "expected a step or FIRST:LAST, got 5:3"),
        (ROLLOUT, ["--follow", "run", "--profile", "x"], "expected a step or FIRST:LAST, got x"),
        (TRAIN, ["--output", "new", "--profile", "1"], "--follow"),
        (ROLLOUT, ["--weights", "w", "--profile", "1"], "--follow"),
    ] {
        let output = Command::new(program).args(arguments).output().expect("it starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{message}");
        assert!(message.contains(part), "{message}");
    }
}
