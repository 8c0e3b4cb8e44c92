//! How many compute threads a rank may use, so that the ranks of one host do not fight for cores.

use std::num::NonZeroUsize;

/// Threads for one of `ranks_on_host` ranks: `OMP_NUM_THREADS` when the user set it, else an equal share of the
/// cores this process may run on (its affinity mask and cgroup quota count), at least one.
pub fn threads_per_rank(ranks_on_host: usize) -> usize {
    let chosen =
        std::env::var("OMP_NUM_THREADS").ok().and_then(|text| text.trim().parse::<NonZeroUsize>().ok());
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    share(chosen, cores, ranks_on_host)
}

fn share(chosen: Option<NonZeroUsize>, cores: usize, ranks_on_host: usize) -> usize {
    chosen.map_or_else(|| (cores / ranks_on_host.max(1)).max(1), NonZeroUsize::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_cores_and_keep_at_least_one() {
        assert_eq!(share(None, 16, 4), 4);
        assert_eq!(share(None, 2, 3), 1);
        assert_eq!(share(None, 2, 0), 2);
        assert_eq!(share(NonZeroUsize::new(7), 2, 3), 7);
    }
}
