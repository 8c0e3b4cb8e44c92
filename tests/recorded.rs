//! Recorded responses through slime-rollout: rows of conversations and preferences as samples, once and in a run whose
//! tools are killed; and what it says about rows that cannot be trained on.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

#[path = "fixtures/tiny_weights.rs"]
mod tiny_weights;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use slime_record::{Manifest, Sample, Status, VersionRun};
use tempfile::TempDir;

/// A tokenizer with the `ChatML` template of the fixtures, and no weights.
fn model(dir: &TempDir) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chats");
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::copy(fixtures.join("tokenizer.json"), model.join("tokenizer.json")).unwrap();
    let golden: Value = serde_json::from_slice(&fs::read(fixtures.join("golden.json")).unwrap()).unwrap();
    let template = &golden["templates"]["chatml"];
    let config = json!({"bos_token": "<|bos|>", "eos_token": "<|eos|>", "chat_template": template});
    fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
    model
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

fn replay(model: &Path, kind: &str, more: &[&str], input: &str) -> Output {
    let kind = format!("data.kind={kind}");
    let mut args = vec!["--weights", model.to_str().unwrap(), "--prompts", "-", "--set", &kind];
    args.extend(more.iter().flat_map(|set| ["--set", set]));
    rollout(&args, input)
}

fn samples(output: &Output) -> Vec<Sample> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let samples: Vec<Sample> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    samples.iter().for_each(|sample| sample.validate().unwrap());
    samples
}

fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.matches("error:").count(), 1, "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "expected {part:?} in {stderr}");
    }
}

fn says(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

#[test]
fn conversations_become_samples_of_which_the_assistants_part_is_trained() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir);
    let (user, answer) = (says("user", "hello"), says("assistant", "what is it?"));
    let rows = [
        json!({"messages": [user, answer, user, answer], "metadata": {"a": 1}, "label": "x"}),
        json!({"prompt": "hello", "completion": "what is it?"}),
        json!({"prompt": [user], "completion": [answer], "tools": [{"type": "function"}]}),
    ];
    let rows = samples(&replay(&model, "conversations", &[], &lines(&rows)));
    assert_eq!(rows.len(), 3);
    let tokenizer = slime_tokenizer::Tokenizer::from_dir(&model).unwrap();
    for (group, row) in rows.iter().enumerate() {
        assert_eq!(
            (row.group, row.index, row.prompt_id.as_str()),
            (group as u32, 0, &*format!("stdin:{}", group + 1))
        );
        assert_eq!((row.status, row.finish_reason.as_str()), (Status::Completed, "stop"));
        assert_eq!((row.loss_mask[0], row.rollout_log_probs.len()), (1, 0));
        assert_eq!(row.weight_versions, [VersionRun { version: 0, len: row.loss_mask.len() as u32 }]);
        let trained = row.response_tokens().iter().zip(&row.loss_mask).filter(|(_, mask)| **mask == 1);
        let trained: Vec<u32> = trained.map(|(token, _)| *token).collect();
        let once = "what is it?<|im_end|>";
        let expected = if group == 0 { once.repeat(2) } else { once.to_owned() };
        assert_eq!(tokenizer.decode(&trained, false).unwrap(), expected);
    }
    assert_eq!((rows[0].label.as_deref(), rows[0].metadata.as_deref()), (Some("x"), Some("{\"a\":1}")));
    assert_eq!(rows[0].prompt, json!([user]).to_string());
    assert_eq!(
        rows[1].tokens[..],
        rows[0].tokens[..rows[1].tokens.len()],
        "text is one message of each side"
    );
    assert_eq!(rows[1].response, "what is it?\n");
    assert!(rows[2].prompt_len > rows[1].prompt_len, "tools stand in the prompt");
}

