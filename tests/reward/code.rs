//! Code of responses is run, or it is said why not.

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
