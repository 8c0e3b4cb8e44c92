//! `HumanEval`: every canonical solution is right, in each form in which a response can have it.

use std::io::Read;
use std::path::Path;

use serde_json::Value;
use slime_verifier::{RewardSet, Row};

use super::python;

pub const TESTS: &[(&str, fn())] = &[
    ("every_canonical_solution_is_right", every_canonical_solution_is_right),
    ("every_wrong_solution_is_wrong", every_wrong_solution_is_wrong),
];

/// A task, its metadata as the file has it.
pub struct Task {
    pub id: String,
    pub prompt: String,
    pub solution: String,
    pub test: String,
    pub entry_point: String,
    pub metadata: String,
}

/// All tasks; none, said aloud, where the data is not there.
pub fn tasks() -> Vec<Task> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/HumanEval.jsonl.gz");
    let Ok(file) = std::fs::File::open(&path) else {
        eprintln!("SKIPPED: {} is not there", path.display());
        return Vec::new();
    };
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let task = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| value[key].as_str().unwrap().to_owned();
        Task {
            id: text("task_id"),
            prompt: text("prompt"),
            solution: text("canonical_solution"),
            test: text("test"),
            entry_point: text("entry_point"),
            metadata: line.to_owned(),
        }
    };
    let tasks: Vec<Task> = text.lines().map(task).collect();
    assert_eq!(tasks.len(), 164);
    tasks
}

/// The rewards of responses to tasks, and the reasons.
pub fn rewards<'a>(rows: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(f64, String)> {
    let rows: Vec<Row<'_>> = rows
        .map(|(response, metadata)| Row { response, metadata: Some(metadata), ..Row::default() })
        .collect();
    let scored = RewardSet::parse(&["code"]).unwrap().score(&rows).unwrap_or_else(|error| panic!("{error}"));
    scored.into_iter().map(|scored| (scored.reward, scored.parts[0].reason.clone())).collect()
}

fn every_canonical_solution_is_right() {
    let tasks = tasks();
    let forms: [fn(&Task) -> String; 3] = [
        // The continuation of the prompt, a whole function in a block, and a block that only continues.
        |task| task.solution.clone(),
        |task| python(&format!("{}{}", task.prompt, task.solution)),
        |task| python(&task.solution),
    ];
    for form in forms {
        let responses: Vec<String> = tasks.iter().map(form).collect();
        let rows =
            responses.iter().zip(&tasks).map(|(response, task)| (response.as_str(), task.metadata.as_str()));
        let wrong: Vec<String> = rewards(rows)
            .into_iter()
            .zip(&tasks)
            .filter(|((reward, _), _)| *reward != 1.0)
            .map(|((_, reason), task)| format!("{}: {reason}", task.id))
            .collect();
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), tasks.len(), wrong.join("\n"));
    }
}

fn every_wrong_solution_is_wrong() {
    let tasks = tasks();
    for body in ["    pass\n", "    return None\n", "    raise SystemExit(0)\n", "    return object()\n"] {
        let rows = tasks.iter().map(|task| (body, task.metadata.as_str()));
        let right: Vec<&str> = rewards(rows)
            .into_iter()
            .zip(&tasks)
            .filter(|((reward, _), _)| *reward != 0.0)
            .map(|(_, task)| task.id.as_str())
            .collect();
        assert!(right.is_empty(), "{body:?}: {right:?}");
    }
}
