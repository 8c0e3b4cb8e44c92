//! The ground of a zygote in namespaces: a root of its own that holds the view, read-only, and nothing else.
#![expect(unsafe_code, reason = "mounts and processes, which have no safe interface")]

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::plan::{BUILD, CASE_ID, WORK};
use crate::view::DEVICES;

/// The namespaces of a zygote.
pub(crate) const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Folders that every system has and no view shows: the new root is built on one of them.
const STAGES: [&str; 3] = ["/sys", "/mnt", "/srv"];
/// Links of the new root; what wants a temporary folder gets the work folder.
const LINKS: [(&str, &str); 7] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/shm", WORK),
    ("/tmp", WORK),
    ("/var/tmp", WORK),
];

/// The id `fork` gives, for a process without other threads; `flags` are those of `clone`.
pub(crate) fn fork(flags: i64) -> io::Result<libc::pid_t> {
    // SAFETY: without CLONE_VM and without a stack of its own the child is a copy, as after fork(2); the callers have one
    // thread, so no lock is held by a thread that the child lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags | i64::from(libc::SIGCHLD), 0, 0, 0, 0) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as libc::pid_t) }
}

/// Ends this process at once, without what the tool registered for its end.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Forgets signal handlers and blocked signals of the tool, and its session.
pub(crate) fn forget_signals() {
    // SAFETY: sets of this frame; SIG_DFL is a handler for every signal, and refusals (SIGKILL) change nothing.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::setsid();
    }
}

/// Leaves the machine's files for a root with `shown`, read-only; to be called by the first process of its namespaces.
///
/// The error names the call and the path.
pub(crate) fn enter_root(shown: &[PathBuf]) -> Result<(), String> {
    mount("", "/", "", libc::MS_REC | libc::MS_PRIVATE, "")?;
    let stage =
        STAGES.iter().find(|path| Path::new(path).is_dir()).ok_or("none of /sys, /mnt, /srv exists")?;
    mount("tmpfs", stage, "tmpfs", libc::MS_NOSUID, "mode=0755")?;
    let root = Path::new(stage);
    for path in shown {
        show(root, path)?;
    }
    for device in DEVICES {
        show_mounted(root, Path::new(device), libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC)?;
    }
    for path in [WORK, BUILD, "/proc", "/etc", "/var"] {
        made(root, path, fs::create_dir_all(below(root, Path::new(path))))?;
    }
    for (path, target) in LINKS {
        let place = below(root, Path::new(path));
        // A view may show something below /tmp; TMPDIR is the work folder all the same.
        if !place.exists() {
            made(root, path, symlink(target, place))?;
        }
    }
    let users = format!("root:x:0:0::/:/bin/sh\ncase:x:{CASE_ID}:{CASE_ID}::{WORK}:/bin/sh\n");
    made(root, "/etc/passwd", fs::write(below(root, Path::new("/etc/passwd")), users))?;
    // A zygote's own /proc is what allows its cases theirs; containers may refuse both.
    let _ =
        mount("proc", &below(root, Path::new("/proc")).to_string_lossy(), "proc", PROC_FLAGS, "subset=pid");
    change_root(root)
}

const PROC_FLAGS: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

fn change_root(root: &Path) -> Result<(), String> {
    std::env::set_current_dir(root).map_err(|error| format!("chdir {}: {error}", root.display()))?;
    // SAFETY: both arguments are literals; the old root is stacked on the new one and taken off at once.
    let result = unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) };
    told("pivot_root", result)?;
    // SAFETY: the argument is a literal.
    told("umount the old root", unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) }.into())?;
    std::env::set_current_dir("/").map_err(|error| format!("chdir /: {error}"))?;
    restrict(Path::new("/"), libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID, 0)
}

fn show(root: &Path, path: &Path) -> Result<(), String> {
    if let Ok(target) = fs::read_link(path) {
        let place = below(root, path);
        made(root, &path.to_string_lossy(), place.parent().map_or(Ok(()), fs::create_dir_all))?;
        return made(root, &path.to_string_lossy(), symlink(target, place));
    }
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    show_mounted(root, path, attributes)
}

