//! What a replica tells: the spans of its samples, and every few seconds how busy its engine is.

use std::time::{Duration, Instant};

use serde_json::json;
use slime_cli::Failure;
use slime_config::{RunConfig, RunDir, paths};
use slime_engine::{Drafting, Load, Timing};
use slime_metrics::trace::Span;
use slime_metrics::{Lanes, Profile, Row, Sink, Trace};

use crate::failure;
use crate::sampler::{GroupId, Sampler};

/// The category of a replica's spans.
const CATEGORY: &str = "replica";
/// First row of the samples in the trace.
const SAMPLE_LANE: u64 = 10;
/// Time between lines about the engine.
const INTERVAL: Duration = Duration::from_secs(2);

/// What a replica tells.
pub struct Observer {
    trace: Trace,
    lanes: Lanes,
    profile: Option<Profile>,
    sink: Sink,
    tool: String,
    started: Instant,
    /// When the interval of the next line began.
    began: Instant,
    /// When the engine last computed.
    stepped: Instant,
    busy: Duration,
    /// The most since the last line.
    most: Load,
    num_tokens_before: u64,
    /// Prompt tokens of the samples that had finished by the line before: those that the cache had, and all.
    cached_before: [u64; 2],
    drafting_before: Drafting,
    version: u64,
}

impl Observer {
    /// The observer of replica `index` in this incarnation.
    pub fn start(
        run_dir: &RunDir,
        config: &RunConfig,
        index: u32,
        incarnation: u64,
        profile: Option<Profile>,
    ) -> Self {
        let role = paths::replica(index);
        let trace = Trace::start(run_dir.root(), &role, incarnation, &config.metrics);
        trace.name_lane(0, "engine");
        let now = Instant::now();
        Self {
            trace,
            lanes: Lanes::default(),
            profile,
            sink: Sink::new(run_dir.root(), &paths::engine_metrics(index), &config.metrics),
            tool: role,
            started: now,
            began: now,
            stepped: now,
            busy: Duration::ZERO,
            most: Load::default(),
            num_tokens_before: 0,
            cached_before: [0; 2],
            drafting_before: Drafting::default(),
            version: 0,
        }
    }

    /// Whether times of samples are wanted.
    pub fn wants_timings(&self) -> bool {
        self.trace.is_on()
    }

    /// The engine computed one batch since `began`, holding `load` before.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn stepped(&mut self, sampler: &Sampler, load: Load, began: Instant) -> Result<(), Failure> {
        let now = Instant::now();
        let pause = began.saturating_duration_since(self.stepped);
        if pause > INTERVAL {
            // A line is about the time in which there was something to do.
            self.began += pause;
        }
        (self.stepped, self.busy) = (now, self.busy + (now - began));
        let after = sampler.engine.load();
        self.most = Load {
            num_running: self.most.num_running.max(load.num_running).max(after.num_running),
            num_waiting: self.most.num_waiting.max(load.num_waiting),
            kv_used: self.most.kv_used.max(load.kv_used).max(after.kv_used),
        };
        self.version = sampler.engine.version();
        if let Some(step) = sampler.oldest_step().filter(|step| self.profile.is_some_and(|p| p.covers(*step)))
        {
            let args = json!({ "step": step, "running": after.num_running, "waiting": after.num_waiting });
            let (category, lane) = (CATEGORY, 0);
            self.trace.span(&Span { name: "engine step", category, lane, began, ended: now, args });
        }
        if now.saturating_duration_since(self.began) >= INTERVAL {
            self.tell(sampler)?;
        }
        Ok(())
    }

    /// A sample of `group` has finished.
    pub fn finished(&mut self, group: GroupId, timing: &Timing) {
        let us = |moment: Instant| moment.saturating_duration_since(self.started).as_micros() as u64;
        let Timing { index, submitted, started, first_token, finished, num_tokens, .. } = *timing;
        let lane = SAMPLE_LANE + self.lanes.take(us(submitted), us(finished));
        for (name, began, ended) in [
            ("queued", submitted, started),
            ("prefill", started, first_token),
            ("decode", first_token, finished),
        ] {
            let GroupId { step, group, .. } = group;
            let args = json!({ "step": step, "group": group, "index": index, "tokens": num_tokens });
            self.trace.span(&Span { name, category: CATEGORY, lane, began, ended, args });
        }
    }

    /// Segments were sealed since `began`.
    pub fn sealed(&self, num_segments: u64, began: Instant) {
        let (ended, args) = (Instant::now(), json!({ "segments": num_segments }));
        self.trace.span(&Span { name: "sealing", category: CATEGORY, lane: 0, began, ended, args });
    }

    /// Weights were loaded since `began`.
    pub fn loaded(&self, version: u64, began: Instant) {
        let (ended, args) = (Instant::now(), json!({ "version": version }));
        self.trace.span(&Span { name: "load weights", category: CATEGORY, lane: 0, began, ended, args });
    }

    /// There is nothing to do: spans are written.
    pub fn rest(&self) {
        self.trace.flush();
    }

    fn tell(&mut self, sampler: &Sampler) -> Result<(), Failure> {
        let elapsed = self.stepped.saturating_duration_since(self.began).as_secs_f64();
        let usage = sampler.engine.usage();
        let num_tokens = usage.num_sampled_tokens;
        let mut row = Row::of_now(&self.tool);
        row.count("version", self.version);
        row.count("num_running", self.most.num_running as u64);
        row.count("num_waiting", self.most.num_waiting as u64);
        let per_s = |value: f64| if elapsed > 0.0 { value / elapsed } else { 0.0 };
        row.set("tokens_per_s", per_s((num_tokens - self.num_tokens_before) as f64));
        row.set("kv_used", self.most.kv_used);
        let [cached, prompts] = [usage.num_cached_tokens, usage.num_prompt_tokens];
        let [cached_before, prompts_before] = self.cached_before;
        if prompts > prompts_before {
            row.set("prefix_hit_rate", (cached - cached_before) as f64 / (prompts - prompts_before) as f64);
        }
        self.cached_before = [cached, prompts];
        let drafting = usage.drafting.since(self.drafting_before);
        if let (Some(length), Some(rate)) = (drafting.accept_length(), drafting.accept_rate()) {
            row.set("spec_accept_length", length);
            row.set("spec_accept_rate", rate);
        }
        self.drafting_before = usage.drafting;
        row.set("busy", per_s(self.busy.as_secs_f64()).min(1.0));
        self.sink.write(&row).map_err(failure!())?;
        (self.began, self.busy, self.most) = (self.stepped, Duration::ZERO, Load::default());
        self.num_tokens_before = num_tokens;
        Ok(())
    }

    /// The last line, and where a profile lies.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn finish(&mut self, sampler: Option<&Sampler>) -> Result<(), Failure> {
        self.trace.flush();
        if let Some(sampler) = sampler.filter(|_| !self.busy.is_zero()) {
            self.tell(sampler)?;
        }
        if let (Some(_), Some(path)) = (self.profile, self.trace.path()) {
            tracing::info!("the profile is in {}", path.display());
        }
        Ok(())
    }
}
