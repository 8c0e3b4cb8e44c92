//! Replays: recorded responses as the samples that generation would have made of them. Only the tokenizer is loaded.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde_json::{Value, json};
use slime_cli::{Failure, exit};
use slime_config::{HfConfig, Kind, RunConfig};
use slime_environment::Prompt;
use slime_record::{LogProbSpace, Sample, Status, VersionRun};
use slime_tokenizer::{Chat, ChatEncoder, Encoded, Tokenizer};

use crate::args::Once;
use crate::failure;
use crate::read_prompts::{Prompts, kwargs};
use crate::sampler::GroupId;
use crate::write_samples::SampleWriter;

/// Rows that are read and tokenised between two writes.
const ROWS: u64 = 512;

/// `slime-rollout` over all rows, once.
pub fn replay(args: &Once, config: &RunConfig) -> Result<(), Failure> {
    let tokenizer = Arc::new(Tokenizer::from_dir(Path::new(&config.model.path)).map_err(failure!())?);
    let rows = Prompts::open(config, args.num_prompts)?;
    let replayer = Replayer::new(config, tokenizer)?;
    let mut output = SampleWriter::create(&args.output, args.format, config, LogProbSpace::AfterTruncation)?;
    let (mut num_tokens, mut num_trained) = (0, 0);
    for first in (0..rows.len()).step_by(ROWS as usize) {
        let groups: Vec<Result<Vec<Sample>, Failure>> = (first..rows.len().min(first + ROWS))
            .into_par_iter()
            .map(|row| {
                let id = GroupId { step: 0, group: row as u32, attempt: 0 };
                replayer.samples(id, &rows.get(row)?, 0)
            })
            .collect();
        for group in groups {
            let group = group?;
            num_tokens += group.iter().map(|sample| sample.tokens.len()).sum::<usize>();
            num_trained +=
                group.iter().flat_map(|sample| &sample.loss_mask).filter(|mask| **mask != 0).count();
            output.write(group)?;
        }
    }
    tracing::info!(groups = rows.len(), tokens = num_tokens, trained = num_trained, "replayed");
    replayer.tell_cut();
    output.finish()
}

/// Turns rows with recorded responses into groups of samples.
pub struct Replayer {
    tokenizer: Arc<Tokenizer>,
    /// None where texts are taken as they are.
    encoder: Option<ChatEncoder>,
    config: RunConfig,
    /// The model's context, where it is known.
    context_len: Option<usize>,
    num_cut: AtomicU64,
    queue: Vec<(GroupId, Prompt, u64)>,
}

impl Replayer {
    /// For the rows of `[data]`.
    pub fn new(config: &RunConfig, tokenizer: Arc<Tokenizer>) -> Result<Self, Failure> {
        let data = &config.data;
        let encoder = if data.apply_chat_template {
            let encoder = ChatEncoder::new(&tokenizer, data.loss_mask, kwargs(data)?).map_err(failure!())?;
            tracing::info!("loss mask {}", encoder.rule());
            Some(encoder)
        } else {
            None
        };
        let context_len = match HfConfig::load(&config.model.path) {
            Ok(model) => Some(model.max_position_embeddings),
            Err(error) if error.exit_code() == exit::NO_INPUT => None,
            Err(error) => return Err(Failure::from_error(error.exit_code(), &error)),
        };
        let config = config.clone();
        Ok(Self { tokenizer, encoder, config, context_len, num_cut: AtomicU64::new(0), queue: Vec::new() })
    }

    /// Queues a group, which is handed out under this policy version.
    pub fn submit(&mut self, id: GroupId, prompt: Prompt, version: u64) {
        self.queue.push((id, prompt, version));
    }

