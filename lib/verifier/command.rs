//! The `command:PROGRAM` reward: rows as JSON lines to a program's stdin, one JSON line of reward back for each.
//!
//! The program is argv without a shell, with a scrubbed environment, in its own process group, and stays for the
//! whole run. A reply is a number or an object with `reward` and, if it likes, `reason` and `token_rewards`, a number for
//! each of the response's `num_tokens` tokens.

use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::{Row, Verdict, Verifier};

/// A program that owes a reply for longer than this has failed.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// After its stdin closed, a program may take this long to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The variables a program inherits; everything else is withheld.
const ENVIRONMENT: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER"];

/// The reward of a program.
pub(crate) struct Command {
    argv: Vec<String>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: Receiver<std::io::Result<String>>,
}

impl Command {
    /// Splits the command line; the program starts with the first row.
    pub(crate) fn new(spec: &str, line: &str) -> Result<Self> {
        let problem = |problem| Error::CommandLine { spec: spec.to_owned(), problem };
        let argv = split_words(line).map_err(problem)?;
        if argv.is_empty() {
            return Err(problem("expected a program after command:"));
        }
        Ok(Self { argv, running: None })
    }

    fn failure(&self, row: usize, problem: String) -> Error {
        Error::Program { row, program: self.argv[0].clone(), problem }
    }

    fn start(&self) -> Result<Running> {
        let mut command = std::process::Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).env_clear().process_group(0);
        command.envs(ENVIRONMENT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |source| Error::Start { program: self.argv[0].clone(), source };
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let (sender, replies) = sync_channel(1024);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Running { child, stdin, replies })
    }
}

impl Verifier for Command {
    fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Verdict>> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        // On an error `running` is dropped here, which ends the program.
        let verdicts = self.exchange(&mut running, rows)?;
        self.running = Some(running);
        Ok(verdicts)
    }
}

