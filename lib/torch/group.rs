//! Collectives of tensors over their rows in a group of ranks: through the host, or over NCCL where every rank has a GPU of
//! its own. Rows are the first dimension; `counts` are rows of each rank, and need not be equal.

use std::fmt;
use std::sync::Arc;

use slime_comm::{Collectives, Communicator, Dtype, Nccl, Op};
use tch::{Device, Kind, Tensor};

use crate::device_collectives;
use crate::error::{Error, Result};
use crate::floats::{bytes_mut, bytes_of};

/// A group of ranks that exchange tensors.
#[derive(Clone)]
pub struct Group {
    comm: Arc<dyn Communicator>,
    nccl: Option<Arc<Nccl>>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} ({})", self.rank(), self.size(), self.comm.backend())
    }
}

impl Group {
    /// Collective over `comm`: the ranks with tensors on `device`.
    ///
    /// # Errors
    /// Ranks with GPUs that cannot meet.
    pub fn new(comm: Arc<dyn Communicator>, device: Device) -> Result<Self> {
        let nccl = match device {
            Device::Cuda(device) if comm.size() > 1 => Nccl::meet(&*comm, device)?.map(Arc::new),
            _ => None,
        };
        Ok(Self { comm, nccl })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Ranks of the group.
    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// The ranks on the host.
    pub fn comm(&self) -> &dyn Communicator {
        &*self.comm
    }

    /// Every rank's `tensor` becomes the reduction of all ranks', in place; through the host in rank order, bf16 as f32.
    ///
    /// # Errors
    /// A dtype that is none of f32, f64 and bf16, or a failed collective.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: Op) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let is_ready = match &self.nccl {
            Some(_) => tensor.kind() != Kind::BFloat16,
            None => tensor.device() == Device::Cpu,
        };
        if is_ready && tensor.is_contiguous() {
            return self.all_reduce_ready(tensor, op);
        }
        let mut copy = match &self.nccl {
            Some(_) => widened(tensor)?.f_contiguous().map_err(refused)?,
            None => on_host(tensor)?,
        };
        self.all_reduce_ready(&mut copy, op)?;
        tensor.f_copy_(&copy).map_err(refused)
    }

    /// The same of a tensor that lies where it is reduced, in one piece.
    fn all_reduce_ready(&self, tensor: &mut Tensor, op: Op) -> Result<()> {
        if let Some(nccl) = &self.nccl {
            return device_collectives::all_reduce(tensor, nccl, op);
        }
        let dtype = dtype(tensor)?;
        Ok(self.comm.all_reduce_bytes(bytes_mut(tensor)?, dtype, op)?)
    }

    /// All ranks' rows `x` in rank order.
    ///
    /// # Errors
    /// Rows of another number or width than the other ranks expect, or a failed collective.
    pub fn gather_rows(&self, x: &Tensor, counts: &[usize]) -> Result<Tensor> {
        if self.size() == 1 {
            return x.f_detach_copy().map_err(refused);
        }
        let width = row_len(x);
        if let (Some(nccl), true) = (&self.nccl, dtype(x).is_ok()) {
            let most = counts.iter().copied().max().unwrap_or(0);
            let all = device_collectives::all_gather(&padded(x, most)?, nccl)?;
            return without_padding(&all, counts);
        }
        let host = on_host(x)?;
        let mut all = empty_rows(&host, counts.iter().sum())?;
        let bytes: Vec<usize> =
            counts.iter().map(|rows| rows * width * host.kind().elt_size_in_bytes()).collect();
        self.comm.all_gather_v(bytes_of(&host)?, &bytes, bytes_mut(&mut all)?)?;
        all.f_to_device(x.device()).map_err(refused)
    }

    /// This rank's rows of the sum of all ranks' `x`, in rank order through the host, bf16 as f32.
    ///
    /// # Errors
    /// As [`Self::gather_rows`], and a dtype that is none of f32, f64 and bf16.
    pub fn reduce_scatter_rows(&self, x: &Tensor, counts: &[usize]) -> Result<Tensor> {
        if self.size() == 1 {
            return x.f_detach_copy().map_err(refused);
        }
        if let Some(nccl) = &self.nccl {
            let most = counts.iter().copied().max().unwrap_or(0);
            let (wide, mut parts, mut start) = (widened(x)?, Vec::new(), 0);
            for count in counts {
                parts.push(padded(&wide.f_narrow(0, start, *count as i64).map_err(refused)?, most)?);
                start += *count as i64;
            }
            let all = Tensor::f_stack(&parts, 0).map_err(refused)?;
            let own = device_collectives::reduce_scatter(&all, nccl, Op::Sum)?;
            let own = own.f_narrow(0, 0, counts[self.rank()] as i64).map_err(refused)?;
            return own.f_to_kind(x.kind()).map_err(refused);
        }
        let (host, width) = (on_host(x)?, row_len(x));
        let mut own = empty_rows(&host, counts[self.rank()])?;
        let elements: Vec<usize> = counts.iter().map(|rows| rows * width).collect();
        let dtype = dtype(&host)?;
        self.comm.reduce_scatter_bytes(bytes_of(&host)?, &elements, bytes_mut(&mut own)?, dtype, Op::Sum)?;
        own.f_to_device(x.device()).map_err(refused)
    }

    /// `x` on its way to another rank, whether that waits for it or not. Through the host.
    ///
    /// # Errors
    /// A rank that is not there, or a failed transfer.
    pub fn send_later(&self, x: &Tensor, to: usize, tag: u8) -> Result<()> {
        Ok(self.comm.send_later(bytes_of(&on_host(x)?)?, to, tag)?)
    }

    /// `x` to another rank; waits until it is taken, or on its way. Through the host.
    ///
    /// # Errors
    /// A rank that is not there or has ended, or a failed transfer.
    pub fn send(&self, x: &Tensor, to: usize, tag: u8) -> Result<()> {
        Ok(self.comm.send(bytes_of(&on_host(x)?)?, to, tag)?)
    }

    /// The next tensor of `size` that another rank has sent with this tag.
    ///
    /// # Errors
    /// A tensor of another size, a rank that is not there or has ended, or a failed transfer.
    pub fn recv(&self, size: &[i64], options: (Kind, Device), from: usize, tag: u8) -> Result<Tensor> {
        let mut host = Tensor::f_empty(size, (options.0, Device::Cpu)).map_err(refused)?;
        self.comm.recv(bytes_mut(&mut host)?, from, tag)?;
        host.f_to_device(options.1).map_err(refused)
    }

    /// The first `sent[0]` rows of `x` go to rank 0, the next to rank 1 and so on; the result has those of all ranks, of
    /// which rank r sends `received[r]`. Through the host.
    ///
    /// # Errors
    /// As [`Self::gather_rows`].
    pub fn exchange_rows(&self, x: &Tensor, sent: &[usize], received: &[usize]) -> Result<Tensor> {
        if self.size() == 1 {
            return x.f_detach_copy().map_err(refused);
        }
        let host = on_host(x)?;
        let mut all = empty_rows(&host, received.iter().sum())?;
        let bytes_of_row = row_len(x) * host.kind().elt_size_in_bytes();
        let bytes = |rows: &[usize]| rows.iter().map(|rows| rows * bytes_of_row).collect::<Vec<_>>();
        self.comm.all_to_all_v(bytes_of(&host)?, &bytes(sent), bytes_mut(&mut all)?, &bytes(received))?;
        all.f_to_device(x.device()).map_err(refused)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
fn refused(error: tch::TchError) -> Error {
    Error::Torch { operation: "rows of a group", message: error.to_string() }
}

fn on_host(x: &Tensor) -> Result<Tensor> {
    x.f_detach().and_then(|x| x.f_to_device(Device::Cpu)).and_then(|x| x.f_contiguous()).map_err(refused)
}

/// bf16 as f32, other kinds as they are.
fn widened(x: &Tensor) -> Result<Tensor> {
    let kind = if x.kind() == Kind::BFloat16 { Kind::Float } else { x.kind() };
    x.f_detach().and_then(|x| x.f_to_kind(kind)).map_err(refused)
}

fn row_len(x: &Tensor) -> usize {
    x.size().iter().skip(1).product::<i64>() as usize
}

fn empty_rows(like: &Tensor, rows: usize) -> Result<Tensor> {
    let mut size = like.size();
    size[0] = rows as i64;
    Tensor::f_empty(size.as_slice(), (like.kind(), like.device())).map_err(refused)
}

/// `x` with rows of zeros up to `rows`.
fn padded(x: &Tensor, rows: usize) -> Result<Tensor> {
    let missing = rows - x.size()[0] as usize;
    if missing == 0 {
        return x.f_contiguous().map_err(refused);
    }
    let zeros = empty_rows(x, missing)?.f_zero_().map_err(refused)?;
    Tensor::f_cat(&[x.f_detach().map_err(refused)?, zeros], 0).map_err(refused)
}

/// The first `counts[r]` rows of each of `all` `[ranks, rows, ..]`, one after the other.
fn without_padding(all: &Tensor, counts: &[usize]) -> Result<Tensor> {
    let rows = |(rank, count): (usize, &usize)| {
        all.f_select(0, rank as i64).and_then(|part| part.f_narrow(0, 0, *count as i64))
    };
    let parts: std::result::Result<Vec<_>, _> = counts.iter().enumerate().map(rows).collect();
    Tensor::f_cat(&parts.map_err(refused)?, 0).map_err(refused)
}

fn dtype(x: &Tensor) -> Result<Dtype> {
    match x.kind() {
        Kind::Float => Ok(Dtype::F32),
        Kind::Double => Ok(Dtype::F64),
        Kind::BFloat16 => Ok(Dtype::Bf16),
        other => {
            let message = format!("expected f32, f64 or bf16, got {other:?}");
            Err(Error::Torch { operation: "reduction", message })
        }
    }
}
