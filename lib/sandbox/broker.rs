//! The broker: a process forked from the tool while that had one thread, which starts zygotes and holds nothing else.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroups;
use crate::filter::Filter;
use crate::landlocked;
use crate::native::{self, Answer, say};
use crate::outer::{self, NAMESPACES, fork, leave};
use crate::plan::{BUILD, BUILD_RULES, CASE_ID, Ground, RUN_RULES, WORK};
use crate::tier::Tier;
use crate::{view, wire};

/// What the tool asks the broker; the zygote's end of its socket comes along, and for an interpreter what it reads first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) tier: Tier,
    /// Folders beyond the system's that cases may read.
    pub(crate) roots: Vec<PathBuf>,
    /// The interpreter and its arguments; empty for the loop that executes programs.
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<String>,
    /// A folder on disk for tiers without namespaces, with `work` and `build` in it.
    pub(crate) home: Option<PathBuf>,
}

/// What the broker answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Started {
    /// The zygote was forked; it says itself whether it came up.
    Zygote { pid: i32, ground: Ground, cgroup: Option<PathBuf> },
    /// It was not.
    Failed { problem: String },
}

/// The broker's first message: where cgroups are, or why there are none.
pub(crate) type Greeting = Result<String, String>;

/// Descriptors of a zygote: its socket, and what an interpreter reads first.
const SOCKET: RawFd = 3;
const FIRST: RawFd = 4;

/// Serves until the tool is gone; runs in a child of its own.
pub(crate) fn serve(tool: &OwnedFd) -> ! {
    outer::forget_signals();
    outer::become_broker(tool.as_fd());
    let mut cgroups = Cgroups::find();
    let greeting: Greeting =
        cgroups.as_ref().map(|groups| groups.root().display().to_string()).map_err(Clone::clone);
    let _ = wire::send(tool, &serde_json::to_vec(&greeting).unwrap_or_default(), &[]);
    let mut homes = Vec::new();
    while let Ok(Some((message, fds))) = wire::receive(tool) {
        let started = match serde_json::from_slice::<Start>(&message) {
            Ok(start) => {
                homes.extend(start.home.clone());
                start_zygote(&start, fds, tool, cgroups.as_mut().ok())
            }
            Err(error) => Err(format!("a request that cannot be read: {error}")),
        };
        outer::reap_all();
        let answer = started.unwrap_or_else(|problem| Started::Failed { problem });
        if wire::send(tool, &serde_json::to_vec(&answer).unwrap_or_default(), &[]).is_err() {
            break;
        }
    }
    drop(cgroups);
    // A tool that was killed left its work folders.
    for home in homes {
        let _ = std::fs::remove_dir_all(home);
    }
    leave(0)
}

fn start_zygote(
    start: &Start,
    fds: Vec<OwnedFd>,
    tool: &OwnedFd,
    cgroups: Option<&mut Cgroups>,
) -> Result<Started, String> {
    let is_apart = start.tier == Tier::Namespaces;
    let (go, go_end) = wire::pair().map_err(|error| error.to_string())?;
    let flags = if is_apart { i64::from(NAMESPACES) } else { 0 };
    let pid = fork(flags).map_err(|error| format!("clone: {error}"))?;
    if pid == 0 {
        drop(go_end);
        outer::close_copy(tool.as_fd());
        let told = wire::receive(&go).ok().flatten();
        drop(go);
        if told.is_none() {
            leave(1);
        }
        zygote(start, fds);
    }
    drop(fds);
    let cgroup = cgroups.map(|groups| groups.group_of(pid)).transpose()?;
    let has_case_id = is_apart && map_users(pid)?;
    wire::send(&go_end, b"go", &[]).map_err(|error| format!("the zygote ended at once: {error}"))?;
    let place = |name: &str, inside: &str| match &start.home {
        Some(home) if !is_apart => home.join(name),
        _ => PathBuf::from(inside),
    };
    let ground = Ground {
        tier: start.tier,
        work: place("work", WORK),
        build: place("build", BUILD),
        has_case_id,
        // The zygote, and where programs are executed the first process of the case.
        num_neighbours: if has_case_id { 0 } else { 1 + u32::from(start.argv.is_empty()) },
    };
    Ok(Started::Zygote { pid, ground, cgroup })
}

