//! How fast the GPUs of this host copy to each other.
#![expect(unsafe_code, reason = "calls into the CUDA driver")]

use std::time::Instant;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};

use crate::Result;
use crate::driver::{checked, open, set_current};

/// Timed copies of each pair, after one that is not.
const NUM_COPIES: usize = 8;

/// The copies from one GPU to the next on the ring of this host's GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeerCopy {
    /// Number of the GPU that is read.
    pub from: usize,
    /// Number of the GPU that is written.
    pub to: usize,
    /// Without the host's memory in between.
    pub is_direct: bool,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

/// Copies `num_bytes` from each GPU that this process sees to the next one and measures; none with fewer than two GPUs.
///
/// # Errors
/// There is no driver, or it refuses.
pub fn peer_copies(num_bytes: usize) -> Result<Vec<PeerCopy>> {
    open()?;
    let num_gpus = checked("cuDeviceGetCount", result::device::get_count())?;
    let pairs = (0..num_gpus).map(|from| (from, (from + 1) % num_gpus)).filter(|(from, to)| from != to);
    pairs.map(|(from, to)| measure(from, to, num_bytes)).collect()
}

/// One GPU's share of a copy; gives everything back at its end.
struct Side {
    device: sys::CUdevice,
    context: sys::CUcontext,
    address: CUdeviceptr,
}

impl Side {
    fn new(number: i32, num_bytes: usize) -> Result<Self> {
        let device = checked("cuDeviceGet", result::device::get(number))?;
        // SAFETY: the handle is the driver's own.
        let context = checked("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        set_current(context)?;
        // SAFETY: memory that is only copied.
        let allocated = checked("cuMemAlloc", unsafe { result::malloc_sync(num_bytes) });
        let address = allocated.inspect_err(|_| {
            // SAFETY: retained above. The first error is the one to tell.
            let _ = unsafe { result::primary_ctx::release(device) };
        })?;
        Ok(Self { device, context, address })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Nothing can be done about a driver that refuses to take its own back.
        let _ = set_current(self.context);
        // SAFETY: allocated and retained in `new`, given back once.
        unsafe {
            let _ = result::free_sync(self.address);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Whether one GPU can read and write another's memory without the host.
fn can_access_peer(device: sys::CUdevice, peer: sys::CUdevice) -> Result<bool> {
    let mut can = 0;
    // SAFETY: writes a number.
    let code = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, device, peer) };
    checked("cuDeviceCanAccessPeer", code.result())?;
    Ok(can != 0)
}

/// Lets the GPU of `side` reach the memory of `peer`.
fn enable_peer_access(side: &Side, peer: &Side) -> Result<()> {
    set_current(side.context)?;
    // SAFETY: the handle is the driver's own.
    match unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) } {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        code => checked("cuCtxEnablePeerAccess", code.result()),
    }
}

fn measure(from: i32, to: i32, num_bytes: usize) -> Result<PeerCopy> {
    let source = Side::new(from, num_bytes)?;
    let target = Side::new(to, num_bytes)?;
    let is_direct =
        can_access_peer(target.device, source.device)? && can_access_peer(source.device, target.device)?;
    if is_direct {
        enable_peer_access(&target, &source)?;
        enable_peer_access(&source, &target)?;
    }
    set_current(source.context)?;
    let copy = || {
        // SAFETY: both hold `num_bytes`. It may return before the copy has ended.
        let code = unsafe {
            sys::cuMemcpyPeer(target.address, target.context, source.address, source.context, num_bytes)
        };
        checked("cuMemcpyPeer", code.result())
    };
    let wait = || {
        set_current(target.context)?;
        checked("cuCtxSynchronize", result::ctx::synchronize())?;
        set_current(source.context)?;
        checked("cuCtxSynchronize", result::ctx::synchronize())
    };
    copy()?;
    wait()?;
    let started = Instant::now();
    for _ in 0..NUM_COPIES {
        copy()?;
    }
    wait()?;
    let bytes_per_s = (NUM_COPIES * num_bytes) as f64 / started.elapsed().as_secs_f64();
    Ok(PeerCopy { from: from as usize, to: to as usize, is_direct, bytes_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_host_without_a_driver_says_so_and_one_with_gpus_measures_every_pair() {
        match peer_copies(1 << 20) {
            Err(Error::NoDriver) => {}
            Err(error) => panic!("{error}"),
            Ok(copies) => {
                assert!(copies.len() != 1 && copies.iter().all(|copy| copy.bytes_per_s > 1e6), "{copies:?}");
            }
        }
    }
}
