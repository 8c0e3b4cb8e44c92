//! `slime-rollout --engine` with servers that are not ours: small stand-ins that answer as `SGLang` and `vLLM` do, and fail.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::clients::{rollout, stdout};
use crate::server::Server;

type Answer = dyn Fn(&str, &Value) -> Option<(u16, Value)> + Send + Sync;

/// A server that answers each call by `answer`; none hangs up instead. Lives as long as the test's process.
fn stand_in(answer: Arc<Answer>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || serve(stream, &*answer));
        }
    });
    url
}

fn serve(stream: TcpStream, answer: &Answer) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut len = 0;
        loop {
            let mut field = String::new();
            reader.read_line(&mut field).ok()?;
            let field = field.trim().to_ascii_lowercase();
            if field.is_empty() {
                break;
            }
            if let Some(value) = field.strip_prefix("content-length:") {
                len = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).ok()?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, value) = answer(&path, &body)?;
        let text = value.to_string();
        write!(writer, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{text}", text.len()).ok()?;
    }
}

/// One that never hangs up.
fn always(answer: fn(&str, &Value) -> (u16, Value)) -> Arc<Answer> {
    Arc::new(move |path: &str, body: &Value| Some(answer(path, body)))
}

/// Tokens that depend on nothing but the prompt and the sample.
fn tokens(prompt: &Value, index: u64) -> Vec<u64> {
    let sum: u64 = prompt.as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).sum();
    (0..5).map(|i| 3 + (sum + 7 * index + i) % 90).collect()
}

fn sglang(path: &str, body: &Value) -> (u16, Value) {
    match path {
        "/health" => (200, json!("")),
        "/get_server_info" => {
            (200, json!({"model_path": "/m", "context_length": 200, "served_model_name": "m"}))
        }
        "/get_model_info" => (200, json!({"weight_version": "default"})),
        "/generate" => {
            let one = |index: u64| {
                let pairs: Vec<Value> = tokens(&body["input_ids"], index)
                    .iter()
                    .map(|token| json!([-0.5, token, null]))
                    .collect();
                json!({"text": "", "meta_info": {"id": "x", "finish_reason": {"type": "length", "length": 5},
                    "weight_version": "9", "output_token_logprobs": pairs}})
            };
            let n = body["sampling_params"]["n"].as_u64().unwrap();
            (200, (0..n).map(one).collect())
        }
        // An older one: /server_info is not there.
        _ => (404, json!({"detail": "Not Found"})),
    }
}

fn vllm(path: &str, body: &Value) -> (u16, Value) {
    match path {
        "/health" => (200, json!("")),
        "/v1/models" => (200, json!({"object": "list", "data": [{"id": "m", "max_model_len": 200}]})),
        "/v1/completions" => {
            assert_eq!((&body["model"], &body["return_token_ids"]), (&json!("m"), &json!(true)));
            let one = |index: u64| {
                let tokens = tokens(&body["prompt"], index);
                json!({"index": index, "text": "", "finish_reason": "length", "token_ids": tokens,
                    "logprobs": {"token_logprobs": vec![-0.5; 5]}})
            };
            let n = body["n"].as_u64().unwrap();
            (200, json!({"choices": (0..n).rev().map(one).collect::<Vec<_>>()}))
        }
        _ => (404, json!({"detail": "Not Found"})),
    }
}

fn rows(stdout: &[u8]) -> Vec<Value> {
    stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[test]
fn sglang_and_vllm_give_rows_with_their_tokens() {
    let home = Server::start(&[]);
    for (answer, version) in [(always(sglang), 9), (always(vllm), 0)] {
        let output = rollout(&home, &["--engine", &stand_in(answer)]);
        let rows = rows(stdout(&output));
        assert_eq!(rows.len(), 16);
        for row in rows {
            let prompt_len = row["prompt_len"].as_u64().unwrap() as usize;
            let all = row["tokens"].as_array().unwrap();
            let expected = tokens(&json!(all[..prompt_len]), row["index"].as_u64().unwrap());
            assert_eq!(json!(all[prompt_len..]), json!(expected));
            assert_eq!(row["rollout_log_probs"], json!([-0.5, -0.5, -0.5, -0.5, -0.5]));
            assert_eq!(row["weight_versions"], json!([{"version": version, "len": 5}]));
            assert_eq!((&row["status"], &row["finish_reason"]), (&json!("truncated"), &json!("length")));
            assert_eq!(row["response"].as_str().unwrap().len(), 5);
        }
    }
}

#[test]
fn failures_are_tried_again_elsewhere_and_a_bad_server_is_left_out() {
    let home = Server::start(&[]);
    let num_calls = Arc::new(AtomicUsize::new(0));
    let counted = num_calls.clone();
    // Says it is well, and fails each call in another way.
    let ill = move |path: &str, body: &Value| match path {
        "/generate" => match counted.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => Some((500, json!({"error": {"message": "out of memory"}}))),
            1 => None,
            2 => Some((200, json!({"meta_info": {}}))),
            _ => Some((503, json!("busy"))),
        },
        _ => Some(sglang(path, body)),
    };
    let good = stand_in(always(sglang));
    let urls = format!("{},{good}", stand_in(Arc::new(ill)));
    let output = rollout(&home, &["--engine", &urls]);
    let expected = rollout(&home, &["--engine", &good]);
    assert_eq!(rows(stdout(&output)), rows(stdout(&expected)));
    let called = num_calls.load(Ordering::Relaxed);
    assert!(called < 16, "a server that fails three times in a row is left out, not called {called} times");
    // Alone, it fails twice and then answers: the rollout waits for it.
    let left = Mutex::new(2);
    let recovering = move |path: &str, body: &Value| {
        let mut left = left.lock().unwrap();
        if path == "/generate" && *left > 0 {
            *left -= 1;
            return Some((500, json!("starting")));
        }
        Some(sglang(path, body))
    };
    let output = rollout(&home, &["--engine", &stand_in(Arc::new(recovering))]);
    assert_eq!(rows(stdout(&output)), rows(stdout(&expected)));
}

#[test]
fn a_refused_group_is_an_error_with_the_servers_words() {
    let home = Server::start(&[]);
    let refusing = |path: &str, body: &Value| match path {
        "/generate" => Some((400, json!({"error": {"message": "top_p is too modern"}}))),
        _ => Some(sglang(path, body)),
    };
    let output = rollout(&home, &["--engine", &stand_in(Arc::new(refusing))]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(65) && stderr.contains("top_p is too modern"), "{stderr}");
}
