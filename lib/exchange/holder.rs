//! Who runs an owner: host, boot and process. Refuses a second owner while the first lives, and removes what dead
//! ones left half written.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use slime_config::paths;
use slime_record::Epoch;

use crate::owner::Heartbeats;
use crate::segment::from_json;
use crate::{Error, Heartbeat, Result, Store};

/// Beats that a living owner of another host cannot miss, unless it is inside one long step.
const NUM_BEATS: u32 = 3;

/// A process; its text goes into incarnations, epochs and temporary names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    host: String,
    boot: String,
    pid: u32,
    /// Clock ticks from boot to its start: a process number may come back, this does not.
    started: u64,
}

/// `<host>.<boot>.<pid>.<started>`
impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}.{}", self.host, self.boot, self.pid, self.started)
    }
}

impl Holder {
    /// This process.
    pub fn this() -> Self {
        let pid = std::process::id();
        let kernel = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
            text.trim().replace(['/', ' '], "-")
        };
        let started = started(pid).unwrap_or_default();
        Self { host: kernel("hostname"), boot: kernel("random/boot_id"), pid, started }
    }

    /// Reads its text back.
    pub fn parse(text: &str) -> Option<Self> {
        // From the end, since host names have dots.
        let mut parts = text.trim().rsplitn(4, '.');
        let (started, pid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let (boot, host) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        Some(Self { host, boot, pid, started })
    }

    /// Whether it lives; none when it ran on another host than `mine`.
    fn is_alive(&self, mine: &Self) -> Option<bool> {
        let is_here = self.host == mine.host;
        is_here.then(|| self.boot == mine.boot && self != mine && started(self.pid) == Some(self.started))
    }
}

/// When a process began; none where there is none, or where only its parent has not taken notice yet that it ended.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in brackets and may hold anything; its state is the first field behind it, its start the 20th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    if has_ended { None } else { fields.nth(18)?.parse().ok() }
}

/// Errs with [`Error::Alive`] when the newest incarnation of `owner` (or the newest epoch of the trainer) lives: on
/// this host by its process, else by its heartbeat, which is watched for three times `beat`.
pub fn refuse_second(store: &mut dyn Store, owner: &str, beat: Duration) -> Result<()> {
    let Some((_, text)) = holders(store, owner)?.pop() else { return Ok(()) };
    let holder = Holder::parse(&text);
    let is_alive = holder.as_ref().and_then(|holder| holder.is_alive(&Holder::this()));
    let is_alive = if let Some(is_alive) = is_alive {
        is_alive
    } else {
        let mut beats = Heartbeats::new();
        Heartbeat::read_all(store, &mut beats)?;
        let before = beats.get(owner).cloned();
        std::thread::sleep(beat * NUM_BEATS);
        Heartbeat::read_all(store, &mut beats)?;
        // A heart that was not seen before may just have moved on, or begun to beat.
        before.as_ref() != beats.get(owner)
    };
    if !is_alive {
        return Ok(());
    }
    let holder = match holder {
        Some(Holder { host, pid, .. }) => format!("process {pid} on {host}"),
        None => "its heart beats".to_owned(),
    };
    Err(Error::Alive { owner: owner.to_owned(), holder })
}

/// Incarnations of an owner, oldest first, with the text of their holders.
fn holders(store: &mut dyn Store, owner: &str) -> Result<Vec<(u64, String)>> {
    let is_trainer = owner == paths::TRAINER;
    let dir = if is_trainer { paths::EPOCHS.to_owned() } else { paths::owner(owner) };
    let mut found = Vec::new();
    for name in store.list(&dir)? {
        let Some(number) = paths::parse_number(&name) else { continue };
        let path = format!("{dir}/{name}");
        let Some(bytes) = store.read(&path)? else { continue };
        let text = if is_trainer {
            from_json::<Epoch>(&path, &bytes)?.holder
        } else {
            String::from_utf8_lossy(&bytes).into_owned()
        };
        found.push((number, text));
    }
    found.sort();
    Ok(found)
}

