//! What a checkpoint holds of a trainer: buffers of f32 and a few counts.

use slime_model::Model;
use tch::{Device, Tensor};

use crate::{Error, Optimizer, Result, Trainer};

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
    /// The names and sizes (elements of f32) of all buffers, in a fixed order: those of the policy's optimizer, with
    /// `critic/` before them those of the critic's, and `reference/<storage>` of a reference that follows the policy.
    pub fn buffers(&self) -> Vec<(String, usize)> {
        let mut buffers = self.actor.optimizer.buffers();
        if let Some(critic) = &self.critic {
            let named = |(name, len)| (format!("{CRITIC}{name}"), len);
            buffers.extend(critic.optimizer.buffers().into_iter().map(named));
        }
        if let Some(reference) = self.moving_reference() {
            let named = reference.params().iter();
            buffers.extend(named.map(|(spec, tensor)| (format!("{REFERENCE}{}", spec.name), tensor.numel())));
        }
        buffers
    }

    /// The elements of one buffer, flat.
    ///
    /// # Errors
    /// No such buffer.
    pub fn read_buffer(&self, name: &str) -> Result<Vec<f32>> {
        if let Some(storage) = name.strip_prefix(REFERENCE) {
            let tensor = self.reference_storage(name, storage)?;
            let flat = tensor.f_to_device(Device::Cpu)?.f_to_kind(tch::Kind::Float)?.f_flatten(0, -1)?;
            return Ok(Vec::try_from(flat)?);
        }
        match name.strip_prefix(CRITIC) {
            Some(of_critic) => self.critic_optimizer(name)?.read_buffer(of_critic),
            None => self.actor.optimizer.read_buffer(name),
        }
    }

    /// Overwrites one buffer; a master buffer sets the weights of its model too.
    ///
    /// # Errors
    /// No such buffer, or another number of elements.
    pub fn write_buffer(&mut self, name: &str, values: &[f32]) -> Result<()> {
        if let Some(storage) = name.strip_prefix(REFERENCE) {
            let mut tensor = self.reference_storage(name, storage)?;
            if tensor.numel() != values.len() {
                let (expected, got) = (format!("{} elements", tensor.numel()), values.len().to_string());
                return Err(Error::State { name: name.to_owned(), expected, got });
            }
            let source = Tensor::f_from_slice(values)?.f_view(tensor.size().as_slice())?;
            return tch::no_grad(|| Ok(tensor.f_copy_(&source)?));
        }
        match name.strip_prefix(CRITIC) {
            Some(of_critic) => {
                self.critic_optimizer(name)?;
                match &mut self.critic {
                    Some(critic) => critic.optimizer.write_buffer(of_critic, values),
                    None => Err(missing(name)),
                }
            }
            None => self.actor.optimizer.write_buffer(name, values),
        }
    }

    /// How far training has come.
    pub fn progress(&self) -> Progress {
        Progress {
            optimizer_step: self.actor.optimizer.step_count(),
            critic_step: self.critic.as_ref().map_or(0, |critic| critic.optimizer.step_count()),
            num_rollouts: self.num_rollouts,
        }
    }

    /// Continues there, after a resume.
    pub fn set_progress(&mut self, progress: Progress) {
        self.actor.optimizer.set_step_count(progress.optimizer_step);
        if let Some(critic) = &mut self.critic {
            critic.optimizer.set_step_count(progress.critic_step);
        }
        self.num_rollouts = progress.num_rollouts;
    }

    fn moving_reference(&self) -> Option<&Model> {
        self.reference.as_ref().filter(|_| self.settings.ref_update_interval.is_some())
    }

    fn reference_storage(&self, name: &str, storage: &str) -> Result<Tensor> {
        let found = self.moving_reference().and_then(|reference| reference.params().find(storage));
        found.ok_or_else(|| missing(name))
    }

    fn critic_optimizer(&self, name: &str) -> Result<&Optimizer> {
        self.critic.as_ref().map(|critic| &critic.optimizer).ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Error {
    Error::State {
        name: name.to_owned(),
        expected: "a buffer of this trainer".to_owned(),
        got: "an unknown name".to_owned(),
    }
}
