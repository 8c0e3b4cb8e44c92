//! Runs the small checks of `tests/python_checks` with a Python that has their packages.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What the check prints; nothing, said aloud, where no Python has `package` (`SLIME_TEST_PYTHON`, else `python3`).
pub fn check(package: &str, script: &str, arguments: &[&str]) -> Option<Value> {
    let python = std::env::var("SLIME_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let imports = Command::new(&python).args(["-c", &format!("import {package}")]).output();
    if !imports.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} cannot import {package} (set SLIME_TEST_PYTHON)");
        return None;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_checks").join(script);
    let output = Command::new(&python).arg(path).args(arguments).output().expect("it started before");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("the check prints JSON"))
}
