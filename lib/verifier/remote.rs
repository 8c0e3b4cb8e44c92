//! The `remote` and `reward_model` rewards: a server of yours is asked about each row, or a served reward model.

use serde_json::{Value, json};

use crate::error::Result;
use crate::group::groups;
use crate::guard::prompt_text;
use crate::http::Client;
use crate::options::Options;
use crate::reply::read_reply;
use crate::{Error, Row, Verdict, Verifier};

/// What stands in for a row about which there is no answer: an error, or a configured reward that is marked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnError(Option<f64>);

impl OnError {
    /// Reads `on_error`.
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        Ok(Self(options.optional_number("on_error")?))
    }

    /// The default, or the error that `failure` makes of the problem.
    pub(crate) fn verdict(self, problem: String, failure: impl FnOnce(String) -> Error) -> Result<Verdict> {
        match self.0 {
            Some(reward) => {
                let reason = format!("the default, since there is no answer: {problem}");
                Ok(Verdict { failure: Some(problem), ..Verdict::new(reward, reason) })
            }
            None => Err(failure(problem)),
        }
    }
}

/// What a row is to a server of rewards: `prompt`, `response`, `label`, as slime's `remote_rm` sends them; with
/// `metadata=on` also `metadata` and `num_tokens`.
pub(crate) struct Remote {
    client: Client,
    on_error: OnError,
    sends_metadata: bool,
    sends_groups: bool,
    key: Option<String>,
}

impl Remote {
    /// `group=on` sends the rows of a group as one list and takes a list; `key` is the reward's in an object.
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        Ok(Self {
            on_error: OnError::new(options)?,
            sends_metadata: options.switch("metadata")?,
            sends_groups: options.switch("group")?,
            key: options.text("key")?,
            client: Client::new(options, "")?,
        })
    }

    fn body(&self, row: &Row<'_>) -> Value {
        let json = |text: &str| serde_json::from_str(text).unwrap_or(Value::from(text));
        let mut body =
            json!({ "prompt": row.prompt.map(json), "response": row.response, "label": row.label });
        if self.sends_metadata
            && let Some(fields) = body.as_object_mut()
        {
            fields.insert("metadata".to_owned(), row.metadata.map_or(Value::Null, json));
            fields.insert("num_tokens".to_owned(), json!(row.num_tokens));
        }
        body
    }

    /// Reads what the server says about a row.
    fn read(&self, reply: &Value, row: &Row<'_>) -> Result<Verdict> {
        let reply = match &self.key {
            Some(key) => reply.get(key).unwrap_or(&Value::Null),
            None => reply,
        };
        let verdict = read_reply(reply, row).map(|verdict| match reply.get("reason") {
            Some(_) => verdict,
            None => Verdict { reason: "the server says so".to_owned(), ..verdict },
        });
        verdict.or_else(|problem| self.on_error.verdict(problem, |problem| self.client.failure(problem)))
    }

    fn failed(&self, problem: String) -> Result<Verdict> {
        self.on_error.verdict(problem, |problem| self.client.failure(problem))
    }

    fn ask_group(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let body: Vec<Value> = rows.iter().map(|row| self.body(row)).collect();
        let replies = self.client.post(&Value::Array(body)).and_then(|replies| match replies {
            Value::Array(list) if list.len() == rows.len() => Ok(list),
            other => Err(format!("expected a list of {} rewards, got {:.80}", rows.len(), other.to_string())),
        });
        match replies {
            Ok(replies) => replies.iter().zip(rows).map(|(reply, row)| self.read(reply, row)).collect(),
            Err(problem) => rows.iter().map(|_| self.failed(problem.clone())).collect(),
        }
    }
}

impl Verifier for Remote {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        if !self.sends_groups {
            return self.client.map(rows, |row| match self.client.post(&self.body(row)) {
                Ok(reply) => self.read(&reply, row),
                Err(problem) => self.failed(problem),
            });
        }
        let groups = groups(rows);
        let scored = self.client.map(&groups, |members| {
            let own: Vec<Row<'_>> = members.iter().filter_map(|at| rows.get(*at).copied()).collect();
            self.ask_group(&own)
        });
        let mut verdicts: Vec<(usize, Result<Verdict>)> =
            groups.into_iter().zip(scored).flat_map(|(members, own)| members.into_iter().zip(own)).collect();
        verdicts.sort_by_key(|(at, _)| *at);
        verdicts.into_iter().map(|(_, verdict)| verdict).collect()
    }

    fn compares_groups(&self) -> bool {
        self.sends_groups
    }
}

/// The dialect of a server of reward models.
#[derive(Debug, Clone, Copy)]
enum Api {
    /// vLLM's `/pooling`: messages in, `data[0].data` out.
    Vllm,
    /// `SGLang`'s `/classify`: text in, `embedding` out.
    Sglang,
}

/// The score a served reward model gives the response.
pub(crate) struct RewardModel {
    client: Client,
    on_error: OnError,
    api: Api,
    model: Option<String>,
}

impl RewardModel {
    /// `api` is vllm or sglang, `model` the name the server knows it by.
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let (api, path) = match options.text("api")?.as_deref() {
            None | Some("vllm") => (Api::Vllm, "/pooling"),
            Some("sglang") => (Api::Sglang, "/classify"),
            Some(other) => return Err(options.wrong("api", "vllm or sglang", other)),
        };
        let (on_error, model) = (OnError::new(options)?, options.text("model")?);
        Ok(Self { client: Client::new(options, path)?, on_error, api, model })
    }

    fn body(&self, row: &Row<'_>) -> Value {
        let prompt: Value = row.prompt.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let mut body = match self.api {
            Api::Vllm => {
                let mut messages = match prompt {
                    Value::Array(messages) => messages,
                    Value::String(text) => vec![json!({ "role": "user", "content": text })],
                    _ => Vec::new(),
                };
                messages.push(json!({ "role": "assistant", "content": row.response }));
                json!({ "messages": messages })
            }
            Api::Sglang => {
                json!({ "text": format!("{}{}", row.prompt.map(prompt_text).unwrap_or_default(), row.response) })
            }
        };
        if let (Some(model), Some(fields)) = (&self.model, body.as_object_mut()) {
            fields.insert("model".to_owned(), model.as_str().into());
        }
        body
    }

    /// The one number of a reply, the last of a list.
    fn score(&self, reply: &Value) -> std::result::Result<f64, String> {
        let place = match self.api {
            Api::Vllm => reply.pointer("/data/0/data"),
            Api::Sglang => reply.get("embedding").or_else(|| reply.pointer("/0/embedding")),
        };
        let mut value = place.unwrap_or(&Value::Null);
        while let Some(last) = value.as_array().and_then(|list| list.last()) {
            value = last;
        }
        value.as_f64().ok_or_else(|| format!("expected a score, got {:.200}", reply.to_string()))
    }
}

impl Verifier for RewardModel {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        self.client.map(rows, |row| {
            let score = self.client.post(&self.body(row)).and_then(|reply| Self::score(self, &reply));
            match score {
                Ok(score) => Ok(Verdict::new(score, "the score of the reward model")),
                Err(problem) => self.on_error.verdict(problem, |problem| self.client.failure(problem)),
            }
        })
    }
}
