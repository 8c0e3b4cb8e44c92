//! In which form a box of a tensor travels, and how many bytes that takes.

use slime_config::TensorBox;
use slime_weights::Quantiser;

use super::side::PlannedTensor;
use crate::{Error, Result};

/// How a box of a tensor travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// As it is: bf16, or f32 where the model keeps f32.
    Plain,
    /// Quantised by the sender, with its scales.
    Quantised,
    /// As it is, quantised by the receiver: its blocks or groups lie with several senders.
    QuantisedLater,
}

/// The form that the engine keeps the model in.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// How matrices are quantised; none keeps all of them in bf16.
    pub quantiser: Option<Quantiser>,
}

impl Target {
    fn quantiser_of(&self, tensor: &PlannedTensor) -> Option<Quantiser> {
        self.quantiser.filter(|quantiser| quantiser.applies(&tensor.name, &tensor.shape))
    }

    /// Whether an engine can hold `part` of `tensor`.
    ///
    /// # Errors
    /// The box cuts through blocks or groups that share a scale.
    pub(super) fn check(&self, tensor: &PlannedTensor, part: &TensorBox) -> Result<()> {
        match self.quantiser_of(tensor) {
            Some(quantiser) if !is_on_grid(quantiser, tensor, part) => {
                let [rows, columns] = quantiser.grid();
                Err(Error::CutBlock {
                    tensor: tensor.name.clone(),
                    block: format!("{rows} x {columns}"),
                    start: part.start.clone(),
                    shape: part.shape.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// How `part` of `tensor`, all of which one sender has, travels.
    pub(super) fn wire(&self, tensor: &PlannedTensor, part: &TensorBox) -> Wire {
        match self.quantiser_of(tensor) {
            None => Wire::Plain,
            Some(quantiser) if is_on_grid(quantiser, tensor, part) => Wire::Quantised,
            Some(_) => Wire::QuantisedLater,
        }
    }

    /// The bytes of `part` on the way, and of its scales.
    pub(super) fn num_bytes(&self, tensor: &PlannedTensor, part: &TensorBox) -> u64 {
        match self.quantiser_of(tensor).filter(|quantiser| is_on_grid(*quantiser, tensor, part)) {
            Some(quantiser) => {
                let specs = quantiser.specs(&tensor.name, &part.shape);
                let of_spec =
                    |shape: &[usize], size: usize| shape.iter().product::<usize>() as u64 * size as u64;
                specs.iter().map(|spec| of_spec(&spec.shape, spec.dtype.num_bytes())).sum()
            }
            None => part.num_elements() as u64 * if tensor.is_f32 { 4 } else { 2 },
        }
    }

    /// Rows of `tensor` that a transfer may be cut between.
    pub(super) fn row_step(&self, tensor: &PlannedTensor) -> usize {
        self.quantiser_of(tensor).map_or(1, |quantiser| quantiser.grid()[0])
    }
}

fn is_on_grid(quantiser: Quantiser, tensor: &PlannedTensor, part: &TensorBox) -> bool {
    let is_even = |dim: usize| {
        let (step, end) = (quantiser.grid()[dim], part.start[dim] + part.shape[dim]);
        part.start[dim].is_multiple_of(step) && (end.is_multiple_of(step) || end == tensor.shape[dim])
    };
    (0..2).all(is_even)
}
