//! What a checkpoint holds of a trainer: buffers of f32 and a few counts.

use slime_weights::WeightDir;
use tch::Tensor;

use crate::optimizer::{Buffer, Replica, missing, read};
use crate::trainer::Reference;
use crate::{Optimizer, Result, Trainer};

/// Names of the critic's buffers begin with this.
const CRITIC: &str = "critic/";
/// Names of a reference that changes begin with this.
const REFERENCE: &str = "reference/";

/// How far a trainer has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Updates of the policy.
    pub optimizer_step: u64,
    /// Updates of the critic.
    pub critic_step: u64,
    /// Rollouts trained.
    pub num_rollouts: u64,
}

impl Trainer {
    /// What this rank holds of the state, in a fixed order: the buffers of the policy's optimizer, with `critic/` before
    /// their names those of the critic's, and `reference/<storage>` of a reference that follows the policy. The ranks
    /// together save every element once.
    pub fn buffers(&self) -> Vec<Buffer> {
        let mut buffers = self.actor.optimizer.buffers();
        if let Some(critic) = &self.critic {
            buffers.extend(critic.optimizer.buffers().into_iter().map(|buffer| buffer.below(CRITIC)));
        }
        if let Some(reference) = self.moving_reference() {
            buffers.extend(reference.buffers().into_iter().map(|buffer| buffer.below(REFERENCE)));
        }
        buffers
    }

    /// The elements of one buffer.
    ///
    /// # Errors
    /// No such buffer.
    pub fn read_buffer(&self, name: &str) -> Result<Vec<f32>> {
        read(&self.buffer(name)?)
    }

    /// One buffer where it lies, in its own type.
    pub(crate) fn buffer(&self, name: &str) -> Result<Tensor> {
        if let Some(storage) = name.strip_prefix(REFERENCE) {
            return self.moving_reference().ok_or_else(|| missing(name))?.buffer(storage);
        }
        match name.strip_prefix(CRITIC) {
            Some(of_critic) => self.critic_optimizer(name)?.buffer(of_critic),
            None => self.actor.optimizer.buffer(name),
        }
    }

    /// Overwrites one buffer. After the last one comes [`Self::resume`].
    ///
    /// # Errors
    /// No such buffer, or another number of elements.
    pub fn write_buffer(&mut self, name: &str, values: &[f32]) -> Result<()> {
        if let Some(storage) = name.strip_prefix(REFERENCE) {
            return self.moving_reference().ok_or_else(|| missing(name))?.write_buffer(storage, values);
        }
        match (name.strip_prefix(CRITIC), &mut self.critic) {
            (Some(of_critic), Some(critic)) => critic.optimizer.write_buffer(of_critic, values),
            (Some(_), None) => Err(missing(name)),
            (None, _) => self.actor.optimizer.write_buffer(name, values),
        }
    }

    /// Gives the masters of the policy, and of the critic, what these directories have of them in more digits than bf16;
    /// for a training that begins.
    ///
    /// # Errors
    /// The bytes of a tensor cannot be read.
    pub fn read_masters(&mut self, policy: &WeightDir, critic: Option<&WeightDir>) -> Result<()> {
        self.actor.optimizer.read_masters(policy)?;
        if let (Some(critic), Some(weights)) = (&mut self.critic, critic) {
            critic.optimizer.read_masters(weights)?;
        }
        Ok(())
    }

    /// How far training has come.
    pub fn progress(&self) -> Progress {
        Progress {
            optimizer_step: self.actor.optimizer.step_count(),
            critic_step: self.critic.as_ref().map_or(0, |critic| critic.optimizer.step_count()),
            num_rollouts: self.num_rollouts,
        }
    }

    /// Continues there, from the buffers that every rank has written. Collective.
    ///
    /// # Errors
    /// A failed collective.
    pub fn resume(&mut self, progress: Progress) -> Result<()> {
        self.actor.optimizer.resume(progress.optimizer_step)?;
        if let Some(critic) = &mut self.critic {
            critic.optimizer.resume(progress.critic_step)?;
        }
        if let Some(reference) = self.moving_reference() {
            reference.gather()?;
        }
        self.num_rollouts = progress.num_rollouts;
        Ok(())
    }

    fn moving_reference(&self) -> Option<Replica<'_>> {
        let reference = self.reference.as_ref().filter(|_| self.settings.ref_update_interval.is_some());
        let other = reference.and_then(|reference| match reference {
            Reference::Other(model) => Some(model),
            Reference::Base => None,
        });
        other.map(|reference| Replica::new(reference.params(), self.actor.optimizer.groups()))
    }

    fn critic_optimizer(&self, name: &str) -> Result<&Optimizer> {
        self.critic.as_ref().map(|critic| &critic.optimizer).ok_or_else(|| missing(name))
    }
}
