//! A program that stays: lines to its stdin, lines from its stdout.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{Error, Result};

/// After its stdin closed, a program may take this long to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// So many lines of what it last said on stderr are told when it ends, each cut to so many characters.
const TOLD_LINES: usize = 5;
const TOLD_CHARS: usize = 200;
/// The variables a program inherits; everything else is withheld.
const ENVIRONMENT: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER"];

/// A running program; dropping it closes its stdin and, should it stay, kills its process group.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    replies: Mutex<Receiver<std::io::Result<String>>>,
    /// The last lines of its stderr, once that is closed.
    said: Mutex<Receiver<VecDeque<String>>>,
}

impl Running {
    /// Starts a program; `argv` has at least its name.
    pub(crate) fn start(argv: &[String]) -> Result<Self> {
        let (name, arguments) = argv.split_first().map_or(("", argv), |(name, rest)| (name.as_str(), rest));
        let mut command = std::process::Command::new(name);
        command.args(arguments).env_clear().process_group(0);
        command.envs(ENVIRONMENT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |source| Error::Start { program: name.to_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let stderr = child.stderr.take().ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let (last_lines, said) = channel();
        std::thread::spawn(move || last_lines.send(passed_on(stderr)));
        let (sender, replies) = sync_channel(1024);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, replies: Mutex::new(replies), said: Mutex::new(said) })
    }

    /// The next line it writes; the error says in words why there is none.
    pub(crate) fn read_line(&mut self, timeout: Duration) -> std::result::Result<String, String> {
        let reply = self.replies.get_mut().map_err(|_| "its reader ended".to_owned())?.recv_timeout(timeout);
        match reply {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) => Err(format!("cannot read its reply: {error}")),
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("ended without a reply for every row{}", self.end()))
            }
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "no reply for {} s\nhint: flush stdout after every line (Python: print(.., flush=True))",
                timeout.as_secs_f64()
            )),
        }
    }

    /// How a program that writes no more has ended, and what it last said on stderr.
    pub(crate) fn end(&mut self) -> String {
        let status = self
            .wait_for_end()
            .map_or_else(|| " (it has not ended)".to_owned(), |status| format!(" ({status})"));
        // A child of its own may hold its stderr open.
        let said = self.said.get_mut().ok().and_then(|said| said.recv_timeout(END_TIMEOUT).ok());
        match said.filter(|lines| !lines.is_empty()) {
            Some(lines) => format!("{status}; its stderr ends with\n  {}", Vec::from(lines).join("\n  ")),
            None => format!("{status}; it said nothing on stderr"),
        }
    }

    /// Its status, if it ends within a while.
    fn wait_for_end(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                ended => return ended.ok().flatten(),
            }
        }
        None
    }

    /// Kills it and its children.
    pub(crate) fn kill(&mut self) {
        // The whole group, since programs have children of their own; it may be gone already.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if self.wait_for_end().is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Passes on to our stderr what a program says on its own, and gives the last lines of it.
fn passed_on(stderr: impl Read) -> VecDeque<String> {
    let mut last = VecDeque::new();
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!(stderr.read_until(b'\n', &mut line), Ok(1..)) {
        let _ = std::io::stderr().write_all(&line);
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            last.push_back(text.trim_end().chars().take(TOLD_CHARS).collect());
        }
        if last.len() > TOLD_LINES {
            last.pop_front();
        }
        line.clear();
    }
    last
}
