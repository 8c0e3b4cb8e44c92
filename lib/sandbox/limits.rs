//! What one case may use.

use std::time::Duration;

/// The limits of one case. Those of memory and files hold for each process of it, that of the folder for all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// From its start to its end.
    pub wall: Duration,
    /// CPU time of each process, rounded up to seconds.
    pub cpu: Duration,
    /// Address space of each process (and of all together, where there is a cgroup), bytes.
    pub memory_bytes: u64,
    /// Address space that is reserved and never written comes on top, bytes: V8 needs some.
    pub reserve_bytes: u64,
    /// Processes and threads at once.
    pub max_processes: u32,
    /// What is kept of stdout, of stderr and of the report; a case that writes more is ended.
    pub output_bytes: usize,
    /// Largest file, and the size of the work folder, bytes.
    pub file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(10),
            cpu: Duration::from_secs(10),
            memory_bytes: 1 << 30,
            reserve_bytes: 0,
            max_processes: 64,
            output_bytes: 1 << 20,
            file_bytes: 64 << 20,
        }
    }
}

impl Limits {
    /// As `setrlimit` takes them: resource, soft and hard value.
    pub(crate) fn rlimits(&self) -> Vec<(u32, u64, u64)> {
        let cpu_s = self.cpu.as_secs() + u64::from(self.cpu.subsec_nanos() > 0);
        let same = |resource, value| (resource, value, value);
        vec![
            // One second between the signal that can be caught and the one that cannot.
            (libc::RLIMIT_CPU, cpu_s, cpu_s + 1),
            same(libc::RLIMIT_DATA, self.memory_bytes),
            same(libc::RLIMIT_AS, self.memory_bytes.saturating_add(self.reserve_bytes)),
            same(libc::RLIMIT_FSIZE, self.file_bytes),
            same(libc::RLIMIT_NOFILE, 256),
            same(libc::RLIMIT_CORE, 0),
            same(libc::RLIMIT_MEMLOCK, 0),
            same(libc::RLIMIT_MSGQUEUE, 0),
            same(libc::RLIMIT_SIGPENDING, 256),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_rounded_up_and_the_hard_limit_is_later() {
        let limits = Limits { cpu: Duration::from_millis(1500), reserve_bytes: 5, ..Limits::default() };
        let rlimits = limits.rlimits();
        assert!(rlimits.contains(&(libc::RLIMIT_CPU, 2, 3)));
        assert!(rlimits.contains(&(libc::RLIMIT_AS, (1 << 30) + 5, (1 << 30) + 5)));
        assert!(rlimits.contains(&(libc::RLIMIT_DATA, 1 << 30, 1 << 30)));
    }
}
