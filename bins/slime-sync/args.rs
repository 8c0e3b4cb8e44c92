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
Writes:  a line per version on stdout; the copy of push (under a temporary name, then
         renamed); preflight writes JSON lines
Example: slime-sync push runs/quickstart /local/weights --version 42
Exit:    0 ok, 64 usage, 65 corrupt, 66 no input, 69 a node is bad, 73 cannot create,
         74 I/O, 77 permission, 78 launcher"
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
    /// Reads versions and compares every 16 MiB chunk with its published checksum
    Verify(Verify),
    /// Copies a version, verified on the way, to a new weight directory
    Push(Push),
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
