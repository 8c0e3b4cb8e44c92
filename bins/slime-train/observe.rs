//! What a rank of the resident trainer tells of its steps: spans, numbers, warnings.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use slime_cli::{Failure, watchdog};
use slime_comm::{Collectives, Communicator, Op};
use slime_config::{RunConfig, paths};
use slime_metrics::{Profile, Row, Sink, Trace, Watch, cost};
use slime_record::Manifest;
use slime_trainer::{Error, NotFinite, Observation, Report, StepMetrics};

use crate::failure;
use crate::write_log_probs::{Writer, write_log_probs};
use crate::write_metrics::{self, Ranks, Times, write_not_finite};

/// The category of the trainer's spans.
const CATEGORY: &str = "trainer";
/// Tool name of the metric files.
const TOOL: &str = "train";

/// What one rank tells.
pub struct Observer {
    run: PathBuf,
    config: RunConfig,
    profile: Option<Profile>,
    rank: usize,
    epoch: u64,
    trace: Trace,
    sink: Sink,
    watch: Watch,
    /// When the last step ended, or the tool started.
    ended: Instant,
    started: Instant,
    cost_before: Duration,
    times: Times,
    /// The checkpoint that is being written, and since when.
    writing: Option<(u64, Instant)>,
}

/// A trained step as this rank saw it.
pub struct Trained {
    pub steps: Vec<StepMetrics>,
    report: Report,
    ranks: Ranks,
    ended: Instant,
}

impl Observer {
    /// Records nothing before [`Self::begin`].
    pub fn new(run: &Path, config: &RunConfig, rank: usize, profile: Option<Profile>) -> Self {
        Self {
            run: run.to_owned(),
            config: config.clone(),
            profile,
            rank,
            epoch: 0,
            trace: Trace::default(),
            sink: Sink::new(run, TOOL, &config.metrics),
            watch: Watch::new(run, TOOL, &config.metrics.warnings),
            ended: Instant::now(),
            started: Instant::now(),
            cost_before: cost::spent(),
            times: Times::default(),
            writing: None,
        }
    }

