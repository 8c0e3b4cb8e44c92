//! One worker: a zygote for each language it met, and two of Python, one for solutions and one for tests.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use slime_sandbox::{Case, Entry, Kind, Limits, Outcome, Report, Running, Sandbox, Toolchain, Zygote};

use super::extract::extract;
use super::judge::{Tally, how_it_ended};
use super::language::Language;
use super::metadata::{Asked, Compare, Form, IoCase, Tests};
use super::programs::{compile, run_all};
use super::tests_apart::{lost_its_solution, questions, sources, tally};
use super::{Scoring, bad_row};
use crate::Verdict;
use crate::error::{Error, Result};

/// What every Python zygote has run: the entries `program`, `solution` and `checker`.
const PRELOAD: [&str; 5] = [
    // Modules that solutions use most, so that no case waits for them.
    "import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, statistics, string, typing",
    include_str!("values.py"),
    include_str!("program.py"),
    include_str!("solution.py"),
    include_str!("checker.py"),
];
/// What needs several cases is tried so often, if zygotes end meanwhile.
const MAX_DEATHS: u32 = 3;

/// A solution that its tests lost is given so long to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Judges one sample at a time.
pub(super) struct Worker {
    sandbox: Sandbox,
    languages: BTreeMap<Language, (Toolchain, Zygote)>,
    /// Where tests run that call functions: no solution ever does.
    tests: BTreeMap<Language, Zygote>,
}

impl Worker {
    pub(super) fn new(sandbox: &Sandbox) -> Self {
        Self { sandbox: sandbox.clone(), languages: BTreeMap::new(), tests: BTreeMap::new() }
    }

    /// The verdict about a response.
    ///
    /// # Errors
    /// A missing compiler or interpreter, tests that cannot be run, a sandbox that fails: never a verdict.
    pub(super) fn judge(&mut self, response: &str, asked: &Asked, scoring: Scoring) -> Result<Verdict> {
        // A language that is missing is told for a response without code too.
        self.zygote(asked.language)?;
        let Some(code) = extract(response, asked.language) else {
            return Ok(Verdict::of(false, format!("no code block of {}", asked.language.name())));
        };
        let tally = match &asked.form {
            Form::Tests(tests) => self.run_tests(&code, tests, asked)?,
            Form::Cases { cases, compare } => self.run_cases(&code, cases, *compare, asked, scoring)?,
        };
        Ok(tally.verdict(scoring))
    }

    fn zygote(&mut self, language: Language) -> Result<&mut (Toolchain, Zygote)> {
        if !self.languages.contains_key(&language) {
            let toolchain = found(language)?;
            let zygote = self.sandbox.zygote(kind(language, &toolchain));
            self.languages.insert(language, (toolchain, zygote));
        }
        self.languages.get_mut(&language).ok_or_else(|| bad_row("no zygote".to_owned()))
    }

    fn run_cases(
        &mut self,
        code: &str,
        cases: &[IoCase],
        compare: Compare,
        asked: &Asked,
        scoring: Scoring,
    ) -> Result<Tally> {
        let limits = limits(asked);
        let (toolchain, zygote) = self.zygote(asked.language)?;
        if asked.language == Language::Python {
            let payload = json!({ "source": code }).to_string();
            let case =
                Case { payload: Some(payload.as_bytes()), ..Case::new(Entry::Function("program"), &limits) };
            return run_all(zygote, case, cases, compare, scoring);
        }
        patient("native", || {
            let build = match compile(zygote, toolchain, asked.language, code)? {
                Ok(build) => build,
                Err(problem) => return Ok(Tally::failed(cases.len(), problem)),
            };
            let argv = asked.language.run(toolchain, &build, limits.memory_bytes);
            let tally = run_all(zygote, Case::new(Entry::Program(&argv), &limits), cases, compare, scoring)?;
            zygote.close_build()?;
            Ok(tally)
        })
    }

