//! Mixed traffic with clients that go, aborts, pauses and other weights: nothing is left behind.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::server::{Server, write_weights};

/// Clients at the same time.
const NUM_CLIENTS: u64 = 6;
/// Growth of memory over the second half that is no leak.
const SLACK_BYTES: u64 = 24 << 20;

/// Bytes a process has in memory.
fn resident(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// One request of a random kind; what it was is counted by its status.
fn request(server: &Server, rng: &mut ChaCha8Rng, name: &str) -> u16 {
    let text: String =
        (0..rng.random_range(1..120)).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect();
    let max_new_tokens = rng.random_range(0..60);
    let n = rng.random_range(1..5);
    let sampling =
        json!({"max_new_tokens": max_new_tokens, "n": n, "temperature": rng.random_range(0.0..1.5)});
    let is_stream = rng.random_bool(0.3);
    let (path, body) = match rng.random_range(0..10) {
        0..4 => (
            "/generate",
            json!({"text": text, "sampling_params": sampling, "stream": is_stream, "rid": name}),
        ),
        4 => (
            "/generate",
            json!({"text": text, "sampling_params": sampling, "return_logprob": true,
            "logprob_start_len": 0, "top_logprobs_num": 2}),
        ),
        5 => (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": text}], "max_tokens": 20,
            "stream": is_stream, "response_format": {"type": "json_object"}}),
        ),
        6 => (
            "/v1/completions",
            json!({"prompt": [text, "b"], "max_tokens": 9, "logprobs": 1, "stream": is_stream}),
        ),
        7 => ("/generate", json!({"text": "x".repeat(400)})),
        8 => ("/abort_request", json!({"rid": name})),
        _ => {
            // A client that goes before its answer.
            let body = json!({"text": text, "stream": true, "sampling_params": {"max_new_tokens": 150, "ignore_eos": true}});
            let mut stream = crate::tcp(server);
            let request = crate::post(server, "/generate", &body.to_string());
            std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
            let mut start = [0; 64];
            let _ = std::io::Read::read(&mut stream, &mut start);
            return 0;
        }
    };
    server.call(path, Some(&body)).0
}

fn swap(server: &Server, dirs: &[std::path::PathBuf], number: u64) {
    let dir = &dirs[number as usize % dirs.len()];
    let update = json!({"model_path": dir, "weight_version": number.to_string(), "flush_cache": !number.is_multiple_of(3)});
    assert_eq!(server.ok("/update_weights_from_disk", &update)["success"], true);
    if number.is_multiple_of(4) {
        let mode = ["retract", "in_place", "abort"][number as usize / 4 % 3];
        server.ok("/pause_generation", &json!({ "mode": mode }));
        server.ok("/continue_generation", &json!({}));
    }
}

fn soak(num_rounds: u64, requests_each: u64) {
    let root = tempfile::TempDir::new().unwrap();
    let dirs: Vec<_> = ["a", "b"].iter().map(|name| root.path().join(name)).collect();
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
        write_weights(dir);
    }
    let root = root.path().to_str().unwrap();
    let server =
        Server::start(&["--weight-root", root, "--set", "rollout.max_in_flight=8", "--max-queued", "200"]);
    let (answered, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut middle = 0;
    for round in 0..num_rounds {
        std::thread::scope(|scope| {
            for client in 0..NUM_CLIENTS {
                let (server, answered, refused) = (&server, &answered, &refused);
                scope.spawn(move || {
                    let mut rng = ChaCha8Rng::seed_from_u64(round * NUM_CLIENTS + client);
                    for _ in 0..requests_each {
                        match request(server, &mut rng, &format!("c{client}")) {
                            0 | 200 => answered.fetch_add(1, Ordering::Relaxed),
                            400 => refused.fetch_add(1, Ordering::Relaxed),
                            status => panic!("an answer of status {status}"),
                        };
                    }
                });
            }
            swap(&server, &dirs, 2 * round);
            swap(&server, &dirs, 2 * round + 1);
        });
        server.rests();
        let (status, text) = server.call("/flush_cache", None);
        assert_eq!(status, 200, "{text}");
        if round == num_rounds / 2 {
            middle = resident(server.pid());
        }
    }
    let (answered, refused) = (answered.into_inner(), refused.into_inner());
    assert!(answered > refused && refused > 0, "{answered} answered, {refused} refused");
    let (_, metrics) = server.call("/metrics", None);
    let unfinished = metrics.lines().find(|line| line.starts_with("slime_serve_num_unfinished "));
    assert_eq!(unfinished, Some("slime_serve_num_unfinished 0"));
    let grown = resident(server.pid()).saturating_sub(middle);
    assert!(grown < SLACK_BYTES, "memory grew by {} MiB", grown >> 20);
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    assert!(open < 100, "{open} files are open");
    let version: Value = serde_json::from_str(&server.call("/get_weight_version", None).1).unwrap();
    assert_eq!(version["weight_version"], (2 * num_rounds - 1).to_string());
}

#[test]
fn mixed_traffic_leaves_neither_pages_nor_memory_behind() {
    soak(4, 8);
}

#[test]
#[ignore = "ten thousand requests take some minutes"]
fn long_mixed_traffic_leaves_neither_pages_nor_memory_behind() {
    soak(40, 42);
}
