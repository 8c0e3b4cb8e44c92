//! Generates: prompts to groups of samples through one engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use slime_cli::Failure;
use slime_config::{Dtype, Eval, HfConfig, Partial, RunConfig};
use slime_engine::{
    Completion, Engine, EngineConfig, FinishReason, ModelRunner, Penalties, Request, SampleSeed,
    SamplingParams, Timing,
};
use slime_environment::Prompt;
use slime_record::{LogProbSpace, PromptContent, Sample, Status};
use slime_tokenizer::Tokenizer;

use crate::args::{Engines, Once};
use crate::evaluate;
use crate::failure;
use crate::generator::{Generator, Local};
use crate::memory;
use crate::read_prompts::{self, Prompts};
use crate::remote::Remote;
use crate::replay;
use crate::write_samples::SampleWriter;

/// `slime-rollout` over all prompts, once; groups leave in the order of their prompts.
pub fn generate(args: &Once) -> Result<(), Failure> {
    if args.resident.profile.is_some() {
        // Where another flag rules --follow out, the command line's own rule does not speak.
        return Err(Failure::usage("--profile needs a run: --follow RUN"));
    }
    let mut config = args.config()?;
    if config.data.kind.is_recorded() && args.eval.is_none() {
        if !args.engines.engine.is_empty() {
            return Err(Failure::usage("--engine: recorded responses (data.kind) are not sampled"));
        }
        return replay::replay(args, &config);
    }
    let tokenizer = Arc::new(Tokenizer::from_dir(Path::new(&config.model.path)).map_err(failure!())?);
    let mut purpose = Purpose::Training;
    let prompts: Box<dyn Iterator<Item = Result<Prompt, Failure>>> = match &args.eval {
        Some(name) => {
            let set = eval_set(&config, name)?;
            config = evaluate::settings_of(&config, &set);
            purpose = Purpose::Evaluation;
            Box::new(evaluate::prompts_of(&config, &set)?)
        }
        None => Box::new(Prompts::open(&config, args.num_prompts)?.into_iter()),
    };
    let connect = || Remote::connect(&args.engines, &config, decoder(tokenizer.clone()));
    let remote = (!args.engines.engine.is_empty()).then(connect).transpose()?;
    // A place that cannot be written is told before weights are loaded.
    let space = remote.as_ref().map_or(LogProbSpace::AfterTruncation, Remote::log_prob_space);
    let mut output = SampleWriter::create(&args.output, args.format, &config, space)?;
    let mut sampler = match remote {
        Some(remote) => Sampler::new(&config, tokenizer, Box::new(remote), purpose)?,
        None => Sampler::load(&config, tokenizer, 0, purpose)?,
    };
    let mut prompts = prompts.enumerate();
    let mut finished = BTreeMap::new();
    let mut next = 0;
    loop {
        while sampler.has_room() {
            let Some((group, prompt)) = prompts.next() else { break };
            sampler.submit(GroupId { step: 0, group: group as u32, attempt: 0 }, prompt?)?;
        }
        if sampler.is_idle() {
            break;
        }
        finished.extend(sampler.step()?.into_iter().map(|(id, samples)| (id.group, samples)));
        while let Some(group) = finished.remove(&next) {
            output.write(group)?;
            next += 1;
        }
    }
    if next == 0 {
        return Err(Failure::data("no prompts: nothing to sample"));
    }
    let usage = sampler.engine.usage();
    if let Some(accept_length) = usage.drafting.accept_length() {
        tracing::info!(accept_length, accept_rate = usage.drafting.accept_rate(), "tokens were guessed");
    }
    tracing::info!(
        groups = next,
        tokens = usage.num_sampled_tokens,
        forward_passes = usage.num_steps,
        preemptions = usage.num_preemptions,
        "generated"
    );
    output.finish()
}

