//! How fast the GPUs of this host copy to each other.

use std::time::Instant;

use crate::Result;
use crate::driver::{Address, Context, Driver};

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
    let driver = Driver::open()?;
    let num_gpus = driver.device_count()?;
    let pairs = (0..num_gpus).map(|from| (from, (from + 1) % num_gpus)).filter(|(from, to)| from != to);
    pairs.map(|(from, to)| measure(&driver, from, to, num_bytes)).collect()
}

/// One GPU's share of a copy; gives everything back at its end.
struct Side<'a> {
    driver: &'a Driver,
    device: i32,
    context: Context,
    address: Address,
}

impl<'a> Side<'a> {
    fn new(driver: &'a Driver, number: i32, num_bytes: usize) -> Result<Self> {
        let device = driver.device(number)?;
        let context = driver.retain_context(device)?;
        let allocated = driver.allocate(num_bytes);
        let address = allocated.inspect_err(|_| {
            // The first error is the one to tell.
            let _ = driver.release_context(device);
        })?;
        Ok(Self { driver, device, context, address })
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        // Nothing can be done about a driver that refuses to take its own back.
        let _ = self.driver.set_current(self.context);
        let _ = self.driver.free(self.address);
        let _ = self.driver.release_context(self.device);
    }
}

fn measure(driver: &Driver, from: i32, to: i32, num_bytes: usize) -> Result<PeerCopy> {
    let source = Side::new(driver, from, num_bytes)?;
    let target = Side::new(driver, to, num_bytes)?;
    let is_direct = driver.can_access_peer(target.device, source.device)?
        && driver.can_access_peer(source.device, target.device)?;
    if is_direct {
        driver.set_current(target.context)?;
        driver.enable_peer_access(source.context)?;
        driver.set_current(source.context)?;
        driver.enable_peer_access(target.context)?;
    }
    driver.set_current(source.context)?;
    let copy =
        || driver.copy_peer((target.address, target.context), (source.address, source.context), num_bytes);
    let wait = || {
        driver.set_current(target.context)?;
        driver.synchronize()?;
        driver.set_current(source.context)?;
        driver.synchronize()
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
            Err(Error::NoDriver(_)) => {}
            Err(error) => panic!("{error}"),
            Ok(copies) => {
                assert!(copies.len() != 1 && copies.iter().all(|copy| copy.bytes_per_s > 1e6), "{copies:?}");
            }
        }
    }
}
