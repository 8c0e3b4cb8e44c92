//! A program that stays: lines to its stdin, lines from its stdout.

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{Error, Result};

/// After its stdin closed, a program may take this long to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The variables a program inherits; everything else is withheld.
const ENVIRONMENT: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER"];

/// A running program; dropping it closes its stdin and, should it stay, kills its process group.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    replies: Mutex<Receiver<std::io::Result<String>>>,
}

impl Running {
    /// Starts a program; `argv` has at least its name.
    pub(crate) fn start(argv: &[String]) -> Result<Self> {
        let (name, arguments) = argv.split_first().map_or(("", argv), |(name, rest)| (name.as_str(), rest));
        let mut command = std::process::Command::new(name);
        command.args(arguments).env_clear().process_group(0);
        command.envs(ENVIRONMENT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |source| Error::Start { program: name.to_owned(), source };
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
        Ok(Self { child, stdin, replies: Mutex::new(replies) })
    }

    /// The next line it writes; the error says in words why there is none.
    pub(crate) fn read_line(&self, timeout: Duration) -> std::result::Result<String, String> {
        let replies = self.replies.lock().map_err(|_| "its reader ended".to_owned())?;
        match replies.recv_timeout(timeout) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) => Err(format!("cannot read its reply: {error}")),
            Err(RecvTimeoutError::Disconnected) => Err("ended without a reply for every row".to_owned()),
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "no reply for {} s\nhint: flush stdout after every line (Python: print(.., flush=True))",
                timeout.as_secs_f64()
            )),
        }
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
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        let _ = self.child.wait();
    }
}
