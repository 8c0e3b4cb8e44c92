//! The command line of slime-sync.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use slime_cli::Verbosity;

use crate::plan::args::Plan;
use crate::preflight::args::Preflight;

/// Looks after the way of the weights, and before a job after its nodes
#[derive(Debug, Parser)]
#[command(
    name = "slime-sync",
    version,
    after_help = "\
Reads:   version/*.json and weights/ of a run directory, or a weight directory; plan reads a
         config.json, preflight the node
Writes:  a line per version and engine on stdout; the copy of push (under a temporary
         name, then renamed); bench a table; preflight JSON lines
Example: slime-sync push runs/quickstart /local/weights --version 42
Exit:    0 ok, 64 usage, 65 corrupt, 66 no input, 69 a node is bad or holds the weights
         elsewhere, 73 cannot create, 74 I/O, 77 permission, 78 launcher"
)]
pub struct Args {
    #[command(flatten)]
    pub verbosity: Verbosity,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows which trainer rank sends what to which engine rank, from the two layouts alone
    Plan(Plan),
    /// Takes versions as an engine does, compares every 16 MiB chunk with its published checksum, and
    /// what engines say they hold with what was published
    Verify(Verify),
    /// Copies a version, whichever way it was sent, verified, to a new weight directory
    Push(Push),
    /// Measures the ways of the weights here, beside plain copies of the same bytes in the same run
    Bench(Bench),
    /// Checks nodes and links before the tools of a job start
    #[command(subcommand)]
    Preflight(Preflight),
}

/// `slime-sync verify`.
#[derive(Debug, clap::Args)]
pub struct Verify {
    /// Run directory, or a weight directory (its headers, shapes and numbers are checked)
    pub path: PathBuf,
    /// Only this version of the run
    #[arg(long)]
    pub version: Option<u64>,
}

/// `slime-sync bench`.
#[derive(Debug, clap::Args)]
pub struct Bench {
    /// Only this way: disk, delta or shm
    #[arg(long)]
    pub transport: Option<String>,
    /// Folder whose disk is measured; what is written there is removed
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Folder in the memory of this node, for the way through it
    #[arg(long, default_value = "/dev/shm")]
    pub memory_dir: PathBuf,
    /// Megabytes (2^20) of weights
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub size_mb: u64,
    /// Versions that are sent; the middle one counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: u64,
}

/// `slime-sync push`.
#[derive(Debug, clap::Args)]
pub struct Push {
    /// Run directory
    pub run: PathBuf,
    /// Weight directory to make
    pub dst: PathBuf,
    /// The version (default: the newest)
    #[arg(long)]
    pub version: Option<u64>,
}