    /// The trainer lives, as this epoch.
    pub fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
        let role = paths::rank(paths::TRAINER, self.rank);
        self.trace = Trace::start(&self.run, &role, epoch, &self.config.metrics);
        if self.rank == 0 {
            self.watch.resume(&self.sink.written());
        }
    }

    /// `num_bytes` of weights of a version were written, beginning at `began`.
    pub fn updated_weights(&mut self, version: u64, num_bytes: u64, began: Instant) {
        self.times.update_weights += began.elapsed();
        self.times.num_wire_bytes += num_bytes;
        self.trace.step_span("update_weights", CATEGORY, version, began);
    }

    /// The state was copied for a checkpoint, beginning at `began`; its writing begins.
    pub fn saved_model(&mut self, version: u64, began: Instant) {
        self.times.save_model += began.elapsed();
        self.trace.step_span("save_model", CATEGORY, version, began);
        self.writing = Some((version, began));
    }

    /// The files of that checkpoint are there, those of all ranks.
    pub fn wrote_model(&mut self) {
        if let Some((version, began)) = self.writing.take() {
            self.times.write_model = Some(began.elapsed());
            self.trace.step_span("write_model", CATEGORY, version, began);
        }
    }

    /// A step's samples are there.
    pub fn step_came(&mut self, step: u64) {
        self.times.wait = self.ended.elapsed();
        self.trace.step_span("train_wait", CATEGORY, step, self.ended);
    }

    /// What to look at in this step.
    pub fn observation(&self, step: u64) -> Observation {
        Observation {
            trace: self.trace.clone(),
            step,
            is_profiled: self.profile.is_some_and(|profile| profile.covers(step)),
            num_logged_groups: self.config.metrics.num_logged_groups as usize,
            gpu: None,
        }
    }

    /// All ranks have trained the step, this one since `began`.
    ///
    /// # Errors
    /// A failed collective.
    pub fn trained(
        &mut self,
        step: u64,
        steps: Vec<StepMetrics>,
        report: Report,
        began: Instant,
        comm: &dyn Communicator,
    ) -> Result<Trained, Failure> {
        let ended = Instant::now();
        self.ended = ended;
        for skipped in &report.skipped {
            self.not_finite(step, skipped);
        }
        let train = ended - began;
        let waited = report.collectives + report.stage_wait;
        let busy = write_metrics::ratio(train.saturating_sub(waited), self.times.wait + train);
        let writer = Writer { step, rank: self.rank, epoch: self.epoch };
        cost::counted(|| write_log_probs(&self.run, &self.config, writer, &report));
        self.trace.flush();
        let (_, rss_bytes) = watchdog::usage();
        let gpu_bytes = report.gpu_bytes.map_or(0.0, |bytes| bytes as f64);
        let mut most = [rss_bytes as f64, busy, -busy, gpu_bytes];
        let mut sums =
            [report.stage_wait, report.actor_train + report.critic_train].map(|time| time.as_secs_f64());
        if comm.size() > 1 {
            comm.all_reduce(&mut most, Op::Max).map_err(failure!())?;
            comm.all_reduce(&mut sums, Op::Sum).map_err(failure!())?;
        }
        let bubble = (self.config.parallel.pp > 1 && sums[1] > 0.0).then(|| sums[0] / sums[1]);
        let (max_rss, max_gpu, busy) = (most[0], most[3], (-most[2], most[1]));
        let ranks = Ranks { num: comm.size(), max_rss, max_gpu, busy, bubble };
        Ok(Trained { steps, report, ranks, ended })
    }

    /// Where a loss or gradient that is not a number ends the run, the warning and the samples' names stay.
    pub fn failed(&mut self, step: u64, error: &Error) {
        if let Error::NotFinite(found) = error {
            self.not_finite(step, found);
        }
    }

    fn not_finite(&mut self, step: u64, found: &NotFinite) {
        if self.rank > 0 {
            return;
        }
        let NotFinite { what, samples, .. } = found;
        let mut row = Row::of_step(step, TOOL);
        row.set(if *what == "loss" { "train/loss" } else { "train/grad_norm" }, f64::NAN);
        if let Err(error) = self.watch.observe(&row) {
            tracing::warn!("{error}");
        }
        let path = self.run.join(paths::not_finite());
        if let Err(error) = write_not_finite(&path, step, what, samples) {
            tracing::warn!("{}: {error}", path.display());
        }
    }

    /// Rank 0 alone: writes the step's line, whose training began at `began`, once all ranks had it at `read`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn tell(
        &mut self,
        manifest: &Manifest,
        trained: &Trained,
        began: Instant,
        read: Duration,
    ) -> Result<Times, Failure> {
        let spent = cost::spent();
        let mut times = std::mem::take(&mut self.times);
        let Trained { steps, report, ranks, ended } = trained;
        (times.train, times.read, times.metrics) =
            (*ended - began, read, spent.saturating_sub(self.cost_before));
        self.cost_before = spent;
        let row = write_metrics::row(manifest, steps, times, report, *ranks, &self.config.metrics);
        self.sink.write(&row).map_err(failure!())?;
        self.watch.observe(&row).map_err(failure!())?;
        Ok(times)
    }

    /// The last words: warnings, where a profile lies, and what measuring cost.
    pub fn finish(&self) {
        self.trace.flush();
        if self.rank > 0 {
            return;
        }
        if let Some(summary) = self.watch.summary() {
            tracing::warn!("{summary}");
        }
        if let (Some(_), Some(path)) = (self.profile, self.trace.path()) {
            tracing::info!("the profile is in {}", path.display());
        }
        let share = write_metrics::ratio(cost::spent(), self.started.elapsed());
        tracing::debug!("metrics took {:.3} % of the time", 100.0 * share);
    }
}
