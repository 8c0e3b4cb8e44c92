//! What `/generate` promises, over an engine whose answers are known exactly.

use axum::body::Body;
use serde_json::{Value, json};

use crate::testing::server::{POISON, Server, pairs, prompt, seeded};

#[tokio::test(flavor = "multi_thread")]
async fn generate_answers_as_sglang_does_and_seeds_decide() {
    let server = Server::new();
    let body =
        json!({"input_ids": prompt(9), "sampling_params": seeded(6, 1), "return_logprob": true, "rid": "r1"});
    let answer = server.ok("/generate", body.clone()).await;
    let meta = &answer["meta_info"];
    assert_eq!(
        (&meta["id"], &meta["prompt_tokens"], &meta["completion_tokens"]),
        (&json!("r1"), &json!(9), &json!(6))
    );
    assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 6}));
    assert_eq!((&meta["weight_version"], &meta["cached_tokens"]), (&json!("0"), &json!(0)));
    assert_eq!(meta["weight_versions"], json!([{"version": 0, "len": 6}]));
    assert_eq!(meta["input_token_logprobs"], json!([]));
    let ids: Vec<u64> = pairs(&answer).iter().map(|(_, token)| *token).collect();
    assert_eq!(json!(ids), answer["output_ids"]);
    assert_eq!(answer["text"].as_str().unwrap().len(), 6);
    assert!(meta["e2e_latency"].as_f64().unwrap() > 0.0);
    assert_eq!(pairs(&server.ok("/generate", body).await), pairs(&answer));
    // Samples of a group are those of single requests with their indices.
    let group =
        json!({"input_ids": prompt(9), "sampling_params": seeded(6, 3), "return_logprob": true, "rid": "r2"});
    let group = server.ok("/generate", group).await;
    assert_eq!((group.as_array().unwrap().len(), &group[1]["meta_info"]["id"]), (3, &json!("r2_1")));
    assert_eq!(pairs(&group[0]), pairs(&answer));
    assert_eq!(group[1]["meta_info"]["cached_tokens"], 8);
    let mut second = seeded(6, 1);
    second["sample_seed"]["index"] = 1.into();
    let second = json!({"input_ids": prompt(9), "sampling_params": second, "return_logprob": true});
    assert_eq!(pairs(&server.ok("/generate", second).await), pairs(&group[1]));
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_take_one_value_or_one_for_each() {
    let server = Server::new();
    let body = json!({"text": ["ABC", "DE"], "sampling_params": [{"max_new_tokens": 2}, {"max_new_tokens": 3}],
        "return_logprob": [true, false], "return_text_in_logprobs": true});
    let answers = server.ok("/generate", body).await;
    assert_eq!(answers[0]["meta_info"]["prompt_tokens"], 3);
    let entry = &answers[0]["meta_info"]["output_token_logprobs"][0];
    assert_eq!(entry[2].as_str().unwrap().len(), 1, "{entry}");
    assert!(answers[1]["meta_info"].get("output_token_logprobs").is_none());
    assert!(answers[1]["output_ids"].as_array().unwrap().len() <= 3);
    let events = server
        .events("/generate", json!({"text": ["ABC", "DE"], "stream": true, "sampling_params": seeded(4, 2)}))
        .await;
    for index in 0..4 {
        let last = events.iter().rfind(|event| event["index"] == index).unwrap();
        assert_eq!(last["meta_info"]["finish_reason"]["type"], "length");
    }
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_hold_all_that_is_known_and_end_as_the_whole_answer() {
    let server = Server::new();
    let mut body = json!({"input_ids": prompt(9), "sampling_params": seeded(12, 1), "return_logprob": true});
    let whole = server.ok("/generate", body.clone()).await;
    body["stream"] = true.into();
    let events = server.events("/generate", body).await;
    for event in &events {
        assert!(whole["text"].as_str().unwrap().starts_with(event["text"].as_str().unwrap()));
        let (some, all) = (pairs(event), pairs(&whole));
        assert_eq!(some[..], all[..some.len()]);
    }
    assert_eq!(events.last().unwrap()["output_ids"], whole["output_ids"]);
    assert_eq!(events.last().unwrap()["meta_info"]["finish_reason"], whole["meta_info"]["finish_reason"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probs_of_prompts_are_those_of_sampling_the_same_tokens() {
    let server = Server::new();
    let mut sampling = seeded(10, 1);
    let body = json!({"input_ids": prompt(5), "sampling_params": sampling, "return_logprob": true});
    let sampled = server.ok("/generate", body).await;
    let mut ids = prompt(5);
    ids.extend(pairs(&sampled).iter().map(|(_, token)| *token as u32));
    sampling["max_new_tokens"] = 0.into();
    let body = json!({"input_ids": ids, "sampling_params": sampling, "return_logprob": true,
        "logprob_start_len": 0, "top_logprobs_num": 2});
    let scored = server.ok("/generate", body).await;
    let meta = &scored["meta_info"];
    let input = meta["input_token_logprobs"].as_array().unwrap();
    assert_eq!((input.len(), &input[0][0], &meta["completion_tokens"]), (15, &Value::Null, &json!(0)));
    for (entry, (log_prob, token)) in input[5..].iter().zip(pairs(&sampled)) {
        assert_eq!(entry[1], token);
        assert!((entry[0].as_f64().unwrap() - log_prob).abs() < 1e-6);
    }
    let top = meta["input_top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), &top[0], top[7].as_array().unwrap().len()), (15, &Value::Null, 2));
    // From the middle on, and with a response behind it.
    let body = json!({"input_ids": prompt(9), "sampling_params": seeded(3, 1), "return_logprob": true,
        "logprob_start_len": 6, "top_logprobs_num": 3});
    let answer = server.ok("/generate", body).await;
    let input = answer["meta_info"]["input_token_logprobs"].as_array().unwrap();
    assert_eq!((input.len(), &input[0][0]), (3, &Value::Null));
    assert!(input[1][0].is_number());
    let top = answer["meta_info"]["output_top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), top[0].as_array().unwrap().len()), (3, 3));
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_told_what_is_wrong_and_others_go_on() {
    let server = Server::with(12, 4, 40, None);
    let other = server.ok("/generate", json!({"input_ids": prompt(5), "sampling_params": seeded(8, 2)}));
    let cases = async {
        for (path, body, status, part) in [
            ("/generate", json!({}), 400, "exactly one of text and input_ids"),
            ("/generate", json!({"text": "A", "input_ids": [1]}), 400, "exactly one"),
            ("/generate", json!({"input_ids": []}), 400, "no tokens"),
            (
                "/generate",
                json!({"input_ids": [99], "sampling_params": {"max_new_tokens": 0}}),
                400,
                "vocabulary",
            ),
            ("/generate", json!({"input_ids": [99]}), 400, "outside the vocabulary"),
            ("/generate", json!({"input_ids": [-1]}), 400, "token ids"),
            ("/generate", json!({"input_ids": prompt(64)}), 400, "the context holds 64"),
            (
                "/generate",
                json!({"input_ids": prompt(40), "sampling_params": {"max_new_tokens": 20}}),
                400,
                "KV blocks",
            ),
            ("/generate", json!({"text": "A", "sampling_params": {"temperature": -1}}), 400, "temperature"),
            ("/generate", json!({"text": "A", "sampling_params": {"top_p": 0}}), 400, "top_p"),
            ("/generate", json!({"text": "A", "sampling_params": {"top_k": 0}}), 400, "top_k"),
            ("/generate", json!({"text": "A", "sampling_params": {"n": 0}}), 400, "n = 0"),
            ("/generate", json!({"text": "A", "sampling_params": {"tempratur": 1}}), 400, "tempratur"),
            (
                "/generate",
                json!({"text": "A", "sampling_params": {"frequency_penalty": 3}}),
                400,
                "frequency_penalty",
            ),
            ("/generate", json!({"text": "A", "sampling_params": {"regex": "("}}), 400, "regular expression"),
            ("/generate", json!({"text": "A", "sampling_params": {"stop": [""]}}), 400, "stop"),
            ("/generate", json!({"text": "A", "image_data": "x"}), 400, "image_data"),
            ("/generate", json!({"text": "A", "nonsense": 1}), 400, "nonsense"),
            ("/generate", json!({"text": ["A", "B"], "sampling_params": [{}]}), 400, "sampling_params"),
            (
                "/generate",
                json!({"text": "A", "return_logprob": true, "logprob_start_len": 9}),
                400,
                "logprob_start_len",
            ),
            ("/generate", json!({"text": "A", "sampling_params": {"n": 41}}), 503, "queue is full"),
            (
                "/generate",
                json!({"input_ids": [POISON, 1], "sampling_params": {"max_new_tokens": 4}}),
                500,
                "not finite",
            ),
            ("/v1/completions", json!({"prompt": "A", "model": "gpt"}), 404, "not served"),
            ("/v1/completions", json!({"model": "naive"}), 400, "prompt"),
            ("/v1/completions", json!({"prompt": "A", "suffix": "B"}), 400, "suffix"),
            ("/v1/chat/completions", json!({"messages": []}), 400, "messages"),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "A"}], "top_logprobs": 2}),
                400,
                "logprobs",
            ),
            ("/abort_request", json!({}), 400, "rid"),
            ("/pause_generation", json!({"mode": "later"}), 400, "later"),
            ("/update_weights_from_disk", json!({"model_path": "/etc"}), 403, "--weight-root"),
            ("/update_weights_from_disk", json!({"model_path": "/nowhere/at/all"}), 403, "--weight-root"),
            ("/update_weights_from_disk", json!({"model_path": "weights"}), 400, "absolute"),
            ("/v1/models/none", json!({}), 404, "no route"),
        ] {
            let (got, answer) = server.post(path, body.clone()).await;
            assert_eq!(got, status, "{path} {body}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains(part), "{path} {body}: {message}");
        }
        for (body, part) in [("{\"text\": ", "not JSON"), ("[1]", "JSON object")] {
            let (status, bytes) = server.call("POST", "/generate", body).await;
            assert_eq!(status, 400);
            assert!(String::from_utf8_lossy(&bytes).contains(part));
        }
        let (status, _) = server.call("POST", "/generate", " ".repeat(200_000)).await;
        assert_eq!(status, 413);
        let (status, _) = server.call("GET", "/generate", Body::empty()).await;
        assert_eq!(status, 405);
    };
    let (other, ()) = tokio::join!(other, cases);
    assert_eq!(other[1]["meta_info"]["completion_tokens"], 8);
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_scored_though_running_samples_hold_every_block() {
    // Two samples that together want more blocks than there are, again and again.
    let server = Server::with(16, 4, 4000, None);
    server.ok("/pause_generation", json!({"mode": "in_place"})).await;
    let busy = server.ok(
        "/generate",
        json!({"text": vec!["ABCABC"; 100], "sampling_params": {"max_new_tokens": 50, "n": 4, "ignore_eos": true}}),
    );
    let score = async {
        server.has_unfinished(400).await;
        server.ok("/continue_generation", json!({})).await;
        let body = json!({"input_ids": prompt(50), "sampling_params": {"max_new_tokens": 0}, "return_logprob": true,
            "logprob_start_len": 0});
        let answer = server.ok("/generate", body).await;
        assert_eq!(answer["meta_info"]["input_token_logprobs"].as_array().unwrap().len(), 50);
        server.handle.status.load().0.num_waiting
    };
    let (busy, num_waiting) = tokio::join!(busy, score);
    assert!(num_waiting > 0, "the others were not done yet");
    assert_eq!(busy.as_array().unwrap().len(), 400);
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_logits_break_leaves_the_others_of_its_step_whole() {
    let server = Server::new();
    let healthy = json!({"input_ids": prompt(5), "sampling_params": seeded(20, 3), "return_logprob": true});
    let alone = server.ok("/generate", healthy.clone()).await;
    server.ok("/pause_generation", json!({"mode": "in_place"})).await;
    let broken = json!({"input_ids": [POISON, 1], "sampling_params": {"max_new_tokens": 4, "n": 2}});
    let ((status, answer), (), crowd) = tokio::join!(
        async {
            server.has_unfinished(3).await;
            server.post("/generate", broken).await
        },
        async {
            server.has_unfinished(5).await;
            server.ok("/continue_generation", json!({})).await;
        },
        server.ok("/generate", healthy.clone()),
    );
    assert_eq!(status, 500, "{answer}");
    for (one, other) in alone.as_array().unwrap().iter().zip(crowd.as_array().unwrap()) {
        assert_eq!(pairs(one), pairs(other));
    }
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn penalties_bias_and_kept_ids_reach_the_engine() {
    let server = Server::new();
    let mut sampling = seeded(6, 1);
    sampling["logit_bias"] = json!({"5": 100.0});
    let answer = server.ok("/generate", json!({"text": "A", "sampling_params": sampling})).await;
    assert_eq!(answer["output_ids"], json!([5, 5, 5, 5, 5, 5]));
    sampling["frequency_penalty"] = 2.0.into();
    sampling["logit_bias"] = json!({"5": 2.0, "6": 2.0, "7": 2.0});
    let answer = server.ok("/generate", json!({"text": "A", "sampling_params": sampling})).await;
    assert_ne!(answer["output_ids"], json!([5, 5, 5, 5, 5, 5]));
    let mut sampling = seeded(6, 1);
    sampling["top_k"] = 3.into();
    sampling["custom_params"] = json!({"return_top_p_token_ids": true});
    let answer = server.ok("/generate", json!({"text": "A", "sampling_params": sampling})).await;
    // Offsets 0, 3, ... 18 as int32: their text in base64 begins with that of 0 and 3.
    let offsets = answer["meta_info"]["top_p_token_ids_offsets"].as_str().unwrap();
    assert!(offsets.starts_with("AAAAAAMAAAAGAAAA"), "{offsets}");
    assert_eq!(answer["meta_info"]["top_p_token_ids"].as_str().unwrap().len(), 18 * 4 * 4 / 3);
    for wrong in [json!({"x": 1}), json!({"99": 1}), json!([1])] {
        let body = json!({"text": "A", "sampling_params": {"logit_bias": wrong}});
        assert_eq!(server.post("/generate", body).await.0, 400);
    }
}
