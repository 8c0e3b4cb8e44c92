//! A program that is asked a JSON line at a time and answers each with one: the open choices of other tools.

use std::io::Write;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::options::Options;
use crate::process::Running;

/// A program that owes a reply for longer than this has failed.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// A program, started with the first question; argv without a shell, a scrubbed environment, a process group of its own.
pub struct Program {
    argv: Vec<String>,
    running: Option<Running>,
}

impl Program {
    /// Splits a command line, quoted as in a shell; `spec` is where it stands, for messages.
    ///
    /// # Errors
    /// Quotes that do not end, or no program.
    pub fn new(spec: &str, command_line: &str) -> Result<Self> {
        let mut options = Options::new(spec, command_line);
        let argv = options.rest_words()?;
        if argv.is_empty() {
            return Err(options.problem("expected a program"));
        }
        Ok(Self { argv, running: None })
    }

    /// The reply to a question, both one line of JSON.
    ///
    /// # Errors
    /// It cannot be started, ends, takes too long, or answers something else.
    pub fn ask(&mut self, question: &Value) -> Result<Value> {
        let program = self.argv.first().cloned().unwrap_or_default();
        let failed = |problem: String| Error::Program { program: program.clone(), problem };
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start(&self.argv)?,
        };
        let stdin = running.stdin.as_mut().ok_or_else(|| failed("its stdin is closed".to_owned()))?;
        let written = writeln!(stdin, "{question}").and_then(|()| stdin.flush());
        written.map_err(|error| failed(format!("cannot be asked: {error}{}", running.end())))?;
        let line = running.read_line(REPLY_TIMEOUT).map_err(failed)?;
        let reply = serde_json::from_str(&line)
            .map_err(|error| failed(format!("expected a JSON value in reply, got {line:?}: {error}")))?;
        self.running = Some(running);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn program_answers_line_by_line_and_its_failures_are_named() {
        let mut echo = Program::new("a", "cat").unwrap();
        for number in 0..3 {
            assert_eq!(echo.ask(&json!({ "a": number })).unwrap(), json!({ "a": number }));
        }
        let error = Program::new("rollout.dynamic_filter", "").err().unwrap().to_string();
        assert!(error.contains("rollout.dynamic_filter"), "{error}");
        let mut silent = Program::new("a", "true").unwrap();
        assert!(silent.ask(&json!(1)).unwrap_err().to_string().contains("true"));
        let mut prose = Program::new("a", "sh -c 'read line; echo well'").unwrap();
        assert!(prose.ask(&json!(1)).unwrap_err().to_string().contains("got \"well\""));
    }
}
