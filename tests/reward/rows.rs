//! Rows go through with their order, bytes and format kept; what is told beside them goes to stderr.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::{message, reward, rows};

#[test]
fn rows_keep_their_order_their_bytes_and_gain_rewards() {
    let input = concat!(
        "{\"id\": 1e2, \"response\": \"it is 4\", \"label\": \"4\"}\n",
        "\n",
        "{\"response\": \"5\", \"label\": 4, \"metadata\": {\"a\": 12345678901234567890123}}\n",
    );
    let output = reward(&["--type", "number,format:json:0.5"], input);
    assert!(output.status.success(), "{}", message(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "{\"id\": 1e2, \"response\": \"it is 4\", \"label\": \"4\",\"reward\":1.0,\"rewards\":{\"number\":1.0,\"format:json\":0.0}}"
    );
    assert!(lines[1].contains("12345678901234567890123"), "{text}");
    assert_eq!(rows(&output)[1]["reward"], json!(0.5));
    assert_eq!(lines.len(), 2);
}

#[test]
fn earlier_rewards_are_replaced() {
    let output =
        reward(&["--type", "number"], "{\"response\":\"4\",\"label\":\"4\",\"reward\":0.0,\"x\":[1]}\n");
    assert_eq!(
        rows(&output),
        [json!({"response":"4","label":"4","reward":1.0,"x":[1],"rewards":{"number":1.0}})]
    );
}

#[test]
fn explanations_go_to_stderr() {
    let output = reward(&["--type", "number", "--explain"], "{\"response\":\"I say 5\",\"label\":\"4\"}\n");
    let text = message(&output);
    assert!(text.contains("line 1: number = 0 (\"5\"): the last number is 5, the label is 4"), "{text}");
    assert_eq!(rows(&output).len(), 1);
}

/// Rows of groups of five, some of which are right, in many lengths.
fn many_rows() -> String {
    let row = |n: u64| {
        let answer = if n.is_multiple_of(3) { 4 } else { n };
        let response = format!("{}it is {answer}", "so ".repeat((n % 17) as usize));
        json!({"step": 1, "group": n / 5, "prompt": "2 + 2?", "response": response, "label": "4",
            "metadata": {"rm_type": if n.is_multiple_of(2) { "number" } else { "boxed_f1" }}})
        .to_string()
    };
    (0..600).map(|n| row(n) + "\n").collect()
}

#[test]
fn bytes_depend_neither_on_threads_nor_on_batches() {
    let input = many_rows();
    let types = "guard:number,f1:0.5,repetition:n=2,group_rank:f1,by_metadata,\
        command:processes=2 sh -c 'while read -r line; do echo ${#line}; done'";
    let run = |threads: &str, batch: &str| {
        let output =
            reward(&["--type", types, "--threads", threads, "--batch-rows", batch, "--explain"], &input);
        assert!(output.status.success(), "{}", message(&output));
        (output.stdout, output.stderr)
    };
    let first = run("1", "600");
    assert_eq!(String::from_utf8_lossy(&first.0).lines().count(), 600);
    for (threads, batch) in [("4", "1"), ("1", "7"), ("4", "64")] {
        assert!(run(threads, batch) == first, "{threads} threads, batches of {batch}");
    }
}

#[test]
fn stats_tell_distributions() {
    let output = reward(&["--type", "length:max=0 slack=20 unit=words", "--stats"], &many_rows());
    let text = message(&output);
    assert!(text.contains("600 rows, 0 skipped") && text.contains("failed 0; 0.050..0.150: 105, "), "{text}");
}

#[test]
fn list_of_types_says_what_each_needs() {
    let output = reward(&["--type", "list"], "");
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    assert_eq!(line("f1").as_deref(), Some("f1\tlabel\tF1 of the words of answer and label (SQuAD)"));
    assert!(line("ifbench").is_some_and(|line| line.contains("metadata.instruction_id_list")), "{text}");
    assert!(text.lines().all(|line| line.split('\t').count() == 3), "{text}");
}

#[test]
fn output_file_appears_only_when_complete() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("scored.jsonl");
    let name = path.to_str().expect("the path is text");
    let broken = reward(&["--type", "number", "--output", name], "{\"response\":\"4\",\"label\":\"4\"}\n{\n");
    assert_eq!(broken.status.code(), Some(65));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    let whole = reward(&["--type", "number", "--output", name], "{\"response\":\"4\",\"label\":\"4\"}\n");
    assert!(whole.status.success() && whole.stdout.is_empty());
    assert!(fs::read_to_string(&path).expect("readable").ends_with("\"rewards\":{\"number\":1.0}}\n"));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    let refused = reward(
        &["--type", "number", "--output", "/no/such/folder/x"],
        "{\"response\":\"4\",\"label\":\"4\"}\n",
    );
    assert_eq!(refused.status.code(), Some(73));
}

#[test]
fn closed_reader_is_a_quiet_end() {
    let row = "{\"response\":\"4\",\"label\":\"4\"}\n";
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("in.jsonl");
    fs::write(&path, row.repeat(100_000)).expect("writable");
    let line = format!(
        "'{}' --type number --input '{}' | head -n 1",
        env!("CARGO_BIN_EXE_slime-reward"),
        path.display()
    );
    let output = Command::new("bash").args(["-o", "pipefail", "-c", &line]).output().expect("bash starts");
    assert!(output.status.success(), "{}", message(&output));
    assert!(output.stderr.is_empty(), "{}", message(&output));
}

#[test]
fn arrow_rows_leave_as_arrow_with_their_reward() {
    let sample = slime_record::Sample {
        response: "it is 4".to_owned(),
        label: Some("4".to_owned()),
        ..slime_record::Sample::default()
    };
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (input, output) = (folder.path().join("in.arrow"), folder.path().join("out.arrow"));
    let segment =
        slime_record::encode_segment(&[sample], &slime_record::Provenance::default()).expect("encodes");
    fs::write(&input, segment).expect("writable");
    let arguments = [
        "--type",
        "number",
        "--input",
        input.to_str().expect("text"),
        "--output",
        output.to_str().expect("text"),
    ];
    let status = reward(&arguments, "");
    assert!(status.status.success(), "{}", message(&status));
    let bytes = std::io::Cursor::new(fs::read(&output).expect("readable"));
    let rows: Vec<slime_record::Row> =
        slime_record::RowReader::new(bytes).expect("reads").collect::<Result<_, _>>().expect("reads");
    assert_eq!(rows[0].reward, Some(1.0));
    assert_eq!(rows[0].sample.response, "it is 4");
}
