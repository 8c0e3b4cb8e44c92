//! Every kind of loss through the tools: rows in, loss, weights and names of numbers out.

#[path = "fixtures/chat_model.rs"]
mod chat_model;
#[path = "fixtures/tiny_weights.rs"]
mod tiny_weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use slime_metrics::names;
use slime_weights::{Dtype, TensorSpec, WeightDir, WeightWriter};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name)
}

/// Groups of `num_samples` over the fixtures' vocabulary.
fn rows(num_groups: u32, num_samples: u32) -> Vec<Value> {
    let row = |group: u32, index: u32| {
        let prompt: Vec<u32> = (0..3 + group).map(|at| (group * 17 + at * 5) % 96).collect();
        let response: Vec<u32> =
            (0..2 + (group + index) % 3).map(|at| (group * 7 + index * 11 + at * 3) % 96).collect();
        let tokens = [prompt.clone(), response.clone()].concat();
        json!({
            "step": 0, "group": group, "index": index, "status": "completed",
            "prompt_len": prompt.len(), "loss_mask": vec![1; response.len()],
            "rollout_log_probs": vec![-4.5; response.len()],
            "teacher_log_probs": vec![-4.0; response.len()],
            "tokens": tokens, "reward": f64::from(index % 2),
        })
    };
    (0..num_groups)
        .flat_map(|group| (0..num_samples).map(move |index| (group, index)))
        .map(|(g, i)| row(g, i))
        .collect()
}

fn train(dir: &Path, rows: &[Value], sets: &[&str]) -> Output {
    let text: String = rows.iter().map(|row| row.to_string() + "\n").collect();
    fs::write(dir.join("samples.jsonl"), text).expect("samples are written");
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    Command::new(env!("CARGO_BIN_EXE_slime-train"))
        .current_dir(dir)
        .env("OMP_NUM_THREADS", "1")
        .arg("--weights")
        .arg(fixture("llama"))
        .args(["--samples", "samples.jsonl", "--output", "new", "--dump", "dump", "--set", "train.lr=1e-3"])
        .args(sets)
        .output()
        .expect("slime-train starts")
}

/// The numbers of the optimizer step, each under a known name.
fn numbers(dir: &Path, output: &Output) -> serde_json::Map<String, Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(dir.join("dump/loss.json")).expect("a dump");
    let loss: Value = serde_json::from_str(&text).expect("JSON");
    let numbers = loss["steps"][0].as_object().expect("a step").clone();
    for (name, value) in &numbers {
        assert!(names::find_in(names::TRAIN, name).is_some(), "{name}");
        assert!(value.as_f64().is_some_and(f64::is_finite), "{name}: {value}");
    }
    numbers
}

fn trained(rows: &[Value], sets: &[&str]) -> (tempfile::TempDir, serde_json::Map<String, Value>) {
    let dir = tempfile::tempdir().expect("a folder");
    let output = train(dir.path(), rows, sets);
    let numbers = numbers(dir.path(), &output);
    (dir, numbers)
}

#[test]
fn ppo_writes_its_critic_beside_the_policy_and_reads_it_again() {
    let sets = ["algorithm.advantage_estimator=ppo", "algorithm.kl_coef=0.1", "critic.lr=1e-2"];
    let (dir, numbers) = trained(&rows(3, 4), &sets);
    for name in [
        "train/critic-value_loss",
        "train/critic-grad_norm",
        "rollout/values",
        "rollout/returns",
        "rollout/kl",
    ] {
        assert!(numbers.contains_key(name), "{name}");
    }
    assert_eq!(numbers["rollout/kl"], 0.0, "the reference is where the policy begins");
    let critic = dir.path().join("new/critic");
    let weights = WeightDir::open(&critic).expect("a weight directory");
    assert_eq!(weights.info("score.weight").expect("a head").shape, [1, 32]);
    let other = tempfile::tempdir().expect("a folder");
    let path = format!("critic.path={}", critic.display());
    let again = train(other.path(), &rows(3, 4), &[&sets[..], &[&path]].concat());
    let again = self::numbers(other.path(), &again);
    assert!(again["train/critic-value_loss"].as_f64() < numbers["train/critic-value_loss"].as_f64());
}

