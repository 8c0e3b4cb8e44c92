//! The code reward: languages and forms, what rows may ask, attempts to be paid without solving anything, `HumanEval`.
//!
//! A target of its own kind, since the sandbox starts before threads do.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::float_cmp, reason = "rewards of 0, 1 and quarters are exact")]

mod forms;
mod hacks;
mod human_eval;
mod javascript;
mod mutants;

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use slime_sandbox::{Options, Tier};
use slime_verifier::{Error, RewardSet, Row, Scored};

/// The scores of one response.
pub(crate) fn score(types: &str, response: &str, metadata: &Value) -> Result<Scored, Error> {
    let metadata = metadata.to_string();
    let row = Row { response, metadata: Some(&metadata), ..Row::default() };
    RewardSet::parse(&[types])?.score(&[row]).map(|mut scored| scored.remove(0))
}

/// The program that an error says is missing.
pub(crate) fn missing_program(error: &Error) -> Option<&str> {
    match error {
        Error::Row { source, .. } => missing_program(source),
        Error::Sandbox(slime_sandbox::Error::MissingProgram { program, .. }) => Some(program),
        _ => None,
    }
}

/// The reward of `code` and its reason.
pub(crate) fn reward(response: &str, metadata: &Value) -> (f64, String) {
    let scored = score("code", response, metadata).unwrap_or_else(|error| panic!("{error}"));
    (scored.reward, scored.parts[0].reason.clone())
}

/// A fenced block.
pub(crate) fn block(language: &str, code: &str) -> String {
    format!("Here it is:\n```{language}\n{code}\n```\nThat is all.")
}

/// Code one level deeper.
pub(crate) fn indented(code: &str) -> String {
    format!("    {}\n", code.replace('\n', "\n    "))
}

/// A Python block.
pub(crate) fn python(code: &str) -> String {
    block("python", code)
}

/// The best tier that is tried.
const TIER: &str = "SLIME_TEST_SANDBOX_TIER";

/// Runs these tests again in the next tier, in a process of its own; the long ones say nothing new there.
fn all_of_this_holds_in_the_landlock_tier() {
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program)
        .args(["--skip", "mutants", "--skip", "canonical", "--skip", "every_wrong"])
        .env(TIER, "landlock")
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    if text.contains("landlock refused") {
        eprintln!("SKIPPED: this machine has no Landlock");
        return;
    }
    assert!(output.status.success() && text.contains("sandbox tier landlock"), "{text}");
}

fn main() {
    let arguments = Arguments::from_args();
    let max = std::env::var(TIER).map_or(Tier::Namespaces, |name| name.parse().unwrap());
    let standing = slime_verifier::start_sandbox_with(Options { min: Tier::Limits, max }).unwrap();
    eprintln!("{standing}");
    let trial = |(name, test): &(&'static str, fn())| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    let here: &[(&str, fn())] = match standing.tier {
        Tier::Namespaces => {
            &[("all_of_this_holds_in_the_landlock_tier", all_of_this_holds_in_the_landlock_tier)]
        }
        _ => &[],
    };
    let all =
        [here, forms::TESTS, hacks::TESTS, javascript::TESTS, human_eval::TESTS, mutants::TESTS].concat();
    libtest_mimic::run(&arguments, all.iter().map(trial).collect()).exit();
}
