//! One clear error for each bad input, and rows that are skipped on request.

use serde_json::json;

use crate::{message, reward, rows};

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
    let output = reward(&["--type", "number"], &format!("\u{feff}{good}"));
    assert!(output.status.success() && rows(&output)[0]["reward"] == json!(1.0), "{}", message(&output));
    let output = reward(&["--type", "number"], "");
    assert_eq!((output.status.code(), message(&output).contains("empty")), (Some(65), true));
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
