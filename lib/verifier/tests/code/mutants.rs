//! Mutants of `HumanEval`'s canonical solutions: one token changed, chosen by a seed. They are wrong, and where the task's own
//! tests do not notice, plain Python without any of ours does not either.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::human_eval::{Task, rewards, tasks};
use super::{python, reward};

pub const TESTS: &[(&str, fn())] =
    &[("mutants_fail_and_plain_python_agrees", mutants_fail_and_plain_python_agrees)];

const SEED: u64 = 17;
/// Mutants of each task.
const MAX_EACH: usize = 4;
const TIME_LIMIT_S: f64 = 2.0;

/// A token and what it becomes. Words end at what cannot be part of a name.
const CHANGES: [(&str, &str); 24] = [
    ("<=", ">"),
    (">=", "<"),
    ("==", "!="),
    ("!=", "=="),
    ("<", ">="),
    (">", "<="),
    ("+=", "-="),
    ("-=", "+="),
    ("//", "*"),
    ("**", "*"),
    ("+", "-"),
    ("-", "+"),
    ("*", "+"),
    ("%", "+"),
    ("and", "or"),
    ("or", "and"),
    ("True", "False"),
    ("False", "True"),
    ("min", "max"),
    ("max", "min"),
    ("return", "return not"),
    ("append", "count"),
    ("lower", "upper"),
    ("upper", "lower"),
];

/// Why a mutant passes.
enum Why {
    /// It computes the same.
    Equivalent(&'static str),
    /// It is wrong, and no input of the task's tests shows it; arguments that do, and what is new about them.
    Untested(&'static str, &'static str),
}
use Why::{Equivalent, Untested};

/// The mutants that pass: task and number.
const SURVIVORS: [(&str, usize, Why); 19] = [
    ("HumanEval/16", 1, Equivalent("of ASCII, case is folded either way")),
    (
        "HumanEval/18",
        0,
        Equivalent("slices beyond the end are shorter than the substring, an empty one adds 0"),
    ),
    ("HumanEval/20", 1, Untested("[1.0, -1.5, 1.6]", "the first distance is a bound that is too low")),
    (
        "HumanEval/32",
        4,
        Equivalent("any interval in which the sign changes leads to a zero, however it grew"),
    ),
    ("HumanEval/39", 5, Equivalent("the square root plus 1 is the smaller one, or both ranges are empty")),
    ("HumanEval/40", 1, Untested("[1, -2]", "an element is used twice")),
    ("HumanEval/59", 1, Equivalent("nothing below 2 is asked")),
    ("HumanEval/88", 2, Equivalent("sum and difference are even or odd together")),
    ("HumanEval/89", 2, Equivalent("2 + 2 is 2 * 2")),
    ("HumanEval/99", 4, Untested("'4.5'", "the fraction does not begin at the third character")),
    ("HumanEval/101", 2, Untested("'a,b'", "a comma without a blank behind it")),
    ("HumanEval/124", 22, Untested("'02-30-2020'", "day 30")),
    ("HumanEval/127", 10, Untested("(0, 4), (0, 4)", "a composite length")),
    ("HumanEval/129", 1, Equivalent("the initial value is replaced, since every grid has a 1")),
    ("HumanEval/131", 3, Equivalent("the count is only compared with 0")),
    ("HumanEval/137", 2, Untested("2, 1", "the first is larger")),
    ("HumanEval/147", 2, Equivalent("three values shifted by 2 each have the same sum modulo 3")),
    ("HumanEval/154", 1, Equivalent("slices beyond the end are shorter than the pattern")),
    ("HumanEval/157", 10, Untested("3, 5, 4", "the second side is the longest")),
];

/// All mutants of a solution, in the order of their places; strings and comments are left alone.
fn mutants(solution: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut quote: Option<char> = None;
    while let Some(letter) = solution[at..].chars().next() {
        let rest = &solution[at..];
        match (quote, letter) {
            (Some(open), _) => {
                if letter == '\\' {
                    at += 1;
                } else if letter == open {
                    quote = None;
                }
            }
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#') => at += rest.find('\n').unwrap_or(rest.len()) - 1,
            _ => {
                let before = solution[..at].chars().next_back();
                let is_part = |letter: Option<char>| {
                    letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
                };
                let change = CHANGES.iter().find(|(token, _)| {
                    let is_word = token.chars().all(char::is_alphabetic);
                    rest.starts_with(token)
                        && !(is_word && (is_part(before) || is_part(rest[token.len()..].chars().next())))
                });
                if let Some((token, new)) = change {
                    found.push(format!("{}{new}{}", &solution[..at], &rest[token.len()..]));
                    at += token.len() - 1;
                }
            }
        }
        at += solution[at..].chars().next().map_or(1, char::len_utf8);
    }
    found
}

/// Some of the mutants, by their numbers, the same ones every time.
fn chosen(task: usize, num: usize) -> BTreeSet<usize> {
    let mut state = SEED.wrapping_add(task as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut found = BTreeSet::new();
    while found.len() < num.min(MAX_EACH) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        found.insert((state % num as u64) as usize);
    }
    found
}

/// A row that runs solution and tests in one process, as `HumanEval` itself does, and prints at the end.
fn plain(task: &Task, mutant: &str) -> (String, String) {
    let (prompt, test, entry) = (&task.prompt, &task.test, &task.entry_point);
    let program = format!("{prompt}{mutant}\n{test}\ncheck({entry})\nprint('all passed')");
    let cases = json!({ "cases": [{ "stdout": "all passed" }], "time_limit_s": TIME_LIMIT_S });
    (python(&program), cases.to_string())
}

/// Whether a mutant and the original answer differently.
fn differs(task: &Task, mutant: &str, arguments: &str) -> bool {
    let (prompt, solution, entry) = (&task.prompt, &task.solution, &task.entry_point);
    let program = format!(
        "{prompt}{solution}\nright = {entry}({arguments})\n{prompt}{mutant}\nprint(right != {entry}({arguments}))"
    );
    reward(&python(&program), &json!({ "cases": [{ "stdout": "True" }] })).0 == 1.0
}

fn mutants_fail_and_plain_python_agrees() {
    let tasks = tasks();
    let mut all: Vec<(&Task, usize, String)> = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let mutants = mutants(&task.solution);
        all.extend(
            chosen(at, mutants.len()).into_iter().map(|number| (task, number, mutants[number].clone())),
        );
    }
    let with_limit = |task: &Task| {
        let mut metadata: Value = serde_json::from_str(&task.metadata).unwrap();
        metadata["time_limit_s"] = json!(TIME_LIMIT_S);
        metadata.to_string()
    };
    let rows: Vec<(String, String)> =
        all.iter().map(|(task, _, mutant)| (mutant.clone(), with_limit(task))).collect();
    let ours = rewards(rows.iter().map(|(response, metadata)| (response.as_str(), metadata.as_str())));
    let rows: Vec<(String, String)> = all.iter().map(|(task, _, mutant)| plain(task, mutant)).collect();
    let theirs = rewards(rows.iter().map(|(response, metadata)| (response.as_str(), metadata.as_str())));

