//! `slime-rollout serve` as its clients meet it, and `slime-rollout --engine` as one of them.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

#[path = "serve/clients.rs"]
mod clients;
#[path = "serve/foreign.rs"]
mod foreign;
#[path = "serve/packages.rs"]
mod packages;
#[path = "fixtures/published.rs"]
mod published;
#[path = "fixtures/python.rs"]
mod python;
#[path = "fixtures/server.rs"]
mod server;
#[path = "serve/soak.rs"]
mod soak;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use server::Server;
use tempfile::TempDir;

/// What a raw connection answers to these bytes, as far as it goes.
fn raw(mut stream: impl Read + Write, request: &[u8]) -> String {
    // A server that refuses may not read all of it.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn tcp(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn post(server: &Server, path: &str, body: &str) -> String {
    let len = body.len();
    let token = server.token();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
    )
}

#[test]
fn one_request_in_every_shape_of_bad_is_one_error_and_the_server_stays_well() {
    let server = Server::start(&["--max-body-mib", "1", "--read-timeout-s", "2"]);
    let long = "x".repeat(5000);
    for (path, body, status, part) in [
        ("/generate", json!({"text": long}), 400, "the context holds 256"),
        ("/generate", json!({"text": "a", "sampling_params": {"top_p": 7}}), 400, "top_p"),
        ("/v1/completions", json!({"prompt": "a", "temperature": -1}), 400, "temperature"),
        ("/v1/completions", json!({"prompt": "a", "model": "gpt-4"}), 404, "gpt-4"),
        ("/v1/chat/completions", json!({"messages": "hi"}), 400, "messages"),
        ("/update_weights_from_disk", json!({"model_path": "/root"}), 403, "--weight-root"),
    ] {
        let (got, text) = server.call(path, Some(&body));
        assert_eq!(got, status, "{path}: {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(answer["error"]["message"].as_str().unwrap().contains(part), "{text}");
    }
    assert!(raw(tcp(&server), post(&server, "/generate", "{\"text\": ").as_bytes()).contains("not JSON"));
    // A body of 1 GB is refused by its announcement, and by its length where it is not announced.
    let token = server.token();
    let head = format!(
        "POST /generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
    );
    let mut announced = format!("{head}Content-Length: 1000000000\r\n\r\n").into_bytes();
    announced.resize(announced.len() + (2 << 20), b' ');
    let stream = tcp(&server);
    let half = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut half = half;
        let _ = half.write_all(&announced);
        let _ = half.shutdown(std::net::Shutdown::Write);
    });
    let answer = raw(stream, b"");
    sender.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..3 {
        chunked.extend(b"80000\r\n");
        chunked.resize(chunked.len() + 0x80000, b' ');
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    assert!(raw(tcp(&server), &chunked).starts_with("HTTP/1.1 413"));
    // Heads that are too long, have too many fields, are no HTTP, or do not end.
    let field = format!("{head}X-A: {}\r\n\r\n", "a".repeat(100_000));
    assert!(raw(tcp(&server), field.as_bytes()).starts_with("HTTP/1.1 431"));
    let many = "X-A: 1\r\n".repeat(200);
    assert!(raw(tcp(&server), format!("{head}{many}\r\n").as_bytes()).starts_with("HTTP/1.1 431"));
    assert!(raw(tcp(&server), b"what\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(!raw(tcp(&server), head.as_bytes()).contains("200 OK"), "a head without an end");
    // Without the token nothing but health.
    let health = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert!(raw(tcp(&server), health.as_bytes()).starts_with("HTTP/1.1 200"));
    let models = "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert!(raw(tcp(&server), models.as_bytes()).starts_with("HTTP/1.1 401"));
    server.ok("/generate", &json!({"text": "a", "sampling_params": {"max_new_tokens": 4}}));
    server.rests();
}

#[test]
fn a_client_that_hangs_up_in_the_midst_frees_its_pages() {
    let server = Server::start(&[]);
    for is_stream in [true, false] {
        let sampling = json!({"max_new_tokens": 200, "ignore_eos": true, "n": 8});
        let body = json!({"text": "a", "stream": is_stream, "sampling_params": sampling}).to_string();
        let mut stream = tcp(&server);
        stream.write_all(post(&server, "/generate", &body).as_bytes()).unwrap();
        if is_stream {
            let mut first = [0; 1024];
            assert!(stream.read(&mut first).unwrap() > 0);
        }
        while !is_stream && server.load()["num_running_reqs"] == 0 {
            stream.set_nonblocking(true).unwrap();
            if stream.peek(&mut [0]).is_ok() {
                // Answered before anybody looked: once more.
                stream = tcp(&server);
                stream.write_all(post(&server, "/generate", &body).as_bytes()).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(stream);
        server.rests();
    }
    let (_, metrics) = server.call("/metrics", None);
    let aborted = metrics.lines().find_map(|line| line.strip_prefix("slime_serve_aborted_total ")).unwrap();
    assert!(aborted.parse::<f64>().unwrap() > 0.0, "{aborted}");
}

#[test]
fn ten_thousand_queued_requests_are_all_answered_or_all_refused() {
    let server = Server::start(&["--max-queued", "10100"]);
    let texts: Vec<String> = (0..10_000).map(|i| format!("{i}")).collect();
    let body = json!({"text": texts, "sampling_params": {"max_new_tokens": 1, "temperature": 0}});
    std::thread::scope(|scope| {
        server.ok("/pause_generation", &json!({"mode": "in_place"}));
        let many = scope.spawn(|| server.ok("/generate", &body));
        while server.load()["num_total_reqs"] != 10_000 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (status, text) = server.call("/generate", Some(&body));
        assert!(status == 503 && text.contains("queue is full"), "{status} {text}");
        server.ok("/continue_generation", &json!({}));
        // Among them a single one is answered.
        server.ok("/generate", &json!({"text": "a", "sampling_params": {"max_new_tokens": 2}}));
        let answers = many.join().unwrap();
        assert_eq!(answers.as_array().unwrap().len(), 10_000);
        assert!(
            answers.as_array().unwrap().iter().all(|answer| answer["meta_info"]["completion_tokens"] == 1)
        );
    });
    server.rests();
}

#[test]
fn a_unix_socket_is_for_its_user_alone_and_needs_no_token() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    let place = ["--unix-socket".to_owned(), path.display().to_string()];
    let server = Server::start_in(dir, &place, &[]);
    assert_eq!(server.url, format!("unix:{}", path.display()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let body = json!({"text": "a", "sampling_params": {"max_new_tokens": 3}}).to_string();
    let len = body.len();
    let request = format!(
        "POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
    );
    let answer = raw(UnixStream::connect(&path).unwrap(), request.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("meta_info"), "{answer}");
    let second = Command::new(env!("CARGO_BIN_EXE_slime-rollout"))
        .args([
            "serve",
            "--weights",
            server.weights().to_str().unwrap(),
            "--unix-socket",
            path.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(73), "{}", String::from_utf8_lossy(&second.stderr));
    assert_eq!(server.end("TERM").code(), Some(75));
}

#[test]
fn a_drain_answers_what_runs_and_ends_with_75() {
    for signal in ["TERM", "USR1", "USR2"] {
        let server = Server::start(&[]);
        let body = json!({"text": "a", "stream": true, "sampling_params": {"max_new_tokens": 120, "ignore_eos": true}});
        let mut stream = tcp(&server);
        stream.write_all(post(&server, "/generate", &body.to_string()).as_bytes()).unwrap();
        let mut start = [0; 512];
        let read = stream.read(&mut start).unwrap();
        server.signal(signal);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        let whole = String::from_utf8([&start[..read], &rest].concat()).unwrap();
        assert!(whole.contains("\"type\":\"length\",\"length\":120"), "{signal}: {whole}");
        assert!(whole.contains("data: [DONE]"));
        assert_eq!(server.end("0").code(), Some(75), "{signal}");
    }
    // What takes longer than it may ends where it is.
    let server = Server::start(&["--drain-timeout-s", "0"]);
    server.ok("/pause_generation", &json!({"mode": "in_place"}));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.ok("/generate", &json!({"text": "a", "rid": "w"})));
        while server.load()["num_total_reqs"] == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.signal("TERM");
        assert_eq!(waiting.join().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    });
}

#[test]
fn weights_are_swapped_below_a_root_while_requests_run() {
    let root = TempDir::new().unwrap();
    let other = root.path().join("other");
    fs::create_dir(&other).unwrap();
    server::write_weights(&other);
    // The same values, but for one tensor's.
    let path = other.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let len = bytes.len();
    bytes[len - 4000..len - 2000].fill(0);
    fs::write(&path, &bytes).unwrap();
    let broken = root.path().join("broken");
    fs::create_dir(&broken).unwrap();
    fs::write(broken.join("model.safetensors"), &bytes[..100]).unwrap();
    let server = Server::start(&["--weight-root", root.path().to_str().unwrap()]);
    let sampling = json!({"max_new_tokens": 200, "ignore_eos": true, "temperature": 0});
    let generate = || server.ok("/generate", &json!({"text": "abc", "sampling_params": sampling}));
    let before = generate();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..4).map(|_| scope.spawn(generate)).collect();
        let (status, text) = server.call("/update_weights_from_disk", Some(&json!({"model_path": broken})));
        assert!(status == 400 && text.contains("stay as they are"), "{status} {text}");
        let update = json!({"model_path": other, "weight_version": "7"});
        assert_eq!(server.ok("/update_weights_from_disk", &update)["success"], true);
        for thread in running {
            assert_eq!(thread.join().unwrap()["meta_info"]["completion_tokens"], 200);
        }
    });
    let after = generate();
    assert_eq!(
        (&after["meta_info"]["weight_version"], &before["meta_info"]["weight_version"]),
        (&json!("7"), &json!("0"))
    );
    assert_ne!(after["text"], before["text"]);
    let own = json!({"model_path": server.weights(), "weight_version": "8"});
    server.ok("/update_weights_from_disk", &own);
    assert_eq!(generate()["text"], before["text"], "the first weights are back to the bit");
    server.rests();
}

#[test]
fn json_of_a_schema_comes_from_random_weights() {
    let server = Server::start(&[]);
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130}}, "required": ["name", "age"], "additionalProperties": false});
    let mut num_whole = 0;
    for seed in 0..8 {
        let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema}});
        let body = json!({"messages": [{"role": "user", "content": "who?"}], "seed": seed, "max_tokens": 150,
            "temperature": 0.7, "response_format": format, "logprobs": true});
        let answer = server.ok("/v1/chat/completions", &body);
        let choice = &answer["choices"][0];
        let told = choice["logprobs"]["content"].as_array().unwrap();
        assert!(told.iter().all(|entry| entry["logprob"].as_f64().unwrap() <= 1e-6));
        if choice["finish_reason"] == "stop" {
            let person: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
            assert!(
                person["name"].as_str().unwrap().chars().count() <= 8
                    && person["age"].as_u64().unwrap() <= 130
            );
            num_whole += 1;
        }
    }
    assert!(num_whole > 0, "random weights write white space for ever");
}

#[test]
fn places_that_are_open_to_others_are_refused() {
    let dir = TempDir::new().unwrap();
    server::write_weights(dir.path());
    let token = dir.path().join("token");
    fs::write(&token, "0123456789abcdef0123\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let serve = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_slime-rollout"))
            .args(["serve", "--weights", dir.path().to_str().unwrap()])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let token = token.to_str().unwrap();
    for (args, code, part) in [
        (vec!["--port", "0", "--token-file", token], 77, "mode 0600"),
        (vec!["--port", "0"], 64, "--token-file"),
        (vec![], 64, "no place to listen"),
        (vec!["--port", "0", "--token-file", "/no/such/folder/t"], 66, "/no/such/folder/t"),
        (vec!["--unix-socket", "/no/such/folder/s"], 66, "/no/such/folder/s"),
        (vec!["--unix-socket", token], 73, "no socket"),
        (vec!["--unix-socket", "/tmp/x", "--weight-root", "/no/such/root"], 66, "/no/such/root"),
    ] {
        let (got, stderr) = serve(&args);
        assert!(got == Some(code) && stderr.contains(part), "{args:?}: {got:?} {stderr}");
    }
}
