//! The tool's end of a zygote: starts it, gives it cases, starts it again when it has ended.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::json;
use tempfile::TempDir;

use crate::broker::{Start, Started, may_signal};
use crate::calls::{Call, number, text};
use crate::case::{Case, Entry, Report, Running};
use crate::cgroup;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::native::{Answer, Request};
use crate::plan::{BUILD, Ground, Plan, WORK};
use crate::sandbox::Inner;
use crate::tier::Tier;
use crate::toolchain::Toolchain;
use crate::wire;

/// A case is tried on so many zygotes, if one after the other ends.
const MAX_DEATHS: u32 = 3;
/// The zygote of Python.
const PYTHON: &str = include_str!("zygote.py");

/// What a zygote is.
#[derive(Debug, Clone)]
pub struct Kind {
    name: &'static str,
    toolchain: Toolchain,
    /// Code an interpreter runs once, whose functions are the entries of its cases.
    preload: Option<String>,
}

impl Kind {
    /// Executes programs that need nothing but the system.
    pub fn native() -> Self {
        Self { name: "native", toolchain: Toolchain { programs: Vec::new() }, preload: None }
    }

    /// Executes programs of a toolchain.
    pub fn programs(toolchain: Toolchain) -> Self {
        Self { toolchain, ..Self::native() }
    }

    /// A Python interpreter (the toolchain's first program) that ran `preload`.
    pub fn python(toolchain: Toolchain, preload: String) -> Self {
        Self { name: "python", toolchain, preload: Some(preload) }
    }
}

/// A zygote, started when it is needed; one case at a time.
#[derive(Debug)]
pub struct Zygote {
    sandbox: Arc<Inner>,
    kind: Kind,
    live: Option<Live>,
    /// Work and build folders of tiers without namespaces.
    home: Option<TempDir>,
    has_build: bool,
    /// The build folder went with a zygote that ended.
    is_build_lost: bool,
}

#[derive(Debug)]
struct Live {
    socket: OwnedFd,
    pid: i32,
    ground: Ground,
    cgroup: Option<PathBuf>,
    /// A case was started whose end was not heard of.
    is_busy: Arc<AtomicBool>,
    /// Processes of this user, and when they were counted.
    neighbours: Option<(Instant, u32)>,
}

/// Processes of the user are counted again after this time.
const COUNT_AGAIN: Duration = Duration::from_secs(1);

impl Zygote {
    pub(crate) fn new(sandbox: Arc<Inner>, kind: Kind) -> Self {
        Self { sandbox, kind, live: None, home: None, has_build: false, is_build_lost: false }
    }

    /// Runs one case to its end, on another zygote if this one ends.
    ///
    /// # Errors
    /// [`Error::Setup`] when a case could not be isolated, [`Error::Died`] when zygotes end again and again.
    pub fn run(&mut self, case: &Case<'_>) -> Result<Report> {
        for _ in 0..MAX_DEATHS {
            match self.launch(case).and_then(Running::wait) {
                Err(Error::Died { .. }) => {}
                result => return result,
            }
        }
        Err(Error::Died { kind: self.kind.name, num_deaths: MAX_DEATHS })
    }