#[test]
fn preferences_become_pairs_that_share_their_prompt() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir);
    let (user, good, bad) = (says("user", "the sum?"), says("assistant", "four."), says("assistant", "?"));
    let rows = [
        json!({"prompt": [user, bad, user], "chosen": [good], "rejected": [bad], "margin": 1.5}),
        json!({"chosen": [user, good], "rejected": [user, bad], "metadata": {"a": 1}}),
        json!({"prompt": "the sum?", "chosen": "four.", "rejected": "?"}),
    ];
    let rows = samples(&replay(&model, "preferences", &[], &lines(&rows)));
    assert_eq!(rows.len(), 6);
    for pair in rows.chunks(2) {
        assert_eq!((pair[0].group, pair[0].index, pair[1].index), (pair[1].group, 0, 1));
        assert_eq!(pair[0].prompt_tokens(), pair[1].prompt_tokens());
        assert_eq!((pair[0].response.as_str(), pair[1].response.as_str()), ("four.\n", "?\n"));
        for sample in pair {
            let num_trained = sample.loss_mask.iter().filter(|mask| **mask == 1).count();
            assert_eq!(
                num_trained + 1,
                sample.response_len(),
                "all but the line break, and nothing of the prompt"
            );
        }
    }
    assert_eq!(rows[0].metadata.as_deref(), Some("{\"margin\":1.5}"));
    assert_eq!(rows[3].metadata.as_deref(), Some("{\"a\":1}"));
    assert_eq!(rows[2].tokens, rows[4].tokens);
}

#[test]
fn text_without_a_template_is_taken_as_it_stands_and_ends_with_the_end_token() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir);
    let plain = ["data.apply_chat_template=false"];
    let rows = lines(&[json!({"prompt": "hello", "completion": " fox"})]);
    let rows = samples(&replay(&model, "conversations", &plain, &rows));
    let tokenizer = slime_tokenizer::Tokenizer::from_dir(&model).unwrap();
    assert_eq!(tokenizer.decode(&rows[0].tokens, false).unwrap(), "hello fox<|eos|>");
    assert!(rows[0].loss_mask.iter().all(|mask| *mask == 1));
    let rows = lines(&[json!({"chosen": "hello fox", "rejected": "hello you"})]);
    let rows = samples(&replay(&model, "preferences", &plain, &rows));
    assert_eq!((rows[0].prompt.as_str(), rows[1].response.as_str()), ("\"hello\"", " you"));
    let messages = lines(&[json!({"messages": [says("user", "a"), says("assistant", "b")]})]);
    assert_refused(
        &replay(&model, "conversations", &plain, &messages),
        65,
        &["stdin:1: ", "need a chat template"],
    );
}

#[test]
fn what_is_longer_than_max_len_is_cut_off_and_counted() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir);
    let rows = lines(&[
        json!({"prompt": "hello", "completion": "the quick brown fox says hello"}),
        json!({"prompt": "hello", "completion": "a"}),
    ]);
    let whole = samples(&replay(&model, "conversations", &[], &rows));
    let (prompt_len, max_len) = (whole[0].prompt_len, whole[0].prompt_len as usize + 4);
    let output = replay(&model, "conversations", &[&format!("data.max_len={max_len}")], &rows);
    let cut = samples(&output);
    assert_eq!((cut[0].status, cut[0].finish_reason.as_str()), (Status::Truncated, "length"));
    assert_eq!(cut[0].tokens[..], whole[0].tokens[..max_len]);
    assert_eq!(cut[1], whole[1]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains(&format!("1 responses were cut off at data.max_len {max_len} tokens")),
        "{stderr}"
    );
    let short = format!("data.max_len={prompt_len}");
    let expected = format!("stdin:1: prompt: expected at most {} tokens (data.max_len less", prompt_len - 1);
    assert_refused(
        &replay(&model, "conversations", &[&short], &rows),
        65,
        &[&expected, &format!("got {prompt_len}")],
    );
    let short = format!("data.max_prompt_len={}", prompt_len - 1);
    assert_refused(&replay(&model, "conversations", &[&short], &rows), 65, &["(data.max_prompt_len)"]);
    let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama/config.json");
    fs::copy(llama, model.join("config.json")).unwrap();
    let long = lines(&[json!({"prompt": "hello", "completion": "漢".repeat(200)})]);
    let output = replay(&model, "conversations", &[], &long);
    assert_refused(
        &output,
        65,
        &["stdin:1: expected at most 256 tokens (the model's context), got ", "data.max_len=256"],
    );
    assert_eq!(samples(&replay(&model, "conversations", &["data.max_len=256"], &long))[0].tokens.len(), 256);
}

