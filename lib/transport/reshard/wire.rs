//! In which form a box of a tensor travels, and how many bytes that takes.

use slime_config::TensorBox;
use slime_weights::{QuantisedForm, Quantiser};

use super::side::PlannedTensor;
use crate::{Error, Result};

/// Rows that share a word where int4 is packed along them, and the side of a block of fp8.
const INT4_ROWS: usize = 8;
const FP8_BLOCK: usize = 128;

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
                let [rows, columns] = grid(quantiser);
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
        self.quantiser_of(tensor).map_or(1, |quantiser| grid(quantiser)[0])
    }
}

/// Rows and columns that share a scale or a word. One scale for a whole matrix is known to all its holders before.
fn grid(quantiser: Quantiser) -> [usize; 2] {
    match quantiser.form {
        QuantisedForm::Fp8Block => [FP8_BLOCK; 2],
        QuantisedForm::Fp8Tensor => [1, 1],
        QuantisedForm::Int4Awq | QuantisedForm::Int4Gptq | QuantisedForm::Int4Ct => {
            [INT4_ROWS, quantiser.group_size]
        }
    }
}

fn is_on_grid(quantiser: Quantiser, tensor: &PlannedTensor, part: &TensorBox) -> bool {
    let is_even = |dim: usize| {
        let (step, end) = (grid(quantiser)[dim], part.start[dim] + part.shape[dim]);
        part.start[dim].is_multiple_of(step) && (end.is_multiple_of(step) || end == tensor.shape[dim])
    };
    (0..2).all(is_even)
}
