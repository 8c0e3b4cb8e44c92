//! Whether the tools start on this node: their libraries, and the MPI plug-in.

use std::path::Path;
use std::process::{Command, Stdio};

use super::check::{Check, Verdict};

/// The tools that link libtorch.
const TOOLS: [&str; 2] = ["slime-train", "slime-rollout"];
/// Seconds a tool may take to say its version; the first start on a node reads libtorch over the network.
const PATIENCE_S: &str = "20";

/// Starts the tools beside this one, as far as they are there.
pub fn tools() -> Vec<Check> {
    let this = std::env::current_exe().unwrap_or_default();
    let places = TOOLS.map(|name| (name, this.with_file_name(name)));
    places.iter().filter(|(_, path)| path.exists()).map(|(name, path)| tool(name, path)).collect()
}

fn tool(name: &str, path: &Path) -> Check {
    let mut started = Command::new("timeout");
    started.arg(PATIENCE_S).arg(path).arg("--version").stdin(Stdio::null());
    match started.output() {
        Ok(output) if output.status.success() => {
            Check::ok(name, String::from_utf8_lossy(&output.stdout).trim())
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let got = format!("{} ({})", said.lines().next().unwrap_or_default(), output.status);
            let hint = "load the modules of the build on this node too, or look at LD_LIBRARY_PATH";
            Check::bad(name, got, "it starts", hint)
        }
        Err(error) => Check::warn(name, format!("timeout(1): {error}"), "it starts", "install coreutils"),
    }
}

/// Opens the MPI plug-in; `is_needed` when a tool of the job has several ranks.
pub fn plugin(is_needed: bool) -> Check {
    const NAME: &str = "mpi_plugin";
    match slime_comm::check_plugin() {
        Ok(path) => Check::ok(NAME, path.display()),
        Err(error) => {
            let verdict = if is_needed { Verdict::Bad } else { Verdict::Warn };
            let hint = error.hint().unwrap_or("tools of one rank need none");
            Check::judged(NAME, verdict, &error, "libslime_mpi.so and the MPI it was built with", hint)
        }
    }
}
