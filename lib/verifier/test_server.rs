//! A small HTTP server on loopback for tests of the rewards that ask servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::{Error, RewardSet, Row, Scored};

/// What the server was asked, and how it answers: status and body from path, body and the number of the request.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

fn serve(answer: impl Fn(&str, &Value, usize) -> (u16, String) + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let (seen, answer, num) = (Arc::clone(&asked), Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, seen, answer, num) =
                (stream.unwrap(), Arc::clone(&seen), Arc::clone(&answer), Arc::clone(&num));
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let (mut path, mut len) = (String::new(), 0);
                    if reader.read_line(&mut path).unwrap_or(0) == 0 {
                        break;
                    }
                    let path = path.split(' ').nth(1).unwrap().to_owned();
                    let mut line = String::new();
                    while reader.read_line(&mut line).unwrap() > 2 {
                        let lower = line.to_lowercase();
                        len = lower
                            .strip_prefix("content-length: ")
                            .map_or(len, |text| text.trim().parse().unwrap());
                        line.clear();
                    }
                    let mut body = vec![0; len];
                    reader.read_exact(&mut body).unwrap();
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    let (status, text) = answer(&path, &body, num.fetch_add(1, Ordering::SeqCst));
                    seen.lock().unwrap().push((path, body));
                    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", text.len());
                    stream.write_all(format!("{head}{text}").as_bytes()).unwrap();
                }
            });
        }
    });
    Server { url, asked }
}

fn row(response: &str) -> Row<'_> {
    Row { prompt: Some("\"2 + 2?\""), response, label: Some("4"), ..Row::default() }
}

fn score(spec: &str, responses: &[&str]) -> Result<Vec<Scored>, Error> {
    let rows: Vec<Row<'_>> =
        responses.iter().map(|response| Row { group: Some((0, 7)), ..row(response) }).collect();
    RewardSet::parse(&[spec]).unwrap().score(&rows)
}

fn rewards(spec: &str, responses: &[&str]) -> Vec<f64> {
    score(spec, responses).unwrap().iter().map(|scored| scored.reward).collect()
}

#[test]
fn remote_sends_what_slime_sends_and_takes_numbers_and_objects() {
    let server = serve(|_, body, _| {
        let len = body["response"].as_str().unwrap().len();
        (
            200,
            if len % 2 == 0 { format!("{len}") } else { json!({"score": len, "reason": "odd"}).to_string() },
        )
    });
    let spec = format!("remote:{}/score concurrency=3", server.url);
    let texts: Vec<String> = (0..40).map(|len| "x".repeat(len)).collect();
    let responses: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(rewards(&spec, &responses), (0..40).map(f64::from).collect::<Vec<_>>());
    assert_eq!(rewards(&format!("remote:{}:0.5", server.url), &["four"]), [2.0]);
    let asked = server.asked.lock().unwrap();
    assert_eq!(asked[40], ("/".to_owned(), json!({"prompt": "2 + 2?", "response": "four", "label": "4"})));
    assert!(asked[..40].iter().all(|(path, _)| path == "/score"));
}

#[test]
fn failures_are_retried_and_then_errors_or_marked_defaults() {
    let server = serve(|_, _, num| if num < 2 { (503, "busy".to_owned()) } else { (200, "1".to_owned()) });
    assert_eq!(rewards(&format!("remote:{} backoff_s=0.001", server.url), &["a"]), [1.0]);
    assert_eq!(server.asked.lock().unwrap().len(), 3);
    for (status, body, tries) in
        [(500, "1", 3), (404, "1", 1), (200, "NaN", 1), (200, "{\"reward\": null}", 1), (200, "\"good\"", 1)]
    {
        let server = serve(move |_, _, _| (status, body.to_owned()));
        let spec = format!("remote:{} attempts=3 backoff_s=0.001", server.url);
        let error = score(&spec, &["a"]).unwrap_err();
        assert_eq!(error.exit_code(), 69, "{error}");
        assert!(error.to_string().contains(&server.url), "{error}");
        assert_eq!(server.asked.lock().unwrap().len(), tries, "{status} {body}");
        let scored = score(&format!("{spec} on_error=-1"), &["a"]).unwrap().remove(0);
        assert!((scored.reward + 1.0).abs() < 1e-9 && scored.parts[0].failure.is_some());
    }
    let error = score("remote:http://127.0.0.1:1/x attempts=2 backoff_s=0.001", &["a"]).unwrap_err();
    assert!(error.to_string().contains("after 2 tries"), "{error}");
}

#[test]
fn groups_go_to_a_server_as_one_list() {
    let server = serve(|_, body, _| {
        let lens = body.as_array().unwrap().iter().map(|row| row["response"].as_str().unwrap().len());
        (200, json!(lens.collect::<Vec<_>>()).to_string())
    });
    let spec = format!("remote:{} group=on", server.url);
    assert_eq!(rewards(&spec, &["a", "bb", ""]), [1.0, 2.0, 0.0]);
    assert_eq!(server.asked.lock().unwrap().len(), 1);
    assert!(RewardSet::parse(&[spec]).unwrap().compares_groups());
    let short = serve(|_, _, _| (200, "[1]".to_owned()));
    let error = score(&format!("remote:{} group=on", short.url), &["a", "b"]).unwrap_err();
    assert!(error.to_string().contains("expected a list of 2 rewards"), "{error}");
}

