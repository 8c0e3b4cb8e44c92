//! The numbers of committed steps and evaluations, and the spans of the step builder.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;
use slime_cli::Failure;
use slime_config::{RunConfig, RunDir, paths};
use slime_exchange::{Physical, Store};
use slime_metrics::evaluation::{Answered, add_evaluation};
use slime_metrics::rollout::{self, Pace, Rewarded};
use slime_metrics::trace::Span;
use slime_metrics::{Lanes, Row, Sink, Trace, Watch, cost};
use slime_record::{Manifest, Sample};
use slime_verifier::voted_answer;

use crate::failure;
use crate::read_samples::read_groups;

/// Tool name of the metric files.
const TOOL: &str = "rollout";
/// The category of the builder's spans.
const CATEGORY: &str = "builder";
/// Row of the evaluations in the trace.
const EVALUATION_LANE: u64 = 1;
/// Row of the rewards in the trace.
pub const REWARD_LANE: u64 = 2;
/// First row of the open steps in the trace.
const STEP_LANE: u64 = 10;
/// A step whose groups were refused for equal rewards is told by this reason.
pub const EQUAL_REWARDS: &str = "zero_std";

/// What the step builder tells.
pub struct Metrics {
    sink: Sink,
    watch: Watch,
    trace: Trace,
    num_engines: u32,
    /// Steps that an earlier start told.
    told: BTreeSet<u64>,
    opened: BTreeMap<u64, Instant>,
    began: Instant,
    lanes: Lanes,
    cost_before: Duration,
}

impl Metrics {
    /// Goes on with the files of earlier starts.
    pub fn new(run_dir: &RunDir, config: &RunConfig, incarnation: u64) -> Self {
        let sink = Sink::new(run_dir.root(), TOOL, &config.metrics);
        let mut watch = Watch::new(run_dir.root(), TOOL, &config.metrics.warnings);
        let rows = sink.written();
        watch.resume(&rows);
        let trace = Trace::start(run_dir.root(), paths::BUILDER, incarnation, &config.metrics);
        for (lane, name) in [(0, "builder"), (EVALUATION_LANE, "evaluation"), (REWARD_LANE, "rewards")] {
            trace.name_lane(lane, name);
        }
        Self {
            told: rows.iter().filter(|row| row.set_name().is_none()).filter_map(Row::step).collect(),
            sink,
            watch,
            trace,
            num_engines: config.rollout.num_replicas,
            opened: BTreeMap::new(),
            began: Instant::now(),
            lanes: Lanes::default(),
            cost_before: cost::spent(),
        }
    }

    /// Where spans go.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Groups of these steps are drawn.
    pub fn opened(&mut self, steps: impl Iterator<Item = u64>) {
        for step in steps {
            self.opened.entry(step).or_insert_with(Instant::now);
        }
    }

    /// A step was committed by a poll that began at `polled`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn committed(
        &mut self,
        store: &mut dyn Store,
        manifest: &Manifest,
        polled: Instant,
    ) -> Result<(), Failure> {
        let (step, now) = (manifest.step, Instant::now());
        let opened = self.opened.remove(&step);
        self.opened.retain(|open, _| *open > step);
        if !self.told.insert(step) {
            return Ok(());
        }
        self.trace.step_span("commit", CATEGORY, step, polled);
        if let Some(opened) = opened {
            let us = |moment: Instant| moment.saturating_duration_since(self.began).as_micros() as u64;
            let lane = STEP_LANE + self.lanes.take(us(opened), us(now));
            let args =
                json!({ "step": step, "groups": manifest.groups.len(), "refused": manifest.refused.len() });
            self.trace.span(&Span {
                name: "open step",
                category: CATEGORY,
                lane,
                began: opened,
                ended: now,
                args,
            });
        }
        let groups = cost::counted(|| read_groups(store, manifest)).unwrap_or_else(|failure| {
            // The step is committed; that its numbers are missing must not end the run.
            tracing::warn!("step {step} is told without its samples: {}", failure.message);
            Vec::new()
        });
        let mut row = Row::of_step(step, TOOL);
        cost::counted(|| add_step(&mut row, manifest, &groups));
        if let Some(opened) = opened {
            let pace = Pace { rollout_s: (now - opened).as_secs_f64(), num_engines: self.num_engines };
            rollout::add_pace(&mut row, &groups, pace);
        }
        let spent = cost::spent();
        row.set("perf/builder_metrics_time", (spent.saturating_sub(self.cost_before)).as_secs_f64());
        self.cost_before = spent;
        self.sink.write(&row).map_err(failure!())?;
        self.watch.observe(&row).map_err(failure!())?;
        let sources = rollout::rewards_by_source(&groups);
        let sources = sources.into_iter().map(|(source, (least, greatest))| (source, least, greatest));
        self.watch.observe_sources(step, sources).map_err(failure!())?;
        self.trace.flush();
        Ok(())
    }

    /// A set was evaluated.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn evaluated(
        &mut self,
        place: Physical,
        set: &str,
        samples: &[Sample],
        rewards: &[f32],
    ) -> Result<(), Failure> {
        let mut row = Row::of_evaluation(place.version, set, TOOL);
        let answered: Vec<Answered> = samples
            .iter()
            .zip(rewards)
            .map(|(sample, reward)| Answered::new(sample, voted_answer(&sample.response), *reward))
            .collect();
        add_evaluation(&mut row, &answered);
        self.sink.write(&row).map_err(failure!())
    }

    /// The span of a set's evaluation that began at `began`.
    pub fn evaluation_span(&self, version: u64, set: &str, began: Instant) {
        let (ended, args) = (Instant::now(), json!({ "version": version, "set": set }));
        let (category, lane) = (CATEGORY, EVALUATION_LANE);
        self.trace.span(&Span { name: "evaluation", category, lane, began, ended, args });
        self.trace.flush();
    }

    /// The last words.
    pub fn finish(&self) {
        self.trace.flush();
        if let Some(summary) = self.watch.summary() {
            tracing::warn!("{summary}");
        }
    }
}

fn add_step(row: &mut Row, manifest: &Manifest, groups: &[Vec<Rewarded>]) {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for refusal in &manifest.refused {
        *reasons.entry(&refusal.reason).or_default() += 1;
    }
    let num_equal = reasons.get(EQUAL_REWARDS).copied().unwrap_or(0) as usize;
    rollout::add_step(row, groups, manifest.refused.len(), num_equal);
    for (reason, count) in reasons {
        row.count(format!("rollout/dynamic_filter/drop_{reason}"), count);
    }
    for (staleness, count) in manifest.staleness_histogram() {
        row.count(format!("rollout/staleness/{staleness}"), count);
    }
    for (fate, num_tokens) in manifest.account.fates() {
        row.count(format!("rollout/tokens/{fate}"), num_tokens);
    }
}