#[test]
fn distillation_needs_a_teacher_and_no_reward() {
    let mut rows = rows(3, 2);
    for row in &mut rows {
        row.as_object_mut().expect("a row").remove("reward");
    }
    let estimator = "algorithm.advantage_estimator=distillation";
    let (_dir, numbers) = trained(&rows, &[estimator]);
    assert!(numbers.contains_key("rollout/opd_reverse_kl") && !numbers.contains_key("rollout/raw_reward"));
    let teacher = format!("teacher.path={}", fixture("llama_tied").display());
    let (_dir, of_model) = trained(&rows, &[estimator, &teacher]);
    assert!(of_model["rollout/teacher_log_probs"] != numbers["rollout/teacher_log_probs"]);
    rows[4].as_object_mut().expect("a row").remove("teacher_log_probs");
    let dir = tempfile::tempdir().expect("a folder");
    let output = train(dir.path(), &rows, &[estimator]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(65), "{stderr}");
    assert!(stderr.contains("sample 0/2/0.0.0: teacher_log_probs: expected a finite number"), "{stderr}");
}

#[test]
fn scores_of_another_model_are_what_it_teaches() {
    let dir = tempfile::tempdir().expect("a folder");
    let text: String = rows(3, 2).iter().map(|row| row.to_string() + "\n").collect();
    fs::write(dir.path().join("rows.jsonl"), text).expect("rows");
    let score = |input: &str| {
        Command::new(env!("CARGO_BIN_EXE_slime-rollout"))
            .current_dir(dir.path())
            .arg("score")
            .arg("--weights")
            .arg(fixture("llama_tied"))
            .args(["--input", input, "--column", "teacher_log_probs"])
            .output()
            .expect("slime-rollout starts")
    };
    let output = score("rows.jsonl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let scored: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let estimator = "algorithm.advantage_estimator=distillation";
    let (_dir, by_column) = trained(&scored, &[estimator]);
    let teacher = format!("teacher.path={}", fixture("llama_tied").display());
    let (_dir, by_model) = trained(&rows(3, 2), &[estimator, &teacher]);
    for name in ["rollout/teacher_log_probs", "rollout/opd_reverse_kl", "train/loss"] {
        let (a, b) =
            (by_column[name].as_f64().expect("a number"), by_model[name].as_f64().expect("a number"));
        assert!((a - b).abs() < 1e-4, "{name}: {a} and {b}");
    }
    fs::write(dir.path().join("bare.jsonl"), "{\"tokens\": [1, 2, 3]}\n").expect("a row");
    let output = score("bare.jsonl");
    assert_eq!(output.status.code(), Some(65));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("row 1: prompt_len: expected at least 1 token"), "{stderr}");
}

