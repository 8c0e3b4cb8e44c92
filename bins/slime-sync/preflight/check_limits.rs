//! Limits of this process and memory that ranks of a node share.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::check::{Check, Verdict};
use super::check_run_dir::writable;

const MIB: u64 = 1 << 20;
/// What drivers of InfiniBand and GPUs pin at least.
const MIN_MEMLOCK: u64 = 64 * MIB;
/// The usual stack of a main thread.
const MIN_STACK: u64 = 8 * MIB;
/// Files a trainer of many shards has open at once, and what it cannot do without.
const FEW_FILES: u64 = 4096;
const MIN_FILES: u64 = 256;
/// What NCCL and MPI put there for each pair of ranks adds up to this.
const MIN_SHM_GB: f64 = 1.0;

/// The limits on pinned memory, stack and open files.
pub fn limits(has_gpus: bool) -> Vec<Check> {
    let soft = |resource| getrlimit(resource).current;
    vec![
        memlock(soft(Resource::Memlock), has_gpus || has_infiniband()),
        stack(soft(Resource::Stack)),
        open_files(soft(Resource::Nofile)),
    ]
}

fn has_infiniband() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

fn memlock(limit: Option<u64>, pins: bool) -> Check {
    if pins && limit.is_some_and(|bytes| bytes < MIN_MEMLOCK) {
        let hint = "LimitMEMLOCK=infinity for slurmd, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf";
        return Check::warn("memlock", size(limit), "unlimited, or at least 64 MiB", hint);
    }
    Check::ok("memlock", size(limit))
}

fn stack(limit: Option<u64>) -> Check {
    if limit.is_some_and(|bytes| bytes < MIN_STACK) {
        return Check::warn("stack", size(limit), "at least 8 MiB", "ulimit -s 8192 in the job script");
    }
    Check::ok("stack", size(limit))
}

fn open_files(limit: Option<u64>) -> Check {
    const HINT: &str = "ulimit -n in the job script, or LimitNOFILE for slurmd";
    let got = limit.map_or("unlimited".to_owned(), |files| files.to_string());
    match limit {
        Some(files) if files < MIN_FILES => {
            Check::bad("open_files", got, format!("at least {MIN_FILES}"), HINT)
        }
        Some(files) if files < FEW_FILES => {
            Check::warn("open_files", got, format!("at least {FEW_FILES}"), HINT)
        }
        _ => Check::ok("open_files", got),
    }
}

fn size(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_owned(), |bytes| match bytes / MIB {
        0 => format!("{} KiB", bytes / 1024),
        mib => format!("{mib} MiB"),
    })
}

/// The shared memory of the node: needed between the GPUs of a node, helpful without.
pub fn shared_memory(node: &str, has_gpus: bool) -> Check {
    const NAME: &str = "shared_memory";
    const HINT: &str = "mount a tmpfs at /dev/shm (in a container: --shm-size or --ipc=host)";
    let folder = Path::new("/dev/shm");
    let written = writable(NAME, folder, node, HINT);
    let Ok(system) = rustix::fs::statvfs(folder) else {
        let verdict = if has_gpus { Verdict::Bad } else { Verdict::Warn };
        return Check::judged(NAME, verdict, "no /dev/shm", "a tmpfs", HINT);
    };
    if written.expected.is_some() {
        return written;
    }
    let free_gb = system.f_bavail as f64 * system.f_frsize as f64 / 1e9;
    let got = format!("{free_gb:.1} GB free");
    if free_gb < MIN_SHM_GB {
        return Check::warn(NAME, got, format!("at least {MIN_SHM_GB} GB"), HINT);
    }
    Check::ok(NAME, got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_judged_where_they_matter() {
        assert_eq!(memlock(Some(8 * MIB), false).verdict, Verdict::Ok);
        assert_eq!(memlock(Some(8 * MIB), true).verdict, Verdict::Warn);
        assert_eq!(memlock(None, true), Check::ok("memlock", "unlimited"));
        assert_eq!(stack(Some(MIB)).verdict, Verdict::Warn);
        assert_eq!(stack(None).verdict, Verdict::Ok);
        for (files, verdict) in [(100, Verdict::Bad), (1024, Verdict::Warn), (4096, Verdict::Ok)] {
            assert_eq!(open_files(Some(files)).verdict, verdict, "{files}");
        }
        assert_eq!((size(Some(64 * 1024)), size(Some(9 * MIB))), ("64 KiB".to_owned(), "9 MiB".to_owned()));
    }
}
