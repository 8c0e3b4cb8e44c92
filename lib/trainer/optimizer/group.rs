//! The ranks that hold the same weights: sums of what all have, and copies of what each has.

use std::fmt;
use std::sync::Arc;

use slime_comm::{Collectives, Communicator, Nccl, Op};
use slime_torch::device_collectives::{all_gather, reduce_scatter};
use slime_torch::{bytes_mut, bytes_of, floats, floats_mut};
use tch::{Device, Tensor};

use crate::Result;

/// Ranks that share the state of an optimizer. Tensors of the host, and of GPUs that cannot meet, go through the
/// communicator and are summed in rank order; between GPUs NCCL has its own order.
#[derive(Clone)]
pub struct Group {
    comm: Arc<dyn Communicator>,
    nccl: Option<Arc<Nccl>>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Group {
    /// The ranks of `comm`, which keep their tensors on `device`. Collective.
    ///
    /// # Errors
    /// Ranks with GPUs that cannot meet.
    pub fn meet(comm: Arc<dyn Communicator>, device: Device) -> Result<Self> {
        let nccl = match device {
            Device::Cuda(device) if comm.size() > 1 => Nccl::meet(&*comm, device)?.map(Arc::new),
            _ => None,
        };
        Ok(Self { comm, nccl })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// What carries numbers of the host.
    pub(super) fn comm(&self) -> &dyn Communicator {
        &*self.comm
    }

    /// Of the flat f32 `whole_n`, divided by `counts`, this rank's part becomes the sum of all ranks'; the rest is left as
    /// it is.
    ///
    /// # Errors
    /// A failed collective.
    pub(super) fn reduce_scatter(&self, whole_n: &Tensor, counts: &[usize]) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let mut own = part(whole_n, counts, self.rank())?;
        if let Some(nccl) = self.nccl.as_deref().filter(|_| whole_n.device().is_cuda()) {
            let sum = reduce_scatter(&padded_rows(whole_n, counts)?, nccl, Op::Sum)?;
            own.f_copy_(&sum.f_narrow(0, 0, own.numel() as i64)?)?;
            return Ok(());
        }
        let host = whole_n.f_to_device(Device::Cpu)?;
        let mut sum = Tensor::f_empty([own.numel() as i64], (own.kind(), Device::Cpu))?;
        self.comm.reduce_scatter(floats(&host)?, counts, floats_mut(&mut sum)?, Op::Sum)?;
        own.f_copy_(&sum)?;
        Ok(())
    }

    /// Every rank's part of the flat `whole_n`, divided by `counts`, goes to all ranks.
    ///
    /// # Errors
    /// A failed collective.
    pub(super) fn all_gather(&self, whole_n: &Tensor, counts: &[usize]) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let own = part(whole_n, counts, self.rank())?;
        if let Some(nccl) = self.nccl.as_deref().filter(|_| whole_n.device().is_cuda()) {
            let widest = counts.iter().max().copied().unwrap_or(0) as i64;
            let row = own.f_constant_pad_nd([0, widest - own.numel() as i64])?.f_contiguous()?;
            let rows = all_gather(&row, nccl)?;
            for (rank, count) in counts.iter().enumerate() {
                part(whole_n, counts, rank)?.f_copy_(&rows.f_get(rank as i64)?.f_narrow(
                    0,
                    0,
                    *count as i64,
                )?)?;
            }
            return Ok(());
        }
        let size = whole_n.kind().elt_size_in_bytes();
        let counts: Vec<usize> = counts.iter().map(|count| count * size).collect();
        // A copy, since the whole is written while the part is sent.
        let sent = bytes_of(&own.f_to_device(Device::Cpu)?)?.to_vec();
        if whole_n.device() == Device::Cpu {
            let mut whole_n = whole_n.shallow_clone();
            self.comm.all_gather_v(&sent, &counts, bytes_mut(&mut whole_n)?)?;
            return Ok(());
        }
        let mut host = Tensor::f_empty(whole_n.size(), (whole_n.kind(), Device::Cpu))?;
        self.comm.all_gather_v(&sent, &counts, bytes_mut(&mut host)?)?;
        whole_n.shallow_clone().f_copy_(&host)?;
        Ok(())
    }
}

/// The part of `rank`, sharing memory with the flat `whole_n`.
pub(super) fn part(whole_n: &Tensor, counts: &[usize], rank: usize) -> Result<Tensor> {
    let start: usize = counts[..rank].iter().sum();
    Ok(whole_n.f_narrow(0, start as i64, counts[rank] as i64)?)
}

/// The parts as rows of the same length, `[ranks, widest]`: a view where they have it already.
fn padded_rows(whole_n: &Tensor, counts: &[usize]) -> Result<Tensor> {
    let (num_rows, widest) = (counts.len() as i64, counts.iter().max().copied().unwrap_or(0) as i64);
    if counts.iter().all(|count| *count as i64 == widest) {
        return Ok(whole_n.f_view([num_rows, widest])?);
    }
    let rows = Tensor::f_zeros([num_rows, widest], (whole_n.kind(), whole_n.device()))?;
    for (rank, count) in counts.iter().enumerate() {
        let row = rows.f_get(rank as i64)?.f_narrow(0, 0, *count as i64)?;
        row.shallow_clone().f_copy_(&part(whole_n, counts, rank)?)?;
    }
    Ok(rows)
}