impl Command {
    /// Writes from a second thread, so that a program which replies before it read everything does not block us.
    fn exchange(&self, running: &mut Running, rows: &[Row<'_>]) -> Result<Vec<Verdict>> {
        let Running { child, stdin, replies } = running;
        let stdin = stdin.as_mut().ok_or_else(|| self.failure(0, "its stdin is closed".to_owned()))?;
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || write_rows(stdin, rows));
            let verdicts: Result<Vec<Verdict>> =
                rows.iter().enumerate().map(|(at, row)| self.reply(replies, at, row.num_tokens)).collect();
            if verdicts.is_err() {
                // A writer blocked on a full pipe comes free when the program is gone.
                kill(child);
            }
            match (writer.join(), verdicts) {
                (Ok(Err(error)), Ok(_)) => Err(self.failure(0, format!("cannot write to it: {error}"))),
                (_, verdicts) => verdicts,
            }
        })
    }

    fn reply(
        &self,
        replies: &Receiver<std::io::Result<String>>,
        row: usize,
        num_tokens: Option<usize>,
    ) -> Result<Verdict> {
        let line = match replies.recv_timeout(REPLY_TIMEOUT) {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(self.failure(row, format!("cannot read its reply: {error}"))),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(self.failure(row, "ended without a reply for every row".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => {
                let problem = format!(
                    "no reply for {} s\nhint: flush stdout after every line (Python: print(.., flush=True))",
                    REPLY_TIMEOUT.as_secs()
                );
                return Err(self.failure(row, problem));
            }
        };
        let verdict = parse_reply(&line).ok_or_else(|| {
            let shown: String = line.chars().take(80).collect();
            self.failure(row, format!("expected a number or {{\"reward\": number}}, got {shown:?}"))
        })?;
        let got = verdict.token_rewards.len();
        match num_tokens.filter(|num| got > 0 && got != *num) {
            Some(num) => Err(self.failure(row, format!("token_rewards: expected {num} numbers, got {got}"))),
            None => Ok(verdict),
        }
    }
}

fn write_rows(stdin: &mut ChildStdin, rows: &[Row<'_>]) -> std::io::Result<()> {
    let mut output = BufWriter::new(stdin);
    for row in rows {
        let metadata =
            row.metadata.map(|text| serde_json::from_str::<Value>(text).unwrap_or(Value::from(text)));
        let line = json!({
            "response": row.response, "label": row.label, "metadata": metadata, "num_tokens": row.num_tokens,
        });
        writeln!(output, "{line}")?;
    }
    output.flush()
}

fn parse_reply(line: &str) -> Option<Verdict> {
    let value: Value = serde_json::from_str(line).ok()?;
    let reward =
        value.as_f64().or_else(|| value.get("reward")?.as_f64()).filter(|reward| reward.is_finite())?;
    let reason = value.get("reason").and_then(Value::as_str).unwrap_or("the program says so");
    let token_rewards = match value.get("token_rewards") {
        Some(list) => serde_json::from_value(list.clone()).ok()?,
        None => Vec::new(),
    };
    Some(Verdict { reward, reason: reason.to_owned(), token_rewards })
}

/// Words separated by blanks; quotes keep blanks, a backslash keeps the next character.
fn split_words(line: &str) -> std::result::Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => {
                word.get_or_insert_default().push(letters.next().ok_or("nothing after the last backslash")?);
            }
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (_, Some(open)) if open == letter => quote = None,
            (_, None) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    words.extend(word);
    Ok(words)
}

fn kill(child: &mut Child) {
    // The whole group, since programs have children of their own; it may be gone already.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(&mut self.child);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_rewards_are_one_for_each_token_of_the_response() {
        let program =
            r#"sh -c 'while read -r line; do echo "{\"reward\": 1, \"token_rewards\": [0.5, -1]}"; done'"#;
        let row = |num_tokens| Row { response: "a b", label: None, metadata: None, num_tokens };
        let mut judge = Command::new("command", program).unwrap();
        assert_eq!(judge.score(&[row(Some(2)), row(None)]).unwrap()[1].token_rewards, [0.5, -1.0]);
        let error = judge.score(&[row(Some(2)), row(Some(3))]).unwrap_err();
        assert!(error.to_string().contains("token_rewards: expected 3 numbers, got 2"), "{error}");
        let mut set = crate::RewardSet::parse(&[&format!("command:{program}"), "exact:0"]).unwrap();
        let labelled = Row { label: Some("a b"), ..row(Some(2)) };
        let scored = set.score(&[labelled]).unwrap();
        assert_eq!((scored[0].reward, scored[0].token_rewards.as_slice()), (1.0, &[0.5, -1.0][..]));
    }

    fn score(line: &str, rows: usize) -> Result<Vec<Verdict>> {
        let row =
            Row { response: "four \"4\"", label: Some("4"), metadata: Some("{\"a\": 1}"), num_tokens: None };
        Command::new("command", line)?.score(&vec![row; rows])
    }

    #[test]
    fn replies_come_back_in_order() {
        let program = r#"sh -c 'n=0; while read -r line; do n=$((n+1)); echo "{\"reward\": $n, \"reason\": \"row $n\"}"; done'"#;
        let verdicts = score(program, 2000).unwrap();
        assert!(
            verdicts.iter().enumerate().all(|(i, verdict)| (verdict.reward - (i + 1) as f64).abs() < 1e-9)
        );
        assert_eq!(verdicts[6].reason, "row 7");
    }

    #[test]
    fn program_stays_between_calls_and_sees_a_scrubbed_environment() {
        let line = r#"sh -c 'while read -r line; do echo "$$"; done'"#;
        let mut command = Command::new("command", line).unwrap();
        let row = Row { response: "x", label: None, metadata: None, num_tokens: None };
        let first = command.score(&[row]).unwrap()[0].reward;
        assert!((first - command.score(&[row]).unwrap()[0].reward).abs() < 1e-9);
        // Cargo sets CARGO_MANIFEST_DIR for every test.
        let line = r#"sh -c 'while read -r line; do echo "${#CARGO_MANIFEST_DIR}"; done'"#;
        assert!(score(line, 1).unwrap()[0].reward.abs() < 1e-9);
    }

    #[test]
    fn failing_programs_name_the_row() {
        for (line, row, problem) in [
            ("head -n 1 /dev/null", 0, "ended without"),
            ("echo 1", 1, "ended without"),
            ("sh -c 'while read -r l; do echo good; done'", 0, "got \"good\""),
            ("sh -c 'while read -r l; do echo 1e999; done'", 0, "expected a number"),
        ] {
            let error = score(line, 2).unwrap_err();
            assert_eq!((error.row(), error.exit_code()), (Some(row), 69), "{line}: {error}");
            assert!(error.to_string().contains(problem), "{line}: {error}");
        }
        assert!(matches!(score("/no/such/program", 1), Err(Error::Start { .. })));
        assert!(matches!(score("  ", 1), Err(Error::CommandLine { .. })));
    }

    #[test]
    fn words_are_split_as_a_shell_would_without_expanding() {
        assert_eq!(split_words(r#"a 'b c'  "d \" $e" f\ g ''"#).unwrap(), ["a", "b c", "d \" $e", "f g", ""]);
        assert!(split_words("a 'b").is_err());
        assert!(split_words("a\\").is_err());
    }
}
