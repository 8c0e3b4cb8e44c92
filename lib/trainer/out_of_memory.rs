//! What a step was doing when there was no room, and the setting that would help at the least cost.

use slime_config::{Recompute, Train};
use slime_torch::OutOfMemory;

use crate::{Error, Result, Trainer};

/// What a rank is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before the first step: gradients, masters and moments.
    OptimizerState,
    /// Log-probs and values that stay fixed over the rollout.
    FixedLogProbs,
    /// A micro-batch of the critic.
    Critic,
    /// A micro-batch of the policy, up to its loss.
    Forward,
    /// Its gradients.
    Backward,
    /// Sums over the ranks.
    ReduceGrads,
    /// `AdamW`, and the weights back to all ranks.
    Optimizer,
}

impl Phase {
    fn words(self) -> &'static str {
        match self {
            Self::OptimizerState => "allocating the optimizer's state",
            Self::FixedLogProbs => "computing log-probs before the update",
            Self::Critic => "training the critic",
            Self::Forward => "the forward pass of a micro-batch",
            Self::Backward => "the backward pass of a micro-batch",
            Self::ReduceGrads => "adding up gradients over the ranks",
            Self::Optimizer => "the optimizer's update",
        }
    }

    /// The cheapest setting, first what costs the least time.
    pub(crate) fn hint(self, train: &Train) -> String {
        let has_activations = matches!(self, Self::Critic | Self::Forward | Self::Backward);
        let tokens = train.max_tokens_per_gpu;
        match (has_activations, train.recompute) {
            (true, Recompute::None) => {
                "train.recompute = \"selective\" computes what lies between products again".into()
            }
            (true, Recompute::Selective) => format!(
                "train.max_tokens_per_gpu below {tokens} has the same result in more passes; train.recompute = \"full\" \
                 keeps one tensor of each layer"
            ),
            (true, Recompute::Full) | (false, _) if !train.optimizer_offload => {
                "train.optimizer_offload = true keeps masters and moments on the host".into()
            }
            _ => format!("train.max_tokens_per_gpu below {tokens}, or more ranks"),
        }
    }

    /// The error, and where there was no room, what for and what to do about it.
    pub(crate) fn explain(self, error: Error, train: &Train) -> Error {
        match OutOfMemory::parse(&error.to_string()) {
            Some(found) => Error::OutOfMemory { phase: self.words(), found, hint: self.hint(train) },
            None => error,
        }
    }
}

impl Trainer {
    /// An error of this rollout with the phase that it came in.
    pub(crate) fn explained<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.phase.explain(error, &self.settings.train))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 3 has a total capacity of 80.00 GiB of which \
                           1.00 GiB is free.";

    fn explained(phase: Phase, train: &Train) -> String {
        let torch = slime_torch::Error::Torch { operation: "backward", message: MESSAGE.to_owned() };
        let error = phase.explain(Error::Torch(torch), train);
        assert_eq!(error.exit_code(), 71);
        error.to_string()
    }

    #[test]
    fn the_phase_is_named_and_the_cheapest_setting_comes_first() {
        let mut train = Train::default();
        assert_eq!(
            explained(Phase::Backward, &train),
            "the backward pass of a micro-batch: no room for a tensor of 4.00 GiB: 1.00 GiB of the GPU's 80.00 GiB are \
             free\nhint: train.recompute = \"selective\" computes what lies between products again"
        );
        train.recompute = Recompute::Selective;
        assert!(
            explained(Phase::Forward, &train)
                .contains("hint: train.max_tokens_per_gpu below 8192 has the same")
        );
        train.recompute = Recompute::Full;
        assert!(explained(Phase::Forward, &train).contains("hint: train.optimizer_offload = true"));
        assert!(explained(Phase::OptimizerState, &train).contains("hint: train.optimizer_offload = true"));
        train.optimizer_offload = true;
        assert!(
            explained(Phase::Backward, &train)
                .ends_with("train.max_tokens_per_gpu below 8192, or more ranks")
        );
    }

    #[test]
    fn other_errors_stay_as_they_are() {
        let error = Phase::Forward.explain(Error::NoSamples, &Train::default());
        assert!(matches!(error, Error::NoSamples));
    }
}
