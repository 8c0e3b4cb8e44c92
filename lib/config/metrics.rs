//! `[metrics]`, `[metrics.warnings]`: what is measured besides the JSON lines, and from where on a run is warned about.

use serde::{Deserialize, Serialize};

/// `[metrics]`: numbers and spans of every tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Every tool also writes `tensorboard/<tool>/`.
    pub tensorboard: bool,
    /// Every tool also keeps `metrics/<tool>.prom`, in Prometheus' text format.
    pub prometheus: bool,
    /// Every process writes its spans as `trace/<role>.<incarnation>.json`, for Perfetto and `chrome://tracing`; about 600
    /// bytes for each sample.
    pub trace: bool,
    /// Of the first groups of each step the log-probs of training are kept for every token.
    pub num_logged_groups: u32,
    /// What one device can do in the run's dtype, in `TFLOP/s`: with it `perf/mfu` is told.
    pub peak_tflops: Option<f64>,
    /// `[metrics.warnings]`
    pub warnings: Warnings,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            tensorboard: false,
            prometheus: false,
            trace: true,
            num_logged_groups: 2,
            peak_tflops: None,
            warnings: Warnings::default(),
        }
    }
}

/// `[metrics.warnings]`: the thresholds; 0 switches a warning off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Warnings {
    /// Steps that a number is compared with.
    pub window: u32,
    /// The entropy fell by this share of its highest value in the window.
    pub entropy_drop: f64,
    /// The length of responses fell by this share of its highest value in the window.
    pub response_len_drop: f64,
    /// Share of groups whose rewards are all equal, over three steps: they teach nothing.
    pub equal_rewards: f64,
    /// The log-probs of training and generation differ by this many times what they did in the first window.
    pub mismatch_rise: f64,
    /// Share of responses cut off for their length, over three steps.
    pub truncated: f64,
    /// So many of a step's numbers are not finite.
    pub not_finite: f64,
    /// The mean reward rose in one step by this many standard deviations of the samples' rewards.
    pub reward_jump: f64,
    /// So many steps in a row every reward of a source was 0, or every one was 1.
    pub dead_environment: f64,
}

impl Default for Warnings {
    fn default() -> Self {
        Self {
            window: 10,
            entropy_drop: 0.8,
            response_len_drop: 0.7,
            equal_rewards: 0.9,
            mismatch_rise: 3.0,
            truncated: 0.5,
            not_finite: 1.0,
            reward_jump: 1.5,
            dead_environment: 10.0,
        }
    }
}