    /// Starts one case.
    ///
    /// # Errors
    /// As [`Zygote::run`]; a zygote that ended before is started again.
    pub fn launch(&mut self, case: &Case<'_>) -> Result<Running> {
        self.clean_work();
        self.revive()?;
        if self.is_build_lost {
            return Err(Error::Died { kind: self.kind.name, num_deaths: 1 });
        }
        let died = Error::Died { kind: self.kind.name, num_deaths: 1 };
        let tier = self.sandbox.tier();
        let Some(live) = &mut self.live else { return Err(died) };
        if let Some(group) = &live.cgroup {
            cgroup::limit(group, case.limits.memory_bytes, case.limits.max_processes)
                .map_err(|problem| Error::Setup { problem })?;
        }
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(Error::os("pipe"));
        let (stdout, stdout_end) = pipe()?;
        let (stderr, stderr_end) = pipe()?;
        let report = case.has_report.then(pipe).transpose()?;
        let stdin = wire::sealed("stdin", case.stdin)?;
        let payload = case.payload.map(|bytes| wire::sealed("payload", bytes)).transpose()?;
        let (report, report_end) = report.unzip();
        let mut fds = vec![stdin.as_fd(), stdout_end.as_fd(), stderr_end.as_fd()];
        fds.extend(payload.as_ref().map(AsFd::as_fd));
        fds.extend(report_end.as_ref().map(AsFd::as_fd));
        fds.extend(case.channel);

        let mut ground = live.ground.clone();
        if tier != Tier::Namespaces {
            let counted = live.neighbours.filter(|(when, _)| when.elapsed() < COUNT_AGAIN);
            let counted = counted.unwrap_or_else(|| (Instant::now(), num_processes_of_user()));
            live.neighbours = Some(counted);
            ground.num_neighbours = counted.1;
        }
        let (argv, function) = match case.entry {
            Entry::Program(argv) => (argv.to_vec(), ""),
            Entry::Function(name) => (Vec::new(), name),
        };
        let executes = self.kind.preload.is_none();
        let plan = Plan::new(&ground, case.limits, fds.len() as u32, case.build, executes);
        let env = self.kind.toolchain.environment(&ground.work);
        let request = Request::Run { plan, argv, env, function: function.to_owned() };
        live.is_busy.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let message = serde_json::to_vec(&request).unwrap_or_default();
        if wire::send(&live.socket, &message, &fds).is_err() {
            return Err(died);
        }
        let pidfd = match answer(&live.socket)? {
            Some((Answer::Started, fds)) => fds.into_iter().next(),
            Some((Answer::Failed { problem }, _)) => {
                live.is_busy.store(false, Ordering::Relaxed);
                return Err(Error::Setup { problem });
            }
            _ => None,
        };
        Ok(Running {
            zygote: live.socket.try_clone().map_err(|source| Error::Os { call: "dup", source })?,
            kind: self.kind.name,
            pidfd: pidfd.ok_or(died)?,
            pipes: [Some(stdout), Some(stderr), report].into_iter().flatten().collect(),
            began,
            limits: *case.limits,
            is_busy: Arc::clone(&live.is_busy),
        })
    }

    /// Makes an empty build folder, which stays until [`Zygote::close_build`]; returns where cases see it. When it goes
    /// with a zygote that ends, cases report [`Error::Died`] until another is made.
    ///
    /// # Errors
    /// As [`Zygote::run`].
    pub fn open_build(&mut self, max_bytes: u64) -> Result<PathBuf> {
        self.close_build()?;
        self.revive()?;
        self.is_build_lost = false;
        let build = self.live.as_ref().map(|live| live.ground.build.clone()).unwrap_or_default();
        if self.sandbox.tier() == Tier::Namespaces {
            let flags = (libc::MS_NOSUID | libc::MS_NODEV) as i64;
            let options = format!("size={max_bytes},nr_inodes=4096,mode=0777");
            let args = [text("tmpfs"), text(BUILD), text("tmpfs"), number(flags), text(&options)];
            self.perform(vec![Call::new("mount the build folder", libc::SYS_mount, args)])?;
        }
        self.has_build = true;
        Ok(build)
    }

    /// Empties the build folder.
    ///
    /// # Errors
    /// As [`Zygote::run`].
    pub fn close_build(&mut self) -> Result<()> {
        self.is_build_lost = false;
        if let Some(home) = &self.home {
            empty(&home.path().join("build"));
        }
        if !std::mem::take(&mut self.has_build) || self.live.is_none() || self.home.is_some() {
            return Ok(());
        }
        let args = [text(BUILD), number(libc::MNT_DETACH)];
        self.perform(vec![Call::new("unmount the build folder", libc::SYS_umount2, args)])
    }

