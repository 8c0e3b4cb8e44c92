//! The official `openai` package and plain `requests`, as `SGLang` documents them, talk with a server.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::python::python;
use crate::server::Server;

/// What a script of `tests/python_checks` sees of a server.
fn client(python: &Path, script: &str, server: &Server) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_checks").join(script);
    let output =
        Command::new(python).arg(path).args([&server.url, &server.token()]).output().expect("python starts");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the script prints JSON")
}

#[test]
fn the_openai_package_talks_with_a_server() {
    let Some(python) = python("openai") else { return };
    let server = Server::start(&["--model-name", "tiny"]);
    let seen = client(&python, "openai_client.py", &server);
    assert_eq!((&seen["model"], seen["errors"].as_array().unwrap().len()), (&json!("tiny"), 4));
    server.rests();
}

#[test]
fn calls_as_sglang_documents_them_are_answered() {
    let Some(python) = python("requests") else { return };
    let server = Server::start(&[]);
    let seen = client(&python, "sglang_client.py", &server);
    assert!(seen["tokens"].as_u64().unwrap() > 0);
    server.rests();
}