    let mut problems = Vec::new();
    for (((task, number, mutant), (our, reason)), (their, plainly)) in all.iter().zip(&ours).zip(&theirs) {
        let is_known = SURVIVORS.iter().any(|(id, known, _)| *id == task.id && known == number);
        if our != their {
            problems.push(format!(
                "{} mutant {number}: {our} ({reason}), plain Python {their} ({plainly})\n{mutant}",
                task.id
            ));
        } else if (*our == 1.0) != is_known {
            problems.push(format!("{} mutant {number}: {our} ({reason})\n{mutant}", task.id));
        }
    }
    let num_tasks = all.iter().map(|(task, ..)| &task.id).collect::<BTreeSet<_>>().len();
    eprintln!("{} mutants of {num_tasks} tasks, of which pass:", all.len());
    for (id, number, why) in SURVIVORS.iter().filter(|_| !all.is_empty()) {
        match why {
            Equivalent(reason) => eprintln!("  {id} mutant {number}: computes the same: {reason}"),
            Untested(arguments, why) => {
                eprintln!(
                    "  {id} mutant {number}: wrong for ({arguments}), which its task does not try: {why}"
                );
                let (task, _, mutant) =
                    all.iter().find(|(task, at, _)| task.id == *id && at == number).unwrap();
                assert!(differs(task, mutant, arguments), "{id} mutant {number} is right for ({arguments})");
            }
        }
    }
    assert!(problems.is_empty(), "{} of {}:\n{}", problems.len(), all.len(), problems.join("\n"));
    assert!(
        all.is_empty() || all.len() > 300 && num_tasks > 150,
        "{} mutants of {num_tasks} tasks",
        all.len()
    );
}
