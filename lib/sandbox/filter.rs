//! The system calls a case may make; all others fail as if the kernel had never heard of them, those of the network with
//! "permission denied".

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule as Rule,
};

use crate::error::{Error, Result};

macro_rules! numbers {
    ($($name:ident)*) => { [$(libc::$name),*] };
}

/// What ordinary programs, interpreters and compilers need. Not among them: namespaces and mounts, tracing and the memory
/// of others, keys, modules, `bpf`, `io_uring`, `userfaultfd`, `perf_event_open`, clocks, quotas, new filters.
const ALLOWED: &[i64] = &numbers![
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_close SYS_close_range SYS_openat SYS_openat2 SYS_lseek SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs
    SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdirat SYS_unlinkat
    SYS_renameat SYS_renameat2 SYS_linkat SYS_symlinkat SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_utimensat
    SYS_truncate SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_flock
    SYS_copy_file_range SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_umask SYS_getxattr SYS_lgetxattr SYS_fgetxattr
    SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_mknodat
    SYS_dup SYS_dup3 SYS_pipe2 SYS_fcntl SYS_ioctl SYS_eventfd2 SYS_memfd_create SYS_socketpair SYS_sendto SYS_recvfrom
    SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_shutdown SYS_getsockopt SYS_setsockopt SYS_getsockname
    SYS_getpeername SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch SYS_signalfd4 SYS_timerfd_create SYS_timerfd_settime
    SYS_timerfd_gettime
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_msync SYS_mincore SYS_brk SYS_mlock SYS_munlock
    SYS_mlock2 SYS_membarrier SYS_get_mempolicy
    SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_getpid SYS_getppid SYS_gettid SYS_getuid
    SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_getpgid SYS_getsid SYS_setpgid
    SYS_setsid SYS_getpriority SYS_capget SYS_uname SYS_sysinfo SYS_getcpu SYS_getrusage SYS_times
    SYS_getrlimit SYS_setrlimit SYS_sched_yield SYS_sched_getaffinity
    SYS_sched_getparam SYS_sched_getscheduler SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_getattr
    SYS_set_tid_address SYS_set_robust_list SYS_get_robust_list SYS_futex SYS_futex_waitv SYS_rseq SYS_getrandom
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigsuspend SYS_rt_sigtimedwait
    SYS_sigaltstack SYS_restart_syscall SYS_pidfd_open
    SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_getitimer SYS_setitimer
    SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
];

/// The older forms of the above, which other architectures never had.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[i64] = &numbers![
    SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_readlink SYS_getdents SYS_mkdir SYS_rmdir SYS_unlink SYS_rename
    SYS_link SYS_symlink SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_futimesat SYS_dup2 SYS_pipe SYS_eventfd
    SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_inotify_init SYS_signalfd SYS_fork SYS_vfork SYS_getpgrp
    SYS_alarm SYS_pause SYS_time SYS_arch_prctl SYS_mknod
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD: &[i64] = &[];

/// Calls that send signals.
const SIGNALS: &[i64] =
    &numbers![SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_pidfd_send_signal];

/// Calls that fail with "permission denied", since programs ask for that and tell their user.
const DENIED: &[i64] = &numbers![
    SYS_socket SYS_connect SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_ptrace SYS_process_vm_readv
    SYS_process_vm_writev SYS_unshare SYS_setns SYS_mount SYS_umount2 SYS_chroot SYS_pivot_root
];

/// Calls whose first argument is a process: allowed for the caller itself, which is 0.
const ON_ITSELF: &[i64] = &numbers![SYS_prlimit64 SYS_sched_setaffinity];

/// Uses of `prctl` that concern the caller alone.
const PRCTL: [libc::c_int; 8] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_PDEATHSIG,
    libc::PR_GET_DUMPABLE,
    libc::PR_CAPBSET_READ,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_SET_VMA,
    libc::PR_SET_TIMERSLACK,
];

/// `CLONE_NEW*`: all namespaces.
const NEW_NAMESPACES: u64 = 0x7e02_0080;

/// A compiled filter; the default one has no instruction and is never installed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    program: BpfProgram,
}