#[test]
fn rows_that_cannot_be_trained_on_are_named() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir);
    let (user, answer) = (says("user", "a"), says("assistant", "b"));
    let good = json!({"messages": [user, answer]});
    let silent = json!({"role": "assistant", "content": "b", "step_loss_mask": 0});
    let chats = [
        (json!({"text": "x"}), "stdin: line 2: no key \"messages\" (messages_key)"),
        (
            json!({"messages": [user]}),
            "line 2: key \"messages\": expected a message of the assistant, got only user",
        ),
        (json!({"messages": "x"}), "line 2: key \"messages\": expected a list of messages, got \"x\""),
        (
            json!({"messages": [user, silent]}),
            "stdin:2: conversation: expected tokens to train, got none among",
        ),
        (json!({"messages": [user, answer], "tools": 5}), "stdin:2: conversation: chat template: "),
    ];
    for (row, expected) in chats {
        assert_refused(&replay(&model, "conversations", &[], &lines(&[good.clone(), row])), 65, &[expected]);
    }
    let pair = json!({"prompt": "a", "chosen": "b", "rejected": "c"});
    let pairs = [
        (
            json!({"prompt": "a", "chosen": "b", "rejected": "b"}),
            "line 2: keys \"chosen\" and \"rejected\": expected two",
        ),
        (
            json!({"chosen": [user, answer], "rejected": [says("user", "z"), answer]}),
            "line 2: keys \"chosen\" and \"rejected\": expected the same prompt before both",
        ),
        (json!({"prompt": "a", "chosen": "b"}), "line 2: no key \"rejected\" (rejected_key)"),
    ];
    for (row, expected) in pairs {
        assert_refused(&replay(&model, "preferences", &[], &lines(&[pair.clone(), row])), 65, &[expected]);
    }
    let same = lines(&[json!({"prompt": "a", "chosen": "the quick fox", "rejected": "the quick dog"})]);
    let whole = samples(&replay(&model, "preferences", &[], &same));
    let cut = format!("data.max_len={}", whole[0].prompt_len + 1);
    assert_refused(
        &replay(&model, "preferences", &[&cut], &same),
        65,
        &["stdin:1: chosen and rejected: expected different"],
    );
    let template = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
                    {{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
    fs::write(model.join("chat_template.jinja"), template).unwrap();
    let row = lines(&[json!({"messages": [user, user, answer]})]);
    let expected = "stdin:1: conversation: chat template: roles must alternate (line 1)";
    assert_refused(&replay(&model, "conversations", &[], &row), 65, &[expected]);
    assert_refused(
        &replay(&model, "conversations", &["data.loss_mask=generation"], &lines(&[good])),
        65,
        &["the chat template has no {% generation %} block"],
    );
    let eight = ["rollout.n_samples_per_prompt=8"];
    assert_refused(
        &replay(&model, "preferences", &eight, ""),
        78,
        &["n_samples_per_prompt 8: expected 2", "data.kind"],
    );
}

#[test]
fn arrow_and_many_rows_hold_the_same_samples_in_order() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir);
    let rows: Vec<Value> =
        (0..1300).map(|i| json!({"prompt": format!("{i}?"), "completion": format!("{i}")})).collect();
    let (input, file) = (dir.path().join("chats.jsonl.zst"), dir.path().join("out.arrow"));
    fs::write(&input, slime_archive::pack_bytes(lines(&rows).as_bytes()).unwrap()).unwrap();
    let args = [
        "--weights",
        model.to_str().unwrap(),
        "--prompts",
        input.to_str().unwrap(),
        "--set",
        "data.kind=conversations",
    ];
    let jsonl = samples(&rollout(&args, ""));
    assert_eq!(jsonl.len(), 1300);
    assert!(jsonl.iter().zip(0..).all(|(row, i)| row.response == format!("{i}\n") && row.group == i));
    let arrow = [&args[..], &["--format", "arrow", "--output", file.to_str().unwrap()]].concat();
    assert!(rollout(&arrow, "").status.success());
    assert_eq!(slime_record::read_segment(&file).unwrap().samples().unwrap(), jsonl);
    let few = [&args[..], &["--num-prompts", "3"]].concat();
    assert_eq!(samples(&rollout(&few, "")), jsonl[..3]);
}

