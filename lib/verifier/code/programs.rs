//! Whole programs: compiled once, run on every case, their outputs compared outside of the sandbox.

use std::path::PathBuf;
use std::time::Duration;

use slime_sandbox::{Build, Case, Entry, Limits, Outcome, Toolchain, Zygote};

use super::Scoring;
use super::judge::{Tally, how_it_ended, is_expected, shown};
use super::language::Language;
use super::metadata::{Compare, IoCase};
use crate::error::Result;

/// What a compiler may use.
const COMPILE_S: u64 = 60;
const COMPILE_BYTES: u64 = 4 << 30;
/// Largest program, bytes.
const BUILD_BYTES: u64 = 256 << 20;

/// Puts the source into the build folder and compiles it, once for all cases; the folder, or what the compiler said.
pub(super) fn compile(
    zygote: &mut Zygote,
    toolchain: &Toolchain,
    language: Language,
    code: &str,
) -> Result<std::result::Result<PathBuf, String>> {
    let build = zygote.open_build(BUILD_BYTES)?;
    let (source, compiler) = language.compile(toolchain, &build);
    let words = ["/bin/sh", "-c", "cat > \"$0\" && if [ $# -gt 0 ]; then exec \"$@\"; fi", &source];
    let argv: Vec<String> = words.into_iter().map(str::to_owned).chain(compiler).collect();
    let limits = Limits {
        wall: Duration::from_secs(COMPILE_S),
        cpu: Duration::from_secs(COMPILE_S),
        memory_bytes: COMPILE_BYTES,
        file_bytes: BUILD_BYTES,
        ..Limits::default()
    };
    let case =
        Case { stdin: code.as_bytes(), build: Build::Write, ..Case::new(Entry::Program(&argv), &limits) };
    let report = zygote.run(&case)?;
    if report.outcome == Outcome::Exited(0) {
        return Ok(Ok(build));
    }
    let said = String::from_utf8_lossy(&report.stderr);
    let error = said.lines().find(|line| line.contains("error")).or_else(|| said.lines().next());
    Ok(Err(format!("does not compile: {}", error.map_or_else(|| report.outcome.to_string(), str::to_owned))))
}

/// Runs a program on every case, or up to the first that fails when nothing less than all counts.
pub(super) fn run_all(
    zygote: &mut Zygote,
    case: Case<'_>,
    cases: &[IoCase],
    compare: Compare,
    scoring: Scoring,
) -> Result<Tally> {
    let mut tally = Tally { num_total: cases.len(), ..Tally::default() };
    for (at, wanted) in cases.iter().enumerate() {
        // Who writes more than twice what is expected is wrong already.
        let output_bytes = case.limits.output_bytes.max(2 * wanted.stdout.len());
        let limits = Limits { output_bytes, ..*case.limits };
        let report = zygote.run(&Case { stdin: wanted.stdin.as_bytes(), limits: &limits, ..case })?;
        let problem = match report.outcome {
            Outcome::Exited(0) if is_expected(&report.stdout, &wanted.stdout, compare) => None,
            Outcome::Exited(0) => {
                Some(format!("expected {}, got {}", shown(wanted.stdout.as_bytes()), shown(&report.stdout)))
            }
            _ => Some(how_it_ended(&report)),
        };
        match problem {
            None => tally.num_passed += 1,
            Some(problem) => {
                tally.problem.get_or_insert_with(|| format!("case {}: {problem}", at + 1));
                if scoring == Scoring::All {
                    break;
                }
            }
        }
    }
    Ok(tally)
}
