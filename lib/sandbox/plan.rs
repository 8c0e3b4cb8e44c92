//! What is done to the child of a case between its fork and its first untrusted instruction.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::calls::{Arg, Call, memory, number, text};
use crate::limits::Limits;
use crate::tier::Tier;

/// Where a case works when it has namespaces.
pub(crate) const WORK: &str = "/work";
/// Where programs are compiled to when there are namespaces.
pub(crate) const BUILD: &str = "/build";
/// The user and group that a case is, where the zygote could map one.
pub(crate) const CASE_ID: u32 = 1000;
/// The descriptor of the ruleset for running, in a zygote of the Landlock tier.
pub(crate) const RUN_RULES: i32 = 100;
/// The descriptor of the ruleset for compiling, which may also write the build folder.
pub(crate) const BUILD_RULES: i32 = 101;

/// What a case may do with the build folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// Read and execute it.
    Read,
    /// Write it too: compilers.
    Write,
}

/// A zygote as its cases find it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ground {
    pub(crate) tier: Tier,
    pub(crate) work: PathBuf,
    pub(crate) build: PathBuf,
    /// A case becomes [`CASE_ID`]; else it stays the user who runs the tool.
    pub(crate) has_case_id: bool,
    /// Processes of the same user that exist outside of the case and count against its limit.
    pub(crate) num_neighbours: u32,
}

/// The calls for one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Flags for `clone` or `unshare` of the fork itself.
    pub(crate) flags: i64,
    /// Makes the case's own mounts; the first process of the case performs it.
    pub(crate) enter: Vec<Call>,
    /// Gives everything else up; performed by the process that goes on to untrusted code, after its descriptors are in
    /// place. The last call installs the filter.
    pub(crate) confine: Vec<Call>,
}

impl Plan {
    /// The calls for a case with `num_fds` descriptors on this ground, one that executes a program or one that an
    /// interpreter goes on with.
    pub(crate) fn new(ground: &Ground, limits: &Limits, num_fds: u32, build: Build, executes: bool) -> Self {
        let is_apart = ground.tier == Tier::Namespaces;
        Self {
            flags: if is_apart { i64::from(libc::CLONE_NEWPID) } else { 0 },
            enter: if is_apart { enter(limits, build) } else { Vec::new() },
            confine: confine(ground, limits, num_fds, build, executes),
        }
    }
}

fn enter(limits: &Limits, build: Build) -> Vec<Call> {
    let nosuid_nodev = (libc::MS_NOSUID | libc::MS_NODEV) as i64;
    let options = format!("size={},nr_inodes=4096,mode=0777", limits.file_bytes);
    let mut calls = vec![
        Call::new("unshare", libc::SYS_unshare, [number(libc::CLONE_NEWNS | libc::CLONE_NEWIPC)]),
        mount("mount the work folder", "tmpfs", WORK, "tmpfs", nosuid_nodev, text(&options)),
    ];
    if build == Build::Read {
        let flags = nosuid_nodev | (libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY) as i64;
        calls.push(mount("close the build folder", "", BUILD, "", flags, number(0)).tolerated());
    }
    // Over the zygote's. Containers that hide parts of /proc refuse both; then there is none.
    let flags = nosuid_nodev | libc::MS_NOEXEC as i64;
    calls.push(mount("mount /proc", "proc", "/proc", "proc", flags, text("subset=pid")).tolerated());
    calls
}

fn mount(name: &str, source: &str, target: &str, kind: &str, flags: i64, data: Arg) -> Call {
    Call::new(name, libc::SYS_mount, [text(source), text(target), text(kind), number(flags), data])
}

