//! The watchdog of a resident tool: it notes what its rank is doing, and ends a rank that makes no progress, after
//! writing down where it hangs.
//!
//! A rank says with [`enter`] what it begins; each section has its own limit, since loading may take longer than a
//! step. QUIT asks for the stacks of a rank that shall go on.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::SIGQUIT;

use crate::{Failure, exit, stacks};

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(250);
/// How often it notes what its rank is doing; few enough for a thousand ranks on one filesystem.
const NOTE: Duration = Duration::from_secs(30);
/// How long a rank that gives up leaves its peers to write down where they hang.
const PEERS: Duration = Duration::from_secs(3);

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Section {
    /// Starts: reads weights, meets its peers.
    Setup,
    /// Looks for work.
    Wait,
    /// Works on a step.
    Step,
    /// Writes or reads the trainer's state.
    Checkpoint,
    /// Has ended.
    End,
}

const NAMES: [&str; 5] = ["setup", "wait", "step", "checkpoint", "end"];

/// How long a section may last without progress; none: for ever.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Of [`Section::Setup`].
    pub setup: Option<Duration>,
    /// Of [`Section::Step`] and [`Section::Wait`].
    pub step: Option<Duration>,
    /// Of [`Section::Checkpoint`].
    pub checkpoint: Option<Duration>,
}

impl Limits {
    fn of(&self, section: u8) -> Option<Duration> {
        match section {
            s if s == Section::Setup as u8 => self.setup,
            s if s == Section::Checkpoint as u8 => self.checkpoint,
            s if s == Section::End as u8 => None,
            _ => self.step,
        }
    }
}

/// What a rank leaves for people in the folder of its job's attempt.
#[derive(Debug, Clone)]
pub struct RankFiles {
    /// What it is doing, replaced every half minute.
    pub note: PathBuf,
    /// Why it failed.
    pub failed: PathBuf,
    /// Where it hangs.
    pub stack: PathBuf,
    /// The notes of this rank's peers lie beside its own under names that begin so.
    pub peers: String,
    /// Those of the ranks that it computes with; none of a process by itself.
    pub world: Option<String>,
}

struct Rank {
    role: String,
    files: Option<RankFiles>,
    limits: Limits,
    started: Instant,
}

/// What a rank says that makes none.
const NO_PROGRESS: &str = "no progress";

/// Another rank of the same tool.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    role: String,
    host: String,
    pid: u32,
}

impl Peer {
    /// From the name of its note, `<role>.<host>.<process>.json`, where a role is of `num_words` words with points between.
    fn of_note(name: &str, num_words: usize) -> Option<Self> {
        let (rest, pid) = name.strip_suffix(".json")?.rsplit_once('.')?;
        let (end, _) = rest.match_indices('.').nth(num_words - 1)?;
        let (role, host) = (rest[..end].to_owned(), rest[end + 1..].to_owned());
        Some(Self { role, host, pid: pid.parse().ok()? })
    }
}

static RANK: OnceLock<Rank> = OnceLock::new();
static SECTION: AtomicU8 = AtomicU8::new(Section::Setup as u8);
/// Milliseconds from the start to the last progress.
static PROGRESS_MS: AtomicU64 = AtomicU64::new(0);
/// Milliseconds from the start to the section's begin.
static BEGAN_MS: AtomicU64 = AtomicU64::new(0);
static NOTING: Mutex<()> = Mutex::new(());

/// Starts the watchdog of this process; later calls change nothing.
pub fn start(role: &str, limits: Limits, files: Option<RankFiles>) {
    let mut is_first = false;
    let rank = RANK.get_or_init(|| {
        is_first = true;
        Rank { role: role.to_owned(), files, limits, started: Instant::now() }
    });
    if !is_first {
        return;
    }
    let is_asked = Arc::new(AtomicBool::new(false));
    if let Err(error) = signal_hook::flag::register(SIGQUIT, Arc::clone(&is_asked)) {
        tracing::warn!("cannot catch QUIT: {error}");
    }
    let watch = std::thread::Builder::new().name("watchdog".to_owned());
    if let Err(error) = watch.spawn(move || rank.watch(&is_asked)) {
        tracing::warn!("no watchdog: {error}");
    }
}

/// This rank makes progress, in this section from now on.
pub fn enter(section: Section) {
    let Some(rank) = RANK.get() else { return };
    let now_ms = rank.now_ms();
    if SECTION.swap(section as u8, Ordering::Relaxed) != section as u8 {
        BEGAN_MS.store(now_ms, Ordering::Relaxed);
    }
    PROGRESS_MS.store(now_ms, Ordering::Relaxed);
}

/// Leaves the reason of a failure, and the last note, for whoever looks after the job.
pub(crate) fn record(tool: &str, failure: &Failure) {
    let Some(rank) = RANK.get() else { return };
    finish();
    let Some(files) = &rank.files else { return };
    let hint = failure.hint.as_ref().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    let text = format!("code {}\n{tool}: {}\n{hint}", failure.code, failure.message.trim_end());
    if let Err(error) = write_whole(&files.failed, text.as_bytes()) {
        tracing::warn!("{}: {error}", files.failed.display());
    }
}

/// The last note of a rank that ends well.
pub(crate) fn finish() {
    enter(Section::End);
    if let Some(rank) = RANK.get() {
        rank.note();
    }
}