impl Filter {
    /// The filter of a case that may, or may not, send signals.
    pub(crate) fn new(may_signal: bool) -> Result<Self> {
        let broken = |error: seccompiler::BackendError| Error::Setup { problem: format!("seccomp: {error}") };
        let arch = std::env::consts::ARCH.try_into().map_err(broken)?;
        let mut allowed: BTreeMap<i64, Vec<Rule>> =
            ALLOWED.iter().chain(ALLOWED_OLD).map(|number| (*number, Vec::new())).collect();
        if may_signal {
            allowed.extend(SIGNALS.iter().map(|number| (*number, Vec::new())));
        }
        let new_none =
            Condition::new(0, Len::Qword, Op::MaskedEq(NEW_NAMESPACES), 0).and_then(|c| Rule::new(vec![c]));
        allowed.insert(libc::SYS_clone, vec![new_none.map_err(broken)?]);
        let first_is = |value: libc::c_int| {
            Condition::new(0, Len::Dword, Op::Eq, value as u64).and_then(|c| Rule::new(vec![c]))
        };
        for number in ON_ITSELF {
            allowed.insert(*number, vec![first_is(0).map_err(broken)?]);
        }
        let prctl: std::result::Result<Vec<Rule>, _> = PRCTL.into_iter().map(first_is).collect();
        allowed.insert(libc::SYS_prctl, prctl.map_err(broken)?);

        let compile = |rules, otherwise, action| -> Result<BpfProgram> {
            let filter = SeccompFilter::new(rules, otherwise, action, arch).map_err(broken)?;
            filter.try_into().map_err(broken)
        };
        let not_there = SeccompAction::Errno(libc::ENOSYS as u32);
        let program = compile(allowed, not_there, SeccompAction::Allow)?;
        Ok(Self { program: with_denied(program, may_signal) })
    }

    /// As `seccomp(2)` takes it.
    pub(crate) fn program(&self) -> libc::sock_fprog {
        libc::sock_fprog { len: self.program.len() as u16, filter: self.program.as_ptr().cast_mut().cast() }
    }

    /// The instructions, eight bytes each.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let bytes = |op: &seccompiler::sock_filter| {
            let [code, k] = [op.code.to_ne_bytes().to_vec(), op.k.to_ne_bytes().to_vec()];
            [code, vec![op.jt, op.jf], k].concat()
        };
        self.program.iter().flat_map(bytes).collect()
    }
}

/// The program with two instructions for each denied call behind the check of the architecture, which is its first four.
fn with_denied(mut program: BpfProgram, may_signal: bool) -> BpfProgram {
    let op = |code: u32, jt, jf, k| seccompiler::sock_filter { code: code as u16, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let signals = if may_signal { &[] } else { SIGNALS };
    let checks = DENIED.iter().chain(signals).flat_map(|number| {
        [
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, *number as u32),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        ]
    });
    let head: Vec<_> = checks.collect();
    let at = program.iter().position(is_load_of_number).map_or(0, |at| at + 1);
    program.splice(at..at, head);
    program
}

/// Whether an instruction loads the number of the system call, the first word of what a filter sees.
fn is_load_of_number(op: &seccompiler::sock_filter) -> bool {
    u32::from(op.code) == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS && op.k == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_fits_the_kernel_and_denies_before_it_allows() {
        let filter = Filter::new(true).unwrap();
        let bytes = filter.bytes();
        assert_eq!(bytes.len(), usize::from(filter.program().len) * 8);
        assert!(filter.program().len < 4096);
        let at = filter.program.iter().position(is_load_of_number).unwrap();
        assert_eq!(filter.program[at + 1].k, libc::SYS_socket as u32);
        assert_eq!(filter.program[at + 2].k, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        // No signals: two instructions more for each of their calls, instead of those that allow it.
        assert_ne!(Filter::new(false).unwrap().bytes(), bytes);
    }

    #[test]
    fn nothing_is_both_allowed_and_denied() {
        for number in DENIED.iter().chain(SIGNALS) {
            assert!(!ALLOWED.contains(number) && !ALLOWED_OLD.contains(number), "{number}");
        }
    }
}
