//! How much of the machine the KV cache may take.

/// Tokens of a KV block.
pub const BLOCK_SIZE: usize = 16;
/// The part of free memory the cache may grow to.
const FREE_SHARE: u64 = 4;
/// Assumed free where the system does not tell.
const UNKNOWN_FREE_BYTES: u64 = 4 << 30;

/// Blocks for `num_seqs` sequences of `seq_len` tokens or one of `context_len`, as far as a quarter of the free
/// memory goes.
pub fn num_blocks(block_bytes: usize, num_seqs: usize, seq_len: usize, context_len: usize) -> usize {
    let wanted =
        (num_seqs * seq_len.min(context_len).div_ceil(BLOCK_SIZE)).max(context_len.div_ceil(BLOCK_SIZE));
    let affordable = free_bytes() / FREE_SHARE / block_bytes.max(1) as u64;
    wanted.min(affordable as usize).max(1)
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

    #[test]
    fn cache_holds_all_sequences_or_one_whole_context() {
        assert_eq!(num_blocks(1, 4, 100, 1000), 63);
        assert_eq!(num_blocks(1, 64, 100, 1000), 64 * 7);
        assert_eq!(num_blocks(1, 64, 5000, 32), 64 * 2);
        assert_eq!(num_blocks(usize::MAX, 64, 100, 1000), 1);
    }
}