impl Rank {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn watch(&self, is_asked: &AtomicBool) {
        let mut noted: Option<Instant> = None;
        loop {
            if noted.is_none_or(|noted| noted.elapsed() >= NOTE) {
                self.note();
                noted = Some(Instant::now());
            }
            if is_asked.swap(false, Ordering::Relaxed) {
                self.write_stacks("QUIT", true);
            }
            let section = SECTION.load(Ordering::Relaxed);
            let silent =
                Duration::from_millis(self.now_ms() - PROGRESS_MS.load(Ordering::Relaxed).min(self.now_ms()));
            if let Some(limit) = self.limits.of(section).filter(|limit| silent > *limit) {
                self.give_up(NAMES[section as usize], limit);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn give_up(&self, section: &str, limit: Duration) -> ! {
        let message = format!("{}: {NO_PROGRESS} in section {section} for {} s", self.role, limit.as_secs());
        self.write_stacks(&message, false);
        let where_to = self
            .files
            .as_ref()
            .map_or_else(|| "stderr".to_owned(), |files| files.stack.display().to_string());
        let failure = Failure::new(exit::TIMEOUT, message)
            .with_hint(format!("its stacks are in {where_to}; [watchdog] sets the limits, 0 is none"));
        crate::report("watchdog", &failure);
        std::thread::sleep(PEERS);
        let silent = self.silent_peers();
        if !silent.is_empty() {
            let message = format!(
                "{}\nnothing came from {}: stopped, or out of reach",
                failure.message,
                silent.join(", ")
            );
            crate::report("watchdog", &Failure { message, ..failure });
        }
        std::process::exit(i32::from(exit::TIMEOUT))
    }

    /// The ranks of its world that have not said by now that they make no progress either, as only a process that does not run at
    /// all fails to; with process and host.
    fn silent_peers(&self) -> Vec<String> {
        let Some((files, world)) = self.files.as_ref().and_then(|files| Some((files, files.world.as_ref()?)))
        else {
            return Vec::new();
        };
        let is_silent = |role: &str| {
            let stack = files.stack.with_file_name(format!("{role}.stack"));
            !fs::read_to_string(stack).is_ok_and(|text| text.contains(NO_PROGRESS))
        };
        let silent =
            self.peers().into_iter().filter(|peer| peer.role.starts_with(world) && is_silent(&peer.role));
        silent.map(|Peer { role, host, pid }| format!("{role} (process {pid} on {host})")).collect()
    }

    /// The stacks of this process, and the kernel's view of peers on this host that stand still.
    fn write_stacks(&self, why: &str, is_gentle: bool) {
        let mut text = format!("{why}\n{} (process {} on {})\n", self.role, std::process::id(), host());
        text += &stacks::stacks(is_gentle);
        let here = host();
        for Peer { role, pid, .. } in self.peers().into_iter().filter(|peer| peer.host == here) {
            text.extend([format!(
                "{role} (process {pid}, seen by the kernel)\n{}",
                stacks::kernel_stacks(pid)
            )]);
        }
        let written = self.files.as_ref().is_some_and(|files| {
            let file = fs::File::options().create(true).append(true).open(&files.stack);
            file.and_then(|mut file| file.write_all(text.as_bytes())).is_ok()
        });
        if !written {
            eprint!("{text}");
        }
    }

    /// This rank's peers, by their notes.
    fn peers(&self) -> Vec<Peer> {
        let Some(files) = &self.files else { return Vec::new() };
        let entries = files.note.parent().and_then(|folder| fs::read_dir(folder).ok());
        let num_words = self.role.split('.').count();
        let mut peers = Vec::new();
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            peers.extend(
                Peer::of_note(&name, num_words)
                    .filter(|peer| peer.role.starts_with(&files.peers) && peer.role != self.role),
            );
        }
        peers.sort();
        peers
    }

    fn note(&self) {
        let Some(files) = &self.files else { return };
        let _guard = NOTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let section = NAMES[SECTION.load(Ordering::Relaxed) as usize];
        let (wall_ms, began_ms) = (self.now_ms(), BEGAN_MS.load(Ordering::Relaxed));
        let written = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (cpu_s, max_rss_bytes) = usage();
        let num_cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let text = format!(
            "{{\"role\":\"{}\",\"host\":\"{}\",\"pid\":{},\"section\":\"{section}\",\"section_s\":{:.1},\
             \"wall_s\":{:.1},\"cpu_s\":{cpu_s:.2},\"num_cpus\":{num_cpus},\"max_rss_bytes\":{max_rss_bytes},\
             \"written\":{:.3}}}\n",
            self.role,
            host(),
            std::process::id(),
            wall_ms.saturating_sub(began_ms) as f64 / 1e3,
            wall_ms as f64 / 1e3,
            written.as_secs_f64(),
        );
        if let Err(error) = write_whole(&files.note, text.as_bytes()) {
            tracing::debug!("{}: {error}", files.note.display());
        }
    }
}

/// The name the kernel gives this host.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// What this process has used: seconds of all cores, and its largest resident size in bytes.
pub fn usage() -> (f64, u64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the bracketed name, user and system time are the 12th and 13th field, in ticks of 10 ms.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kib: u64 = peak.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    ((ticks(11) + ticks(12)) / 100.0, peak_kib * 1024)
}

fn write_whole(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_from_the_names_of_their_notes() {
        let peer =
            |role: &str, host: &str, pid| Some(Peer { role: role.to_owned(), host: host.to_owned(), pid });
        let of_note = |name| Peer::of_note(name, 2);
        assert_eq!(
            of_note("trainer.12.node-3.cluster.org.4711.json"),
            peer("trainer.12", "node-3.cluster.org", 4711)
        );
        assert_eq!(of_note("trainer.0.here.7.json"), peer("trainer.0", "here", 7));
        assert_eq!(of_note("trainer.0.here.7.tmp"), None);
        assert_eq!(of_note("trainer.json"), None);
        assert_eq!(Peer::of_note("replica.2.1.here.7.json", 3), peer("replica.2.1", "here", 7));
    }
}