    /// Whether cases are a user of their own.
    pub(crate) fn has_case_id(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.ground.has_case_id)
    }

    /// The process id of the zygote, if it was started.
    pub fn pid(&self) -> Option<i32> {
        self.live.as_ref().map(|live| live.pid)
    }

    fn perform(&mut self, calls: Vec<Call>) -> Result<()> {
        let died = Error::Died { kind: self.kind.name, num_deaths: 1 };
        let Some(live) = &self.live else { return Err(died) };
        let message = serde_json::to_vec(&Request::Perform { calls }).unwrap_or_default();
        if wire::send(&live.socket, &message, &[]).is_err() {
            return Err(died);
        }
        match answer(&live.socket)? {
            Some((Answer::Performed, _)) => Ok(()),
            Some((Answer::Failed { problem }, _)) => Err(Error::Setup { problem }),
            _ => Err(died),
        }
    }

    /// Starts the zygote, or another if it has ended or is out of step.
    fn revive(&mut self) -> Result<()> {
        if let Some(live) = &self.live {
            let is_out_of_step = live.is_busy.load(Ordering::Relaxed);
            if !is_out_of_step && !is_gone(&live.socket) {
                return Ok(());
            }
            self.live = None;
            self.sandbox.count_restart();
        }
        self.live = Some(self.start()?);
        // On disk the folder outlives its zygote.
        self.is_build_lost |= self.has_build && self.home.is_none();
        self.has_build &= !self.is_build_lost;
        Ok(())
    }

    fn start(&mut self) -> Result<Live> {
        let tier = self.sandbox.tier();
        if tier != Tier::Namespaces && self.home.is_none() {
            self.home = Some(make_home()?);
        }
        let (socket, zygote_end) = wire::pair()?;
        let mut fds = vec![zygote_end];
        let mut argv = Vec::new();
        if let Some(preload) = &self.kind.preload {
            let filter =
                if tier == Tier::Limits { Filter::default() } else { Filter::new(may_signal(tier))? };
            let instructions: String = filter.bytes().into_iter().map(char::from).collect();
            let first = json!({ "filter": instructions, "preload": preload }).to_string();
            fds.push(wire::sealed("first", first.as_bytes())?);
            let python = self.kind.toolchain.programs.first().map(|program| &program.path);
            let python = python.map_or_else(String::new, |path| path.display().to_string());
            argv.extend([&python, "-s", "-B", "-c", PYTHON].map(str::to_owned));
            argv.extend(
                [libc::SYS_unshare, libc::SYS_setns, libc::SYS_pidfd_open].map(|number| number.to_string()),
            );
        }
        let home = self.home.as_ref().map(|home| home.path().to_owned());
        let work = home.as_ref().map_or_else(|| PathBuf::from(WORK), |home| home.join("work"));
        let env = self.kind.toolchain.environment(&work);
        let start = Start { tier, roots: self.kind.toolchain.roots(), argv, env, home };
        let Started::Zygote { pid, ground, cgroup } = self.sandbox.ask(&start, &fds)? else {
            return Err(Error::Broker(None));
        };
        drop(fds);
        match answer(&socket)? {
            Some((Answer::Ready, _)) => {
                Ok(Live { socket, pid, ground, cgroup, is_busy: Arc::default(), neighbours: None })
            }
            Some((Answer::Failed { problem }, _)) => Err(Error::Setup { problem }),
            _ => Err(Error::Died { kind: self.kind.name, num_deaths: 1 }),
        }
    }

    /// Without namespaces, what an earlier case left in the work folder is removed here.
    fn clean_work(&self) {
        if let Some(home) = &self.home {
            empty(&home.path().join("work"));
        }
    }
}

/// The next answer; none from a zygote that is gone.
fn answer(socket: &OwnedFd) -> Result<Option<(Answer, Vec<OwnedFd>)>> {
    let message = wire::receive(socket).map_err(Error::os("recvmsg"))?;
    Ok(message.and_then(|(bytes, fds)| Some((serde_json::from_slice(&bytes).ok()?, fds))))
}

/// Whether the other end is closed; a zygote between cases has nothing to say.
fn is_gone(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)) != Ok(0)
}

fn make_home() -> Result<TempDir> {
    let failed = |source| Error::Os { call: "make a work folder", source };
    let home = tempfile::Builder::new().prefix("slime-sandbox.").tempdir().map_err(failed)?;
    for name in ["work", "build"] {
        std::fs::create_dir(home.path().join(name)).map_err(failed)?;
    }
    Ok(home)
}

/// Removes what is in a folder, links not followed; what cannot be removed goes with the folder at the end.
fn empty(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_folder { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

/// Processes and threads of this user, against which the kernel counts those of a case.
fn num_processes_of_user() -> u32 {
    use std::os::unix::fs::MetadataExt;
    let me = rustix::process::geteuid().as_raw();
    let of_process = |entry: std::fs::DirEntry| {
        entry.file_name().to_string_lossy().parse::<u32>().ok()?;
        let is_mine = entry.metadata().ok()?.uid() == me;
        let num_threads = std::fs::read_dir(entry.path().join("task")).ok()?.count();
        is_mine.then_some(num_threads as u32)
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(of_process).sum()
}