/// Maps users into a new user namespace: this one becomes its root, and where this process may, [`CASE_ID`] becomes nobody.
fn map_users(pid: libc::pid_t) -> Result<bool, String> {
    /// The user without files that systems agree on.
    const NOBODY: u32 = 65534;
    let write = |name: &str, text: &str| std::fs::write(format!("/proc/{pid}/{name}"), text);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let two = |id: u32| format!("0 {id} 1\n{CASE_ID} {NOBODY} 1\n");
    if uid != NOBODY && write("uid_map", &two(uid)).is_ok() {
        write("gid_map", &two(gid)).map_err(|error| format!("gid_map: {error}"))?;
        return Ok(true);
    }
    write("uid_map", &format!("0 {uid} 1\n")).map_err(|error| format!("uid_map: {error}"))?;
    write("setgroups", "deny").map_err(|error| format!("setgroups: {error}"))?;
    write("gid_map", &format!("0 {gid} 1\n")).map_err(|error| format!("gid_map: {error}"))?;
    Ok(false)
}

/// The zygote's process: takes its ground, then serves or becomes the interpreter.
fn zygote(start: &Start, fds: Vec<OwnedFd>) -> ! {
    let mut fds = fds.into_iter();
    let Some(socket) = fds.next() else { leave(1) };
    let failed = |problem: String| -> ! {
        say(&socket, &Answer::Failed { problem }, &[]);
        leave(1)
    };
    if let Err(problem) = take_ground(start) {
        failed(problem);
    }
    let filter = match start.tier {
        Tier::Limits => Ok(Filter::default()),
        tier => Filter::new(may_signal(tier)),
    };
    match filter {
        Err(error) => failed(error.to_string()),
        Ok(filter) if start.argv.is_empty() => native::serve(&socket, &filter),
        Ok(_) => {
            let Some(first) = fds.next() else { leave(1) };
            let error = become_interpreter(start, &socket, &first);
            failed(format!("{}: {error}", start.argv.first().map_or("", String::as_str)))
        }
    }
}

/// Whether cases of this tier may send signals, which then do not reach others.
pub(crate) fn may_signal(tier: Tier) -> bool {
    match tier {
        Tier::Namespaces | Tier::Limits => true,
        Tier::Landlock => landlocked::scopes_signals(),
        Tier::Seccomp => false,
    }
}

fn take_ground(start: &Start) -> Result<(), String> {
    outer::forget_signals();
    // The tool times its cases: without it one could go on for ever.
    outer::die_with_parent();
    let shown = view::shown(&start.roots);
    match start.tier {
        Tier::Namespaces => outer::enter_root(&shown),
        tier => {
            outer::adopt_orphans();
            if tier == Tier::Landlock {
                let home = start.home.as_deref().unwrap_or(Path::new("/nonexistent"));
                let (work, build) = (home.join("work"), home.join("build"));
                let readable = [shown, vec![build.clone()]].concat();
                let rules = |shown: &[PathBuf], writable: &[&Path], number| {
                    let fd = landlocked::ruleset(shown, writable).map_err(|error| error.to_string())?;
                    outer::inherit_as(fd.as_fd(), number)
                };
                rules(&readable, &[&work], RUN_RULES)?;
                rules(&readable, &[&work, &build], BUILD_RULES)?;
            }
            Ok(())
        }
    }
}

fn become_interpreter(start: &Start, socket: &OwnedFd, first: &OwnedFd) -> String {
    let closed = |words: &[String]| -> Vec<CString> {
        words.iter().filter_map(|word| CString::new(word.as_bytes()).ok()).collect()
    };
    let put = |fd: BorrowedFd<'_>, number| outer::inherit_as(fd, number);
    // First far up, so that neither overwrites the other.
    let moved = put(socket.as_fd(), 110)
        .and_then(|()| put(first.as_fd(), 111))
        .and_then(|()| outer::move_down(110, SOCKET))
        .and_then(|()| outer::move_down(111, FIRST))
        .and_then(|()| outer::silence());
    if let Err(problem) = moved {
        return problem;
    }
    let program = start.argv.first().map_or(Path::new(""), Path::new);
    let Ok(program) = CString::new(program.as_os_str().as_bytes()) else { return "a zero byte".to_owned() };
    outer::execute(&program, &closed(&start.argv), &closed(&start.env));
    format!("cannot execute: {}", io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_allowed_where_they_stay_inside() {
        assert!(may_signal(Tier::Namespaces) && !may_signal(Tier::Seccomp));
        assert_eq!(may_signal(Tier::Landlock), landlocked::scopes_signals());
    }

    #[test]
    fn requests_survive_the_wire() {
        let (left, right) = wire::pair().unwrap();
        let start = Start {
            tier: Tier::Landlock,
            roots: vec!["/opt/python".into()],
            argv: vec!["python3".to_owned()],
            env: Vec::new(),
            home: None,
        };
        wire::send(&left, &serde_json::to_vec(&start).unwrap(), &[right.as_fd()]).unwrap();
        let (message, fds) = wire::receive(&right).unwrap().unwrap();
        let read: Start = serde_json::from_slice(&message).unwrap();
        assert_eq!((read.roots, fds.len()), (start.roots, 1));
    }
}
