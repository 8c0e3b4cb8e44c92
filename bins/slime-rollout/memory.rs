//! How much of the machine the KV cache may take.

use slime_cli::Failure;
use tch::Device;

use crate::failure;

/// Tokens of a KV block.
pub const BLOCK_SIZE: usize = 16;
/// The part of free memory the cache may grow to.
const FREE_SHARE: u64 = 4;
/// Assumed free where the system does not tell.
const UNKNOWN_FREE_BYTES: u64 = 4 << 30;

/// Blocks for `num_seqs` sequences of `seq_len` tokens or one of `context_len`, as far as a quarter of the device's free
/// memory goes.
///
/// # Errors
/// A GPU's driver does not tell.
pub fn num_blocks(
    device: Device,
    block_bytes: usize,
    num_seqs: usize,
    seq_len: usize,
    context_len: usize,
) -> Result<usize, Failure> {
    let wanted =
        (num_seqs * seq_len.min(context_len).div_ceil(BLOCK_SIZE)).max(context_len.div_ceil(BLOCK_SIZE));
    let free_bytes = match device {
        Device::Cuda(number) => {
            let device = slime_cuda::Device::open(number).map_err(failure!())?;
            device.memory().map_err(failure!())?.0 as u64
        }
        _ => free_bytes(),
    };
    let affordable = free_bytes / FREE_SHARE / block_bytes.max(1) as u64;
    Ok(wanted.min(affordable as usize).max(1))
}

/// `MemAvailable` of /proc/meminfo.
fn free_bytes() -> u64 {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .map_or(UNKNOWN_FREE_BYTES, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_cpu(block_bytes: usize, num_seqs: usize, seq_len: usize, context_len: usize) -> usize {
        num_blocks(Device::Cpu, block_bytes, num_seqs, seq_len, context_len).unwrap_or_default()
    }

    #[test]
    fn cache_holds_all_sequences_or_one_whole_context() {
        assert_eq!(on_cpu(1, 4, 100, 1000), 63);
        assert_eq!(on_cpu(1, 64, 100, 1000), 64 * 7);
        assert_eq!(on_cpu(1, 64, 5000, 32), 64 * 2);
        assert_eq!(on_cpu(usize::MAX, 64, 100, 1000), 1);
    }
}
