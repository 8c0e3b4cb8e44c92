//! What `[train.fp8]` keeps of earlier steps: the largest magnitudes that scales follow from.

use slime_comm::{Collectives, Communicator, Op};
use slime_config::TensorPart;
use slime_model::Model;
use tch::Tensor;

use crate::optimizer::{Buffer, missing};
use crate::trainer::Role;
use crate::{Error, Result, Trainer};

/// Names of these buffers begin with this.
pub(crate) const FP8: &str = "fp8/";

/// The buffers of a model; `is_saved` by one of the ranks that have parts of the same layers.
pub(crate) fn buffers(model: &Model, is_saved: bool) -> impl Iterator<Item = Buffer> {
    model.fp8_histories().map(move |(name, shape)| {
        let name = format!("{FP8}{name}");
        Buffer { parts: vec![TensorPart::whole(name.as_str(), &shape)], is_saved: vec![is_saved], name }
    })
}

/// The buffer `fp8/<matrix>`, here without the beginning of its name.
pub(crate) fn buffer(model: &Model, matrix: &str) -> Result<Tensor> {
    let values = model.fp8_history(matrix).ok_or_else(|| missing(matrix))?;
    Ok(Tensor::f_from_slice(&values)?)
}

/// Overwrites it.
pub(crate) fn write_buffer(model: &mut Model, matrix: &str, values: &[f32]) -> Result<()> {
    let expected = model.fp8_history(matrix).ok_or_else(|| missing(matrix))?.len();
    if model.set_fp8_history(matrix, values) {
        return Ok(());
    }
    let (expected, got) = (format!("{expected} elements"), values.len().to_string());
    Err(Error::State { name: matrix.to_owned(), expected, got })
}

impl Trainer {
    /// Behind an update of a model, `is_kept`, or a step that was left out: new scales. Collective.
    pub(crate) fn rescale_fp8(&mut self, role: Role, is_kept: bool) -> Result<()> {
        let ranks = [self.dp_cp.clone(), self.tp.clone()];
        let most = |magnitudes: &mut [f32]| {
            ranks.iter().try_for_each(|ranks| ranks.all_reduce(magnitudes, Op::Max)).map_err(Error::from)
        };
        let model = match role {
            Role::Actor => &mut self.actor.model,
            Role::Critic => match &mut self.critic {
                Some(critic) => &mut critic.model,
                None => return Ok(()),
            },
        };
        if is_kept { model.end_fp8_step(most) } else { model.rescale_fp8(most) }
    }

    /// Whether this rank is the first of those that have parts of the same layers.
    pub(crate) fn is_first_of_stage(&self) -> bool {
        let ranks: [&dyn Communicator; 2] = [&*self.dp_cp, &*self.tp];
        ranks.iter().all(|ranks| ranks.rank() == 0)
    }
}
