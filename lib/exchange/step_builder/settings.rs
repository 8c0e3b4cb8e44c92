//! The settings of the step builder.

/// How groups are accepted into steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// A step is its own groups, in group order, all generated with version v(k).
    Fixed,
    /// A step is the first accepted groups of the open steps; surplus groups are carried.
    Arrival,
}

/// Which of more accepted groups than a step needs it takes (arrival order). All but `Fifo` choose when the trainer is
/// about to need the step, not before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferOrder {
    /// Those accepted first.
    Fifo,
    /// Those of the newest weights.
    Newest,
    /// Those with the greatest priority.
    Priority,
    /// From every stratum in turn.
    Stratified,
    /// As [`super::StepPolicy::arrange`] says.
    Policy,
}

/// Settings of the step builder.
#[derive(Debug, Clone)]
pub struct BuilderConfig {
    /// Bound s on `step - oldest trained version`.
    pub max_staleness: u64,
    /// Versions are published when this u divides them.
    pub publish_interval: u64,
    /// How groups are accepted.
    pub order: Order,
    /// Groups a step is made of.
    pub num_groups: usize,
    /// Groups under way or accepted where a step is still open (at least `num_groups`); in fixed order those drawn at once
    /// for a step that a filter judges.
    pub over_sampling: usize,
    /// Which accepted groups a step takes.
    pub buffer_order: BufferOrder,
    /// Steps that may train a group, within the staleness bound (above 1 in arrival order only).
    pub max_reuse: u32,
    /// Groups a step may draw before it fails.
    pub max_groups: u32,
    /// Whether the policy may refuse groups; without filters several fixed steps may be open.
    pub has_filter: bool,
    /// Steps of the run.
    pub num_steps: u64,
    /// Replicas that may exist: 0..n.
    pub num_replicas: u32,
    /// Groups one replica holds at most.
    pub max_in_flight: usize,
    /// Silence after which a replica loses its groups.
    pub lease_ms: u64,
    /// Time between heartbeats.
    pub beat_ms: u64,
    /// Columns that must be joined before a group is judged, for example `reward`.
    pub columns: Vec<String>,
    /// Steps that the policy looks back to when it chooses prompts.
    pub history_steps: u64,
    /// Versions divisible by this are evaluated, and the last one; 0: none.
    pub eval_interval: u64,
    /// Whether version 0 is evaluated, too.
    pub eval_at_start: bool,
}

impl BuilderConfig {
    /// v(k): the version all groups of step k are generated with in fixed order.
    pub fn version_of(&self, step: u64) -> u64 {
        step.saturating_sub(self.max_staleness).div_ceil(self.publish_interval) * self.publish_interval
    }
}
