//! Which numbers are drawn together, and what each picture means to somebody who sees it for the first time.

use crate::axis::Scale;
use crate::names::REWARD;

/// A chart of numbers of the steps.
pub struct Plan {
    /// Its title.
    pub title: &'static str,
    /// One line about what it means.
    pub explanation: &'static str,
    /// What is drawn upwards.
    pub y_label: &'static str,
    /// Name and label of each number; a name that ends with `/` or `@` stands for all that begin so.
    pub numbers: &'static [(&'static str, &'static str)],
    /// How values are mapped.
    pub scale: Scale,
    /// Whether the axis begins at zero.
    pub from_zero: bool,
}

const fn plan(
    title: &'static str,
    y_label: &'static str,
    numbers: &'static [(&'static str, &'static str)],
    explanation: &'static str,
) -> Plan {
    Plan { title, explanation, y_label, numbers, scale: Scale::Linear, from_zero: true }
}

impl Plan {
    /// The axis need not begin at zero.
    const fn free(mut self) -> Self {
        self.from_zero = false;
        self
    }

    /// Values of many sizes.
    const fn log(mut self) -> Self {
        self.scale = Scale::Log;
        self
    }
}

/// What the training reward is and does comes first.
pub const REWARDS: [Plan; 3] = [
    plan(
        "Training reward",
        "mean reward",
        &[(REWARD, "mean"), ("rollout/reward_std", "standard deviation")],
        "How good the answers are that the policy learns from. It should rise; it is noisy, since each step asks other questions.",
    ),
    plan(
        "Parts of the reward",
        "mean of the part",
        &[("rollout/reward/", "")],
        "What the reward is made of. A part that rises while another falls is being traded for it.",
    ),
    plan(
        "Chance to be right in k tries",
        "share of groups",
        &[("passrate/pass@", "pass@")],
        "The share of questions that at least one of k answers got right. It bounds what training can teach.",
    ),
];

/// What else a step tells, in the order of interest.
pub const OTHERS: [Plan; 17] = [
    plan(
        "Length of the answers",
        "tokens",
        &[
            ("rollout/response_len/mean", "mean"),
            ("rollout/response_len/median", "median"),
            ("rollout/response_len/max", "longest"),
            ("rollout/response_len/min", "shortest"),
        ],
        "Longer answers often mean more reasoning; a sudden fall means that short answers are enough for the reward.",
    ),
    plan(
        "Answers that were cut off",
        "share of answers",
        &[
            ("rollout/truncated_ratio", "cut at the length limit"),
            ("rollout/truncated", "cut, of the trained"),
            ("rollout/repetition_frac", "repeat themselves"),
        ],
        "Answers that hit the length limit cannot finish, so their reward says little. Near 0 is good.",
    ),
    plan(
        "Groups that teach nothing",
        "groups",
        &[("rollout/zero_std/count_", "all "), ("rollout/dynamic_filter/drop_", "refused: ")],
        "Groups whose answers all have the same reward: too hard, too easy, or refused by the filter.",
    ),
    plan(
        "Staleness",
        "samples",
        &[("rollout/staleness/", "versions behind: ")],
        "How many versions older than the trained policy the oldest trained token of an answer is.",
    ),
    plan(
        "What became of sampled tokens",
        "tokens",
        &[
            ("rollout/tokens/trained", "trained"),
            ("rollout/tokens/refused", "refused by the filter"),
            ("rollout/tokens/carried", "kept for later"),
            ("rollout/tokens/masked", "too old, masked"),
            ("rollout/tokens/expired", "too old, drawn again"),
            ("rollout/tokens/surplus", "not needed"),
            ("rollout/tokens/replaced", "generated again"),
        ],
        "What is sampled and not trained was paid for without use, unless it is kept for later.",
    ),
    plan(
        "Entropy",
        "nats per token",
        &[("train/entropy_loss", "entropy")],
        "How undecided the policy is about the next token. A slow fall is learning; a collapse towards 0 ends exploration.",
    ).free(),
    plan(
        "Distance to the reference and the old policy",
        "KL divergence",
        &[("train/kl_loss", "to the reference"), ("train/ppo_kl", "to the old policy")],
        "How far the policy has moved from where it started, and within this step.",
    ),
    plan(
        "Clipped tokens",
        "share of tokens",
        &[("train/pg_clipfrac", "clip fraction")],
        "Tokens whose probability changed so much that the update was cut. Above about 0.2 the steps are too large.",
    ),
    plan(
        "Mismatch of generation and training",
        "log-prob difference",
        &[
            ("train/train_rollout_logprob_abs_diff_max", "largest"),
            ("train/train_rollout_logprob_abs_diff", "mean"),
        ],
        "Both compute the same tokens' log-probs, so this should be tiny: below 0.001 in f32. Growth means they run different weights or arithmetic.",
    ).log(),
    plan(
        "Staleness",
        "versions",
        &[("train/staleness", "oldest trained token")],
        "How many policy versions old the answers are when they are trained. 0 is on-policy.",
    ),
    plan(
        "Loss",
        "loss",
        &[("train/loss", "loss"), ("train/pg_loss", "policy gradient part")],
        "Near 0 by construction, since advantages of a group sum to 0: its gradient teaches, not its value.",
    ).free(),
    plan(
        "Gradient norm",
        "norm",
        &[("train/grad_norm", "gradient norm")],
        "How hard a step pulls. Single peaks are clipped; lasting growth is instability.",
    ),
    plan(
        "Learning rate",
        "rate",
        &[("train/lr-pg_0", "learning rate")],
        "The size of the optimizer's steps, as the schedule sets it.",
    ),
    plan(
        "Speed",
        "tokens per second",
        &[
            ("perf/tokens_per_gpu_per_sec", "generation, per GPU"),
            ("perf/actor_train_tok_per_s", "training"),
            ("tokens_per_s", "tokens"),
        ],
        "Tokens generated and trained each second while that phase runs.",
    ),
    plan(
        "Use of the hardware",
        "share",
        &[("perf/mfu", "of the peak FLOP/s"), ("perf/wait_time_ratio", "waiting for samples")],
        "Which share of the machine's arithmetic training uses, and how much of a step it waits.",
    ),
    plan(
        "Memory of the trainer",
        "GB",
        &[("perf/max_rss_gb", "peak")],
        "The largest memory of a rank so far.",
    ),
    plan(
        "Importance ratios",
        "ratio",
        &[("train/tis", "weight of old tokens"), ("train/ois", "ratio of both policies")],
        "How much tokens of older policies count. 1 means that both agree.",
    ),
];