fn show_mounted(root: &Path, path: &Path, attributes: u64) -> Result<(), String> {
    let place = below(root, path);
    let parent = if path.is_dir() { Some(place.as_path()) } else { place.parent() };
    made(root, &path.to_string_lossy(), parent.map_or(Ok(()), fs::create_dir_all))?;
    if !path.is_dir() {
        made(root, &path.to_string_lossy(), fs::write(&place, ""))?;
    }
    mount(&path.to_string_lossy(), &place.to_string_lossy(), "", libc::MS_BIND | libc::MS_REC, "")?;
    restrict(&place, attributes, libc::AT_RECURSIVE)
}

/// A path of the new root while it is still being built.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn made(root: &Path, path: &str, result: io::Result<()>) -> Result<(), String> {
    result.map_err(|error| format!("cannot make {path} below {}: {error}", root.display()))
}

/// Mounts; an empty source or kind is none.
pub(crate) fn mount(
    source: &str,
    target: &str,
    kind: &str,
    flags: libc::c_ulong,
    data: &str,
) -> Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|_| format!("{text}: a zero byte in a path"));
    let (source, place, kind, data) = (text(source)?, text(target)?, text(kind)?, text(data)?);
    // SAFETY: four closed strings that live until the call has returned.
    let result =
        unsafe { libc::mount(source.as_ptr(), place.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
    told(&format!("mount {target}"), result.into())
}

fn restrict(path: &Path, attributes: u64, flags: i32) -> Result<(), String> {
    let name = format!("mount_setattr {}", path.display());
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{name}: a zero byte"))?;
    let set = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: a closed string and a structure of the size that is given, both alive until the call has returned.
    let result = unsafe {
        let size = size_of::<libc::mount_attr>();
        libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, &raw const set, size)
    };
    told(&name, result)
}

fn told(name: &str, result: i64) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(format!("{name}: {}", io::Error::last_os_error())) }
}

/// Makes this process the broker: memory of the tool is readable for nobody, descriptors of the tool are closed.
pub(crate) fn become_broker(tool: BorrowedFd<'_>) {
    // SAFETY: closes descriptors whose owners, values of the tool, this copy of it never uses again; 0 to 2 stay for
    // messages of a panic.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"slime-sandbox".as_ptr());
        let kept = tool.as_raw_fd() as u32;
        if kept > 3 {
            libc::syscall(libc::SYS_close_range, 3, kept - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0);
        // Who reads the tool's stdout sees its end when the tool ends.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        libc::dup2(null, 0);
        libc::dup2(null, 1);
    }
}

/// Closes this process's copy of a descriptor that only its parent uses.
pub(crate) fn close_copy(fd: BorrowedFd<'_>) {
    // SAFETY: the value that owns it belongs to the parent's loop, to which this process never returns.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// Waits for zygotes that have ended, without blocking.
pub(crate) fn reap_all() {
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// This process is killed when its parent dies, however that dies.
pub(crate) fn die_with_parent() {
    // SAFETY: a setting of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Orphans of a case become children of this process, which ends them.
pub(crate) fn adopt_orphans() {
    // SAFETY: a setting of this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Duplicates a descriptor to a number that stays open over `exec`.
pub(crate) fn inherit_as(fd: BorrowedFd<'_>, number: RawFd) -> Result<(), String> {
    // SAFETY: nothing of this process is at that number.
    told("dup2", i64::from(unsafe { libc::dup2(fd.as_raw_fd(), number) }.min(0)))
}

/// Moves a descriptor that [`inherit_as`] made to a number whose owner is not used any more.
pub(crate) fn move_down(from: RawFd, to: RawFd) -> Result<(), String> {
    // SAFETY: this process executes a program next and uses no value that owned `to`.
    let moved = unsafe { libc::dup2(from, to) };
    // SAFETY: `from` has no owner.
    unsafe { libc::close(from) };
    told("dup2", i64::from(moved.min(0)))
}

/// Reads nothing and writes nowhere from now on.
pub(crate) fn silence() -> Result<(), String> {
    // SAFETY: a closed string; the descriptors replaced are the standard ones.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        told("open /dev/null", i64::from(null.min(0)))?;
        for number in 0..=2 {
            libc::dup2(null, number);
        }
        if null > 2 {
            libc::close(null);
        }
    }
    Ok(())
}

/// Becomes another program; returns only on an error.
pub(crate) fn execute(program: &CStr, argv: &[CString], env: &[CString]) {
    let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: closed strings in closed lists, all alive.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
}
