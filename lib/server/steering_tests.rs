//! What the routes that steer promise: aborts, pauses, weights, the queue, the token, the drain.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::Token;
use crate::testing::server::{Server, prompt, seeded};

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_aborted_by_name_and_keep_what_they_have() {
    let server = Server::with(64, 2, 1000, None);
    let long = |rid: &str| {
        let body = json!({"input_ids": prompt(3), "sampling_params": seeded(50, 4), "rid": rid});
        server.ok("/generate", body)
    };
    let abort = async {
        server.ok("/pause_generation", json!({"mode": "in_place"})).await;
        server.has_unfinished(8).await;
        server.post("/abort_request", json!({"rid": "gone"})).await;
        let (status, _) = server.call("GET", "/health_generate", Body::empty()).await;
        assert_eq!(status, 200, "paused is not ill");
        let (status, _) = server.call("POST", "/flush_cache", Body::empty()).await;
        assert_eq!(status, 400, "requests are on their way");
        server.ok("/continue_generation", json!({})).await;
    };
    let (gone, stays, ()) = tokio::join!(long("gone"), long("stays"), abort);
    for answer in gone.as_array().unwrap() {
        assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
    }
    for answer in stays.as_array().unwrap() {
        assert_eq!(answer["meta_info"]["completion_tokens"], 50);
    }
    server.rests().await;
    let (status, _) = server.call("GET", "/flush_cache", Body::empty()).await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_change_between_steps_and_no_request_is_lost() {
    let server = Server::new();
    for name in ["7", "broken"] {
        std::fs::create_dir(server.dir.path().join(name)).unwrap();
    }
    let path = |name: &str| server.dir.path().join(name).display().to_string();
    server.ok("/pause_generation", json!({"mode": "retract"})).await;
    let stream = server.events(
        "/generate",
        json!({"input_ids": prompt(3), "sampling_params": seeded(60, 1), "stream": true, "return_logprob": true}),
    );
    let update = async {
        server.has_unfinished(1).await;
        let body = json!({"model_path": path("broken"), "weight_version": "9"});
        let (status, answer) = server.post("/update_weights_from_disk", body).await;
        assert_eq!((status, &answer["success"]), (StatusCode::BAD_REQUEST, &json!(false)), "{answer}");
        let answer = server
            .ok("/update_weights_from_disk", json!({"model_path": path("7"), "weight_version": "12"}))
            .await;
        assert_eq!((&answer["success"], &answer["weight_version"]), (&json!(true), &json!("12")));
        server.ok("/continue_generation", json!({})).await;
    };
    let (events, ()) = tokio::join!(stream, update);
    let last = events.last().unwrap();
    let runs = last["meta_info"]["weight_versions"].as_array().unwrap();
    let len: u64 = runs.iter().map(|run| run["len"].as_u64().unwrap()).sum();
    assert_eq!((len, &runs.last().unwrap()["version"]), (60, &json!(12)));
    assert_eq!(last["meta_info"]["weight_version"], "12");
    let (_, bytes) = server.call("GET", "/get_weight_version", Body::empty()).await;
    assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), json!({"weight_version": "12"}));
    let answer = server.ok("/update_weights_from_disk", json!({"model_path": path("0")})).await;
    assert_eq!(answer["weight_version"], "13");
    let names = json!({"model_path": path("0"), "weight_version": "step-a", "flush_cache": false});
    assert_eq!(server.ok("/update_weights_from_disk", names).await["weight_version"], "step-a");
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_takes_its_samples_with_it() {
    let server = Server::new();
    let body = json!({"input_ids": prompt(3), "sampling_params": seeded(60, 4)});
    for is_stream in [false, true] {
        server.ok("/pause_generation", json!({"mode": "in_place"})).await;
        let mut body = body.clone();
        body["stream"] = is_stream.into();
        tokio::select! {
            answer = server.call("POST", "/generate", body.to_string()) => panic!("paused, yet answered: {answer:?}"),
            () = server.has_unfinished(4) => {}
        }
        // A stream's task learns that its reader has gone before the engine may go on.
        server.has_unfinished(0).await;
        server.ok("/continue_generation", json!({})).await;
        server.rests().await;
    }
    assert_eq!(server.handle.status.num_aborted.load(Ordering::Relaxed), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_and_takes_again() {
    let server = Server::with(64, 4, 12, None);
    server.ok("/pause_generation", json!({"mode": "in_place"})).await;
    let filled = server.ok("/generate", json!({"text": ["A", "B", "C"], "sampling_params": seeded(2, 4)}));
    let check = async {
        server.has_unfinished(12).await;
        let (status, answer) = server.post("/generate", json!({"text": "A"})).await;
        assert_eq!(
            (status, &answer["error"]["type"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded_error"))
        );
        server.ok("/continue_generation", json!({})).await;
    };
    let (filled, ()) = tokio::join!(filled, check);
    assert_eq!(filled.as_array().unwrap().len(), 12);
    server.ok("/generate", json!({"text": "A"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_asked_for_everywhere_but_at_health() {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("token");
    let token = Token::from_file(&path).unwrap();
    let server = Server::with(64, 4, 100, Some(token));
    let shown = std::fs::read_to_string(&path).unwrap();
    for (uri, header, status) in [
        ("/health", None, 200),
        ("/v1/models", None, 401),
        ("/metrics", None, 401),
        ("/no/route", None, 401),
        ("/v1/models", Some("Bearer wrong".to_owned()), 401),
        ("/v1/models", Some(shown.trim().to_owned()), 401),
        ("/v1/models", Some(format!("Bearer {}", shown.trim())), 200),
        ("/no/route", Some(format!("bearer {}", shown.trim())), 404),
    ] {
        let mut request = Request::builder().uri(uri);
        if let Some(header) = header {
            request = request.header("Authorization", header);
        }
        let response = server.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{uri}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_takes_nothing_new() {
    let server = Server::new();
    server.handle.status.is_draining.store(true, Ordering::Relaxed);
    let (status, _) = server.post("/generate", json!({"text": "A"})).await;
    assert_eq!(status, 503);
    let (status, _) = server.call("GET", "/health", Body::empty()).await;
    assert_eq!(status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_found_again_until_the_cache_is_flushed() {
    let server = Server::new();
    let body = json!({"input_ids": prompt(17), "sampling_params": seeded(2, 1)});
    let cached = |answer: Value| answer["meta_info"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached(server.ok("/generate", body.clone()).await), 0);
    assert_eq!(cached(server.ok("/generate", body.clone()).await), 16);
    let (status, _) = server.call("POST", "/flush_cache", Body::empty()).await;
    assert_eq!((status.as_u16(), cached(server.ok("/generate", body).await)), (200, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_higher_priority_run_first() {
    let server = &Server::with(64, 1, 1000, None);
    // The one that runs first finds nothing in the cache, the others its prompt.
    let ask = |priority: i64| async move {
        let body = json!({"input_ids": prompt(9), "sampling_params": seeded(5, 1), "priority": priority});
        server.ok("/generate", body).await["meta_info"]["cached_tokens"].as_u64().unwrap()
    };
    let steer = |num: usize| async move {
        server.has_unfinished(num).await;
        server.ok("/continue_generation", json!({})).await;
    };
    server.ok("/pause_generation", json!({"mode": "in_place"})).await;
    let (none, first, later, ()) = tokio::join!(ask(0), ask(7), ask(-3), steer(3));
    assert!(none > 0 && first == 0 && later > 0, "{none} {first} {later}");
    server.rests().await;
    server.call("POST", "/flush_cache", Body::empty()).await;
    server.ok("/pause_generation", json!({"mode": "in_place"})).await;
    let body = json!({"prompt": prompt(9), "max_tokens": 5, "temperature": 0, "priority": 1});
    let (cached, _, ()) = tokio::join!(ask(0), server.ok("/v1/completions", body), steer(2));
    assert!(cached > 0);
    let (status, _) = server.post("/generate", json!({"input_ids": prompt(3), "priority": "high"})).await;
    assert_eq!(status, 400);
}
