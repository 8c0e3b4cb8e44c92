//! The `judge` reward: a language model behind an OpenAI-compatible server grades each response.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::Result;
use crate::http::Client;
use crate::options::Options;
use crate::remote::OnError;
use crate::template::Template;
use crate::{Row, Verdict, Verifier};

/// Tokens of a judge's answer, unless told otherwise.
const MAX_TOKENS: usize = 1024;
/// Answers this process has kept, so that temporary files have names of their own.
static WRITES: AtomicUsize = AtomicUsize::new(0);

/// A judge: a server, a model, a question, votes, and answers that are kept.
pub(crate) struct Judge {
    client: Client,
    model: String,
    template: Template,
    votes: usize,
    is_majority: bool,
    temperature: f64,
    max_tokens: usize,
    cache: Option<PathBuf>,
    pub(crate) on_error: OnError,
}

impl Judge {
    /// Reads `model`, `votes` and `vote` (mean or majority), `temperature`, `max_tokens`, `cache`, and what [`Template`],
    /// [`Client`] and [`OnError`] read.
    pub(crate) fn new(options: &mut Options, is_pair: bool) -> Result<Self> {
        let model = options.text("model")?;
        let votes = options.count("votes", 1)?;
        let is_majority = match options.text("vote")?.as_deref() {
            None | Some("mean") => false,
            Some("majority") => true,
            Some(other) => return Err(options.wrong("vote", "mean or majority", other)),
        };
        let temperature = options.number("temperature", if votes > 1 { 1.0 } else { 0.0 })?;
        let max_tokens = options.count("max_tokens", MAX_TOKENS)?;
        let cache = options.text("cache")?.map(PathBuf::from);
        if let Some(folder) = &cache {
            fs::create_dir_all(folder).map_err(|error| {
                options.problem(format!("cache: cannot create {}: {error}", folder.display()))
            })?;
        }
        let template = Template::new(options, is_pair)?;
        let on_error = OnError::new(options)?;
        let client = Client::new(options, "/chat/completions")?;
        let model = options.needed("model", model)?;
        Ok(Self { client, model, template, votes, is_majority, temperature, max_tokens, cache, on_error })
    }

    /// The client, whose bound on requests holds for all of a judge's.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// From 0 to 1, with what the judge said last; the inner error says in words why there is no answer.
    pub(crate) fn ask(
        &self,
        row: &Row<'_>,
        other: &str,
    ) -> Result<std::result::Result<(f64, String), String>> {
        let question = self.template.fill(row, other)?;
        let mut scores = Vec::new();
        let mut problem = None;
        let mut said = String::new();
        for vote in 0..self.votes {
            match self.vote(&question, vote) {
                Ok(text) => match self.template.read(&text) {
                    Some(score) => {
                        scores.push(score);
                        said = text;
                    }
                    None => problem = Some(format!("no answer of the asked form in {:?}", tail(&text))),
                },
                Err(wrong) => problem = Some(wrong),
            }
        }
        // A vote that failed is not a vote against.
        let num = scores.len() as f64;
        if let (true, Some(problem)) = (scores.len() * 2 <= self.votes, problem) {
            return Ok(Err(format!("{} of {} votes: {problem}", scores.len(), self.votes)));
        }
        let mean = scores.iter().sum::<f64>() / num;
        let score = match (self.is_majority, mean.total_cmp(&0.5)) {
            (true, std::cmp::Ordering::Greater) => 1.0,
            (true, std::cmp::Ordering::Less) => 0.0,
            _ => mean,
        };
        Ok(Ok((score, tail(&said))))
    }

    /// What the judge says in one vote, from the cache where it was said before.
    fn vote(&self, question: &str, vote: usize) -> std::result::Result<String, String> {
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": question }],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": vote,
        });
        let place = self.cache.as_ref().map(|folder| {
            let key = xxh3_128(format!("{}\n{body}", self.client.url()).as_bytes());
            folder.join(format!("{key:032x}.txt"))
        });
        if let Some(kept) = place.as_ref().and_then(|place| fs::read_to_string(place).ok()) {
            return Ok(kept);
        }
        let reply = self.client.post(&body)?;
        let text = reply.pointer("/choices/0/message/content").and_then(Value::as_str);
        let text = text
            .ok_or_else(|| format!("expected choices[0].message.content, got {:.200}", reply.to_string()))?;
        if let Some(place) = place {
            let keep = || {
                // The same question may be asked twice at once.
                let number = WRITES.fetch_add(1, Ordering::Relaxed);
                let temporary = place.with_extension(format!("{}.{number}.tmp", std::process::id()));
                fs::write(&temporary, text)?;
                fs::rename(&temporary, &place)
            };
            keep().map_err(|error: std::io::Error| {
                format!("cache: cannot write {}: {error}", place.display())
            })?;
        }
        Ok(text.to_owned())
    }
}

/// The end of what was said, in one line.
fn tail(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = line.chars().count().saturating_sub(120);
    line.chars().skip(skipped).collect()
}

impl Verifier for Judge {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        self.client.map(rows, |row| match self.ask(row, "")? {
            Ok((score, said)) => Ok(Verdict::new(score, format!("the judge: {said}"))),
            Err(problem) => self.on_error.verdict(problem, |problem| self.client.failure(problem)),
        })
    }
}