    fn run_tests(&mut self, code: &str, tests: &Tests, asked: &Asked) -> Result<Tally> {
        let limits = limits(asked);
        let payloads = [sources(code, tests).to_string(), questions(tests).to_string()];
        let report = patient(asked.language.name(), || self.run_pair(asked.language, &payloads, &limits))?;
        tally(&report, asked.language.name())
    }

    /// Runs the solution in one process and the tests in another, with a line between them; the report of the tests.
    fn run_pair(&mut self, language: Language, payloads: &[String; 2], limits: &Limits) -> Result<Report> {
        let [sources, questions] = payloads;
        let failed = |source| bad_row(format!("cannot make a line between two processes: {source}"));
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let (toolchain, zygote) = self.zygote(language)?;
        let kind = kind(language, toolchain);
        let [solution, checker] = ["solution", "checker"]
            .map(|role| (role, language.run_role(toolchain, limits.memory_bytes, role)));
        let solution = zygote.launch(&Case {
            payload: Some(sources.as_bytes()),
            channel: Some(far.as_fd()),
            ..Case::new(entry(&solution), limits)
        })?;
        drop(far);
        let killer = solution.killer()?;
        let zygote = self.tests.entry(language).or_insert_with(|| self.sandbox.zygote(kind));
        let tests = zygote.launch(&Case {
            payload: Some(questions.as_bytes()),
            has_report: true,
            channel: Some(near.as_fd()),
            ..Case::new(entry(&checker), limits)
        });
        drop(near);
        std::thread::scope(|scope| {
            let solution = scope.spawn(move || solution.wait());
            let report = tests.and_then(Running::wait);
            let is_lost = report.as_ref().is_ok_and(lost_its_solution);
            // A solution that ended has a status, which a signal would hide.
            let deadline = Instant::now() + END_TIMEOUT;
            while is_lost && !solution.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Without its tests the solution has nothing more to say.
            killer.kill();
            let end = solution.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let mut report = report?;
            let end = end?;
            // Tests that lost their solution say so; how it was lost says more.
            if is_lost || matches!(end.outcome, Outcome::WallTime | Outcome::CpuTime | Outcome::Output) {
                report.stderr = how_it_ended(&end).into_bytes();
            }
            Ok(report)
        })
    }
}

/// The programs of a language, looked for once: those of version managers take a while to say where they are.
fn found(language: Language) -> slime_sandbox::Result<Toolchain> {
    static FOUND: Mutex<BTreeMap<Language, Toolchain>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(toolchain) = found.get(&language) {
        return Ok(toolchain.clone());
    }
    let toolchain = language.toolchain()?;
    found.insert(language, toolchain.clone());
    Ok(toolchain)
}

/// Does something again when a zygote ended meanwhile.
fn patient<T>(kind: &'static str, mut act: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..MAX_DEATHS {
        match act() {
            Err(Error::Sandbox(slime_sandbox::Error::Died { .. })) => {}
            result => return result,
        }
    }
    Err(Error::Sandbox(slime_sandbox::Error::Died { kind, num_deaths: MAX_DEATHS }))
}

/// A role's program, or its function in an interpreter that runs already.
fn entry<'a>((role, argv): &'a (&'a str, Vec<String>)) -> Entry<'a> {
    if argv.is_empty() { Entry::Function(role) } else { Entry::Program(argv) }
}

fn kind(language: Language, toolchain: &Toolchain) -> Kind {
    match language {
        Language::Python => Kind::python(toolchain.clone(), PRELOAD.join("\n")),
        _ => Kind::programs(toolchain.clone()),
    }
}

fn limits(asked: &Asked) -> Limits {
    let time = Duration::from_secs_f64(asked.time_limit_s);
    Limits {
        wall: time,
        cpu: time,
        memory_bytes: asked.memory_limit_mb << 20,
        reserve_bytes: asked.language.reserve_bytes(),
        ..Limits::default()
    }
}
