//! The step builder's role: draws prompts, judges groups, scores them in place, evaluates, and commits steps.

use std::time::Instant;

use serde_json::json;
use slime_cli::Failure;
use slime_config::{Curriculum, Placement, RunConfig, RunDir};
use slime_exchange::{
    ArrowFormat, BufferOrder, BuilderAction, BuilderConfig, Order, RewardAction, RewardWorker,
    RewardWorkerConfig, StepBuilder, Store,
};
use slime_metrics::trace::Span;
use slime_record::{Manifest, Stages};
use slime_verifier::RewardSet;

use crate::evaluate::{Evaluated, Evaluator};
use crate::failure;
use crate::follow::{Polled, patient};
use crate::judge_groups::{Policy, REWARD};
use crate::missing_rewards::MissingRewards;
use crate::reach_stages;
use crate::replicate::{BEAT_MS, groups_in_flight};
use crate::write_metrics::{Metrics, REWARD_LANE};
use crate::write_samples;

/// Silence after which a replica loses its groups: longer than loading weights takes.
const LEASE_MS: u64 = 60_000;
/// Times a step's groups that may be drawn for it when `rollout.max_groups` does not say.
const MAX_DRAWS: u32 = 16;

/// The step builder with its policy and, where rewards are computed in place, their worker.
pub struct Builder {
    config: RunConfig,
    num_steps: u64,
    machine: StepBuilder<ArrowFormat>,
    policy: Policy,
    /// As of the newest manifest that was told.
    stages: Stages,
    rewarder: Option<(RewardWorker<ArrowFormat>, RewardSet)>,
    evaluator: Evaluator,
    metrics: Metrics,
    missing: MissingRewards,
}

/// Whether the builder's process computes rewards: those of steps, or of evaluations.
pub fn scores(config: &RunConfig) -> bool {
    let scores_steps = !config.data.kind.is_recorded() && config.reward.placement == Placement::Inline;
    scores_steps || !config.eval.is_empty()
}

impl Builder {
    /// Claims the builder's next incarnation.
    pub fn start(store: &mut dyn Store, config: &RunConfig, run_dir: &RunDir) -> Result<Self, Failure> {
        let policy = Policy::new(config)?;
        let builder_config = builder_config(config, policy.num_prompts())?;
        let num_steps = builder_config.num_steps;
        config.check_stages_within(Some(num_steps)).map_err(failure!())?;
        let evaluator = Evaluator::new(config, run_dir, num_steps)?;
        let format = ArrowFormat { provenance: write_samples::provenance(config) };
        let rewarder = match config.reward.placement {
            _ if config.data.kind.is_recorded() => None,
            Placement::Separate => None,
            Placement::Inline => {
                let worker_config = RewardWorkerConfig {
                    column: REWARD.to_owned(),
                    index: 0,
                    num_workers: 1,
                    max_in_flight: 8,
                    max_staleness: config.run.max_staleness,
                    beat_ms: BEAT_MS,
                };
                let worker = RewardWorker::start(store, worker_config, format.clone());
                let rewards = RewardSet::of_run(config).map_err(failure!())?;
                Some((worker.map_err(failure!())?, rewards))
            }
        };
        let machine = StepBuilder::start(store, builder_config, format).map_err(failure!())?;
        let metrics = Metrics::new(run_dir, config, machine.incarnation());
        let policy = policy.traced(metrics.trace().clone());
        let missing = MissingRewards::new(config.reward.patience_s);
        let (config, stages) = (config.clone(), Stages::default());
        Ok(Self { config, num_steps, machine, policy, stages, rewarder, evaluator, metrics, missing })
    }

    /// Ends at the next poll; everything is durable already.
    pub fn drain(&mut self) {
        self.machine.drain();
    }

    /// Whether it ends, or has ended, before the run is over.
    pub fn is_draining(&self) -> bool {
        self.machine.is_draining()
    }

    /// Whether an evaluation is being generated.
    pub fn is_busy(&self) -> bool {
        self.evaluator.is_busy()
    }

    /// One round of the machine and of the rewards.
    pub fn poll(&mut self, store: &mut dyn Store) -> Result<Polled, Failure> {
        let mut found = Polled { is_done: false, has_acted: false };
        let began = Instant::now();
        let actions = patient(self.machine.poll(store, &mut self.policy))?;
        self.metrics.opened(self.machine.open_steps());
        for action in actions {
            found.has_acted = true;
            match action {
                BuilderAction::Committed { manifest } => self.report(store, &manifest, began)?,
                BuilderAction::Evaluate { place } => self.evaluator.begin(place)?,
                BuilderAction::Done => found.is_done = true,
            }
        }
        found.has_acted |= self.score(store)?;
        self.missing.check(&self.machine)?;
        Ok(found)
    }

