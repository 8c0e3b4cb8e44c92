//! `slime-rollout --engine` with our own servers: the rows are those of the engine at home.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::server::Server;

const PROMPTS: &str = "{\"prompt\": \"1 + 2 =\", \"label\": \"3\", \"metadata\": {\"a\": 1}}\n\
    {\"prompt\": [{\"role\": \"user\", \"content\": \"count\"}]}\n{\"prompt\": \"xyz\"}\n{\"prompt\": \"seven\"}\n";

/// `slime-rollout` over prompts, with the weights of `server` and these arguments.
pub fn rollout(server: &Server, more: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slime-rollout"))
        .args(["--weights", server.weights().to_str().unwrap(), "--prompts", "-"])
        .args(["--set", "rollout.max_response_len=24", "--set", "rollout.n_samples_per_prompt=4"])
        .args(["--set", "rollout.temperature=0.9", "--set", "rollout.top_p=0.95", "--set", "run.seed=11"])
        .args(more)
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A tool that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(PROMPTS.as_bytes());
    child.wait_with_output().unwrap()
}

pub fn stdout(output: &Output) -> &[u8] {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    &output.stdout
}

/// The arguments that name servers.
pub fn engines(urls: &[&str], server: &Server) -> Vec<String> {
    let token_file = server.token_file().display().to_string();
    vec!["--engine".to_owned(), urls.join(","), "--engine-token-file".to_owned(), token_file]
}

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// The rows without their log-probs, and the log-probs.
fn parted(stdout: &[u8]) -> (Vec<Value>, Vec<f64>) {
    let mut log_probs = Vec::new();
    let lines = stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let rows = lines.map(|line| {
        let mut row: Value = serde_json::from_slice(line).unwrap();
        let taken = row.as_object_mut().unwrap().remove("rollout_log_probs").unwrap();
        log_probs.extend(taken.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()));
        row
    });
    (rows.collect(), log_probs)
}