fn confine(ground: &Ground, limits: &Limits, num_fds: u32, build: Build, executes: bool) -> Vec<Call> {
    let mut calls =
        vec![Call::new("chdir to the work folder", libc::SYS_chdir, [text(&ground.work.to_string_lossy())])];
    let num_processes = u64::from(limits.max_processes) + u64::from(ground.num_neighbours);
    let of_processes = (libc::RLIMIT_NPROC, num_processes, num_processes);
    for (resource, soft, hard) in limits.rlimits().into_iter().chain([of_processes]) {
        let value = [soft.to_ne_bytes(), hard.to_ne_bytes()].concat();
        let args = [number(0), number(resource), memory(&value), number(0)];
        calls.push(Call::new(format!("set limit {resource}"), libc::SYS_prlimit64, args));
    }
    if ground.has_case_id {
        let ids = || [number(CASE_ID), number(CASE_ID), number(CASE_ID)];
        calls.push(Call::new("setgroups", libc::SYS_setgroups, [number(0), number(0)]).tolerated());
        calls.push(Call::new("setresgid", libc::SYS_setresgid, ids()));
        calls.push(Call::new("setresuid", libc::SYS_setresuid, ids()));
    }
    let prctl = |name: &str, option: i32, value: i64| {
        Call::new(name, libc::SYS_prctl, [number(option), number(value), number(0), number(0), number(0)])
    };
    calls.push(prctl("die with the zygote", libc::PR_SET_PDEATHSIG, i64::from(libc::SIGKILL)));
    calls.push(prctl("set no_new_privs", libc::PR_SET_NO_NEW_PRIVS, 1));
    calls.push(Call::new(
        "drop capabilities",
        libc::SYS_capset,
        [memory(&CAPABILITY_HEAD), memory(&[0; 24])],
    ));
    if ground.tier == Tier::Landlock {
        let rules = if build == Build::Write { BUILD_RULES } else { RUN_RULES };
        let args = [number(rules), number(0)];
        calls.push(Call::new("landlock_restrict_self", libc::SYS_landlock_restrict_self, args));
    }
    // The pipe that tells a failing `exec` has to live until then.
    let when = if executes { libc::CLOSE_RANGE_CLOEXEC } else { 0 };
    let all = [number(num_fds), number(i64::from(u32::MAX)), number(when)];
    calls.push(Call::new("close_range", libc::SYS_close_range, all));
    if ground.tier >= Tier::Seccomp {
        const SET_MODE_FILTER: i64 = 1;
        calls.push(Call::new(
            "seccomp",
            libc::SYS_seccomp,
            [number(SET_MODE_FILTER), number(0), Arg::Filter(())],
        ));
    }
    calls
}

/// `struct __user_cap_header_struct`: version 3 (0x20080522), the calling thread.
const CAPABILITY_HEAD: [u8; 8] = {
    let version = 0x2008_0522_u32.to_ne_bytes();
    [version[0], version[1], version[2], version[3], 0, 0, 0, 0]
};

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(tier: Tier, build: Build) -> Plan {
        let ground =
            Ground { tier, work: WORK.into(), build: BUILD.into(), has_case_id: true, num_neighbours: 2 };
        Plan::new(&ground, &Limits::default(), 3, build, true)
    }

    fn names(calls: &[Call]) -> Vec<&str> {
        calls.iter().map(|call| call.name.as_str()).collect()
    }

    #[test]
    fn capabilities_are_given_up_and_the_filter_comes_last() {
        for tier in [Tier::Seccomp, Tier::Landlock, Tier::Namespaces] {
            let plan = plan(tier, Build::Read);
            let names = names(&plan.confine);
            let at = |name: &str| names.iter().position(|known| *known == name).unwrap();
            assert!(at("set no_new_privs") < at("seccomp") && at("drop capabilities") < at("seccomp"));
            // Another user's child forgets the signal it wanted when its parent dies.
            assert!(at("setresuid") < at("die with the zygote"));
            assert_eq!(at("seccomp"), names.len() - 1);
        }
        assert!(!names(&plan(Tier::Limits, Build::Read).confine).contains(&"seccomp"));
    }

    #[test]
    fn only_compilers_write_the_build_folder() {
        assert!(names(&plan(Tier::Namespaces, Build::Read).enter).contains(&"close the build folder"));
        assert!(!names(&plan(Tier::Namespaces, Build::Write).enter).contains(&"close the build folder"));
        assert_ne!(plan(Tier::Landlock, Build::Read).confine, plan(Tier::Landlock, Build::Write).confine);
        assert!(plan(Tier::Landlock, Build::Read).enter.is_empty());
    }
}
