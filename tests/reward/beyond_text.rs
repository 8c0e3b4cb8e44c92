//! Types that look at more than the text of an answer: groups, programs, spans.

use serde_json::json;

use crate::{message, reward, rows};

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