/// Steps of a run: three epochs of eight rows, four a step.
const NUM_STEPS: u64 = 6;

/// A run of conversations in `dir`, whose version 0 is published.
fn run_dir(dir: &TempDir, name: &str, more: &str) -> PathBuf {
    let run = dir.path().join(name);
    for folder in ["epoch", "version", "control"] {
        fs::create_dir_all(run.join(folder)).unwrap();
    }
    let config = format!(
        "[run]\nnum_epoch = 3\nmax_staleness = 1\n[model]\npath = \"{0}/model\"\n[data]\nkind = \"conversations\"\n\
         [[data.source]]\npath = \"{0}/a.jsonl\"\nweight = 3\n[[data.source]]\npath = \"{0}/b.jsonl\"\nweight = 1\n\
         [rollout]\nrollout_batch_size = 4\n{more}",
        dir.path().display()
    );
    fs::write(run.join("run.toml"), config).unwrap();
    fs::write(run.join("epoch/000001"), json!({"epoch": 1, "parent": null, "checkpoint": 0}).to_string())
        .unwrap();
    publish(&run, 0);
    run
}

/// What a trainer tells of a version; nobody reads weights.
fn publish(run: &Path, version: u64) {
    let publication = json!({"version": version, "epoch": 1, "transport": "disk", "hash": version});
    let (name, folder) = (format!("{version:06}.e001.json"), run.join("version"));
    fs::write(run.join("new"), publication.to_string()).unwrap();
    fs::rename(run.join("new"), folder.join(name)).unwrap();
}

