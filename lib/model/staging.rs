//! The way of weights from files to their storages, without a copy that is not needed.

use slime_torch::bytes_mut;
use slime_weights::{Dtype, StorageSpec, WeightDir};
use tch::{Device, Kind, Tensor};

use crate::{Error, Result};

/// Reads storages into tensors that are there: on the CPU in place; for a GPU through one pinned buffer that is as large as the
/// largest of them.
#[derive(Debug)]
pub(crate) struct Staging {
    buffer: Option<Tensor>,
}

impl Staging {
    /// For storages on `device` of at most `max_elements`, of a model of `kind`.
    pub fn new(max_elements: usize, kind: Kind, device: Device) -> Result<Self> {
        let num_bytes = (max_elements * kind.elt_size_in_bytes().max(4)) as i64;
        let buffer = match device {
            Device::Cpu => None,
            _ => Some(Tensor::f_empty([num_bytes], (Kind::Uint8, Device::Cpu))?.f_pin_memory(device)?),
        };
        Ok(Self { buffer })
    }

    /// Overwrites `target`, the storage of `spec`, with the tensors of `weights`.
    pub fn read(&mut self, spec: &StorageSpec, weights: &WeightDir, target: &mut Tensor) -> Result<()> {
        let (dtype, kind) = read_as(target.kind())?;
        let Some(buffer) = &self.buffer else {
            if target.kind() == kind && target.is_contiguous() {
                spec.read_into(weights, dtype, bytes_mut(target)?)?;
            } else {
                let mut read = Tensor::f_empty(target.size(), (kind, Device::Cpu))?;
                spec.read_into(weights, dtype, bytes_mut(&mut read)?)?;
                target.f_copy_(&read)?;
            }
            return Ok(());
        };
        let num_bytes = target.numel() * kind.elt_size_in_bytes();
        let mut staged = buffer.f_narrow(0, 0, num_bytes as i64)?;
        spec.read_into(weights, dtype, bytes_mut(&mut staged)?)?;
        // It waits for the copy, so the buffer is free again.
        target.f_copy_(&staged.f_view_dtype(kind)?.f_view(target.size().as_slice())?)?;
        Ok(())
    }
}

/// The types in files and in memory that a storage of `kind` is read as.
pub(crate) fn read_as(kind: Kind) -> Result<(Dtype, Kind)> {
    match kind {
        // f64 serves tests of layouts and gradients: the values are those of f32.
        Kind::Float | Kind::Double => Ok((Dtype::F32, Kind::Float)),
        Kind::BFloat16 => Ok((Dtype::BF16, kind)),
        Kind::Half => Ok((Dtype::F16, kind)),
        other => Err(Error::Dtype(other)),
    }
}

#[cfg(test)]
mod tests {
    use slime_config::HfConfig;

    use super::*;
    use crate::ParamStore;

    #[test]
    fn storages_that_are_read_again_are_those_that_were_loaded() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/glm4_moe");
        let (config, weights) = (HfConfig::load(dir).unwrap(), WeightDir::open(dir).unwrap());
        for kind in [Kind::Float, Kind::BFloat16, Kind::Double] {
            let load = || ParamStore::load(&weights, &config, kind, Device::Cpu).unwrap();
            let (loaded, mut params) = (load(), load());
            let places: Vec<usize> = params.iter().map(|(_, tensor)| tensor.data_ptr() as usize).collect();
            tch::no_grad(|| params.iter().for_each(|(_, tensor)| _ = tensor.shallow_clone().zero_()));
            params.update_from(&weights).unwrap();
            for (((spec, got), (_, expected)), place) in params.iter().zip(loaded.iter()).zip(places) {
                assert!(got.equal(expected), "{} in {kind:?}", spec.name);
                assert_eq!(got.data_ptr() as usize, place, "{}", spec.name);
            }
        }
    }
}
