//! Code of responses is run, or it is said why not.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{message, reward, reward_with, rows};

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

/// Parent and name of each living process.
fn processes() -> Vec<(u32, u32, String)> {
    let living = fs::read_dir("/proc").expect("processes are shown").flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (before, after) = stat.rsplit_once(") ")?;
        let mut fields = after.split(' ');
        let is_dead = matches!(fields.next()?, "Z" | "X");
        let name = before.split_once('(')?.1.to_owned();
        (!is_dead).then_some((pid, fields.next()?.parse().ok()?, name))
    });
    living.collect()
}

/// The processes that stem from one, with their names.
fn descendants(root: u32) -> Vec<(u32, String)> {
    let living = processes();
    let mut found = vec![(root, String::new())];
    let mut at = 0;
    while let Some((parent, _)) = found.get(at).cloned() {
        let children = living.iter().filter(|(_, of, _)| *of == parent);
        found.extend(children.map(|(pid, _, name)| (*pid, name.clone())));
        at += 1;
    }
    found.split_off(1)
}

#[test]
fn cases_end_with_a_tool_that_is_killed() {
    for (language, code) in [
        ("bash", "exec sleep 100000"),
        ("python", "import ctypes, time; ctypes.CDLL(None).prctl(15, b'sleeper'); time.sleep(100000)"),
    ] {
        let metadata =
            json!({"language": language, "cases": [{"stdin": "", "stdout": "1"}], "time_limit_s": 3600});
        let row = json!({"response": format!("```{language}\n{code}\n```"), "metadata": metadata});
        let mut tool = Command::new(env!("CARGO_BIN_EXE_slime-reward"))
            .args(["--type", "code", "--sandbox-min", "limits"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("slime-reward starts");
        let mut stdin = tool.stdin.take().expect("stdin is piped");
        writeln!(stdin, "{row}").expect("it reads");
        let begun = loop {
            let begun = descendants(tool.id());
            if begun.iter().any(|(_, name)| name.starts_with("sleep")) {
                break begun;
            }
            assert!(tool.try_wait().expect("it can be asked").is_none(), "it ended before its case");
            std::thread::sleep(Duration::from_millis(10));
        };
        tool.kill().expect("it is killed");
        tool.wait().expect("it ends");
        let is_left =
            |(pid, name): &(u32, String)| processes().iter().any(|(one, _, now)| (one, now) == (pid, name));
        let deadline = Instant::now() + Duration::from_secs(120);
        while begun.iter().any(is_left) {
            assert!(Instant::now() < deadline, "{language}: of {begun:?} some are left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
