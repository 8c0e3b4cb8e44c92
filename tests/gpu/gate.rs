//! For tests that only a GPU can pass or fail.

use slime_torch::cuda;

/// Whether there is a GPU. Without one the test says so and checks nothing, unless `SLIME_REQUIRE_CUDA` is set: then it
/// fails.
pub fn has_gpu() -> bool {
    match cuda::open() {
        Ok(()) => true,
        Err(error) if std::env::var_os("SLIME_REQUIRE_CUDA").is_none() => {
            eprintln!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
