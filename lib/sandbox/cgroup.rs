//! A cgroup for each zygote, where this process has been given a part of the tree (cgroup v2, delegated): it bounds the
//! memory and the processes of a case together, which limits of single processes cannot.

use std::fs;
use std::path::{Path, PathBuf};

/// What zygotes need; both have to be delegated.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// The zygote's own memory, which comes on top of a case's.
const ZYGOTE_BYTES: u64 = 256 << 20;
/// The zygote's own processes.
const ZYGOTE_PROCESSES: u32 = 2;

/// The part of the tree that is ours.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    root: PathBuf,
    num_made: u32,
}

impl Cgroups {
    /// Looks for the cgroup of this process; on an error the text says what is missing.
    pub(crate) fn find() -> Result<Self, String> {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let own = read("/proc/self/cgroup")?;
        let place = own.lines().find_map(|line| line.strip_prefix("0::")).ok_or("no cgroup v2 hierarchy")?;
        let mounts = read("/proc/self/mountinfo")?;
        let top = mounts.lines().find_map(mount_of_cgroup2).ok_or("cgroup v2 is not mounted")?;
        Self::delegated(&top.join(place.trim_start_matches('/')))
    }

    /// Takes over the cgroup `own` if it is delegated: this process goes to a leaf, so that others can have limits.
    pub(crate) fn delegated(own: &Path) -> Result<Self, String> {
        let read = |name: &str| {
            let path = own.join(name);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let has_all =
            |text: &str| CONTROLLERS.iter().all(|name| text.split_whitespace().any(|word| word == *name));
        if !has_all(&read("cgroup.controllers")?) {
            return Err(format!("{} has not the controllers memory and pids", own.display()));
        }
        if !has_all(&read("cgroup.subtree_control")?) {
            let mine = [std::process::id(), parent_id()];
            let is_mine = |word: &str| word.parse().is_ok_and(|pid: u32| mine.contains(&pid));
            let inside = read("cgroup.procs")?;
            if !inside.split_whitespace().all(is_mine) {
                return Err(format!("{} holds other processes too", own.display()));
            }
            let leaf = own.join("slime-tool");
            make(&leaf)?;
            for pid in inside.split_whitespace() {
                write(&leaf.join("cgroup.procs"), pid)?;
            }
            write(&own.join("cgroup.subtree_control"), "+memory +pids")?;
        }
        let cgroups = Self { root: own.to_owned(), num_made: 0 };
        // Readable is not writable: the first group is the proof.
        let probe = own.join(format!("slime-probe.{}", std::process::id()));
        make(&probe)?;
        fs::remove_dir(&probe).map_err(|error| format!("{}: {error}", probe.display()))?;
        Ok(cgroups)
    }

    /// Where the groups are.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A new group with this process in it; groups whose processes are gone are removed.
    pub(crate) fn group_of(&mut self, pid: libc::pid_t) -> Result<PathBuf, String> {
        self.remove_empty();
        self.num_made += 1;
        let group = self.root.join(format!("slime-zygote.{}.{}", std::process::id(), self.num_made));
        make(&group)?;
        write(&group.join("cgroup.procs"), &pid.to_string())?;
        // One process out of memory ends the case: its first process is the one that is waited for.
        let _ = write(&group.join("memory.swap.max"), "0");
        Ok(group)
    }

    fn remove_empty(&self) {
        for number in 1..=self.num_made {
            // A group with processes cannot be removed, and one that is gone need not be.
            let _ = fs::remove_dir(self.root.join(format!("slime-zygote.{}.{number}", std::process::id())));
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove_empty();
    }
}

/// Sets the limits of the next case of the zygote in `group`.
pub(crate) fn limit(group: &Path, memory_bytes: u64, max_processes: u32) -> Result<(), String> {
    write(&group.join("memory.max"), &(memory_bytes + ZYGOTE_BYTES).to_string())?;
    write(&group.join("pids.max"), &(max_processes + ZYGOTE_PROCESSES).to_string())
}

/// The mount point of a line of mountinfo, if it is a cgroup v2.
fn mount_of_cgroup2(line: &str) -> Option<PathBuf> {
    let (mount, filesystem) = line.split_once(" - ")?;
    filesystem.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
}

fn parent_id() -> u32 {
    std::os::unix::process::parent_id()
}

fn make(path: &Path) -> Result<(), String> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(format!("cannot make {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like a cgroup; `procs` are the processes in it.
    fn folder(controllers: &str, control: &str, procs: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("cgroup.controllers", controllers),
            ("cgroup.subtree_control", control),
            ("cgroup.procs", procs),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn delegated_cgroup_gets_a_group_with_limits_for_each_zygote() {
        let dir = folder("cpu memory pids", "", &format!("{}\n", std::process::id()));
        let mut cgroups = Cgroups::delegated(dir.path()).unwrap();
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(read(dir.path().join("cgroup.subtree_control")), "+memory +pids");
        assert_eq!(read(dir.path().join("slime-tool/cgroup.procs")), std::process::id().to_string());
        let group = cgroups.group_of(77).unwrap();
        assert_eq!(read(group.join("cgroup.procs")), "77");
        limit(&group, 1000, 5).unwrap();
        assert_eq!(read(group.join("memory.max")), (ZYGOTE_BYTES + 1000).to_string());
        assert_eq!(read(group.join("pids.max")), "7");
        assert_ne!(cgroups.group_of(78).unwrap(), group);
    }

    #[test]
    fn what_is_missing_is_told() {
        let problem = |dir: &tempfile::TempDir| Cgroups::delegated(dir.path()).unwrap_err();
        assert!(problem(&folder("cpu", "", "")).contains("has not the controllers memory and pids"));
        assert!(problem(&folder("memory pids", "", "1\n")).contains("holds other processes too"));
        let elsewhere = tempfile::tempdir().unwrap();
        assert!(problem(&elsewhere).contains("cgroup.controllers: No such file"));
    }

    #[test]
    fn mount_point_is_the_fifth_word() {
        let line = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount_of_cgroup2(line), Some("/sys/fs/cgroup".into()));
        assert_eq!(mount_of_cgroup2("22 1 254:0 / / rw - ext4 /dev/vda rw"), None);
    }
}