fn assert_same_rows(one: &Output, other: &Output) {
    let ((rows, log_probs), (other_rows, others)) = (parted(stdout(one)), parted(stdout(other)));
    assert_eq!((rows.len(), &rows), (16, &other_rows));
    // A sum over a batch of another size is rounded in another order.
    assert!(log_probs.iter().zip(&others).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn rows_of_servers_are_the_bytes_of_the_engine_at_home() {
    let one = ["--set", "rollout.max_in_flight=1"];
    let server = Server::start(&one);
    for more in [&["--set", "rollout.stop=[\"q\", \"zz\"]"][..], &[], &["--format", "arrow"]] {
        let home = rollout(&server, &[&one[..], more].concat());
        let args = engines(&[&server.url], &server);
        let away = rollout(&server, &[&strs(&args)[..], &one, more].concat());
        assert!(stdout(&home) == stdout(&away), "{more:?}: the rows differ");
    }
    server.rests();
}

#[test]
fn rows_do_not_depend_on_how_many_servers_there_are_and_how_busy_they_are() {
    let first = Server::start(&["--set", "rollout.max_in_flight=3"]);
    let token_file = first.token_file().display().to_string();
    let place = ["--port", "0", "--token-file", &token_file].map(str::to_owned);
    let second = Server::start_in(tempfile::TempDir::new().unwrap(), &place, &[]);
    let home = rollout(&first, &[]);
    // A third on a socket, which wants no token and does not mind one.
    let dir = tempfile::TempDir::new().unwrap();
    let place = ["--unix-socket".to_owned(), dir.path().join("s").display().to_string()];
    let third = Server::start_in(dir, &place, &[]);
    let (first_url, second_url, third_url) = (first.url.as_str(), second.url.as_str(), third.url.as_str());
    for urls in [&[first_url][..], &[second_url], &[third_url], &[first_url, second_url, third_url]] {
        assert_same_rows(&home, &rollout(&first, &strs(&engines(urls, &first))));
    }
}

#[test]
fn a_server_that_is_not_there_or_dies_costs_nothing_but_time() {
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    let home = rollout(&first, &[]);
    // Nobody listens on port 1.
    let args = engines(&["http://127.0.0.1:1", &first.url], &first);
    assert_same_rows(&home, &rollout(&first, &strs(&args)));
    let url = second.url.clone();
    drop(second);
    let args = engines(&[&url, &first.url], &first);
    assert_same_rows(&home, &rollout(&first, &strs(&args)));
    let mut args = engines(&["http://127.0.0.1:1"], &first);
    args.extend(["--engine-patience-s".to_owned(), "0".to_owned()]);
    let output = rollout(&first, &strs(&args));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(69) && stderr.contains("no server answers"), "{stderr}");
}

#[test]
fn what_a_server_refuses_ends_the_rollout_with_its_words() {
    let server = Server::start(&[]);
    let (url, wrong) = (server.url.as_str(), server.dir.path().join("wrong"));
    std::fs::write(&wrong, "another-token-of-somebody").unwrap();
    let wrong = wrong.display().to_string();
    for (args, code, part) in [
        (
            vec!["--engine", url, "--engine-token-file", &wrong, "--engine-patience-s", "0"],
            69,
            "no server answers",
        ),
        (vec!["--engine", "ftp://x"], 64, "http://HOST:PORT or unix:PATH"),
        (vec!["--engine", "unix:/no/such/socket", "--engine-patience-s", "0"], 69, "/no/such/socket"),
        (vec!["--engine", url, "--engine-token-file", "/no/such/token"], 66, "/no/such/token"),
    ] {
        let output = rollout(&server, &args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && stderr.contains(part), "{args:?}: {stderr}");
    }
}

#[test]
fn a_replica_whose_engine_is_a_server_commits_the_same_step() {
    let mut manifests = Vec::new();
    for is_away in [false, true] {
        let root = tempfile::TempDir::new().unwrap();
        let run = root.path().join("run");
        let weights = root.path().join("model");
        std::fs::create_dir_all(&weights).unwrap();
        std::fs::create_dir_all(&run).unwrap();
        crate::server::write_weights(&weights);
        for folder in ["epoch", "version", "control"] {
            std::fs::create_dir_all(run.join(folder)).unwrap();
        }
        let config = format!(
            "[run]\nnum_steps = 1\n[model]\npath = \"{}\"\n[data]\nenvironment = \"arithmetic\"\n[rollout]\n\
             rollout_batch_size = 2\nn_samples_per_prompt = 3\nmax_response_len = 6\n",
            weights.display()
        );
        std::fs::write(run.join("run.toml"), config).unwrap();
        let epoch = json!({"epoch": 1, "parent": null, "checkpoint": 0});
        std::fs::write(run.join("epoch/000001"), epoch.to_string()).unwrap();
        crate::published::publish_first(&run, &weights);
        let server = is_away.then(|| {
            Server::start(&["--weight-root", root.path().to_str().unwrap(), "--weight-version", "first"])
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_slime-rollout"));
        command.arg("--follow").arg(&run).stderr(Stdio::piped());
        if let Some(server) = &server {
            command.args(engines(&[&server.url], server));
        }
        let child = command.spawn().unwrap();
        let manifest = run.join("rollout/000000/MANIFEST.json");
        for _ in 0..1200 {
            if manifest.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        std::fs::write(run.join("control/done"), "").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
        let groups = manifest["groups"].as_array().unwrap().clone();
        manifests.push(groups.iter().map(|group| group["samples"].clone()).collect::<Vec<_>>());
        if let Some(server) = server {
            let (_, text) = server.call("/get_weight_version", None);
            assert!(text.contains("\"0\""), "the server got the run's version: {text}");
        }
    }
    assert_eq!(manifests[0], manifests[1], "the same samples wherever they are drawn");
}
