//! The batch identity: `rollout_batch_size x n_samples_per_prompt = global_batch_size x num_steps_per_rollout`.

use crate::error::{Error, Result};
use crate::load::RunConfig;

/// The four sizes of a step, all known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Groups of a step.
    pub rollout_batch_size: u32,
    /// Samples of a group.
    pub n_samples_per_prompt: u32,
    /// Samples of an optimizer step.
    pub global_batch_size: u32,
    /// Optimizer steps of a rollout.
    pub num_steps_per_rollout: u32,
}

/// Used when `n_samples_per_prompt` is neither given nor derivable.
const N_SAMPLES_PER_PROMPT: u32 = 8;
/// Used when `rollout_batch_size` is neither given nor derivable.
const ROLLOUT_BATCH_SIZE: u32 = 32;

impl Batch {
    /// Derives what is missing; a mismatch of what is given is an error.
    ///
    /// # Errors
    /// A size of zero, an identity that does not hold, or a derived size that is not whole.
    pub fn derive(
        rollout_batch_size: Option<u32>,
        n_samples_per_prompt: Option<u32>,
        global_batch_size: Option<u32>,
        num_steps_per_rollout: Option<u32>,
    ) -> Result<Self> {
        for (key, value) in [
            ("rollout.rollout_batch_size", rollout_batch_size),
            ("rollout.n_samples_per_prompt", n_samples_per_prompt),
            ("train.global_batch_size", global_batch_size),
            ("train.num_steps_per_rollout", num_steps_per_rollout),
        ] {
            if value == Some(0) {
                return Err(Error::value(key, "at least 1", 0));
            }
        }
        let (groups, samples) = match (rollout_batch_size, n_samples_per_prompt, global_batch_size) {
            (Some(groups), Some(samples), _) => (groups, samples),
            (Some(groups), None, Some(global)) if num_steps_per_rollout.is_some() => {
                let all = product(global, num_steps_per_rollout.unwrap_or(1))?;
                (groups, quotient(all, groups, "rollout.n_samples_per_prompt", "rollout.rollout_batch_size")?)
            }
            (Some(groups), None, _) => (groups, N_SAMPLES_PER_PROMPT),
            (None, samples, Some(global)) => {
                let samples = samples.unwrap_or(N_SAMPLES_PER_PROMPT);
                let all = product(global, num_steps_per_rollout.unwrap_or(1))?;
                let groups =
                    quotient(all, samples, "rollout.rollout_batch_size", "rollout.n_samples_per_prompt")?;
                (groups, samples)
            }
            (None, samples, None) => (ROLLOUT_BATCH_SIZE, samples.unwrap_or(N_SAMPLES_PER_PROMPT)),
        };
        let all = product(groups, samples)?;
        let (global, steps) = match (global_batch_size, num_steps_per_rollout) {
            (Some(global), Some(steps)) => (global, steps),
            (Some(global), None) => {
                (global, quotient(all, global, "train.num_steps_per_rollout", "train.global_batch_size")?)
            }
            (None, steps) => {
                let steps = steps.unwrap_or(1);
                (quotient(all, steps, "train.global_batch_size", "train.num_steps_per_rollout")?, steps)
            }
        };
        if product(global, steps)? != all {
            return Err(Error::Conflict(format!(
                "rollout_batch_size {groups} x n_samples_per_prompt {samples} = {all} samples, but \
                 global_batch_size {global} x num_steps_per_rollout {steps} = {}\n\
                 hint: leave one of the four out and it is derived",
                u64::from(global) * u64::from(steps)
            )));
        }
        Ok(Self {
            rollout_batch_size: groups,
            n_samples_per_prompt: samples,
            global_batch_size: global,
            num_steps_per_rollout: steps,
        })
    }

    /// Samples of a step.
    pub fn num_samples(&self) -> u32 {
        self.rollout_batch_size * self.n_samples_per_prompt
    }
}

