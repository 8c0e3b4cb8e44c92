//! What a checkpoint holds of a trainer: buffers of f32 and a few counts.

use slime_weights::WeightDir;
use tch::Tensor;

use crate::fp8::{self, FP8};
use crate::optimizer::{Buffer, Replica, missing, read};
use crate::trainer::{Reference, Role};
use crate::{Result, Trainer};

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
    /// their names those of the critic's, `fp8/<matrix>` of both, and `reference/<storage>` of a reference that follows the
    /// policy. The ranks together save every element once.
    pub fn buffers(&self) -> Vec<Buffer> {
        let mut buffers = self.actor.optimizer.buffers();
        let is_first = self.is_first_of_stage();
        buffers.extend(fp8::buffers(&self.actor.model, is_first));
        if let Some(critic) = &self.critic {
            let own = critic.optimizer.buffers().into_iter().chain(fp8::buffers(&critic.model, is_first));
            buffers.extend(own.map(|buffer| buffer.below(CRITIC)));
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
        let (trained, own) = match name.strip_prefix(CRITIC) {
            Some(of_critic) => (self.critic.as_ref().ok_or_else(|| missing(name))?, of_critic),
            None => (&self.actor, name),
        };
        match own.strip_prefix(FP8) {
            Some(matrix) => fp8::buffer(&trained.model, matrix),
            None => trained.optimizer.buffer(own),
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
        let (trained, own) = match name.strip_prefix(CRITIC) {
            Some(of_critic) => (self.critic.as_mut().ok_or_else(|| missing(name))?, of_critic),
            None => (&mut self.actor, name),
        };
        match own.strip_prefix(FP8) {
            Some(matrix) => fp8::write_buffer(&mut trained.model, matrix, values),
            None => trained.optimizer.write_buffer(own, values),
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
        self.rescale_fp8(Role::Actor, false)?;
        self.rescale_fp8(Role::Critic, false)
    }

    fn moving_reference(&self) -> Option<Replica<'_>> {
        let reference = self.reference.as_ref().filter(|_| self.settings.ref_update_interval.is_some());
        let other = reference.and_then(|reference| match reference {
            Reference::Other(model) => Some(model),
            Reference::Base => None,
        });
        other.map(|reference| Replica::new(reference.params(), self.actor.optimizer.groups()))
    }
}
