//! Events of jobs, one job after the other as they come, told through one sink.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::Counts;
use crate::app::App;
use crate::gather::Gathering;
use crate::sse::{Broken, Sink};
use crate::text::{Sample, TextRules};
use crate::{ApiError, Running};

/// What is told of a sample whenever it has grown.
pub trait Told: Send + Sync + 'static {
    /// What is remembered of one sample between its events.
    type Memory: Send;

    /// Nothing is told yet of sample `index` of job `job`.
    fn begin(&self, job: usize, index: usize) -> Self::Memory;

    /// The events for a sample whose text grew by `delta`.
    fn events(&self, memory: &mut Self::Memory, delta: &str, sample: &Sample) -> Vec<serde_json::Value>;
}

/// Tells all jobs; returns the count of tokens.
pub async fn all<T: Told>(
    app: Arc<App>,
    told: Arc<T>,
    rules: Arc<TextRules>,
    jobs: Vec<Running>,
    sink: Sink,
) -> Result<Counts, Broken> {
    let limit = app.config.request_timeout;
    let mut tasks = JoinSet::new();
    for (number, run) in jobs.into_iter().enumerate() {
        tasks.spawn(one(app.clone(), told.clone(), rules.clone(), number, run, sink.clone()));
    }
    let work = async {
        let mut counts = Counts::default();
        while let Some(result) = tasks.join_next().await {
            let more = result.unwrap_or_else(|error| Err(ApiError::internal(error.to_string()).into()))?;
            counts.prompt += more.prompt;
            counts.completion += more.completion;
            counts.cached += more.cached;
        }
        Ok(counts)
    };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!("the answer took longer than {} s", limit.as_secs());
        Err(ApiError::new(axum::http::StatusCode::GATEWAY_TIMEOUT, message).into())
    })
}

async fn one<T: Told>(
    app: Arc<App>,
    told: Arc<T>,
    rules: Arc<TextRules>,
    number: usize,
    mut run: Running,
    sink: Sink,
) -> Result<Counts, Broken> {
    let mut gathering = Gathering::new(&app.tokenizer, &rules, run.num_samples);
    let mut memories: Vec<T::Memory> = (0..run.num_samples).map(|index| told.begin(number, index)).collect();
    while !gathering.is_over() {
        let event = run.next().await?;
        let Some((index, delta)) = gathering.take(event, &mut run, &app.handle.status)? else { continue };
        let (Some(memory), Some(sample)) = (memories.get_mut(index), gathering.sample(index)) else {
            continue;
        };
        for event in told.events(memory, &delta, sample) {
            sink.send(&event).await?;
        }
    }
    let mut counts = Counts { prompt: run.prompt_len, ..Counts::default() };
    gathering.samples().for_each(|sample| counts.add(sample));
    Ok(counts)
}
