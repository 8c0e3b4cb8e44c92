//! What generates, with its tokenizer and the sampling parameters of a run: groups of samples in and out of an engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use slime_cli::Failure;
use slime_config::{HfConfig, RunConfig};
use slime_engine::{
    Completion, Decode, FinishReason, Penalties, Request, SampleSeed, SamplingParams, Timing,
};
use slime_environment::Prompt;
use slime_record::{Sample, Status};
use slime_tokenizer::Tokenizer;

use crate::args::Engines;
use crate::continuation;
use crate::failure;
use crate::generator::{Generator, Local};
use crate::read_prompts::GroupShape;
use crate::remote::Remote;
use crate::tokens_ahead::Tokenised;

/// A group within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId {
    pub step: u64,
    pub group: u32,
    pub attempt: u32,
}

/// A group on its way through the engine.
pub struct Group {
    pub id: GroupId,
    pub prompt: Prompt,
    pub prompt_tokens: Vec<u32>,
    /// Those that have ended.
    pub samples: Vec<Option<Sample>>,
    /// What they had when an earlier replica was drained, for those that go on.
    before: BTreeMap<u32, Sample>,
    /// The continuation number of its samples.
    pub part: u32,
    max_response_len: u32,
}

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
    decode: Arc<Decode>,
    config: RunConfig,
    params: SamplingParams,
    /// By the number of their first request.
    groups: BTreeMap<u64, Group>,
    /// The group of each request, and the index of its first sample.
    requests: BTreeMap<u64, (u64, u32)>,
    num_submitted: u64,
    timings: Vec<(GroupId, Timing)>,
}

impl Sampler {
    /// Loads the weights of `model.path`, which are policy version `version`.
    pub fn load(
        config: &RunConfig,
        tokenizer: &Arc<Tokenizer>,
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
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Self, Failure> {
        let remote = Remote::connect(engines, config, decoder(tokenizer.clone()))?;
        Self::new(config, tokenizer, Box::new(remote), Purpose::Training)
    }

    pub fn new(
        config: &RunConfig,
        tokenizer: &Arc<Tokenizer>,
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
            stop_token_ids: stop_token_ids(config, tokenizer)?,
            n: rollout.n_samples_per_prompt.unwrap_or(1),
            ..SamplingParams::default()
        };
        params.check().map_err(failure!())?;
        Ok(Self {
            engine,
            decode: decoder(tokenizer.clone()),
            config: config.clone(),
            params,
            groups: BTreeMap::new(),
            requests: BTreeMap::new(),
            num_submitted: 0,
            timings: Vec::new(),
        })
    }

    /// Whether the engine wants more groups to keep its batch full.
    pub fn has_room(&self) -> bool {
        self.engine.num_unfinished() < self.engine.num_wanted()
    }

    pub fn is_idle(&self) -> bool {
        self.groups.is_empty()
    }

    /// The shape of groups where nothing else is asked.
    pub fn shape(&self) -> GroupShape {
        let max_response_len = self.config.rollout.max_response_len;
        GroupShape { n_samples_per_prompt: self.params.n, max_response_len }
    }

    /// Queues all samples of a group; those of `before`, which an earlier replica left, go on from where they are.
    pub fn submit(
        &mut self,
        id: GroupId,
        Tokenised { prompt, tokens: prompt_tokens }: Tokenised,
        shape: GroupShape,
        before: Vec<Sample>,
    ) -> Result<(), Failure> {
        self.check_len(&prompt, prompt_tokens.len())?;
        let key = self.num_submitted;
        let n = shape.n_samples_per_prompt;
        let part = before.iter().map(|sample| sample.part + 1).max().unwrap_or(0);
        let mut group = Group {
            id,
            prompt,
            prompt_tokens,
            samples: vec![None; n as usize],
            before: BTreeMap::new(),
            part,
            max_response_len: shape.max_response_len,
        };
        if before.is_empty() {
            self.request(key, &group, (0, n), group.prompt_tokens.clone(), 0)?;
        }
        for sample in before {
            let (index, tokens) = (sample.index, sample.tokens.clone());
            if sample.status == Status::Aborted {
                let first_token = sample.response_len() as u64;
                group.before.insert(index, sample);
                self.request(key, &group, (index, 1), tokens, first_token)?;
            } else if let Some(place) = group.samples.get_mut(index as usize) {
                *place = Some(Sample { attempt: id.attempt, part, ..sample });
            }
        }
        self.groups.insert(key, group);
        Ok(())
    }

