//! The `command:PROGRAM` reward: rows as JSON lines to a program's stdin, one JSON line of reward back for each.
//!
//! The program is argv without a shell, with a scrubbed environment, in its own process group, and stays for the
//! whole run. Before its name may stand `processes=N` (so many of them share the rows), `timeout_s=S` (how long it may
//! owe a reply), `on_error=VALUE` (the reward of a row at which it fails; without it that is an error) and `group=on` (a line
//! is the list of a group's rows, and a reply a list).

use std::collections::VecDeque;
use std::io::{BufWriter, Write};
use std::process::ChildStdin;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::group::groups;
use crate::options::Options;
use crate::process::Running;
use crate::reply::read_reply;
use crate::{Row, Verdict, Verifier};

/// A program that owes a reply for longer than this has failed, unless told otherwise.
const REPLY_TIMEOUT_S: f64 = 120.0;
/// Rows that a process of several is given at once.
const CHUNK_ROWS: usize = 16;

/// The reward of a program.
pub(crate) struct Command {
    argv: Vec<String>,
    timeout: Duration,
    on_error: Option<f64>,
    sends_groups: bool,
    pool: Pool,
}

/// Processes that wait for rows, and how many more may be started.
struct Pool {
    limit: usize,
    state: Mutex<(Vec<Running>, usize)>,
    freed: Condvar,
}

/// What one line is about: a row, or the rows of a group.
type Message<'r> = Vec<Row<'r>>;
/// Consecutive messages and where the first stands.
type Chunk<'a, 'r> = (usize, &'a [Message<'r>]);
/// The verdicts on a message.
type Answer = Result<Vec<Verdict>>;

impl Command {
    /// Splits the command line; the program starts with the first row.
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let limit = options.count("processes", 1)?;
        let timeout = options.duration("timeout_s", REPLY_TIMEOUT_S)?;
        let on_error = options.optional_number("on_error")?;
        let sends_groups = options.switch("group")?;
        let argv = options.rest_words()?;
        if argv.is_empty() {
            return Err(options.problem("expected a program after command:"));
        }
        let pool = Pool { limit, state: Mutex::new((Vec::new(), 0)), freed: Condvar::new() };
        Ok(Self { argv, timeout, on_error, sends_groups, pool })
    }

    fn failure(&self, problem: String) -> Error {
        Error::Program { program: self.argv.first().cloned().unwrap_or_default(), problem }
    }
}

impl Verifier for Command {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let places =
            if self.sends_groups { groups(rows) } else { (0..rows.len()).map(|at| vec![at]).collect() };
        let messages: Vec<Message<'_>> = places
            .iter()
            .map(|places| places.iter().filter_map(|at| rows.get(*at).copied()).collect())
            .collect();
        let answers = places.into_iter().zip(self.ask(&messages));
        let mut verdicts: Vec<(usize, Result<Verdict>)> = Vec::with_capacity(rows.len());
        for (places, answer) in answers {
            match answer {
                Ok(own) => verdicts.extend(places.into_iter().zip(own.into_iter().map(Ok))),
                Err(error) => {
                    let again = self.failure(error.to_string());
                    let errors = std::iter::once(error)
                        .chain(std::iter::repeat_with(|| self.failure(again.to_string())));
                    verdicts.extend(places.into_iter().zip(errors.map(Err)));
                }
            }
        }
        verdicts.sort_by_key(|(at, _)| *at);
        verdicts.into_iter().map(|(_, verdict)| verdict).collect()
    }

    fn compares_groups(&self) -> bool {
        self.sends_groups
    }
}

