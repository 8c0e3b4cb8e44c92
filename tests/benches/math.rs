//! The `math` reward against Math-Verify (Python), on one core each, by turns: plain numbers, and a mixed set of
//! formulas, sets, matrices and prose.
//!
//! `cargo bench -p slime-verifier --bench math`; `SLIME_BENCH_PYTHON` names a Python with math-verify (`pip install
//! 'math-verify[antlr4_13_2]'`), without which only our times are printed. `REPEATS` changes the number of turns. The
//! mixed set is Math-Verify's own test cases where the shared data are beside the repository, else a part of them.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "rival/mod.rs"]
mod rival;

use std::path::Path;

use rival::{Rival, Seconds, median, report, setting, timed};
use serde_json::{Value, json};
use slime_verifier::{RewardSet, Row};

/// Labels and responses.
type Pairs = Vec<(String, String)>;

/// Numbers as models state them; every third one is wrong.
fn plain_numbers() -> Pairs {
    (0..200_i64)
        .map(|at| {
            let number = at * 7919 % 100_000;
            let stated = if at % 3 == 0 { number + 1 } else { number };
            let response = match at % 4 {
                0 => format!("{stated}"),
                1 => format!("The answer is {stated}."),
                2 => format!("\\boxed{{{stated}}}"),
                _ => format!("{stated}.0"),
            };
            (number.to_string(), response)
        })
        .collect()
}

fn mixed() -> Pairs {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Ok(text) = std::fs::read_to_string(folder.join("../../../shared/data/math_equivalence.jsonl")) {
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        return rows.map(|row| (text(&row, "gold"), text(&row, "pred"))).collect();
    }
    let corpus = std::fs::read_to_string(folder.join("tests/math/corpus.txt")).unwrap();
    let pairs = corpus.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(label, response)| (label.to_owned(), response.to_owned())).collect()
}

/// Seconds of one turn over the pairs, measured over many.
fn ours(pairs: &Pairs, turns: u32) -> Seconds {
    let set = RewardSet::parse(&["math"]).unwrap();
    let rows: Vec<Row<'_>> = pairs
        .iter()
        .map(|(label, response)| Row { response, label: Some(label), ..Row::default() })
        .collect();
    let seconds = timed(|| {
        for _ in 0..turns {
            std::hint::black_box(set.score(&rows).unwrap());
        }
    });
    Seconds { wall: seconds.wall / f64::from(turns), cpu: seconds.cpu / f64::from(turns) }
}

fn main() {
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().unwrap();
    let repeats: usize = setting("REPEATS", 5);
    for (what, pairs, turns) in [("plain numbers", plain_numbers(), 10_000), ("mixed set", mixed(), 50)] {
        let mut rival = Rival::start("rival_math.py", 1, &json!({ "pairs": pairs }).to_string());
        let (mut us, mut them) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            us.push(ours(&pairs, turns));
            them.extend(rival.as_mut().map(Rival::run));
        }
        let each = |seconds: &[Seconds]| median(seconds).cpu / pairs.len() as f64 * 1e6;
        println!("{what}: {} pairs, {:.2} us each", pairs.len(), each(&us));
        if !them.is_empty() {
            println!("{what}: Math-Verify {:.0} us each", each(&them));
            report(&format!("{what}: math against Math-Verify"), &us, &them);
        }
    }
}
