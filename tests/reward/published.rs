//! Verdicts beside published ones.

use std::fs;

use serde_json::{Value, json};

use crate::{data, message, reward, rows};

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