impl Command {
    /// An answer for each message, by as many processes as there may be.
    fn ask(&self, messages: &[Message<'_>]) -> Vec<Answer> {
        let size = if self.pool.limit == 1 { messages.len() } else { CHUNK_ROWS };
        let size = size.clamp(1, messages.len().max(1));
        let chunks = messages.chunks(size).enumerate().map(|(at, chunk)| (at * size, chunk));
        let chunks: Mutex<VecDeque<Chunk<'_, '_>>> = Mutex::new(chunks.collect());
        let answers: Mutex<Vec<Option<Answer>>> = Mutex::new(messages.iter().map(|_| None).collect());
        let num_threads = self.pool.limit.min(messages.len().div_ceil(size));
        std::thread::scope(|scope| {
            for _ in 0..num_threads {
                scope.spawn(|| {
                    loop {
                        // The lock is let go before the rows are scored.
                        let next = lock(&chunks).pop_front();
                        let Some((first, chunk)) = next else { break };
                        let scored = self.score_chunk(chunk);
                        if scored.iter().any(Result::is_err) {
                            // Later rows are not asked about: the caller stops at the error.
                            lock(&chunks).clear();
                        }
                        let mut answers = lock(&answers);
                        for (place, answer) in answers.iter_mut().skip(first).zip(scored) {
                            *place = Some(answer);
                        }
                    }
                });
            }
        });
        let unasked = || Err(self.failure("not asked, since it failed at an earlier row".to_owned()));
        let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect()
    }

    /// An answer for each message, or for those up to the one at which the program failed.
    fn score_chunk(&self, messages: &[Message<'_>]) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(messages.len());
        while let Some(rest) = messages.get(answers.len()..).filter(|rest| !rest.is_empty()) {
            let mut running = match self.pool.take(|| Running::start(&self.argv)) {
                Ok(running) => running,
                Err(error) => {
                    answers.push(Err(error));
                    return answers;
                }
            };
            let (scored, problem) = self.exchange(&mut running, rest);
            answers.extend(scored.into_iter().map(Ok));
            // A program that failed ends here; the next row has a new one.
            self.pool.put(problem.is_none().then_some(running));
            match (problem, self.on_error) {
                (None, _) => {}
                (Some(problem), Some(reward)) => {
                    let reason = format!("the default, since the program failed: {problem}");
                    let verdict = Verdict { failure: Some(problem), ..Verdict::new(reward, reason) };
                    let num = messages.get(answers.len()).map_or(1, Vec::len);
                    answers.push(Ok(vec![verdict; num]));
                }
                (Some(problem), None) => {
                    answers.push(Err(self.failure(problem)));
                    return answers;
                }
            }
        }
        answers
    }

    /// The answers up to the first problem, and that. A second thread writes: a program may reply before it read all.
    fn exchange(
        &self,
        running: &mut Running,
        messages: &[Message<'_>],
    ) -> (Vec<Vec<Verdict>>, Option<String>) {
        let Some(mut stdin) = running.stdin.take() else {
            return (Vec::new(), Some("its stdin is closed".to_owned()));
        };
        let running = &mut *running;
        let (answers, problem, stdin) = std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let written = self.write_messages(&mut stdin, messages);
                (stdin, written)
            });
            let mut answers = Vec::with_capacity(messages.len());
            let mut problem = None;
            for message in messages {
                match self.reply(running, message) {
                    Ok(verdicts) => answers.push(verdicts),
                    Err(wrong) => {
                        problem = Some(wrong);
                        // A writer blocked on a full pipe comes free when the program is gone.
                        running.kill();
                        break;
                    }
                }
            }
            match writer.join() {
                Ok((stdin, Ok(()))) => (answers, problem, Some(stdin)),
                Ok((stdin, Err(error))) => {
                    let told = || format!("cannot write to it: {error}{}", running.end());
                    let unwritten = problem.is_none().then(told);
                    // What it said about rows it never read is worth nothing.
                    let answers = if problem.is_none() { Vec::new() } else { answers };
                    (answers, problem.or(unwritten), Some(stdin))
                }
                Err(_) => (Vec::new(), Some("the writer ended".to_owned()), None),
            }
        });
        running.stdin = stdin;
        (answers, problem)
    }

    fn reply(&self, running: &mut Running, message: &[Row<'_>]) -> std::result::Result<Vec<Verdict>, String> {
        let line = running.read_line(self.timeout)?;
        let reply = serde_json::from_str(&line).unwrap_or(Value::String(line));
        let replies = match (self.sends_groups, reply) {
            (false, reply) => vec![reply],
            (true, Value::Array(replies)) if replies.len() == message.len() => replies,
            (true, other) => {
                return Err(format!(
                    "expected a list of {} rewards, got {:.80}",
                    message.len(),
                    other.to_string()
                ));
            }
        };
        replies.iter().zip(message).map(|(reply, row)| read_reply(reply, row)).collect()
    }

    fn write_messages(&self, stdin: &mut ChildStdin, messages: &[Message<'_>]) -> std::io::Result<()> {
        let mut output = BufWriter::new(stdin);
        for message in messages {
            let mut rows: Vec<Value> = message.iter().map(row_json).collect();
            let line = if self.sends_groups { Value::Array(rows) } else { rows.pop().unwrap_or_default() };
            writeln!(output, "{line}")?;
        }
        output.flush()
    }
}

impl Pool {
    /// A waiting process, a new one, or the first that is given back.
    fn take(&self, start: impl Fn() -> Result<Running>) -> Result<Running> {
        let mut state = lock(&self.state);
        loop {
            if let Some(running) = state.0.pop() {
                return Ok(running);
            }
            if state.1 < self.limit {
                state.1 += 1;
                drop(state);
                return start().inspect_err(|_| self.put(None));
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a process back, or its place where it is no more.
    fn put(&self, running: Option<Running>) {
        let mut state = lock(&self.state);
        match running {
            Some(running) => state.0.push(running),
            None => state.1 -= 1,
        }
        self.freed.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a program is told about a row.
fn row_json(row: &Row<'_>) -> Value {
    let json = |text: Option<&str>| text.map(|text| serde_json::from_str(text).unwrap_or(Value::from(text)));
    json!({
        "prompt": json(row.prompt), "response": row.response, "label": row.label, "metadata": json(row.metadata),
        "num_tokens": row.num_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Result<Command> {
        Command::new(&mut Options::new("command", line))
    }

    fn score(line: &str, rows: usize) -> Vec<Result<Verdict>> {
        let row =
            Row { response: "four \"4\"", label: Some("4"), metadata: Some("{\"a\": 1}"), ..Row::default() };
        command(line).unwrap().score(&vec![row; rows])
    }

    #[test]
    fn token_rewards_are_one_for_each_token_of_the_response() {
        let program =
            r#"sh -c 'while read -r line; do echo "{\"reward\": 1, \"token_rewards\": [0.5, -1]}"; done'"#;
        let row = |num_tokens| Row { response: "a b", num_tokens, ..Row::default() };
        let judge = command(program).unwrap();
        assert_eq!(judge.score(&[row(Some(2)), row(None)])[1].as_ref().unwrap().token_rewards, [0.5, -1.0]);
        let verdicts = judge.score(&[row(Some(2)), row(Some(3))]);
        let error = verdicts[1].as_ref().unwrap_err();
        assert!(
            verdicts[0].is_ok() && error.to_string().contains("token_rewards: expected 3 numbers, got 2"),
            "{error}"
        );
        let set = crate::RewardSet::parse(&[&format!("command:{program}"), "exact:0"]).unwrap();
        let labelled = Row { label: Some("a b"), ..row(Some(2)) };
        let scored = set.score(&[labelled]).unwrap();
        assert_eq!((scored[0].reward, scored[0].token_rewards.as_slice()), (1.0, &[0.5, -1.0][..]));
    }

    #[test]
    fn replies_come_back_in_order() {
        let program = r#"sh -c 'n=0; while read -r line; do n=$((n+1)); echo "{\"reward\": $n, \"reason\": \"row $n\"}"; done'"#;
        let verdicts: Vec<Verdict> = score(program, 2000).into_iter().map(Result::unwrap).collect();
        assert!(
            verdicts.iter().enumerate().all(|(i, verdict)| (verdict.reward - (i + 1) as f64).abs() < 1e-9)
        );
        assert_eq!(verdicts[6].reason, "row 7");
    }

    #[test]
    fn several_processes_share_the_rows_and_the_order_stays() {
        let program = r#"processes=3 sh -c 'while read -r line; do echo "{\"reward\": ${#line}, \"reason\": \"$$\"}"; done'"#;
        let texts: Vec<String> = (0..400).map(|n| "x".repeat(n)).collect();
        let rows: Vec<Row<'_>> = texts.iter().map(|response| Row { response, ..Row::default() }).collect();
        let verdicts: Vec<Verdict> =
            command(program).unwrap().score(&rows).into_iter().map(Result::unwrap).collect();
        assert!(verdicts.windows(2).all(|pair| (pair[1].reward - pair[0].reward - 1.0).abs() < 1e-9));
        let processes: std::collections::BTreeSet<&str> =
            verdicts.iter().map(|verdict| verdict.reason.as_str()).collect();
        assert!(processes.len() <= 3, "{processes:?}");
    }

    #[test]
    fn program_stays_between_calls_and_sees_a_scrubbed_environment() {
        let line = r#"sh -c 'while read -r line; do echo "$$"; done'"#;
        let command = command(line).unwrap();
        let row = Row { response: "x", ..Row::default() };
        let first = command.score(&[row])[0].as_ref().unwrap().reward;
        assert!((first - command.score(&[row])[0].as_ref().unwrap().reward).abs() < 1e-9);
        // Cargo sets CARGO_MANIFEST_DIR for every test.
        let line = r#"sh -c 'while read -r line; do echo "${#CARGO_MANIFEST_DIR}"; done'"#;
        assert!(score(line, 1)[0].as_ref().unwrap().reward.abs() < 1e-9);
    }

    #[test]
    fn failing_programs_name_the_row() {
        for (line, row, problem) in [
            ("head -n 1 /dev/null", 0, "ended without a reply for every row (exit status: 0)"),
            ("echo 1", 1, "ended without"),
            (
                "sh -c 'read l; echo one >&2; echo two >&2; exit 3'",
                0,
                "(exit status: 3); its stderr ends with\n  one\n  two",
            ),
            ("sh -c 'read l; kill -9 $$'", 0, "(signal: 9 (SIGKILL)); it said nothing on stderr"),
            ("sh -c 'while read -r l; do echo good; done'", 0, "got \"\\\"good"),
            ("sh -c 'while read -r l; do echo 1e999; done'", 0, "expected a number"),
            ("sh -c 'while read -r l; do echo NaN; done'", 0, "expected a number"),
        ] {
            let verdicts = score(line, 2);
            let at = verdicts.iter().position(Result::is_err);
            let error = verdicts[row].as_ref().unwrap_err();
            assert_eq!((at, error.exit_code()), (Some(row), 69), "{line}: {error}");
            assert!(error.to_string().contains(problem), "{line}: {error}");
        }
        assert!(matches!(score("/no/such/program", 1)[0], Err(Error::Start { .. })));
        assert!(matches!(command("  "), Err(Error::Argument { .. })));
    }

    #[test]
    fn a_default_stands_for_the_row_at_which_a_program_dies_and_is_marked() {
        let program = r#"on_error=-1 sh -c 'while read -r line; do case "$line" in *bad*) exit 3;; esac; echo 1; done'"#;
        let row = |response| Row { response, ..Row::default() };
        let rows = [row("a"), row("bad"), row("b"), row("c")];
        let verdicts: Vec<Verdict> =
            command(program).unwrap().score(&rows).into_iter().map(Result::unwrap).collect();
        let rewards: Vec<f64> = verdicts.iter().map(|verdict| verdict.reward).collect();
        assert_eq!(rewards, [1.0, -1.0, 1.0, 1.0]);
        let marked: Vec<bool> = verdicts.iter().map(|verdict| verdict.failure.is_some()).collect();
        assert_eq!(marked, [false, true, false, false]);
    }

    #[test]
    fn a_program_may_see_whole_groups() {
        let program = r#"group=on sh -c 'while read -r line; do case "$line" in "[{"*"},{"*"}]") echo "[1, 0.5]";; *) echo "[0]";; esac; done'"#;
        let row = |group| Row { response: "a", group: Some((0, group)), ..Row::default() };
        let command = command(program).unwrap();
        let verdicts = command.score(&[row(1), row(2), row(1)]);
        let rewards: Vec<f64> = verdicts.into_iter().map(|verdict| verdict.unwrap().reward).collect();
        assert_eq!(rewards, [1.0, 0.0, 0.5]);
        let error = command.score(&[row(1), row(1), row(1)]).remove(2).unwrap_err();
        assert!(
            command.compares_groups() && error.to_string().contains("expected a list of 3 rewards"),
            "{error}"
        );
    }
}
