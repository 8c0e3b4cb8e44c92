//! Refuses to start a second owner of the same name while the first one lives.

use std::path::Path;
use std::time::Duration;

use slime_cli::{Failure, exit};
use slime_exchange::{Heartbeat, Store};

use crate::failure;
use crate::replicate::BEAT_MS;

/// Beats that a living owner of another host cannot miss.
const NUM_BEATS: u64 = 3;

/// Who holds an incarnation: host, boot and process.
pub fn note() -> String {
    format!("{} {} {}", kernel("hostname"), kernel("random/boot_id"), std::process::id())
}

fn kernel(name: &str) -> String {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).unwrap_or_default();
    text.trim().replace(' ', "-")
}

/// Whether the process of a note lives; `None` when it ran on another host.
fn is_alive(note: &str, mine: &str) -> Option<bool> {
    let split = |text: &str| -> Option<(String, String, String)> {
        let mut words = text.split(' ').map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    };
    let ((host, boot, pid), (my_host, my_boot, my_pid)) = (split(note)?, split(mine)?);
    if host != my_host {
        return None;
    }
    Some(boot == my_boot && pid != my_pid && Path::new("/proc").join(pid).exists())
}

/// Refuses when the newest incarnation of `owner` lives: on this host by its process, else by its heartbeat.
pub fn refuse_second(store: &mut dyn Store, owner: &str) -> Result<(), Failure> {
    let folder = format!("owner/{owner}");
    let Some(newest) = store.list(&folder).map_err(failure!())?.into_iter().max() else { return Ok(()) };
    let bytes = store.read(&format!("{folder}/{newest}")).map_err(failure!())?;
    let holder = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let is_living = if let Some(is_living) = is_alive(&holder, &note()) {
        is_living
    } else {
        let before = Heartbeat::read(store, owner).map_err(failure!())?;
        std::thread::sleep(Duration::from_millis(NUM_BEATS * BEAT_MS));
        before != Heartbeat::read(store, owner).map_err(failure!())?
    };
    if is_living {
        return Err(Failure::new(exit::CANNOT_CREATE, format!("{owner} of this run is alive: {holder}"))
            .with_hint("wait for its end, or --takeover"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_this_boot_is_looked_up_and_others_are_not() {
        assert_eq!(is_alive("a b 1", "a b 99"), Some(true));
        assert_eq!(is_alive("a b 999999999", "a b 99"), Some(false));
        assert_eq!(is_alive("a earlier 1", "a b 99"), Some(false));
        assert_eq!(is_alive("other b 1", "a b 99"), None);
        assert_eq!(is_alive("host:12", "a b 99"), None);
    }
}
