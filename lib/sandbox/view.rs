//! What a case sees of the machine: programs and libraries, a handful of devices, nothing of people.

use std::path::{Path, PathBuf};

/// Where systems keep programs and libraries. Links among them are made again, folders are shown read-only.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store"];
/// The files of `/etc` that loaders, compilers, clocks and OpenSSL (in Node.js) want.
const ETC: [&str; 6] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",
];
/// Devices without a state.
pub(crate) const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The folders and files that are shown, those that exist; `roots` are where a language's programs are.
///
/// A root that holds the home folder, or is the top, would show everything of the user: it is left out, and what needs it
/// fails with a missing file.
pub(crate) fn shown(roots: &[PathBuf]) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.parent().is_some());
    let is_too_much =
        |path: &Path| path.parent().is_none() || home.as_ref().is_some_and(|home| home.starts_with(path));
    let mut paths: Vec<PathBuf> = SYSTEM.iter().chain(&ETC).map(PathBuf::from).collect();
    for root in roots {
        let is_shown = paths.iter().any(|path| root.starts_with(path));
        if !is_shown && !is_too_much(root) {
            paths.push(root.clone());
        }
    }
    paths.retain(|path| path.symlink_metadata().is_ok());
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_and_the_top_are_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let shown = shown(&["/".into(), std::env::var_os("HOME").unwrap().into(), dir.path().to_owned()]);
        assert!(shown.contains(&dir.path().to_owned()) && shown.contains(&PathBuf::from("/usr")));
        let home = PathBuf::from(std::env::var_os("HOME").unwrap());
        assert!(!shown.iter().any(|path| home.starts_with(path)), "{shown:?}");
        assert!(!shown.contains(&PathBuf::from("/etc")));
    }

    #[test]
    fn roots_inside_what_is_shown_are_not_shown_twice() {
        assert_eq!(shown(&["/usr/lib".into()]), shown(&[]));
    }
}
