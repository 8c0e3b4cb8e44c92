//! How fast this node's GPUs copy to each other.

use slime_cuda::{Error, PeerCopy, peer_copies};

use super::check::Check;

/// Bytes of a copy: enough that its start does not count.
const NUM_BYTES: usize = 256 << 20;
const NAME: &str = "gpu_links";

/// The links between GPUs; nothing where there are none.
pub fn gpu_links() -> Vec<Check> {
    match peer_copies(NUM_BYTES) {
        // What is wrong with the number of GPUs another check tells.
        Err(Error::NoDriver) => Vec::new(),
        Err(error) => vec![Check::bad(
            NAME,
            &error,
            "GPUs that copy to each other",
            "look at dmesg for Xid errors, reset or reboot the node",
        )],
        Ok(copies) if copies.is_empty() => Vec::new(),
        Ok(copies) => vec![judge(&copies)],
    }
}

fn judge(copies: &[PeerCopy]) -> Check {
    let mut rates: Vec<f64> = copies.iter().map(|copy| copy.bytes_per_s).collect();
    rates.sort_by(f64::total_cmp);
    let (slowest, median) = (rates[0], rates[rates.len() / 2]);
    let told = |copy: &PeerCopy| {
        let way = if copy.is_direct { "" } else { " through the host" };
        format!("{} to {} {:.1} GB/s{way}", copy.from, copy.to, copy.bytes_per_s / 1e9)
    };
    let got = copies.iter().map(told).collect::<Vec<_>>().join(", ");
    if slowest < median / 2.0 {
        let expected = format!("at least {:.1} GB/s, half of the median", median / 2e9);
        Check::bad(
            NAME,
            got,
            expected,
            "look at nvidia-smi nvlink -s and topo -m; reset the GPU or drain the node",
        )
    } else if copies.iter().any(|copy| !copy.is_direct) {
        Check::warn(
            NAME,
            got,
            "direct copies",
            "give a step's ranks all its GPUs (--gpu-bind=none), or look at nvidia-smi topo -p2p r",
        )
    } else {
        Check::ok(NAME, got)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn slow_links_are_bad_and_ways_through_the_host_a_warning() {
        let copy = |to, bytes_per_s, is_direct| PeerCopy { from: to, to: to + 1, is_direct, bytes_per_s };
        let fast = [copy(0, 300e9, true), copy(1, 310e9, true), copy(2, 305e9, true)];
        assert_eq!(judge(&fast).verdict, Verdict::Ok);
        let slow = [fast[0], fast[1], copy(2, 20e9, true)];
        let check = judge(&slow);
        assert_eq!(check.verdict, Verdict::Bad);
        assert!(check.got.contains("2 to 3 20.0 GB/s"), "{}", check.got);
        let indirect = [copy(0, 20e9, false), copy(1, 21e9, false)];
        assert_eq!(judge(&indirect).verdict, Verdict::Warn);
    }
}
