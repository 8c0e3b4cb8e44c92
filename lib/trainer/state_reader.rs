//! The state of a trainer as bytes for a checkpoint, copied once: training stands still meanwhile.

use slime_config::TensorPart;
use slime_torch::bytes_of;
use tch::{Device, Kind, Tensor};

use crate::{Buffer, Result, Trainer};

/// Reads buffers of a trainer; what lies on a GPU comes through one pinned buffer, as large as the largest of them.
pub struct StateReader<'a> {
    trainer: &'a Trainer,
    staging: Option<Tensor>,
    max_len: usize,
}

impl<'a> StateReader<'a> {
    /// Of the buffers of `trainer`.
    pub fn new(trainer: &'a Trainer) -> Self {
        let max_len = trainer.buffers().iter().map(Buffer::len).max().unwrap_or(0);
        Self { trainer, staging: None, max_len }
    }

    /// The parts of a buffer that this rank saves, with their elements: f32, little-endian.
    ///
    /// # Errors
    /// No such buffer, or no room.
    pub fn saved(&mut self, buffer: &Buffer) -> Result<(Vec<TensorPart>, Vec<u8>)> {
        let values_n = self.trainer.buffer(&buffer.name)?;
        if values_n.device() == Device::Cpu && values_n.kind() == Kind::Float {
            return Ok(buffer.saved(bytes_of(&values_n)?));
        }
        let staging = match self.staging.take() {
            Some(staging) => staging,
            None => host(self.max_len, values_n.device())?,
        };
        let mut staged_n = self.staging.insert(staging).f_narrow(0, 0, values_n.numel() as i64)?;
        tch::no_grad(|| staged_n.f_copy_(&values_n))?;
        Ok(buffer.saved(bytes_of(&staged_n)?))
    }
}

/// Room for `len` elements of f32 in the memory of the host; pinned, if they come from a GPU.
fn host(len: usize, device: Device) -> Result<Tensor> {
    let host = Tensor::f_empty([len as i64], (Kind::Float, Device::Cpu))?;
    Ok(if device.is_cuda() { host.f_pin_memory(device)? } else { host })
}
