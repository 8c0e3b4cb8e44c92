//! Recorded responses through slime-rollout: rows of conversations and preferences as samples, and what it says about
//! rows that cannot be trained on.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

#[path = "fixtures/chat_model.rs"]
mod chat_model;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use slime_record::{Sample, Status, VersionRun};
use tempfile::TempDir;

fn model(dir: &TempDir) -> PathBuf {
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    chat_model::write(&model);
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
    for sample in &samples {
        sample.validate().unwrap();
    }
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
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    lines.join("\n") + "\n"
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
    assert_eq!(rows[1].response, "what is it?");
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
        assert_eq!((pair[0].response.as_str(), pair[1].response.as_str()), ("four.", "?"));
        for sample in pair {
            let num_trained = sample.loss_mask.iter().map(|mask| usize::from(*mask)).sum::<usize>();
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
    assert_eq!(tokenizer.decode(&rows[0].tokens, false).unwrap(), "hello fox<|im_end|>");
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
    assert!(stderr.contains(&format!("responses were cut off at data.max_len {max_len} tokens")), "{stderr}");
    assert!(stderr.contains("num_cut=1"), "{stderr}");
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
        (
            json!({"messages": [user, answer], "tools": 5}),
            "line 2: key \"tools\": expected a list of tool definitions",
        ),
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
    assert!(jsonl.iter().zip(0..).all(|(row, i)| row.response == format!("{i}") && row.group == i));
    let arrow = [&args[..], &["--format", "arrow", "--output", file.to_str().unwrap()]].concat();
    assert!(rollout(&arrow, "").status.success());
    assert_eq!(slime_record::read_segment(&file).unwrap().samples().unwrap(), jsonl);
    let few = [&args[..], &["--num-prompts", "3"]].concat();
    assert_eq!(samples(&rollout(&few, "")), jsonl[..3]);
}
