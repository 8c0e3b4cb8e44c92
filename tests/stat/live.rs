//! `slime-stat RUN --watch` on a real terminal, that of tmux.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::synthetic::Synthetic;
use super::{name, stat};

/// A tmux server of our own with one window.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// A window in which `command` runs; nothing, said aloud, where there is no tmux.
    fn start(folder: &Path, command: &str) -> Option<Self> {
        let socket = name(&folder.join("tmux")).to_owned();
        let terminal = Self { socket };
        let started = terminal.tmux(&["new-session", "-d", "-x", "120", "-y", "40", command]);
        if started.is_none() {
            eprintln!("skipped: no tmux to be a terminal");
        }
        started.map(|_| terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("tmux")
            .args(["-S", &self.socket, "-f", "/dev/null"])
            .args(arguments)
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The screen once it has `text`.
    fn screen_with(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]).unwrap_or_default();
            if screen.contains(text) {
                return screen;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{text} is not on\n{screen}");
            sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn live_view_shows_the_run_and_gives_the_terminal_back() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let run = folder.path().join("run");
    Synthetic { num_steps: 5, ..Synthetic::default() }.write(&run);
    let program = env!("CARGO_BIN_EXE_slime-stat");
    let pid = folder.path().join("pid");
    let command = |run: &Path| {
        let call = format!("sh -c 'echo $$ >{}; exec {program} {} --watch'", name(&pid), name(run));
        format!("{call}; echo \"code $?, $(stty -a | grep -o ' -\\?icanon')\"; sleep 60")
    };
    for leave in ["q", "TERM", "INT"] {
        let Some(terminal) = Terminal::start(folder.path(), &command(&run)) else { return };
        let screen = terminal.screen_with("5/5 steps, done");
        for part in [
            "held_out 0.9",
            "time of step 4: 20.0 s",
            "wait for samples",
            "replicas",
            "Many answers are cut off",
        ] {
            assert!(screen.contains(part), "{part} is not on\n{screen}");
        }
        if leave == "q" {
            terminal.tmux(&["send-keys", "q"]);
        } else {
            let number = std::fs::read_to_string(&pid).expect("it was written");
            let sent = Command::new("kill").args([&format!("-{leave}"), number.trim()]).status();
            assert!(sent.is_ok_and(|status| status.success()));
        }
        let screen = terminal.screen_with("code 0,  icanon");
        assert!(!screen.contains("replicas"), "the view is gone after {leave}\n{screen}");
    }
    let missing = stat(&[name(&folder.path().join("none")), "--watch"]);
    assert_eq!(missing.status.code(), Some(66));
}