    /// Takes a group back.
    pub fn abort(&mut self, id: GroupId) {
        self.queue.retain(|(queued, ..)| *queued != id);
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The groups that were queued.
    pub fn step(&mut self) -> Result<Vec<(GroupId, Vec<Sample>)>, Failure> {
        let queue = std::mem::take(&mut self.queue);
        let groups: Vec<_> = queue
            .par_iter()
            .map(|(id, prompt, version)| Ok((*id, self.samples(*id, prompt, *version)?)))
            .collect();
        groups.into_iter().collect()
    }

    /// Says how many responses were longer than wanted.
    pub fn tell_cut(&self) {
        let num_cut = self.num_cut.load(Ordering::Relaxed);
        if let Some(max_len) = self.config.data.max_len.filter(|_| num_cut > 0) {
            tracing::warn!(
                num_cut,
                "responses were cut off at data.max_len {max_len} tokens (status truncated)"
            );
        }
    }

    /// The samples of a row; all have the same prompt.
    fn samples(&self, id: GroupId, prompt: &Prompt, version: u64) -> Result<Vec<Sample>, Failure> {
        self.group(id, prompt, version).map_err(|failure| Failure {
            message: format!("{}: {}", prompt.prompt_id, failure.message),
            ..failure
        })
    }

    fn group(&self, id: GroupId, prompt: &Prompt, version: u64) -> Result<Vec<Sample>, Failure> {
        let parse = |json: &str| serde_json::from_str::<Value>(json).map_err(Failure::data);
        let before = parse(&prompt.prompt)?;
        let tools = prompt.tools.as_deref().map(parse).transpose()?;
        let mut encoded = Vec::with_capacity(prompt.responses.len());
        for (name, response) in self.names().iter().zip(&prompt.responses) {
            let whole = self.encode(&before, &parse(response)?, tools.as_ref());
            encoded.push(
                whole.map_err(|failure| Failure {
                    message: format!("{name}: {}", failure.message),
                    ..failure
                })?,
            );
        }
        let prompt_len = self.prompt_len(&encoded)?;
        let num = encoded.len();
        let mut samples = Vec::with_capacity(num);
        for (index, whole) in encoded.into_iter().enumerate() {
            let mut sample = self.sample(prompt, prompt_len, whole, version)?;
            let GroupId { step, group, attempt } = id;
            (sample.step, sample.group, sample.attempt) = (step, group, attempt);
            sample.index = index as u32;
            sample.episode = u64::from(group) * num as u64 + index as u64;
            samples.push(sample);
        }
        if let [chosen, rejected] = samples.as_slice()
            && chosen.tokens == rejected.tokens
        {
            return Err(Failure::data(format!(
                "chosen and rejected: expected different tokens, got the same {} twice",
                chosen.tokens.len()
            ))
            .with_hint("drop this row, or raise data.max_len"));
        }
        Ok(samples)
    }

    /// What messages call the responses of a row.
    fn names(&self) -> &'static [&'static str] {
        match self.config.data.kind {
            Kind::Preferences => &["chosen", "rejected"],
            Kind::Prompts | Kind::Conversations => &["conversation"],
        }
    }

    fn encode(&self, prompt: &Value, response: &Value, tools: Option<&Value>) -> Result<Encoded, Failure> {
        let Some(encoder) = &self.encoder else { return self.encode_text(prompt, response) };
        let mut messages = messages_of(prompt, "user");
        let num_prompt = messages.len();
        messages.extend(messages_of(response, "assistant"));
        encoder.encode(Chat { messages: &messages, num_prompt, tools }).map_err(failure!())
    }

    /// Prompt and response as they stand, and the token that ends a text.
    fn encode_text(&self, prompt: &Value, response: &Value) -> Result<Encoded, Failure> {
        let (Some(prompt), Some(response)) = (prompt.as_str(), response.as_str()) else {
            return Err(Failure::data("expected text, got chat messages, which need a chat template")
                .with_hint("--set data.apply_chat_template=true"));
        };
        let mut tokens = self.tokenizer.encode_with_special_tokens(prompt).map_err(failure!())?;
        let mut loss_mask = vec![0; tokens.len()];
        tokens.extend(self.tokenizer.encode(response).map_err(failure!())?);
        tokens.extend(self.tokenizer.eos_token_id().filter(|eos| tokens.last() != Some(eos)));
        loss_mask.resize(tokens.len(), 1);
        Ok(Encoded { tokens, loss_mask })
    }

