//! Whether this node sees the run directory as the others do, can write to it, and how much room it has.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::check::Check;

/// Pauses between looks at the canary.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A file seen later than this makes every hand-over of the run as late.
const LATE: Duration = Duration::from_secs(5);
/// Names a run may still need: a segment, a column and a few small files for each replica and step.
const FEW_INODES: u64 = 100_000;
const MIN_INODES: u64 = 10_000;
const GB: f64 = 1e9;

/// Whether `file` holds `token`, looked at until `deadline`: a network file system shows a new file late.
pub fn canary(file: &Path, token: &str, deadline: Duration) -> Check {
    const NAME: &str = "canary";
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    let got = loop {
        let seen = fs::read_to_string(file).map(|text| text.trim().to_owned());
        if seen.as_ref().is_ok_and(|seen| seen == token.trim()) {
            let after = started.elapsed();
            if after > LATE {
                let hint =
                    "new files are seen late here: look at the attribute cache (acregmax, lookupcache)";
                let expected = format!("within {} s", LATE.as_secs());
                return Check::warn(NAME, format!("after {:.1} s", after.as_secs_f64()), expected, hint);
            }
            return Check::ok(NAME, format!("after {:.1} s", after.as_secs_f64()));
        }
        if started.elapsed() + pause > deadline {
            break match seen {
                Ok(other) => format!("\"{other}\""),
                Err(error) => error.to_string(),
            };
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        // Reading the folder makes an NFS client ask again for names it remembers as absent.
        let _ = file.parent().map(fs::read_dir).map(|entries| entries.map(Iterator::count));
    };
    let got = format!("{got} in {}", file.display());
    let expected = format!("\"{}\" within {} s", token.trim(), deadline.as_secs_f64());
    Check::bad(NAME, got, expected, "the run directory has to lie on a file system that all nodes share")
}

/// Whether this node can create and remove a file in the folder.
pub fn writable(name: &'static str, folder: &Path, node: &str, hint: &str) -> Check {
    // Shares the temporary names of outputs, so what a killed process leaves is removed by the next. Two checks of one
    // process may look at the same folder.
    let file = slime_cli::temporary_beside(&folder.join(format!("{name}.{node}")));
    let tried = File::create_new(&file)
        .and_then(|mut created| created.write_all(b"x").and_then(|()| created.sync_all()))
        .and_then(|()| fs::remove_file(&file));
    match tried {
        Ok(()) => Check::ok(name, folder.display()),
        Err(error) => {
            let _ = fs::remove_file(&file);
            Check::bad(name, format!("{}: {error}", folder.display()), "a file can be made and removed", hint)
        }
    }
}

/// Free space and inodes of the run directory, for a user without privileges.
pub fn room(run: &Path, min_free_gb: f64) -> Vec<Check> {
    let system = match rustix::fs::statvfs(run) {
        Ok(system) => system,
        Err(error) => {
            let got = format!("{}: {}", run.display(), std::io::Error::from(error));
            let hint = "the run directory has to exist before the preflight";
            return vec![Check::bad("free_space", got, "an answer of the file system", hint)];
        }
    };
    let free_gb = system.f_bavail as f64 * system.f_frsize as f64 / GB;
    let mut checks = vec![space(free_gb, min_free_gb)];
    // A file system that makes inodes as it needs them says 0 of 0.
    if system.f_files > 0 {
        checks.push(inodes(system.f_favail));
    }
    checks
}

fn space(free_gb: f64, min_free_gb: f64) -> Check {
    const HINT: &str = "free some space, or lower --min-free-gb (SLIME_MIN_FREE_GB of the job scripts)";
    let (got, expected) = (format!("{free_gb:.1} GB"), format!("at least {min_free_gb} GB"));
    if free_gb < min_free_gb {
        Check::bad("free_space", got, expected, HINT)
    } else if free_gb < 2.0 * min_free_gb {
        Check::warn("free_space", got, format!("at least {} GB", 2.0 * min_free_gb), HINT)
    } else {
        Check::ok("free_space", got)
    }
}

fn inodes(free: u64) -> Check {
    const HINT: &str = "remove files: the file system has no room for many more";
    if free < MIN_INODES {
        Check::bad("free_inodes", free, format!("at least {MIN_INODES}"), HINT)
    } else if free < FEW_INODES {
        Check::warn("free_inodes", free, format!("at least {FEW_INODES}"), HINT)
    } else {
        Check::ok("free_inodes", free)
    }
}

/// Everything about the run directory but the canary.
pub fn run_dir(run: &Path, node: &str, min_free_gb: f64) -> Vec<Check> {
    match fs::metadata(run) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let got = format!("{}: {error}", run.display());
            let hint = "make the run directory before the preflight, on a file system that all nodes share";
            vec![Check::bad("run_dir_writable", got, "a folder", hint)]
        }
        _ => {
            let hint = "the user needs write permission, and the mount must not be read-only";
            let mut checks = vec![writable("run_dir_writable", run, node, hint)];
            checks.extend(room(run, min_free_gb));
            checks
        }
    }
}

/// The scratch folder: the chosen one, else what Slurm or the environment names.
pub fn scratch_dir(chosen: Option<&PathBuf>) -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    chosen.cloned().or_else(|| named("SLURM_TMPDIR")).or_else(|| named("TMPDIR")).unwrap_or("/tmp".into())
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn room_is_judged_by_its_limits() {
        for (free, verdict) in [(9.9, Verdict::Bad), (10.0, Verdict::Warn), (20.0, Verdict::Ok)] {
            assert_eq!(space(free, 10.0).verdict, verdict, "{free}");
        }
        for (free, verdict) in [(9_999, Verdict::Bad), (99_999, Verdict::Warn), (100_000, Verdict::Ok)] {
            assert_eq!(inodes(free).verdict, verdict, "{free}");
        }
    }

    #[test]
    fn canary_that_comes_late_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("canary");
        let writer = std::thread::spawn({
            let file = file.clone();
            move || {
                sleep(Duration::from_millis(30));
                fs::write(file, "token\n").unwrap();
            }
        });
        assert_eq!(canary(&file, "token", Duration::from_secs(60)).verdict, Verdict::Ok);
        writer.join().unwrap();
        let other = canary(&file, "other", Duration::from_millis(1));
        assert_eq!(other.verdict, Verdict::Bad);
        assert!(other.got.starts_with("\"token\" in /"), "{}", other.got);
    }
}
