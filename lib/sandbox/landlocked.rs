//! The rules of the Landlock tier: the view read-only, one work folder, no TCP, no signals to others.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::error::{Error, Result};
use crate::view::DEVICES;

/// The ABI whose scopes keep signals inside; before it, a filter has to deny them all.
const WITH_SCOPES: libc::c_long = 6;

/// Whether the kernel keeps signals inside a ruleset's domain.
pub(crate) fn scopes_signals() -> bool {
    abi() >= WITH_SCOPES
}

/// The version of Landlock that the kernel has; below 1 there is none.
#[expect(unsafe_code, reason = "landlock_create_ruleset's query form, which the crate keeps to itself")]
fn abi() -> libc::c_long {
    const VERSION: libc::c_long = 1;
    // SAFETY: with a null pointer, size 0 and this flag the call only returns a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) }
}

/// A ruleset for `landlock_restrict_self`: reads and executes `shown`, writes below `writable` only.
pub(crate) fn ruleset(shown: &[PathBuf], writable: &[&Path]) -> Result<OwnedFd> {
    if abi() < 1 {
        return Err(Error::Setup { problem: "the kernel has no Landlock".to_owned() });
    }
    let created =
        create(shown, writable).map_err(|error| Error::Setup { problem: format!("landlock: {error}") })?;
    let fd: Option<OwnedFd> = created.into();
    fd.ok_or_else(|| Error::Setup { problem: "the kernel has no Landlock".to_owned() })
}

fn create(shown: &[PathBuf], writable: &[&Path]) -> std::result::Result<RulesetCreated, RulesetError> {
    // Rights that the kernel does not know are left out; the first ABI is all that the tier's promises need.
    let newest = ABI::V6;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(newest))?
        .handle_access(AccessNet::from_all(newest))?
        .scope(Scope::from_all(newest))?
        .create()?;
    let read = AccessFs::from_read(newest);
    let on_files = AccessFs::from_file(newest);
    for path in shown {
        let Ok(fd) = PathFd::new(path) else { continue };
        let rights = if path.is_dir() { read } else { read & on_files };
        rules = rules.add_rule(PathBeneath::new(fd, rights))?;
    }
    for device in DEVICES {
        let Ok(fd) = PathFd::new(device) else { continue };
        rules = rules.add_rule(PathBeneath::new(fd, AccessFs::ReadFile | AccessFs::WriteFile))?;
    }
    for path in writable {
        let Ok(fd) = PathFd::new(path) else { continue };
        rules = rules.add_rule(PathBeneath::new(fd, AccessFs::from_all(newest) & !AccessFs::IoctlDev))?;
    }
    Ok(rules)
}
