//! Masters of bf16 weights begin at the values of the file where it has more digits than bf16.

use slime_config::TensorPart;
use slime_weights::{Dtype, WeightDir, decode_f32};
use tch::Kind;

use super::Optimizer;
use crate::Result;

/// Before the names of the tensors that a buffer of masters is made of.
const MASTER: &str = "master/";

impl Optimizer {
    /// Gives masters the f32 or f64 elements that `weights` has of their tensors. Weights rounded from them stay as they are,
    /// but an update smaller than a step of bf16 starts from where the number is, not from the middle between two steps,
    /// where the first updates together would round to nothing.
    ///
    /// # Errors
    /// The bytes of a tensor cannot be read.
    pub fn read_masters(&mut self, weights: &WeightDir) -> Result<()> {
        for buffer in self.buffers() {
            let Some(storage) = buffer.name.strip_prefix(MASTER) else { continue };
            let has = |part: &TensorPart| wider(weights, part).is_some();
            if !self.is_rounded(storage) || !buffer.parts.iter().any(has) {
                continue;
            }
            let mut values = self.read_buffer(&buffer.name)?;
            let mut rest = values.as_mut_slice();
            for part in &buffer.parts {
                let (of_part, after) = rest.split_at_mut(part.len().min(rest.len()));
                rest = after;
                if let Some(tensor) = wider(weights, part) {
                    let bytes = weights.part(tensor, &part.bounds, Dtype::F32)?;
                    let of_box = decode_f32(tensor, &bytes, Dtype::F32)?;
                    of_part.copy_from_slice(&of_box[part.range.clone()]);
                }
            }
            self.write_buffer(&buffer.name, &values)?;
        }
        Ok(())
    }

    fn is_rounded(&self, storage: &str) -> bool {
        let state = self.states.iter().find(|state| state.spec.name == storage);
        state.is_some_and(|state| state.param.kind() == Kind::BFloat16)
    }
}

/// The tensor of a part, if `weights` holds it with more digits than bf16.
fn wider<'a>(weights: &WeightDir, part: &'a TensorPart) -> Option<&'a str> {
    let name = part.tensor.strip_prefix(MASTER)?;
    let info = weights.info(name).ok()?;
    (matches!(info.dtype, Dtype::F32 | Dtype::F64) && info.shape == part.shape).then_some(name)
}