/// Removes from `dirs` the temporary files of the processes that held `owner` before `incarnation`, and that are not
/// known to live.
pub(crate) fn sweep(store: &mut dyn Store, owner: &str, incarnation: u64, dirs: &[String]) -> Result<()> {
    let mine = Holder::this();
    let is_dead = |text: &String| Holder::parse(text).and_then(|holder| holder.is_alive(&mine)) != Some(true);
    let own = store.writer().to_owned();
    let before = holders(store, owner)?.into_iter().filter(|(number, _)| *number < incarnation);
    let writers: BTreeSet<String> = before.map(|(_, text)| text).filter(is_dead).collect();
    let writers: Vec<String> = writers.into_iter().filter(|text| !text.is_empty() && *text != own).collect();
    if writers.is_empty() {
        return Ok(());
    }
    dirs.iter().try_for_each(|dir| store.sweep(dir, &writers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FsStore, Owner};

    #[test]
    fn a_process_that_waits_for_its_parent_to_notice_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while started(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(std::path::Path::new(&format!("/proc/{}", child.id())).exists());
        child.wait().unwrap();
        assert!(started(std::process::id()).is_some());
    }

    #[test]
    fn a_process_of_this_boot_is_looked_up_and_others_are_not() {
        let mine = Holder::this();
        assert_eq!(Holder::parse(&mine.to_string()), Some(mine.clone()));
        assert_eq!(mine.is_alive(&mine), Some(false), "an owner that starts again in its process");
        let parent = Holder { pid: std::os::unix::process::parent_id(), ..mine.clone() };
        let parent = Holder { started: started(parent.pid).unwrap(), ..parent };
        assert_eq!(parent.is_alive(&mine), Some(true));
        let reused = Holder { started: parent.started + 1, ..parent.clone() };
        assert_eq!(reused.is_alive(&mine), Some(false));
        assert_eq!(Holder { boot: "earlier".into(), ..parent.clone() }.is_alive(&mine), Some(false));
        assert_eq!(Holder { host: "a.b".into(), ..parent }.is_alive(&mine), None);
        assert_eq!(Holder::parse("a.b.1-2.3.4").unwrap().host, "a.b");
        assert_eq!(Holder::parse("host 12"), None);
    }

    #[test]
    fn an_owner_of_another_host_is_alive_while_its_heart_beats() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FsStore::open(dir.path()).unwrap();
        let beat = Duration::from_millis(10);
        refuse_second(&mut store, "replica.0", beat).unwrap();
        store.seal(&paths::incarnation("replica.0", 3), b"far.boot.1.2").unwrap();
        refuse_second(&mut store, "replica.0", beat).unwrap();
        let mut heart = Heartbeat::of(3);
        heart.beat(&mut store, "replica.0").unwrap();
        refuse_second(&mut store, "replica.0", beat).unwrap();
        let root = dir.path().to_owned();
        let other = std::thread::spawn(move || {
            let mut store = FsStore::open(root).unwrap();
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(5));
                heart.beat(&mut store, "replica.0").unwrap();
            }
        });
        let error = refuse_second(&mut store, "replica.0", beat).unwrap_err();
        assert_eq!(error.exit_code(), 73);
        assert!(error.to_string().starts_with("replica.0 of this run is alive: process 1 on far\nhint: "));
        other.join().unwrap();
    }

    #[test]
    fn half_written_files_of_dead_predecessors_go_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FsStore::open(dir.path()).unwrap();
        let mine = Holder::this();
        let parent = std::os::unix::process::parent_id();
        let dead = Holder { started: mine.started + 1, ..mine.clone() }.to_string();
        let living = Holder { pid: parent, started: started(parent).unwrap(), ..mine }.to_string();
        let stranger = "far.boot.1.2".to_owned();
        let folder = paths::step(0);
        for writer in [&dead, &living, &stranger, &store.writer().to_owned()] {
            let name = format!("{folder}/{}", paths::temporary_name(writer, 7));
            fs::create_dir_all(dir.path().join(&folder)).unwrap();
            fs::write(dir.path().join(name), "half").unwrap();
        }
        store.seal(&paths::incarnation("replica.1", 1), dead.as_bytes()).unwrap();
        store.seal(&paths::incarnation("replica.1", 2), living.as_bytes()).unwrap();
        let owner = Owner::claim(&mut store, "replica.1").unwrap();
        sweep(&mut store, "replica.1", owner.incarnation, std::slice::from_ref(&folder)).unwrap();
        let left: BTreeSet<String> = fs::read_dir(dir.path().join(&folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let kept = [&living, &stranger, &store.writer().to_owned()].map(|w| paths::temporary_name(w, 7));
        assert_eq!(left, BTreeSet::from(kept));
    }
}