/// The evaluation set of that name.
fn eval_set(config: &RunConfig, name: &str) -> Result<Eval, Failure> {
    let known: Vec<&str> = config.eval.keys().map(String::as_str).collect();
    let unknown = || {
        let message = format!("--eval {name}: the configuration has no [eval.{name}]");
        let hint = if known.is_empty() {
            "it has no evaluation set".to_owned()
        } else {
            format!("it has {}", known.join(", "))
        };
        Failure::usage(message).with_hint(hint)
    };
    config.eval.get(name).cloned().ok_or_else(unknown)
}

/// A group within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId {
    pub step: u64,
    pub group: u32,
    pub attempt: u32,
}

/// A group on its way through the engine.
struct Group {
    id: GroupId,
    prompt: Prompt,
    prompt_tokens: Vec<u32>,
    samples: Vec<Option<Sample>>,
}

/// Tokens of a forward pass on a CPU, where a pass soon takes as long as its tokens, and on a GPU.
const BATCH_TOKENS: usize = 1024;
const DEVICE_BATCH_TOKENS: usize = 8192;

/// What samples are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A trainer reads them: where truncation is configured, they say which tokens it left.
    Training,
    /// They are scored and no more.
    Evaluation,
}

/// What generates, with its tokenizer and the sampling parameters of a run.
pub struct Sampler {
    pub engine: Box<dyn Generator>,
    tokenizer: Arc<Tokenizer>,
    config: RunConfig,
    params: SamplingParams,
    groups: BTreeMap<u64, Group>,
    num_submitted: u64,
    timings: Vec<(GroupId, Timing)>,
}

impl Sampler {
    /// Loads the weights of `model.path`, which are policy version `version`.
    pub fn load(
        config: &RunConfig,
        tokenizer: Arc<Tokenizer>,
        version: u64,
        purpose: Purpose,
    ) -> Result<Self, Failure> {
        let engine = Self::load_engine_with(config, version, decoder(tokenizer.clone()))?;
        let max_in_flight = config.rollout.max_in_flight as usize;
        Self::new(config, tokenizer, Box::new(Local { engine, max_in_flight, newest_step: 0 }), purpose)
    }

