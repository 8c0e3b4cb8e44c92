//! Evaluations: every due set is sampled with a published version, scored, and written beside its numbers.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slime_cli::Failure;
use slime_config::{Eval, Kind, RunConfig, RunDir, paths};
use slime_environment::{Prompt, eval_source};
use slime_exchange::{Physical, Store};
use slime_record::{Column, ColumnValues, Sample, encode_segment};
use slime_tokenizer::Tokenizer;
use slime_transport::Ways;
use slime_verifier::RewardSet;

use crate::failure;
use crate::sampler::{GroupId, Purpose, Sampler};
use crate::tokens_ahead::{TokensAhead, Upcoming};
use crate::write_metrics::Metrics;
use crate::write_samples;

/// How long weights that are due may stay away.
const MISSING_PATIENCE: Duration = Duration::from_secs(60);

/// How the evaluation of a version ended.
pub enum Evaluated {
    /// Its last set is written.
    Whole(Physical),
    /// Its weights are not there.
    Missed(Physical),
}

/// Keeps the random numbers of evaluations apart from those of training.
const EVAL_SEED: u64 = 0x6576_616C;

/// The run's configuration with a set's sampling in place of training's.
pub fn settings_of(config: &RunConfig, set: &Eval) -> RunConfig {
    let mut config = config.clone();
    config.run.seed ^= EVAL_SEED;
    // Stages are those of training.
    config.stage.clear();
    // Whatever is trained on, an evaluation samples.
    config.data.kind = Kind::Prompts;
    config.rollout.temperature = set.temperature;
    config.rollout.n_samples_per_prompt = Some(set.n_samples_per_prompt);
    let rollout = &mut config.rollout;
    rollout.top_p = set.top_p.unwrap_or(rollout.top_p);
    rollout.top_k = set.top_k.unwrap_or(rollout.top_k);
    rollout.min_p = set.min_p.unwrap_or(rollout.min_p);
    rollout.stop = set.stop.clone().unwrap_or_else(|| rollout.stop.clone());
    rollout.max_response_len = set.max_response_len.unwrap_or(rollout.max_response_len);
    config.reward.types = set.reward_types.clone().unwrap_or(config.reward.types);
    config
}

/// The prompts of a set.
pub fn prompts_of(
    config: &RunConfig,
    set: &Eval,
) -> Result<impl Iterator<Item = Result<Prompt, Failure>> + use<>, Failure> {
    let source = eval_source(config, set).map_err(failure!())?;
    let len = source.len().map_or(set.num_prompts, |len| len.min(set.num_prompts));
    Ok((0..len).map(move |i| source.prompt(i).map_err(failure!())))
}

/// Samples evaluations between the polls of the step builder, with an engine that lives as long as one set takes.
pub struct Evaluator {
    config: RunConfig,
    run_dir: RunDir,
    /// Of the version that is being evaluated.
    ways: Option<Ways>,
    num_steps: u64,
    tokenizer: Option<Arc<Tokenizer>>,
    /// Of every set.
    rewards: BTreeMap<String, RewardSet>,
    place: Option<Physical>,
    /// Since when the weights that are due are not there.
    missing_since: Option<Instant>,
    due: VecDeque<String>,
    running: Option<Running>,
}

/// The prompts of a set, in order.
type Prompts = std::vec::IntoIter<Result<(GroupId, Prompt), Failure>>;

/// A set on its way.
struct Running {
    set: String,
    sampler: Sampler,
    prompts: Upcoming<Prompts>,
    finished: BTreeMap<u32, Vec<Sample>>,
    began: Instant,
}

impl Evaluator {
    /// Nothing is loaded before the first evaluation.
    pub fn new(config: &RunConfig, run_dir: &RunDir, num_steps: u64) -> Result<Self, Failure> {
        let rewards_of = |set| RewardSet::of_run(&settings_of(config, set)).map_err(failure!());
        let rewards = config.eval.iter().map(|(name, set)| Ok((name.clone(), rewards_of(set)?)));
        let rewards = rewards.collect::<Result<_, Failure>>()?;
        Ok(Self {
            config: config.clone(),
            run_dir: run_dir.clone(),
            ways: None,
            num_steps,
            tokenizer: None,
            rewards,
            place: None,
            missing_since: None,
            due: VecDeque::new(),
            running: None,
        })
    }

    pub fn is_busy(&self) -> bool {
        self.place.is_some()
    }