    /// One step of the evaluation that is under way.
    pub fn step(&mut self, store: &mut dyn Store) -> Result<(), Failure> {
        match self.evaluator.step(store, &mut self.metrics)? {
            Some(Evaluated::Whole(place)) => self.machine.on_evaluated(place),
            Some(Evaluated::Missed(place)) => self.machine.on_evaluation_missed(place),
            None => {}
        }
        Ok(())
    }

    /// Scores what is sealed; whether there was something.
    fn score(&mut self, store: &mut dyn Store) -> Result<bool, Failure> {
        let Some((worker, set)) = &mut self.rewarder else { return Ok(false) };
        let mut has_scored = false;
        for action in patient(worker.poll(store))? {
            if let RewardAction::Score { segment, bytes } = action {
                let began = Instant::now();
                let rows = set.score_segment(&segment, &bytes).map_err(failure!())?;
                let (ended, args) = (Instant::now(), json!({ "segment": segment, "rows": rows.len() }));
                let (category, lane) = ("reward", REWARD_LANE);
                self.metrics.trace().span(&Span { name: "score", category, lane, began, ended, args });
                worker.on_scored(segment, rows);
                has_scored = true;
            }
        }
        Ok(has_scored)
    }

    fn report(&mut self, store: &mut dyn Store, manifest: &Manifest, began: Instant) -> Result<(), Failure> {
        let num_samples: usize = manifest.groups.iter().map(|group| group.samples.len()).sum();
        let account = &manifest.account;
        tracing::info!(step = manifest.step, samples = num_samples, tokens = account.response, "committed");
        if let Some(begun) = reach_stages::told(&self.config, &self.stages, &manifest.stages) {
            tracing::info!(step = manifest.step, "{begun}");
        }
        self.stages.clone_from(&manifest.stages);
        self.metrics.committed(store, manifest, began)
    }

    /// The last words.
    pub fn finish(&self) {
        self.metrics.finish();
        if self.machine.step() >= self.num_steps {
            let Stages { begun, nearest, .. } = self.machine.stages();
            for unreached in self.config.unreached_stages(begun, *nearest, self.num_steps) {
                tracing::warn!("{unreached}");
            }
        }
        let num_restarts = slime_verifier::num_sandbox_restarts();
        if num_restarts > 0 {
            tracing::warn!("zygotes of the sandbox ended and were started again: {num_restarts}");
        }
    }
}

fn builder_config(config: &RunConfig, num_prompts: Option<u64>) -> Result<BuilderConfig, Failure> {
    let batch = config.batch().map_err(failure!())?;
    let (run, rollout) = (&config.run, &config.rollout);
    let num_groups = batch.rollout_batch_size;
    Ok(BuilderConfig {
        max_staleness: run.max_staleness,
        publish_interval: run.publish_interval,
        order: match run.order() {
            slime_config::Order::Fixed => Order::Fixed,
            slime_config::Order::Arrival => Order::Arrival,
        },
        num_groups: num_groups as usize,
        over_sampling: rollout.over_sampling_batch_size.unwrap_or(num_groups) as usize,
        buffer_order: match rollout.buffer_order {
            slime_config::BufferOrder::Fifo => BufferOrder::Fifo,
            slime_config::BufferOrder::Newest => BufferOrder::Newest,
            slime_config::BufferOrder::Priority => BufferOrder::Priority,
            slime_config::BufferOrder::Stratified => BufferOrder::Stratified,
            slime_config::BufferOrder::Command(_) => BufferOrder::Policy,
        },
        max_reuse: rollout.max_reuse,
        max_groups: rollout.max_groups.unwrap_or(MAX_DRAWS * num_groups),
        has_filter: config.has_filter(),
        num_steps: config.num_steps(num_prompts).map_err(failure!())?,
        num_replicas: rollout.num_replicas,
        max_in_flight: groups_in_flight(config)?,
        lease_ms: LEASE_MS,
        beat_ms: BEAT_MS,
        columns: if config.data.kind.is_recorded() { Vec::new() } else { vec![REWARD.to_owned()] },
        history_steps: config.data.curriculum.map_or(0, |_| Curriculum::num_steps(num_groups)),
        eval_interval: config.eval_interval(),
        eval_at_start: config.evaluates_at_start(),
    })
}