    /// Servers in place of an engine.
    pub fn connect(
        engines: &Engines,
        config: &RunConfig,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<Self, Failure> {
        let remote = Remote::connect(engines, config, decoder(tokenizer.clone()))?;
        Self::new(config, tokenizer, Box::new(remote), Purpose::Training)
    }

    fn new(
        config: &RunConfig,
        tokenizer: Arc<Tokenizer>,
        engine: Box<dyn Generator>,
        purpose: Purpose,
    ) -> Result<Self, Failure> {
        let rollout = &config.rollout;
        let params = SamplingParams {
            temperature: rollout.temperature,
            top_k: rollout.top_k as usize,
            top_p: rollout.top_p,
            min_p: rollout.min_p,
            penalties: Penalties {
                repetition: rollout.repetition_penalty,
                frequency: rollout.frequency_penalty,
                presence: rollout.presence_penalty,
            },
            keeps_ids: purpose == Purpose::Training && rollout.truncates(),
            keeps_routes: purpose == Purpose::Training && config.algorithm.replays_rollout(),
            max_new_tokens: rollout.max_response_len as usize,
            stop: rollout.stop.clone(),
            stop_token_ids: stop_token_ids(config, &tokenizer)?,
            n: rollout.n_samples_per_prompt.unwrap_or(1),
            ..SamplingParams::default()
        };
        params.check().map_err(failure!())?;
        Ok(Self {
            engine,
            tokenizer,
            config: config.clone(),
            params,
            groups: BTreeMap::new(),
            num_submitted: 0,
            timings: Vec::new(),
        })
    }

    /// An engine that only scores.
    pub fn load_engine(config: &RunConfig, version: u64) -> Result<Engine<ModelRunner>, Failure> {
        Self::load_engine_with(config, version, Arc::new(|_: &[u32]| String::new()))
    }

    /// An engine that turns tokens into text.
    pub fn load_engine_with(
        config: &RunConfig,
        version: u64,
        decode: Arc<slime_engine::Decode>,
    ) -> Result<Engine<ModelRunner>, Failure> {
        tch::set_num_threads(slime_cli::threads_per_rank(1) as i32);
        let kind = match config.model.dtype {
            Dtype::F32 => tch::Kind::Float,
            Dtype::Bf16 => tch::Kind::BFloat16,
        };
        // The launcher gives each engine its GPU: it is the first that this process sees.
        let device = slime_torch::cuda::choose(config.run.device, 0).map_err(failure!())?;
        tracing::info!("computing in {}", slime_torch::cuda::describe(kind, device));
        let runner = ModelRunner::load(Path::new(&config.model.path), kind, device).map_err(failure!())?;
        let max_num_seqs = config.rollout.max_in_flight as usize;
        let prompt_len = config.data.max_prompt_len.unwrap_or(config.rollout.max_response_len);
        let seq_len = (prompt_len + config.rollout.max_response_len) as usize;
        let context_len = slime_engine::ForwardModel::context_len(&runner);
        let block_bytes = runner.block_bytes(memory::BLOCK_SIZE);
        let engine_config = EngineConfig {
            block_size: memory::BLOCK_SIZE,
            num_blocks: memory::num_blocks(device, block_bytes, max_num_seqs, seq_len, context_len)?,
            max_num_seqs,
            max_batch_tokens: if device.is_cuda() { DEVICE_BATCH_TOKENS } else { BATCH_TOKENS },
            context_len: None,
            num_draft_tokens: config.rollout.speculative_num_draft_tokens as usize,
            prefix_cache: config.rollout.prefix_cache,
        };
        Engine::new(runner, decode, &engine_config, version).map_err(failure!())
    }

    /// Whether the engine wants more groups to keep its batch full.
    pub fn has_room(&self) -> bool {
        self.engine.num_unfinished() < self.engine.num_wanted()
    }

    pub fn is_idle(&self) -> bool {
        self.groups.is_empty()
    }

    /// Queues all samples of a group.
    pub fn submit(&mut self, id: GroupId, prompt: Prompt) -> Result<(), Failure> {
        let prompt_tokens = self.render(&prompt)?;
        let mut params = self.params.clone();
        params.seed = SampleSeed { seed: self.config.run.seed, step: id.step, group: id.group, index: 0 };
        let n = params.n as usize;
        let request = Request { id: self.num_submitted, tokens: prompt_tokens.clone(), params };
        self.engine.submit(request)?;
        let group = Group { id, prompt, prompt_tokens, samples: vec![None; n] };
        self.groups.insert(self.num_submitted, group);
        self.num_submitted += 1;
        Ok(())
    }

    /// Takes groups back that are not finished.
    pub fn abort(&mut self, id: GroupId) {
        let requests: Vec<u64> =
            self.groups.iter().filter(|(_, group)| group.id == id).map(|(&r, _)| r).collect();
        for request in requests {
            self.engine.abort(request);
            self.groups.remove(&request);
        }
    }

    /// Puts the weights of `dir`, which are policy version `version`, in place of the old ones.
    pub fn reload(&mut self, dir: &Path, version: u64) -> Result<(), Failure> {
        self.engine.reload(dir, version)
    }

    /// The times of samples that finished since the last call; none unless the engine keeps them.
    pub fn take_timings(&mut self) -> Vec<(GroupId, Timing)> {
        std::mem::take(&mut self.timings)
    }

    /// The earliest step of the groups on their way.
    pub fn oldest_step(&self) -> Option<u64> {
        self.groups.values().map(|group| group.id.step).min()
    }

    /// One step of the engine; returns the groups whose last sample ended with it.
    pub fn step(&mut self) -> Result<Vec<(GroupId, Vec<Sample>)>, Failure> {
        let mut finished = Vec::new();
        let completions = self.engine.step()?;
        for timing in self.engine.take_timings() {
            self.timings.extend(self.groups.get(&timing.id).map(|group| (group.id, timing)));
        }
        for completion in completions {
            let id = completion.id;
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let index = completion.index as usize;
            let loss_mask = loss_mask(&completion, self.config.partial());
            group.samples[index] = Some(Sample { loss_mask, ..sample(group, completion) });
            if group.samples.iter().all(Option::is_some)
                && let Some(group) = self.groups.remove(&id)
            {
                finished.push((group.id, group.samples.into_iter().flatten().collect()));
            }
        }
        Ok(finished)
    }

    /// The prompt's tokens: through the chat template where that is asked for.
    fn render(&self, prompt: &Prompt) -> Result<Vec<u32>, Failure> {
        let data = &self.config.data;
        let named = |failure: Failure| Failure {
            message: format!("prompt {}: {}", prompt.prompt_id, failure.message),
            ..failure
        };
        let content = PromptContent::parse(&prompt.prompt).map_err(failure!()).map_err(named)?;
        let tokens = read_prompts::tokens(&self.tokenizer, content, prompt, data).map_err(named)?;
        if tokens.is_empty() {
            let message = format!("prompt {} of {} has no tokens", prompt.prompt_id, prompt.source);
            return Err(Failure::data(message).with_hint("fill or drop this prompt"));
        }
        let context_len = self.engine.context_len();
        let (most, key) = match data.max_prompt_len {
            Some(len) if (len as usize) < context_len => (len as usize, "data.max_prompt_len"),
            _ => (context_len - 1, "the context less one response token"),
        };
        if tokens.len() > most {
            return Err(Failure::data(format!(
                "prompt {} of {} has {} tokens, expected at most {most} ({key})",
                prompt.prompt_id,
                prompt.source,
                tokens.len()
            ))
            .with_hint("shorten or drop this prompt"));
        }
        Ok(tokens)
    }
}

/// One completion as a record.
fn sample(group: &Group, completion: Completion) -> Sample {
    let mut tokens = group.prompt_tokens.clone();
    tokens.extend(&completion.tokens);
    let GroupId { step, group: number, attempt } = group.id;
    Sample {
        step,
        group: number,
        index: completion.index,
        attempt,
        episode: u64::from(number) * group.samples.len() as u64 + u64::from(completion.index),
        prompt_id: group.prompt.prompt_id.clone(),
        source: group.prompt.source.clone(),
        status: match completion.finish_reason {
            FinishReason::Stop => Status::Completed,
            FinishReason::Length => Status::Truncated,
            FinishReason::Abort => Status::Aborted,
        },
        finish_reason: completion.finish_reason.as_str().to_owned(),
        prompt: group.prompt.prompt.clone(),
        tools: group.prompt.tools.clone(),
        response: completion.text,
        tokens,
        prompt_len: group.prompt_tokens.len() as u32,
        rollout_log_probs: completion.log_probs,
        kept_token_ids: completion.kept.ids,
        kept_lens: completion.kept.lens,
        routed_experts: completion.routed_experts,
        weight_versions: completion.weight_versions,
        label: group.prompt.label.clone(),
        metadata: group.prompt.metadata.clone(),
        ..Sample::default()
    }
}

/// Which tokens are trained: all, or those that the last weights sampled.
fn loss_mask(completion: &Completion, partial: Partial) -> Vec<u8> {
    let num_tokens = completion.tokens.len();
    let last = completion.weight_versions.last().map_or(0, |run| run.len as usize);
    let first_trained = if partial == Partial::Mask { num_tokens.saturating_sub(last) } else { 0 };
    (0..num_tokens).map(|token| u8::from(token >= first_trained)).collect()
}

/// Tokens to text; what cannot be decoded is said and left out.
pub fn decoder(tokenizer: Arc<Tokenizer>) -> Arc<slime_engine::Decode> {
    Arc::new(move |tokens: &[u32]| {
        tokenizer.decode(tokens, true).unwrap_or_else(|error| {
            tracing::error!("{error}");
            String::new()
        })
    })
}

/// The ends of a turn that the tokenizer and the model's configuration name.
pub fn stop_token_ids(config: &RunConfig, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let mut ids = HfConfig::load(&config.model.path).map_err(failure!())?.eos_token_ids;
    ids.extend(tokenizer.eos_ids());
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