fn chat(text: &str) -> String {
    json!({"choices": [{"message": {"content": text}}]}).to_string()
}

#[test]
fn judge_asks_by_a_template_and_takes_the_last_answer() {
    let server = serve(|path, body, _| {
        assert_eq!(path, "/v1/chat/completions");
        let question = body["messages"][0]["content"].as_str().unwrap();
        let grade = if question.contains("<answer>\nfour\n</answer>") {
            "Score: 10, no, **Score:** 8"
        } else {
            "Score: 20"
        };
        (200, chat(&format!("<think>Score: 1</think>{grade}")))
    });
    let spec = format!("judge:{}/v1 model=m", server.url);
    assert_eq!(rewards(&spec, &["<think>hm</think>four", "five"]), [0.8, 1.0]);
    let first = server.asked.lock().unwrap()[0].1.clone();
    assert_eq!((&first["model"], &first["temperature"]), (&json!("m"), &json!(0.0)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ask.txt");
    std::fs::write(&path, "{{response}} or {{metadata.rule}}: yes or no?").unwrap();
    let spec = format!("{spec} template={} pattern='is (yes|no)'", path.display());
    let error = score(&spec, &["a"]).unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().contains("needs metadata.rule")), (65, true));
    std::fs::write(&path, "{{respnse}}").unwrap();
    let error = RewardSet::parse(&[spec]).unwrap_err();
    assert!(error.to_string().contains("template: expected prompt"), "{error}");
}

#[test]
fn votes_are_counted_and_answers_are_kept_on_disk() {
    let server = serve(|_, body, _| {
        let verdict = if body["seed"] == json!(0) { "incorrect" } else { "correct" };
        (200, chat(&format!("Verdict: {verdict}")))
    });
    let folder = tempfile::tempdir().unwrap();
    let spec =
        format!("judge:{} model=m preset=correct votes=3 cache={}", server.url, folder.path().display());
    let near = |got: f64, expected: f64| (got - expected).abs() < 1e-9;
    assert!(near(rewards(&spec, &["4"])[0], 2.0 / 3.0));
    assert!(near(rewards(&format!("{spec} vote=majority"), &["4"])[0], 1.0));
    assert_eq!(server.asked.lock().unwrap().len(), 3, "the second judge read what the first was told");
    rewards(&spec, &["5"]);
    assert_eq!(server.asked.lock().unwrap().len(), 6);
    let mute = serve(|_, _, _| (200, chat("I cannot say.")));
    let error = score(&format!("judge:{} model=m", mute.url), &["4"]).unwrap_err();
    assert!(error.to_string().contains("no answer of the asked form"), "{error}");
    let missing = RewardSet::parse(&["judge:http://127.0.0.1:1"]).unwrap_err();
    assert!(missing.to_string().contains("expected model=..."), "{missing}");
}

/// Says that the longer answer wins.
fn longer_wins() -> Server {
    serve(|_, body, _| {
        let question = body["messages"][0]["content"].as_str().unwrap();
        let between =
            |open: &str, close: &str| question.split(open).nth(1).unwrap().split(close).next().unwrap().len();
        let (a, b) = (between("<answer_a>", "</answer_a>"), between("<answer_b>", "</answer_b>"));
        (200, chat(if a > b { "Winner: A" } else { "Winner: B" }))
    })
}

#[test]
fn tournaments_rank_a_group() {
    let server = longer_wins();
    let spec = format!("tournament:{} model=m", server.url);
    assert_eq!(rewards(&spec, &["a", "aaa", "aa"]), [0.0, 1.0, 0.5]);
    assert_eq!(server.asked.lock().unwrap().len(), 6, "each pair in both orders");
    // A judge who always says A makes every pair a draw.
    let first = serve(|_, _, _| (200, chat("Winner: A")));
    assert_eq!(rewards(&format!("tournament:{} model=m", first.url), &["a", "b", "c"]), [0.5, 0.5, 0.5]);
    let spec = format!("tournament:{} model=m mode=elimination seed=3", server.url);
    let responses = ["a", "aa", "aaa", "aaaa", "aaaaa"];
    let got = rewards(&spec, &responses);
    assert_eq!(got, rewards(&spec, &responses));
    assert!((got[4] - 1.0).abs() < 1e-9 && got[0] < 1.0, "{got:?}");
}

#[test]
fn scores_of_served_reward_models_are_read() {
    let server = serve(|path, body, _| {
        if path == "/pooling" {
            assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "4"}));
            return (200, json!({"data": [{"data": [1.5]}]}).to_string());
        }
        assert_eq!(body["text"], json!("2 + 2?4"));
        (200, json!([{"embedding": [-0.5]}]).to_string())
    });
    assert_eq!(rewards(&format!("reward_model:{} model=rm", server.url), &["4"]), [1.5]);
    assert_eq!(rewards(&format!("reward_model:{} api=sglang", server.url), &["4"]), [-0.5]);
}
