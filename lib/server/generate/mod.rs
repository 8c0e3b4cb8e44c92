//! `/generate` as `SGLang` defines it: text or token ids in, text and `meta_info` out, whole or as events.

mod answer;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::app::App;
use crate::gather::Gathering;
use crate::sse::{self, Broken, Sink};
use crate::{ApiError, ApiResult, Running, body};
use answer::Asked;
use request::Batch;

/// `POST /generate`.
pub async fn generate(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    let fields = body::object(&app, request).await?;
    let Batch { wanted, asked, is_stream, is_list } = Batch::parse(&app, fields).await?;
    let runs = app.handle.submit(wanted)?;
    let first_indices = asked.iter().scan(0, |next, asked| {
        let first = *next;
        *next += asked.num_samples;
        Some(first)
    });
    let jobs: Vec<(usize, Asked, Running)> = first_indices
        .collect::<Vec<_>>()
        .into_iter()
        .zip(asked)
        .zip(runs)
        .map(|((f, a), r)| (f, a, r))
        .collect();
    let limit = app.config.request_timeout;
    if is_stream {
        return Ok(sse::stream(move |sink| async move {
            tokio::time::timeout(limit, stream_all(app, jobs, is_list, sink)).await.unwrap_or_else(|_| {
                Err(Broken::Failed(ApiError::new(
                    axum::http::StatusCode::GATEWAY_TIMEOUT,
                    "the answer took too long",
                )))
            })
        }));
    }
    let mut answers = sse::within(limit, whole_all(app, jobs)).await?;
    Ok(match (is_list, answers.pop()) {
        (false, Some(answer)) => Json(answer).into_response(),
        (_, last) => Json(answers.into_iter().chain(last).collect::<Vec<_>>()).into_response(),
    })
}

/// The answers to all jobs, in their order.
async fn whole_all(app: Arc<App>, jobs: Vec<(usize, Asked, Running)>) -> ApiResult<Vec<Value>> {
    let mut answers = Vec::new();
    for (_, asked, mut run) in jobs {
        let mut gathering = Gathering::new(&app.tokenizer, &asked.rules, run.num_samples);
        gathering.wait(&mut run, &app.handle.status).await?;
        for (index, sample) in gathering.samples().enumerate() {
            answers.push(asked.answer(&app, &run, index, sample, gathering.prompt.as_ref()));
        }
    }
    Ok(answers)
}

async fn stream_all(
    app: Arc<App>,
    jobs: Vec<(usize, Asked, Running)>,
    is_list: bool,
    sink: Sink,
) -> Result<(), Broken> {
    let mut tasks = JoinSet::new();
    for (first, asked, run) in jobs {
        let first = is_list.then_some(first);
        tasks.spawn(stream_one(app.clone(), first, asked, run, sink.clone()));
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap_or_else(|error| Err(ApiError::internal(error.to_string()).into()))?;
    }
    Ok(())
}

/// Each event holds all that is known of its sample; `first` is its place in a list.
async fn stream_one(
    app: Arc<App>,
    first: Option<usize>,
    asked: Asked,
    mut run: Running,
    sink: Sink,
) -> Result<(), Broken> {
    let mut gathering = Gathering::new(&app.tokenizer, &asked.rules, run.num_samples);
    while !gathering.is_over() {
        // What a slow reader has missed comes in one event.
        let mut changed = vec![false; run.num_samples];
        let mut next = Some(run.next().await?);
        while let Some(event) = next {
            let grown = gathering.take(event, &mut run, &app.handle.status)?;
            grown
                .and_then(|(index, _)| changed.get_mut(index))
                .into_iter()
                .for_each(|changed| *changed = true);
            next = if gathering.is_over() { None } else { run.try_next()? };
        }
        for (index, sample) in
            gathering.samples().enumerate().filter(|(index, _)| changed.get(*index) == Some(&true))
        {
            let mut answer = asked.answer(&app, &run, index, sample, gathering.prompt.as_ref());
            if let (Some(first), Some(fields)) = (first, answer.as_object_mut()) {
                fields.insert("index".to_owned(), (first + index).into());
            }
            sink.send(&answer).await?;
        }
    }
    Ok(())
}