impl RunConfig {
    /// The four sizes of a step; [`crate::load`] has checked that they fit.
    ///
    /// # Errors
    /// The batch identity does not hold, or recorded data has another number of samples (after [`crate::load`] only when fields
    /// were changed).
    pub fn batch(&self) -> Result<Batch> {
        let (asked, recorded) = (self.rollout.n_samples_per_prompt, self.data.kind.num_recorded());
        if let (Some(asked), Some(recorded)) = (asked, recorded)
            && asked != recorded
        {
            return Err(Error::Conflict(format!(
                "rollout.n_samples_per_prompt {asked}: expected {recorded}, which data.kind = \"{}\" implies\nhint: leave \
                 it out",
                self.data.kind.as_str()
            )));
        }
        Batch::derive(
            self.rollout.rollout_batch_size,
            recorded.or(asked).or(self.algorithm.has_pairs().then_some(2)),
            self.train.global_batch_size,
            self.train.num_steps_per_rollout,
        )
    }

    /// The training steps of the run, from `run.num_steps` or from `run.num_epoch` over `num_prompts`.
    ///
    /// # Errors
    /// Neither is given and the prompts have no end, or they are fewer than a step asks.
    pub fn num_steps(&self, num_prompts: Option<u64>) -> Result<u64> {
        let groups = u64::from(self.batch()?.rollout_batch_size);
        if let Some(prompts) = num_prompts.filter(|prompts| *prompts < groups) {
            return Err(Error::Conflict(format!(
                "{prompts} prompts do not fill one step of rollout_batch_size {groups}: it would ask some twice\nhint: \
                 rollout.rollout_batch_size of at most {prompts}"
            )));
        }
        if let Some(steps) = self.run.num_steps {
            return Ok(steps);
        }
        let Some(prompts) = num_prompts else {
            return Err(Error::Conflict(
                "the prompts have no end and run.num_steps is missing\nhint: --set run.num_steps=100"
                    .to_owned(),
            ));
        };
        Ok(prompts * self.run.num_epoch.unwrap_or(1) / groups)
    }
}

fn product(left: u32, right: u32) -> Result<u32> {
    left.checked_mul(right).ok_or_else(|| {
        Error::Conflict(format!("a step of {left} x {right} samples is more than {} samples", u32::MAX))
    })
}

fn quotient(all: u32, divisor: u32, derived: &str, by: &str) -> Result<u32> {
    if all.is_multiple_of(divisor) {
        return Ok(all / divisor);
    }
    Err(Error::Conflict(format!("cannot derive {derived}: {all} samples do not divide by {by} {divisor}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_size_is_derived() {
        let full = Batch {
            rollout_batch_size: 8,
            n_samples_per_prompt: 4,
            global_batch_size: 16,
            num_steps_per_rollout: 2,
        };
        let given = [Some(8), Some(4), Some(16), Some(2)];
        for missing in 0..4 {
            let mut sizes = given;
            sizes[missing] = None;
            assert_eq!(Batch::derive(sizes[0], sizes[1], sizes[2], sizes[3]).unwrap(), full, "{missing}");
        }
        assert_eq!(full.num_samples(), 32);
    }

    #[test]
    fn prompts_fill_at_least_one_step() {
        let text = "[run]\nnum_epoch = 4\n[rollout]\nrollout_batch_size = 2\nn_samples_per_prompt = 2\n";
        let config = crate::parse(text, "run.toml", &[]).unwrap();
        assert_eq!(config.num_steps(Some(3)).unwrap(), 6);
        let error = config.num_steps(Some(1)).unwrap_err();
        assert!(
            error.to_string().starts_with("1 prompts do not fill one step of rollout_batch_size 2"),
            "{error}"
        );
        assert_eq!(error.exit_code(), 78);
        let endless = crate::parse("[run]\nnum_steps = 7\n", "run.toml", &[]).unwrap();
        assert_eq!(endless.num_steps(None).unwrap(), 7);
        assert!(endless.num_steps(Some(1)).is_err(), "a number of steps does not make more prompts");
    }

    #[test]
    fn mismatch_names_all_four() {
        let text = Batch::derive(Some(8), Some(4), Some(16), Some(3)).unwrap_err().to_string();
        assert!(text.contains("8 x n_samples_per_prompt 4 = 32"), "{text}");
        assert!(text.contains("16 x num_steps_per_rollout 3 = 48"), "{text}");
        assert!(Batch::derive(Some(8), Some(4), Some(10), None).is_err());
        assert!(Batch::derive(Some(0), None, None, None).is_err());
        assert!(Batch::derive(Some(u32::MAX), Some(2), None, None).is_err());
    }
}
