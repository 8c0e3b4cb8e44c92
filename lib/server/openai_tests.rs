//! What `OpenAI`'s routes promise, over an engine whose answers are known exactly.

use serde_json::{Value, json};

use crate::testing::server::Server;

fn chat(more: &Value) -> Value {
    let mut body = json!({"model": "naive", "messages": [{"role": "user", "content": "ABC"}], "ignore_eos": true,
        "max_tokens": 7, "sample_seed": {"seed": 3}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_answer_with_usage_and_log_probs() {
    let server = Server::new();
    let body = chat(&json!({"logprobs": true, "top_logprobs": 2, "n": 2, "return_token_ids": true}));
    let answer = server.ok("/v1/chat/completions", body).await;
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("naive")));
    // The template writes "ABC;", of which the vocabulary has the letters.
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 14, "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 2}})
    );
    for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(index), &json!("length")));
        let text = choice["message"]["content"].as_str().unwrap();
        let told = choice["logprobs"]["content"].as_array().unwrap();
        let joined: String = told.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
        assert_eq!((joined.as_str(), told.len()), (text, 7));
        assert!(told.iter().all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 2));
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), 7);
    }
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_chats_add_up_to_the_whole() {
    let server = Server::new();
    let whole = server.ok("/v1/chat/completions", chat(&json!({"n": 2, "logprobs": true}))).await;
    let streaming =
        json!({"n": 2, "logprobs": true, "stream": true, "stream_options": {"include_usage": true}});
    let events = server.events("/v1/chat/completions", chat(&streaming)).await;
    let usage = events.last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &whole["usage"]));
    for index in 0..2 {
        let choices: Vec<&Value> = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(choices[0]["delta"], json!({"role": "assistant", "content": ""}));
        let text: String = choices.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, whole["choices"][index]["message"]["content"]);
        let told: Vec<Value> = choices
            .iter()
            .filter_map(|choice| choice["logprobs"]["content"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(told), whole["choices"][index]["logprobs"]["content"]);
        assert_eq!(choices.last().unwrap()["finish_reason"], "length");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_echo_and_tell_log_probs() {
    let server = Server::new();
    let body =
        json!({"prompt": "ABC", "max_tokens": 4, "echo": true, "logprobs": 2, "ignore_eos": true, "seed": 1});
    let answer = server.ok("/v1/completions", body).await;
    let choice = &answer["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with("ABC"));
    let told = &choice["logprobs"];
    assert_eq!((&told["tokens"][0], &told["token_logprobs"][0]), (&json!("A"), &Value::Null));
    assert_eq!(told["text_offset"], json!([0, 1, 2, 3, 4, 5, 6]));
    assert!(told["token_logprobs"].as_array().unwrap()[1..].iter().all(Value::is_number));
    assert_eq!(told["top_logprobs"][6].as_object().unwrap().len(), 2);
    let body = json!({"prompt": [[1, 2], [3]], "n": 2, "max_tokens": 3, "ignore_eos": true, "return_token_ids": true});
    let answer = server.ok("/v1/completions", body).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(
        choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    assert_eq!(
        (&choices[2]["prompt_token_ids"], answer["usage"]["prompt_tokens"].as_u64()),
        (&json!([3]), Some(3))
    );
    let body =
        json!({"prompt": ["AB", "C"], "max_tokens": 3, "ignore_eos": true, "stream": true, "echo": true});
    let events = server.events("/v1/completions", body).await;
    let text = |index: u64| -> String {
        let of = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        of.map(|choice| choice["text"].as_str().unwrap()).collect()
    };
    assert!(text(0).starts_with("AB") && text(0).len() == 5 && text(1).starts_with('C'));
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_stay_in_the_language_that_is_asked_for() {
    let server = Server::new();
    let body = json!({"text": "ABC", "sampling_params": {"regex": "(AB|BA){3}C", "max_new_tokens": 30}});
    let answer = server.ok("/generate", body).await;
    let text = answer["text"].as_str().unwrap();
    assert!(text.len() == 7 && text.ends_with('C'), "{text}");
    assert_eq!(answer["meta_info"]["finish_reason"]["type"], "stop");
    let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["A"]}}});
    let (status, answer) =
        server.post("/v1/chat/completions", chat(&json!({"response_format": schema}))).await;
    // This vocabulary has no quotation mark: no text of the schema can be written.
    assert!(status == 400 || answer["choices"][0]["finish_reason"] == "abort", "{status} {answer}");
    let (status, _) =
        server.post("/v1/chat/completions", chat(&json!({"response_format": {"type": "poem"}}))).await;
    assert_eq!(status, 400);
    server.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn demanded_calls_come_as_calls_whole_and_in_events() {
    let server = Server::speaking(crate::testing::calling());
    let chat = |more: &Value| {
        let mut body = chat(more);
        body["messages"][0]["content"] = "FGH".into();
        body
    };
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": {}, "additionalProperties": false}}}]);
    // The words of this vocabulary spell a call without white space between the marks.
    let regex = "<tool_call>\\{\"name\":\"f\",\"arguments\":\\{\\}\\}</tool_call>";
    let asked = json!({"tools": tools, "regex": regex, "max_tokens": 20});
    let answer = server.ok("/v1/chat/completions", chat(&asked)).await;
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "f", "arguments": "{}"}));
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    let mut streaming = asked.clone();
    streaming["stream"] = true.into();
    let events = server.events("/v1/chat/completions", chat(&streaming)).await;
    let calls: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array())
        .flatten()
        .collect();
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("f")));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    for (choice, part) in [(json!("required"), "response_format"), (json!("later"), "auto")] {
        let mut asked = asked.clone();
        asked["tool_choice"] = choice;
        let (status, answer) = server.post("/v1/chat/completions", chat(&asked)).await;
        assert_eq!(status, 400);
        assert!(answer["error"]["message"].as_str().unwrap().contains(part), "{answer}");
    }
    server.rests().await;
}