#[test]
fn pairs_teach_a_policy_and_a_score() {
    let mut rows = rows(4, 2);
    for row in &mut rows {
        row.as_object_mut().expect("a row").remove("reward");
    }
    rows[0]["metadata"] = json!({ "margin": 0.5 });
    let (_dir, dpo) = trained(&rows, &["algorithm.loss=dpo"]);
    // Where policy and reference are the same, nothing is preferred yet.
    assert!((dpo["train/loss"].as_f64().expect("a loss") - 2f64.ln()).abs() < 1e-6, "{dpo:?}");
    let (dir, score) = trained(&rows, &["algorithm.loss=reward_model"]);
    assert!(score["train/rewards/accuracies"].as_f64() <= Some(1.0));
    let weights = WeightDir::open(dir.path().join("new")).expect("a weight directory");
    assert!(weights.info("score.weight").is_ok());
    rows.pop();
    let dir = tempfile::tempdir().expect("a folder");
    let output = train(dir.path(), &rows, &["algorithm.loss=dpo"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("pairs"), "{stderr}");
}

#[test]
fn process_rewards_and_corrections_are_read_from_the_rows() {
    let mut rows = rows(3, 4);
    for (i, row) in rows.iter_mut().enumerate() {
        let len = row["loss_mask"].as_array().expect("a mask").len();
        row["token_rewards"] =
            (0..len).map(|at| if at == 0 { i as f64 } else { 0.0 }).collect::<Vec<_>>().into();
    }
    let (_dir, plain) = trained(&self::rows(3, 4), &[]);
    let (_dir, process) = trained(&rows, &[]);
    assert!(process["train/grad_norm"] != plain["train/grad_norm"]);
    let sets = [
        "algorithm.correction.weight=mask",
        "algorithm.correction.high=2",
        "algorithm.correction.reject=sequence",
        "algorithm.correction.reject_high=4",
    ];
    let (_dir, corrected) = trained(&rows, &sets);
    for name in ["train/tis", "train/tis_clipfrac", "train/mis_k3_kl", "train/mis_rs_mask_fraction"] {
        assert!(corrected.contains_key(name), "{name}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    rows[1]["token_rewards"] = json!("none");
    let output = train(dir.path(), &rows, &[]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(65), "{stderr}");
    assert!(
        stderr.contains("row 2 (sample 0/0/1.0.0): token_rewards: expected a list of numbers"),
        "{stderr}"
    );
}

#[test]
fn formulas_are_listed_without_a_configuration() {
    let run = |name: &str| {
        Command::new(env!("CARGO_BIN_EXE_slime-train"))
            .args(["--algorithm", name])
            .output()
            .expect("it starts")
    };
    let list = run("list");
    assert!(list.status.success() && list.stderr.is_empty());
    assert!(String::from_utf8_lossy(&list.stdout).contains("\n  reinforce_plus_plus_baseline\n"));
    assert_eq!(run("nothing").status.code(), Some(78));
}

/// The fixtures' model with a larger vocabulary, whose rows begin again after the 96th.
fn write_model(model: &Path, vocab: usize) {
    let origin = WeightDir::open(fixture("llama")).expect("a fixture");
    let names: Vec<String> = origin.names().map(str::to_owned).collect();
    let has_rows = |name: &str| matches!(name, "model.embed_tokens.weight" | "lm_head.weight");
    let shape = |name: &str| {
        let shape = origin.info(name).expect("a tensor").shape.clone();
        if has_rows(name) { vec![vocab, shape[1]] } else { shape }
    };
    let spec = |name: &String| TensorSpec { name: name.clone(), dtype: Dtype::F32, shape: shape(name) };
    let specs = names.iter().map(spec).collect();
    let mut writer = WeightWriter::create(model, specs, usize::MAX).expect("a new folder");
    for name in &names {
        let bytes = origin.tensor(name).expect("a tensor").cast(Dtype::F32).expect("f32").to_vec();
        let len = 4 * shape(name).iter().product::<usize>();
        let all: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
        writer.write(name, &all).expect("it is written");
    }
    let config = fs::read(fixture("llama").join("config.json")).expect("a fixture");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["vocab_size"] = vocab.into();
    writer.add_file("config.json", config.to_string().as_bytes()).expect("it is written");
    writer.finish().expect("it is there");
}

/// The two commands of the README, on a tiny model that speaks.
#[test]
fn conversations_go_through_a_pipe_into_new_weights() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("model");
    write_model(&model, 400);
    chat_model::write(&model);
    let rows: String = (0..6)
        .map(|i| json!({"prompt": format!("a{i}?"), "completion": format!("a{i}")}).to_string() + "\n")
        .collect();
    fs::write(dir.path().join("chats.jsonl"), rows).expect("rows");
    let config = "[model]\npath = \"model\"\n[data]\nkind = \"conversations\"\n[algorithm]\nloss = \"sft\"\n[train]\nlr = 1e-2\n";
    fs::write(dir.path().join("sft.toml"), config).expect("a configuration");
    let mut rollout = Command::new(env!("CARGO_BIN_EXE_slime-rollout"))
        .current_dir(dir.path())
        .args(["--config", "sft.toml", "--prompts", "chats.jsonl"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("slime-rollout starts");
    let samples = rollout.stdout.take().expect("a pipe");
    let output = Command::new(env!("CARGO_BIN_EXE_slime-train"))
        .current_dir(dir.path())
        .args(["--config", "sft.toml", "--output", "new", "--dump", "dump"])
        .stdin(samples)
        .output()
        .expect("slime-train starts");
    assert!(rollout.wait().expect("our child").success());
    let numbers = numbers(dir.path(), &output);
    assert_eq!(numbers["train/global_batch_size"], 6.0);
    assert!(numbers["train/loss"].as_f64() > Some(1.0) && !numbers.contains_key("rollout/raw_reward"));
    assert!(WeightDir::open(dir.path().join("new")).is_ok());
}

/// Runs trainer and builder over a run with this configuration to its end; the lines of metrics/train.jsonl.
fn resident(run: &Path, config: &str) -> Vec<Value> {
    fs::create_dir_all(run).expect("a folder");
    fs::write(run.join("run.toml"), config).expect("a configuration");
    let start = |tool: &str| -> Child {
        let log = fs::File::options().create(true).append(true).open(run.join("log.txt")).expect("a log");
        let mut command = Command::new(tool);
        command.env("OMP_NUM_THREADS", "1").arg("--follow").arg(run).stderr(log);
        command.spawn().expect("it starts")
    };
    let tools = [start(env!("CARGO_BIN_EXE_slime-train")), start(env!("CARGO_BIN_EXE_slime-rollout"))];
    for mut tool in tools {
        let status = tool.wait().expect("our child");
        assert!(status.success(), "{}", fs::read_to_string(run.join("log.txt")).unwrap_or_default());
    }
    let text = fs::read_to_string(run.join("metrics/train.jsonl")).expect("metrics");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn supervised_run_learns_its_conversations_without_rewards() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("model");
    write_model(&model, 400);
    chat_model::write(&model);
    let rows: String = (0..4)
        .map(|i| json!({"prompt": format!("a{i}?"), "completion": format!("a{i}")}).to_string() + "\n")
        .collect();
    fs::write(dir.path().join("chats.jsonl"), rows).expect("rows");
    let config = format!(
        "[run]\nnum_epoch = 8\n[model]\npath = \"{0}/model\"\n[data]\nkind = \"conversations\"\nprompts = \
         \"{0}/chats.jsonl\"\n[rollout]\nrollout_batch_size = 4\n[algorithm]\nloss = \"sft\"\n[train]\nlr = 1e-2\n",
        dir.path().display()
    );
    let steps = resident(&dir.path().join("run"), &config);
    assert_eq!(steps.len(), 8);
    let loss = |step: &Value| step["train/loss"].as_f64().expect("a loss");
    assert!(loss(&steps[7]) < 0.7 * loss(&steps[0]), "{steps:?}");
    assert!(steps.iter().all(|step| step.get("rollout/raw_reward").is_none()));
}

#[test]
fn ppo_run_trains_its_critic_alone_at_first_and_keeps_it_in_checkpoints() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("model");
    fs::create_dir(&model).expect("a folder");
    tiny_weights::write(&model);
    let config = format!(
        "[run]\nnum_steps = 4\n[model]\npath = \"{}\"\n[data]\nenvironment = \"arithmetic\"\napply_chat_template = \
         false\n[rollout]\nrollout_batch_size = 2\nn_samples_per_prompt = 2\nmax_response_len = 4\n[reward]\ntypes = \
         [\"format:regex=[02468]$\"]\n[train]\nlr = 1e-3\n[checkpoint]\ninterval = 2\n[algorithm]\nadvantage_estimator = \
         \"ppo\"\nkl_coef = 0.01\n[reference]\nupdate_interval = 2\n[critic]\nnum_critic_only_steps = 1\n[checks]\n\
         on_failure = \"fail\"\n",
        model.display()
    );
    let run = dir.path().join("run");
    let steps = resident(&run, &config);
    assert_eq!(steps.len(), 4);
    assert!(steps[0].get("train/loss").is_none() && steps[1]["train/loss"].is_number());
    assert!(steps.iter().all(|step| step["train/critic-value_loss"].is_number()), "{steps:?}");
    let index = walk(&run.join("checkpoint")).into_iter().find(|path| path.ends_with("index.json"));
    let index = fs::read_to_string(index.expect("a checkpoint")).expect("readable");
    assert!(index.contains("critic/master/score") && index.contains("reference/embed"), "{index}");
    assert!(index.contains("num_rollouts"));
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