    /// Queues the sets that are due at this version.
    pub fn begin(&mut self, place: Physical) -> Result<(), Failure> {
        let version = place.version;
        let is_due = |set: &Eval| match version {
            0 => set.at_start,
            version => version == self.num_steps || version.is_multiple_of(set.interval.max(1)),
        };
        self.due =
            self.config.eval.iter().filter(|(_, set)| is_due(set)).map(|(name, _)| name.clone()).collect();
        self.place = Some(place);
        if self.tokenizer.is_none() {
            self.tokenizer =
                Some(Arc::new(Tokenizer::from_dir(&self.config.model.path).map_err(failure!())?));
        }
        Ok(())
    }

    /// One step of the engine; how the evaluation of the version ended when it has.
    pub fn step(
        &mut self,
        store: &mut dyn Store,
        metrics: &mut Metrics,
    ) -> Result<Option<Evaluated>, Failure> {
        let Some(place) = self.place else { return Ok(None) };
        if self.running.is_none() {
            let Some(set) = self.due.pop_front() else {
                (self.place, self.ways) = (None, None);
                return Ok(Some(Evaluated::Whole(place)));
            };
            let ways = self.ways.get_or_insert_with(|| Ways::new(&self.run_dir, &self.config.sync));
            let received = ways.receive(store, place).map_err(failure!())?;
            let Some(received) = received else { return self.miss(place).map(Some) };
            self.missing_since = None;
            self.running = self.load(place, &received.dir, set)?;
        }
        let Some(running) = &mut self.running else { return Ok(None) };
        while running.sampler.has_room()
            && let Some((id, prompt)) = running.prompts.next()?
        {
            running.sampler.submit(id, prompt, running.sampler.shape(), Vec::new())?;
        }
        for (id, samples) in running.sampler.step()? {
            running.finished.insert(id.group, samples);
        }
        if running.prompts.is_empty()
            && running.sampler.is_idle()
            && let Some(running) = self.running.take()
        {
            let samples: Vec<Sample> = running.finished.into_values().flatten().collect();
            self.write(store, metrics, place, &running.set, &samples)?;
            metrics.evaluation_span(place.version, &running.set, running.began);
        }
        Ok(None)
    }

    /// Gives a version up whose weights are gone. A trainer that starts again publishes those of its checkpoint anew; what
    /// stays away is an error.
    fn miss(&mut self, place: Physical) -> Result<Evaluated, Failure> {
        let since = *self.missing_since.get_or_insert_with(Instant::now);
        if since.elapsed() > MISSING_PATIENCE {
            let message = format!("weights {place} are gone before their evaluation");
            return Err(Failure::new(slime_cli::exit::NO_INPUT, message));
        }
        (self.place, self.ways) = (None, None);
        Ok(Evaluated::Missed(place))
    }

    /// The engine and the prompts of a set.
    fn load(&self, place: Physical, dir: &Path, name: String) -> Result<Option<Running>, Failure> {
        let (Some(set), Some(tokenizer)) = (self.config.eval.get(&name), &self.tokenizer) else {
            return Ok(None);
        };
        let began = Instant::now();
        let mut config = settings_of(&self.config, set);
        config.model.path = dir.display().to_string();
        let id = |group| GroupId { step: place.version, group, attempt: 0 };
        let prompts = prompts_of(&config, set)?.zip(0..).map(|(prompt, group)| Ok((id(group), prompt?)));
        let prompts: Vec<_> = prompts.collect();
        let prompts = Upcoming::new(prompts.into_iter(), TokensAhead::start(tokenizer.clone(), &config.data));
        let sampler = Sampler::load(&config, tokenizer, place.version, Purpose::Evaluation)?;
        Ok(Some(Running { set: name, sampler, prompts, finished: BTreeMap::new(), began }))
    }

    fn write(
        &mut self,
        store: &mut dyn Store,
        metrics: &mut Metrics,
        place: Physical,
        set: &str,
        samples: &[Sample],
    ) -> Result<(), Failure> {
        let bytes = encode_segment(samples, &write_samples::provenance(&self.config)).map_err(failure!())?;
        store.seal(&paths::evaluation_file(place, set, "samples"), &bytes).map_err(failure!())?;
        let Some(set_of_rewards) = self.rewards.get(set) else { return Ok(()) };
        let rewards = set_of_rewards.score_samples(samples).map_err(failure!())?;
        let column = Column::new("reward", samples, ColumnValues::F32(rewards.clone()));
        let bytes = column.encode(&write_samples::provenance(&self.config)).map_err(failure!())?;
        store.seal(&paths::evaluation_file(place, set, "reward"), &bytes).map_err(failure!())?;
        metrics.evaluated(place, set, samples, &rewards)
    }
}