    /// The number of tokens before the first trained one, which all responses of a row share.
    fn prompt_len(&self, encoded: &[Encoded]) -> Result<usize, Failure> {
        let mut prompt_len = usize::MAX;
        for (name, Encoded { loss_mask, .. }) in self.names().iter().zip(encoded) {
            let first = loss_mask.iter().position(|mask| *mask != 0);
            let first = first.ok_or_else(|| {
                Failure::data(format!(
                    "{name}: expected tokens to train, got none among {} (loss mask {})",
                    loss_mask.len(),
                    self.encoder.as_ref().map_or("of text", ChatEncoder::rule)
                ))
                .with_hint("drop this row; step_loss_mask, an empty response or data.loss_mask leave nothing")
            })?;
            prompt_len = prompt_len.min(first);
        }
        let mut prompts = encoded.iter().map(|whole| &whole.tokens[..prompt_len]);
        let first = prompts.next();
        if prompts.any(|prompt| Some(prompt) != first) {
            return Err(Failure::data(format!(
                "chosen and rejected: expected the same {prompt_len} tokens before both, got the prompt rendered otherwise"
            ))
            .with_hint("the chat template looks at the response; another one, or another data.loss_mask"));
        }
        self.check_prompt(prompt_len)?;
        Ok(prompt_len)
    }

    fn check_prompt(&self, prompt_len: usize) -> Result<(), Failure> {
        let data = &self.config.data;
        let limits = [
            (data.max_prompt_len.map(|most| most as usize), "data.max_prompt_len"),
            (data.max_len.map(|most| most as usize - 1), "data.max_len less one response token"),
        ];
        for (most, key) in limits {
            if let Some(most) = most.filter(|most| prompt_len > *most) {
                return Err(Failure::data(format!(
                    "prompt: expected at most {most} tokens ({key}), got {prompt_len}"
                ))
                .with_hint("shorten or drop this row"));
            }
        }
        Ok(())
    }

    /// One response as a record, cut off where it is too long, as generation would have been.
    fn sample(
        &self,
        prompt: &Prompt,
        prompt_len: usize,
        whole: Encoded,
        version: u64,
    ) -> Result<Sample, Failure> {
        let Encoded { mut tokens, mut loss_mask } = whole;
        let most = self.config.data.max_len.map(|most| most as usize);
        let is_cut = most.is_some_and(|most| tokens.len() > most);
        if let Some(most) = most.filter(|_| is_cut) {
            tokens.truncate(most);
            loss_mask.truncate(most);
            self.num_cut.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(context_len) = self.context_len.filter(|context_len| tokens.len() > *context_len) {
            return Err(Failure::data(format!(
                "expected at most {context_len} tokens (the model's context), got {}",
                tokens.len()
            ))
            .with_hint(format!("--set data.max_len={context_len} cuts longer ones off")));
        }
        let loss_mask = loss_mask.split_off(prompt_len);
        let response = self.text(&tokens[prompt_len..])?;
        let (status, finish_reason) =
            if is_cut { (Status::Truncated, "length") } else { (Status::Completed, "stop") };
        Ok(Sample {
            prompt_id: prompt.prompt_id.clone(),
            source: prompt.source.clone(),
            status,
            finish_reason: finish_reason.to_owned(),
            prompt: prompt.prompt.clone(),
            tools: prompt.tools.clone(),
            response,
            tokens,
            prompt_len: prompt_len as u32,
            weight_versions: vec![VersionRun { version, len: loss_mask.len() as u32 }],
            loss_mask,
            label: prompt.label.clone(),
            metadata: prompt.metadata.clone(),
            ..Sample::default()
        })
    }

    /// The text of a response, without the token that ends it and the line break some templates put behind that.
    fn text(&self, response: &[u32]) -> Result<String, Failure> {
        let decode = |tokens| self.tokenizer.decode(tokens, true).map_err(failure!());
        let eos_ids = self.tokenizer.eos_ids();
        if let Some(end) = response.iter().rposition(|token| eos_ids.contains(token))
            && decode(&response[end..])?.trim().is_empty()
        {
            return decode(&response[..end]);
        }
        decode(response)
    }
}

/// A text is one message.
fn messages_of(side: &Value, role: &str) -> Vec<Value> {
    match side {
        Value::Array(messages) => messages.clone(),
        text => vec![json!({"role": role, "content": text})],
    }
}
