//! Memory for what operations leave to the next ones.

use std::cell::Cell;

use tch::{Device, Kind, Tensor};

use crate::{Error, Result};

/// Addresses are multiples of it, for wide loads.
const ALIGNMENT: i64 = 256;

/// Where operations put their results: in libtorch's memory by default, or in memory that always is the same, as graphs
/// need it.
///
/// Fixed memory has two halves, which layers take in turn: what a layer leaves is read by the next one, and is gone after it.
#[derive(Debug, Default)]
pub struct Workspace {
    fixed: Option<Tensor>,
    half: Cell<i64>,
    used: Cell<i64>,
}

impl Workspace {
    /// Twice `half_bytes` of fixed memory.
    ///
    /// # Errors
    /// There is no room.
    pub fn fixed(half_bytes: usize, device: Device) -> Result<Self> {
        let half_bytes = (half_bytes as i64 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        let memory = Tensor::f_empty([2 * half_bytes], (Kind::Uint8, device))?;
        Ok(Self { fixed: Some(memory), ..Self::default() })
    }

    /// Whether results lie where they lay the last time.
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// Goes to the other half: what the layer before the last one left is given up.
    pub fn turn(&self) {
        self.half.set(1 - self.half.get());
        self.used.set(0);
    }

    /// Begins a forward pass.
    pub fn reset(&self) {
        self.half.set(0);
        self.used.set(0);
    }

    /// A tensor with whatever was there.
    ///
    /// # Errors
    /// There is no room.
    pub fn empty(&self, size: &[i64], (kind, device): (Kind, Device)) -> Result<Tensor> {
        let Some(memory) = &self.fixed else { return Ok(Tensor::f_empty(size, (kind, device))?) };
        let bytes = size.iter().product::<i64>() * kind.elt_size_in_bytes() as i64;
        let (half_bytes, used) = (memory.size1()? / 2, self.used.get());
        if used + bytes > half_bytes {
            let (expected, got) = (half_bytes as usize, (used + bytes) as usize);
            return Err(Error::Context { what: "bytes of the workspace", expected, got });
        }
        self.used.set((used + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
        let start = self.half.get() * half_bytes + used;
        Ok(memory.f_narrow(0, start, bytes)?.f_view_dtype(kind)?.f_view(size)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_memory_is_the_same_in_every_pass_and_lasts_for_a_layer() {
        let workspace = Workspace::fixed(1000, Device::Cpu).unwrap();
        let options = (Kind::Float, Device::Cpu);
        let pass = || {
            workspace.reset();
            let layer = || {
                workspace.turn();
                [workspace.empty(&[3, 5], options).unwrap(), workspace.empty(&[7], options).unwrap()]
            };
            [layer(), layer(), layer()].map(|tensors| tensors.map(|tensor| tensor.data_ptr() as usize))
        };
        let (first, second) = (pass(), pass());
        assert_eq!(first, second);
        assert_eq!(first[0], first[2]);
        assert!(first[0].iter().all(|address| !first[1].contains(address)));
        let error = workspace.empty(&[1000], options).unwrap_err().to_string();
        assert!(error.starts_with("bytes of the workspace: expected 1024, got"), "{error}");
        assert!(Workspace::default().empty(&[1000], options).is_ok());
    }
}
