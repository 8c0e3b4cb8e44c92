//! The preflight of a job: every node looks at itself, the ranks measure the links between them, and one verdict says
//! which nodes to leave out.

pub mod args;
mod check;
mod check_gpu_links;
mod check_libraries;
mod check_limits;
mod check_network;
mod check_node;
mod check_run_dir;
mod gpu;
mod judge;
mod judge_links;
mod line;
mod measure_links;
mod roll_call;
mod verdict;
mod write_verdict;

use args::Preflight;
use slime_cli::Failure;

/// Runs one part of the preflight.
pub fn run(command: &Preflight) -> Result<(), Failure> {
    match command {
        Preflight::Node(args) => check_node::run(args),
        Preflight::Link(args) => measure_links::run(args),
        Preflight::Verdict(args) => verdict::run(args),
    }
}
