//! `slime-reward` from outside: rows in, rows with rewards out, and one clear error for each bad input.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn reward(arguments: &[&str], input: &str) -> Output {
    reward_with(arguments, &[], input)
}

fn reward_with(arguments: &[&str], environment: &[(&str, &str)], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slime-reward"))
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("slime-reward starts");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    // The tool may end before it read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().expect("slime-reward ends");
    writer.join().expect("the writer ends");
    output
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn data(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data").join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
    }
    path.exists().then_some(path)
}

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
fn mathematics_is_judged_by_each_grader() {
    let input = concat!(
        "{\"response\": \"<think>1</think>so \\\\boxed{\\\\sqrt{12}}\", \"label\": \"2\\\\sqrt{3}\"}\n",
        "{\"response\": \"<think>1</think>\\\\boxed{42}\\nAnswer: 42\", \"label\": 42}\n",
    );
    let output =
        reward(&["--type", "math,math:decimals=3:0.5,slime_math,deepscaler,mathd", "--explain"], input);
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(
        rows(&output)[0]["rewards"],
        json!({"math": 1.0, "math:decimals=3": 1.0, "slime_math": 1.0, "deepscaler": 1.0, "mathd": 0.0})
    );
    let text = message(&output);
    let words = r#"line 1: math = 1 ("\\sqrt{12}"): the last box \sqrt{12}: equal by exact arithmetic"#;
    assert!(text.contains(words), "{text}");
    let second = input.lines().nth(1).map(|line| format!("{line}\n")).expect("two lines");
    let output = reward(&["--type", "dapo,gsm8k"], &second);
    assert_eq!(rows(&output)[0]["rewards"], json!({"dapo": 1.0, "gsm8k": 1.0}), "{}", message(&output));
    let output = reward(&["--type", "dapo"], input);
    assert_eq!(output.status.code(), Some(65));
    assert!(message(&output).contains("stdin: line 1: the dapo reward finds no number in the label"));
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

#[test]
fn bad_input_is_one_error_with_its_line() {
    let good = "{\"response\":\"4\",\"label\":\"4\"}\n";
    for (line, problem) in [
        ("{\"response\": \"4\", \"label\"\n", "stdin: line 2: column"),
        ("[1]\n", "stdin: line 2: expected an object"),
        ("{\"text\":\"4\",\"label\":\"4\"}\n", "stdin: line 2: no response; the row has text, label"),
        ("{\"response\":4,\"label\":\"4\"}\n", "stdin: line 2: response: expected a string, got a number"),
        ("{\"response\":\"4\"}\n", "stdin: line 2: the number reward needs a label"),
        ("{\"response\":\"4\",\"label\":\"four\"}\n", "stdin: line 2: the number reward finds no number"),
    ] {
        let output = reward(&["--type", "number"], &format!("{good}{line}"));
        assert_eq!(output.status.code(), Some(65), "{line}");
        let text = message(&output);
        assert!(text.starts_with(&format!("slime-reward: error: {problem}")), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let output = reward(&["--type", "number"], "");
    assert_eq!((output.status.code(), message(&output).contains("empty")), (Some(65), true));
}

/// A row whose code is right, one whose code is wrong, one whose response has none.
const CODE_ROWS: &str = concat!(
    "{\"response\": \"```python\\ndef f(n): return n * 2\\n```\", \"metadata\": {\"tests\": [\"assert f(2) == 4\", \"assert f(0) == 0\"]}}\n",
    "{\"response\": \"print(int(input()) ** 2)\", \"metadata\": {\"cases\": [{\"stdin\": \"2\", \"stdout\": \"4\"}, {\"stdin\": \"3\", \"stdout\": \"6\"}]}}\n",
    "{\"response\": \"```text\\nno\\n```\", \"metadata\": {\"tests\": \"assert f(2) == 4\"}}\n",
);

#[test]
fn code_is_run_in_the_best_tier_and_the_tier_is_told() {
    let output = reward(&["--type", "code,code:rate:0.5", "--sandbox-min", "limits", "--explain"], CODE_ROWS);
    assert!(output.status.success(), "{}", message(&output));
    let rewards: Vec<Value> = rows(&output).into_iter().map(|row| row["reward"].clone()).collect();
    assert_eq!(rewards, [json!(1.5), json!(0.25), json!(0.0)], "{}", message(&output));
    let text = message(&output);
    assert!(text.contains("sandbox tier "), "{text}");
    assert!(text.contains("line 2: code = 0: 1 of 2 passed: case 2: expected \"6\", got \"9\""), "{text}");
    assert!(text.contains("line 3: code = 0: no code block of python"), "{text}");
}

#[test]
fn code_that_cannot_be_judged_is_an_error_and_never_a_reward() {
    let row = |metadata: &str| format!("{CODE_ROWS}{{\"response\": \"x = 1\", \"metadata\": {metadata}}}\n");
    for (metadata, code, problem) in [
        ("{}", 65, "stdin: line 4: the code reward: metadata: expected cases, tests"),
        (
            "{\"tests\": \"x\", \"language\": \"cobol\"}",
            65,
            "stdin: line 4: the code reward: metadata: language: expected one of",
        ),
        (
            "{\"tests\": \"x\", \"time_limit_s\": 1e9}",
            65,
            "line 4: the code reward: metadata: time_limit_s: expected",
        ),
        ("{\"cases\": 3}", 65, "line 4: the code reward: metadata: cases: expected an array, got a number"),
    ] {
        let output = reward(&["--type", "code", "--sandbox-min", "limits"], &row(metadata));
        assert_eq!(output.status.code(), Some(code), "{}", message(&output));
        assert!(message(&output).contains(problem), "{}", message(&output));
    }
    let output = reward(&["--type", "code", "--sandbox-min", "jail"], CODE_ROWS);
    assert_eq!(output.status.code(), Some(64), "{}", message(&output));
    assert!(
        message(&output).contains("hint: tiers are limits, seccomp, landlock, namespaces"),
        "{}",
        message(&output)
    );
}

#[test]
fn missing_interpreter_is_named() {
    let path = [("PATH", "/nonexistent")];
    let output = reward_with(&["--type", "code", "--sandbox-min", "limits"], &path, CODE_ROWS);
    assert_eq!(output.status.code(), Some(69), "{}", message(&output));
    let text = message(&output);
    assert!(text.contains("line 1: python3 is not installed, and code in python needs it"), "{text}");
    assert!(text.contains("hint: install it, or put it on PATH") && output.stdout.is_empty(), "{text}");
}

#[test]
fn wrong_calls_have_their_codes_and_hints() {
    let cases: [(&[&str], i32, &str); 8] = [
        (&[], 64, "hint: name one: --type number"),
        (&["--type", "nubmer"], 64, "hint: did you mean number?"),
        (&["--typ", "number"], 64, "unexpected argument"),
        (&["--type", "overlong:max=5 cach=2"], 64, "expected cache=..."),
        (&["--type", "judge:ftp://host model=m"], 64, "url: expected http://.."),
        (&["--type", "number", "--input", "/no/such/file"], 66, "cannot open /no/such/file"),
        (&["--type", "command:/no/such/program"], 69, "cannot start the reward program"),
        (&["--set", "reward.typs=[]"], 78, "hint: did you mean reward.types?"),
    ];
    for (arguments, code, problem) in cases {
        let output = reward(arguments, "{\"response\":\"4\",\"label\":\"4\"}\n");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", message(&output));
        assert!(message(&output).contains(problem), "{arguments:?}: {}", message(&output));
    }
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
fn bad_rows_are_skipped_and_told_on_request() {
    let input = "{\"response\":\"4\",\"label\":\"4\"}\n{\n{\"response\":\"5\"}\n{\"response\":\"5\",\"label\":\"4\"}\n";
    let output = reward(&["--type", "number", "--skip-bad", "--stats"], input);
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(rows(&output).len(), 2);
    let text = message(&output);
    for part in [
        "stdin: line 2 skipped: column 1",
        "stdin: line 3 skipped: the number reward needs a label",
        "stdin: 2 lines skipped: 2, 3",
        "2 rows, 2 skipped",
        "number: mean 0.5000, std 0.5000, failed 0; 0: 1, 1: 1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let nothing = reward(&["--type", "number", "--skip-bad"], "{\n");
    assert_eq!(nothing.status.code(), Some(65), "{}", message(&nothing));
    let down = "remote:http://127.0.0.1:1 attempts=1";
    let output = reward(&["--type", down, "--skip-bad"], "{\"response\":\"4\"}\n");
    assert_eq!(output.status.code(), Some(69), "a server that is down is no bad row: {}", message(&output));
    let output = reward(&["--type", &format!("{down} on_error=-0.5")], "{\"response\":\"4\"}\n");
    assert!(output.status.success() && rows(&output)[0]["reward"] == json!(-0.5), "{}", message(&output));
    assert!(
        message(&output).contains("failed for 1 rows; the default stands for them"),
        "{}",
        message(&output)
    );
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
fn groups_are_whole_or_an_error() {
    let row =
        |group: u64, response: &str| json!({"group": group, "response": response, "label": "4"}).to_string();
    let input = [row(0, "4"), row(0, "5"), row(1, "5"), row(1, "5")].join("\n");
    let output = reward(&["--type", "group_norm:number std=off", "--batch-rows", "1"], &input);
    let rewards: Vec<f64> = rows(&output).iter().filter_map(|row| row["reward"].as_f64()).collect();
    assert_eq!(rewards, [0.5, -0.5, 0.0, 0.0]);
    let input = [row(0, "4"), "{".to_owned(), row(0, "5"), row(1, "4")].join("\n");
    let output = reward(&["--type", "group_norm:number std=off", "--batch-rows", "1", "--skip-bad"], &input);
    let rewards: Vec<f64> = rows(&output).iter().filter_map(|row| row["reward"].as_f64()).collect();
    assert_eq!(rewards, [0.5, -0.5, 0.0], "{}", message(&output));
    let input = [row(0, "4"), row(1, "5"), row(0, "5")].join("\n");
    let output = reward(&["--type", "group_norm:number"], &input);
    assert_eq!(output.status.code(), Some(65));
    assert!(message(&output).contains("stdin: line 3: its group ended before"), "{}", message(&output));
    let output = reward(&["--type", "group_norm:number"], "{\"response\":\"4\",\"label\":\"4\"}\n");
    assert!(
        message(&output).contains("stdin: line 1: the group_norm reward compares a group"),
        "{}",
        message(&output)
    );
}

#[test]
fn spans_pay_the_tokens_they_end_in() {
    let program = r#"command:sh -c 'while read -r line; do echo "{\"reward\": 1, \"spans\": [{\"end\": 2, \"reward\": 0.5}, {\"start\": 2, \"end\": 4, \"reward\": -1}]}"; done'"#;
    let output = reward(&["--type", program], "{\"response\":\"ab cd\",\"token_offsets\":[0,1,2]}\n");
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(rows(&output)[0]["token_rewards"], json!([0.0, 0.5, -1.0]));
    let output = reward(&["--type", program], "{\"response\":\"ab cd\"}\n");
    assert_eq!(output.status.code(), Some(69));
    assert!(message(&output).contains("hint: give rows `token_offsets`"), "{}", message(&output));
}

#[test]
fn instructions_of_the_benchmark_are_judged_as_published() {
    let Some(path) = data("ifbench_verdicts.jsonl") else { return };
    let text = fs::read_to_string(path).expect("readable");
    let published: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let lines: Vec<String> = published
        .iter()
        .map(|row| json!({"response": row["response"], "metadata": row}).to_string())
        .collect();
    let all =
        |verdicts: &Value| verdicts.as_array().is_some_and(|all| all.iter().all(|one| one == &json!(true)));
    for (kind, verdicts) in [("ifbench", "strict"), ("ifbench:loose", "loose")] {
        let output = reward(&["--type", kind], &lines.join("\n"));
        assert!(output.status.success(), "{}", message(&output));
        for (row, published) in rows(&output).iter().zip(&published) {
            assert_eq!(row["reward"] == json!(1.0), all(&published[verdicts]), "{kind} {}", published["key"]);
        }
    }
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
fn own_programs_score_and_their_failures_name_the_line() {
    let program = r#"command:sh -c 'while read -r line; do echo "{\"reward\": ${#line}, \"reason\": \"its length\"}"; done'"#;
    let input = "{\"response\":\"a\"}\n{\"response\":\"abc\"}\n";
    let output = reward(&["--type", program], input);
    assert!(output.status.success(), "{}", message(&output));
    let rewards: Vec<f64> = rows(&output).iter().filter_map(|row| row["reward"].as_f64()).collect();
    assert!((rewards[1] - rewards[0] - 2.0).abs() < 1e-9, "{rewards:?}");
    let output = reward(&["--type", "command:head -n 0"], input);
    assert_eq!(output.status.code(), Some(69));
    assert!(message(&output).contains("stdin: line 1: reward program head"), "{}", message(&output));
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

#[test]
fn resident_worker_scores_segments_until_the_run_is_done() {
    use slime_exchange::{ArrowFormat, Format, FsStore, SegmentHeader, Store};
    let folder = tempfile::tempdir().expect("a folder can be made");
    let run = folder.path().to_str().expect("the path is text");
    let toml = folder.path().join("run.toml");
    fs::write(&toml, "[reward]\nplacement = \"inline\"\n").expect("writable");
    let inline = reward(&["--follow", run], "");
    assert_eq!((inline.status.code(), message(&inline).contains("placement is inline")), (Some(78), true));
    fs::write(&toml, "[reward]\nplacement = \"separate\"\ntypes = [\"number:2\"]\n").expect("writable");

    let answer = |index: u32, response: &str| slime_record::Sample {
        index,
        response: response.to_owned(),
        label: Some("4".to_owned()),
        ..slime_record::Sample::default()
    };
    let format = ArrowFormat::default();
    let header = SegmentHeader { step: 0, epoch: 0, replica: 0, incarnation: 0 };
    let mut store = FsStore::open(folder.path()).expect("opens");
    let rows = [answer(0, "4"), answer(1, "5")];
    let path = "rollout/000000/replica-0.000000.000000.arrow";
    store.seal_with(path, &mut |out| format.write(&header, &rows, out)).expect("seals");

    let mut child =
        Command::new(env!("CARGO_BIN_EXE_slime-reward")).args(["--follow", run]).spawn().expect("it starts");
    let column = (0..500).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let dir = "column/reward/000000";
        let file = store.list(dir).expect("lists").first().cloned()?;
        store.read(&format!("{dir}/{file}")).expect("reads")
    });
    fs::create_dir_all(folder.path().join("control")).expect("writable");
    fs::write(folder.path().join("control/done"), "").expect("writable");
    assert!(child.wait().expect("it ends").success());
    let column = format.column("reward", &column.expect("the column appears within 10 s")).expect("reads");
    let values: Vec<f32> = column.rows.iter().map(|row| row.value).collect();
    assert_eq!(values, [2.0, 0.0]);
}

#[test]
fn gold_answers_of_gsm8k_earn_the_whole_reward() {
    let Some(path) = data("gsm8k_test.jsonl") else { return };
    let text = fs::read_to_string(path).expect("readable");
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).expect("JSON");
            json!({"response": row["answer"], "label": row["answer"]}).to_string()
        })
        .collect();
    let input = lines.join("\n");
    let output = reward(&["--type", "number"], &input);
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(rows(&output).len(), 1319);
    assert!(rows(&output).iter().all(|row| row["reward"] == json!(1.0)));
}

#[test]
fn verdicts_on_model_solutions_agree_with_the_published_ones() {
    let Some(path) = data("gsm8k_model_solutions.jsonl") else { return };
    let text = fs::read_to_string(path).expect("readable");
    let (mut lines, mut verdicts) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).expect("JSON");
        for model in ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"] {
            verdicts.push(row[model]["is_correct"] == json!(true));
            lines.push(json!({"response": row[model]["solution"], "label": row["ground_truth"]}).to_string());
        }
    }
    let output = reward(&["--type", "number"], &lines.join("\n"));
    assert!(output.status.success(), "{}", message(&output));
    let wrong = rows(&output)
        .iter()
        .zip(&verdicts)
        .filter(|(row, verdict)| (row["reward"] == json!(1.0)) != **verdict)
        .inspect(|(row, _)| eprintln!("{row}"))
        .count();
    assert_eq!(wrong, 0, "{wrong} of {} verdicts differ", verdicts.len());
}
