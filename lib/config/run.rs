//! `[run]`, `[checkpoint]`, `[watchdog]`: the schedule of the whole loop.

use serde::{Deserialize, Serialize};

/// The order in which a training step takes accepted groups (DESIGN: steps, versions, staleness).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Step k is its own groups, in group order, all of one weight version.
    Fixed,
    /// Step k takes the first accepted groups of the open steps.
    Arrival,
}

/// Where tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A GPU where CUDA can be opened and sees one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; none is an error.
    Cuda,
}

/// `[run]`: seed, staleness and length of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Every random number derives from it and from (step, group, index).
    pub seed: u64,
    /// `auto`, `cpu` or `cuda`: where the trainer and the engine compute.
    pub device: Device,
    /// How many versions the trained tokens may be older than the policy: 0 is synchronous.
    pub max_staleness: u64,
    /// `fixed` (default up to `max_staleness` 1) or `arrival` (default above).
    pub order: Option<Order>,
    /// A version is published when this divides it.
    pub publish_interval: u64,
    /// Training steps of the run; alternatively `num_epoch`.
    pub num_steps: Option<u64>,
    /// Passes over the prompts; the default is one when `num_steps` is missing too.
    pub num_epoch: Option<u64>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            seed: 0,
            device: Device::Auto,
            max_staleness: 0,
            order: None,
            publish_interval: 1,
            num_steps: None,
            num_epoch: None,
        }
    }
}

impl Run {
    /// The order in force.
    pub fn order(&self) -> Order {
        self.order.unwrap_or(if self.max_staleness <= 1 { Order::Fixed } else { Order::Arrival })
    }

    /// The version that generates the groups of step `k` under fixed order:
    /// `u * ceil(max(0, k - s) / u)`.
    pub fn fixed_version(&self, step: u64) -> u64 {
        let interval = self.publish_interval.max(1);
        interval * step.saturating_sub(self.max_staleness).div_ceil(interval)
    }
}

/// `[checkpoint]`: how often the trainer's state is written and how much of it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    /// A checkpoint every so many steps (a multiple of `run.publish_interval`); 0 writes only the last.
    pub interval: u64,
    /// Complete checkpoints that are kept, with the versions and steps that they need.
    pub keep_last: u64,
    /// The weights of every version that this divides are kept for ever, as a Hugging Face directory; 0 keeps none.
    pub keep_hf_every: u64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { interval: 0, keep_last: 2, keep_hf_every: 0 }
    }
}

/// `[watchdog]`: how long a rank may make no progress before it is ended with code 124; 0 is for ever.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watchdog {
    /// While it starts, in seconds: reading weights, meeting its peers.
    pub setup_s: u64,
    /// In a step and between steps, in seconds: more than the longest training step.
    pub step_s: u64,
    /// While it writes or reads a checkpoint, in seconds.
    pub checkpoint_s: u64,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self { setup_s: 3600, step_s: 3600, checkpoint_s: 3600 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_version_follows_the_publication_grid() {
        let run = Run { max_staleness: 1, publish_interval: 2, ..Run::default() };
        let versions: Vec<u64> = (0..6).map(|step| run.fixed_version(step)).collect();
        assert_eq!(versions, [0, 0, 2, 2, 4, 4]);
        let synchronous = Run::default();
        assert!((0..5).all(|step| synchronous.fixed_version(step) == step));
    }

    #[test]
    fn order_is_fixed_up_to_one_step_off() {
        let order = |max_staleness| Run { max_staleness, ..Run::default() }.order();
        assert_eq!((order(0), order(1), order(2)), (Order::Fixed, Order::Fixed, Order::Arrival));
    }
}