fn wait_for(path: &Path, run: &Path) {
    for _ in 0..1200 {
        if path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let log = fs::read_to_string(run.join("log.txt")).unwrap_or_default();
    panic!("{} never appeared:\n{log}", path.display());
}

fn start(run: &Path) -> Vec<Child> {
    let role = |role: &[&str]| {
        let log = fs::File::options().create(true).append(true).open(run.join("log.txt")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_slime-rollout"));
        command.arg("--follow").arg(run).args(role).stderr(log).spawn().unwrap()
    };
    [&["--builder"][..], &["--replica", "0"], &["--replica", "1"]].map(role).into()
}

fn manifest(run: &Path, step: u64) -> PathBuf {
    run.join(format!("rollout/{step:06}/MANIFEST.json"))
}

/// Follows the run to its end in the place of a trainer; the tools are killed in these steps and started again.
fn follow(run: &Path, killed_in: &[u64]) -> Vec<Manifest> {
    let mut tools = start(run);
    for step in 0..NUM_STEPS {
        if killed_in.contains(&step) {
            for tool in &mut tools {
                tool.kill().unwrap();
                tool.wait().unwrap();
            }
            tools = start(run);
        }
        wait_for(&manifest(run, step), run);
        publish(run, step + 1);
    }
    fs::write(run.join("control/done"), "").unwrap();
    for tool in tools {
        let output = tool.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", fs::read_to_string(run.join("log.txt")).unwrap());
    }
    let read = |step| serde_json::from_slice(&fs::read(manifest(run, step)).unwrap()).unwrap();
    (0..NUM_STEPS).map(read).collect()
}

/// The prompts and tokens of all samples in training order.
fn content(manifests: &[Manifest]) -> Vec<(u64, u32, String, Vec<u64>)> {
    let groups = manifests.iter().flat_map(|manifest| &manifest.groups);
    groups
        .map(|group| {
            let hashes = group.samples.iter().map(|sample| sample.tokens_hash).collect();
            (group.step, group.group, group.prompt_id.clone(), hashes)
        })
        .collect()
}

#[test]
fn builder_commits_conversations_without_rewards_and_killed_ones_go_on_with_the_same_samples() {
    let dir = TempDir::new().unwrap();
    model(&dir);
    for (name, num) in [("a", 5), ("b", 3)] {
        let rows: Vec<Value> = (0..num)
            .map(|i| json!({"prompt": format!("{name}{i}?"), "completion": format!("{name}{i}")}))
            .collect();
        fs::write(dir.path().join(format!("{name}.jsonl")), lines(&rows)).unwrap();
    }
    let replicas = "num_replicas = 2\n";
    let calm = run_dir(&dir, "calm", replicas);
    let calm_manifests = follow(&calm, &[]);
    let killed = follow(&run_dir(&dir, "killed", replicas), &[1, 2, 4]);
    assert_eq!(content(&killed), content(&calm_manifests));
    for manifest in &calm_manifests {
        assert_eq!((manifest.groups.len(), manifest.columns().len()), (4, 0));
        assert!(manifest.staleness() <= 1 && manifest.account.masked == 0);
        let mut trained = 0;
        for group in &manifest.groups {
            let segment = slime_record::read_segment(&calm.join(&group.segment.path)).unwrap();
            let sample = segment.sample(group.first_row as usize).unwrap();
            assert_eq!((sample.prompt_id.as_str(), group.samples.len()), (group.prompt_id.as_str(), 1));
            let name = sample.response.trim_end();
            assert!(
                sample.prompt == format!("\"{name}?\"") && sample.source == format!("{}.jsonl", &name[..1])
            );
            trained += sample.loss_mask.iter().filter(|mask| **mask == 1).count() as u64;
        }
        assert_eq!(manifest.account.trained, trained);
    }
    assert!(!calm.join("column").exists());
    let metrics = fs::read_to_string(calm.join("metrics/rollout.jsonl")).unwrap();
    assert_eq!(metrics.lines().count() as u64, NUM_STEPS);
    assert!(metrics.contains("\"rollout/num_samples\":4") && !metrics.contains("reward"), "{metrics}");
    let stat = Command::new(env!("CARGO_BIN_EXE_slime-stat")).arg(&calm).arg("--json").output().unwrap();
    assert!(stat.status.success(), "{}", String::from_utf8_lossy(&stat.stderr));
}

#[test]
fn evaluations_are_sampled_whatever_is_trained_on() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("model")).unwrap();
    tiny_weights::write(&dir.path().join("model"));
    for name in ["a", "b"] {
        let rows: Vec<Value> =
            (1..5).map(|i| json!({"prompt": format!("{i}"), "completion": "7 8"})).collect();
        fs::write(dir.path().join(format!("{name}.jsonl")), lines(&rows)).unwrap();
    }
    fs::write(dir.path().join("eval.jsonl"), "{\"prompt\": \"3 4\", \"label\": \"7\"}\n").unwrap();
    let eval = format!(
        "[eval.test]\nprompts = \"{}/eval.jsonl\"\ninterval = 100\nmax_response_len = 4\n",
        dir.path().display()
    );
    let run = run_dir(&dir, "run", &eval);
    let config = fs::read_to_string(run.join("run.toml")).unwrap();
    let config = config
        .replace("kind = ", "apply_chat_template = false\nkind = ")
        .replace("max_staleness = 1", "max_staleness = 0");
    fs::write(run.join("run.toml"), &config).unwrap();
    let weights =
        json!({"version": 0, "epoch": 1, "transport": "disk", "path": dir.path().join("model"), "hash": 0});
    fs::write(run.join("version/000000.e001.json"), weights.to_string()).unwrap();
    let log = fs::File::create(run.join("log.txt")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-rollout"));
    let mut tool = command.arg("--follow").arg(&run).stderr(log).spawn().unwrap();
    wait_for(&manifest(&run, 0), &run);
    wait_for(&run.join("eval/000000.e001/DONE"), &run);
    tool.kill().unwrap();
    tool.wait().unwrap();
    let metrics = fs::read_to_string(run.join("metrics/rollout.jsonl")).unwrap();
    assert!(metrics.contains("\"set\":\"test\"") && metrics.contains("reward_mean"), "{metrics}");
    let once = rollout(&["--config", run.join("run.toml").to_str().unwrap(), "--eval", "test"], "");
    assert_eq!(samples(&once)[0].prompt, "\"3 4\"");
}