    /// Asks the engine for `n` samples of group `key` from `index` on, of which `tokens` ends with `first_token` tokens of
    /// the response.
    fn request(
        &mut self,
        key: u64,
        of: &Group,
        (index, n): (u32, u32),
        tokens: Vec<u32>,
        first_token: u64,
    ) -> Result<(), Failure> {
        let GroupId { step, group, .. } = of.id;
        let most = of.max_response_len as usize;
        let params = SamplingParams {
            n,
            first_token,
            max_new_tokens: most.saturating_sub(first_token as usize),
            seed: SampleSeed { seed: self.config.run.seed, step, group, index },
            ..self.params.clone()
        };
        self.engine.submit(Request { id: self.num_submitted, tokens, params })?;
        self.requests.insert(self.num_submitted, (key, index));
        self.num_submitted += 1;
        Ok(())
    }

    /// Takes groups back that are not finished.
    pub fn abort(&mut self, id: GroupId) {
        let keys: Vec<u64> = self.groups.iter().filter(|(_, g)| g.id == id).map(|(&key, _)| key).collect();
        for key in keys {
            self.take_back(key);
        }
    }

    /// Ends everything and gives what there is of it: the samples of each group, unfinished ones as `aborted`. A group that
    /// some sample of is not known (a server has it) or has no token yet is left out.
    pub fn surrender(&mut self) -> Vec<(GroupId, Vec<Sample>)> {
        let keys: Vec<u64> = self.groups.keys().copied().collect();
        let groups = keys.into_iter().filter_map(|key| self.take_back(key));
        let whole = |group: Group| {
            let samples: Option<Vec<Sample>> = group.samples.into_iter().collect();
            let samples = samples?;
            samples.iter().any(|sample| sample.response_len() > 0).then_some((group.id, samples))
        };
        groups.filter_map(whole).collect()
    }

    /// Takes a group out of the engine, with all that its samples have so far.
    fn take_back(&mut self, key: u64) -> Option<Group> {
        let of_group = self.requests.iter().filter(|(_, (group, _))| *group == key);
        let requests: Vec<u64> = of_group.map(|(&request, _)| request).collect();
        for request in requests {
            for completion in self.engine.abort(request) {
                self.keep(completion);
            }
            self.requests.remove(&request);
        }
        self.groups.remove(&key)
    }

    /// Puts a sample that has ended into its group; gives the number of the group.
    fn keep(&mut self, completion: Completion) -> Option<u64> {
        let &(key, first) = self.requests.get(&completion.id)?;
        let group = self.groups.get_mut(&key)?;
        let index = first + completion.index;
        let before = group.before.get(&index);
        let completion = continuation::merged(before, Completion { index, ..completion }, &*self.decode);
        let loss_mask = continuation::loss_mask(&completion, self.config.partial());
        let sample = Sample { loss_mask, ..sample(group, completion) };
        *group.samples.get_mut(index as usize)? = Some(sample);
        Some(key)
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
            let group = self.requests.get(&timing.id).and_then(|(key, _)| self.groups.get(key));
            self.timings.extend(group.map(|group| (group.id, timing)));
        }
        for completion in completions {
            let Some(key) = self.keep(completion) else { continue };
            if self.groups.get(&key).is_some_and(|group| group.samples.iter().all(Option::is_some))
                && let Some(group) = self.groups.remove(&key)
            {
                self.requests.retain(|_, (of, _)| *of != key);
                finished.push((group.id, group.samples.into_iter().flatten().collect()));
            }
        }
        Ok(finished)
    }

    /// A prompt that leaves no room for a response is refused.
    fn check_len(&self, prompt: &Prompt, len: usize) -> Result<(), Failure> {
        let context_len = self.engine.context_len();
        let (most, key) = match self.config.data.max_prompt_len {
            Some(len) if (len as usize) < context_len => (len as usize, "data.max_prompt_len"),
            _ => (context_len - 1, "the context less one response token"),
        };
        if len > most {
            return Err(Failure::data(format!(
                "prompt {} of {} has {len} tokens, expected at most {most} ({key})",
                prompt.prompt_id, prompt.source,
            ))
            .with_hint("shorten or drop this prompt"));
        }
        Ok(())
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
        part: group.part,
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

/// Tokens to text; what cannot be decoded is said and left out.
pub fn decoder(tokenizer: Arc<Tokenizer>) -> Arc<Decode> {
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
