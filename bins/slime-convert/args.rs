//! The command line of slime-convert.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use slime_cli::Verbosity;
use slime_weights::Dtype;

use crate::shard_size::parse_size;

/// Brings checkpoints into weight directories and out again, shows and compares them
///
/// A weight directory is the Hugging Face layout: safetensors (with an index when there are several), the
/// configuration, the generation settings and the tokenizer. Every tool of the suite loads it, and so do others.
#[derive(Debug, Parser)]
#[command(
    name = "slime-convert",
    version,
    after_help = "\
Reads:   Hugging Face directories, .gguf files; inspect: also checkpoints and files of runs
Writes:  weight directories (whole or not at all); tables or JSON on stdout
Example: slime-convert import SmolLM2-135M-Instruct.Q4_1.gguf weights/smollm2
Exit:    0 ok, 1 diff found differences, 64 usage, 65 corrupt, unsupported or not finite,
         66 no input, 73 cannot create, 74 I/O, 77 permission"
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
    /// Hugging Face directory or GGUF file to weight directory
    Import(Import),
    /// Weight directory to Hugging Face directory
    Export(Export),
    /// Shows what weights, a GGUF file, a checkpoint, a segment, a column or a manifest holds
    Inspect(Inspect),
    /// Compares two checkpoints tensor by tensor
    Diff(Diff),
}

/// `slime-convert import`.
#[derive(Debug, clap::Args)]
pub struct Import {
    /// Hugging Face directory or .gguf file
    pub src: PathBuf,
    /// Weight directory to make
    pub dst: PathBuf,
    /// Type of the written floating tensors (default: as they are; f32 for GGUF)
    #[arg(long)]
    pub dtype: Option<DtypeName>,
    /// Largest size of a file of the weights, such as 500MB or 5GiB; a larger tensor has a file of its own
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
    pub max_shard_size: usize,
}

/// `slime-convert export`.
#[derive(Debug, clap::Args)]
pub struct Export {
    /// Weight directory
    pub src: PathBuf,
    /// Hugging Face directory to make
    pub dst: PathBuf,
    /// Type of the written floating tensors (default: as they are)
    #[arg(long)]
    pub dtype: Option<DtypeName>,
    /// Largest size of a file of the weights, such as 500MB or 5GiB; a larger tensor has a file of its own
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
    pub max_shard_size: usize,
    /// Take config.json and the tokenizer from here instead of from SRC
    #[arg(long, value_name = "DIR")]
    pub origin_hf: Option<PathBuf>,
}

/// `slime-convert inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys of --json, besides path and kind:
  weights     format (safetensors, gguf), num_parameters, num_bytes, parameters_by_dtype,
              tensors: name, dtype, shape, num_bytes, xxh3 (not of gguf); metadata (of gguf)
  checkpoint  version, epoch, complete, files: name, num_bytes, num_ranges; when complete
              world_size, num_bytes, meta, tensors: name, dtype, shape, num_bytes
  segment     num_bytes, num_rows, num_batches, provenance, columns: name, dtype, nullable,
              num_bytes; steps, num_groups, num_samples, prompt_len and response_len (min, mean,
              max), statuses, sources, tokens_by_version
  column      as segment up to columns; column, steps, num_groups, values (min, mean, max)
  manifest    step, builder, epoch, min_version, staleness, cursor, num_groups, num_samples,
              refused (by reason), num_carried, num_outstanding, account (tokens),
              files: path, column, num_bytes, xxh3

A file of a run that slime-stat archive packed is shown as if it were in its place.

Example: slime-convert inspect runs/quickstart/checkpoint/000012.e001")]
pub struct Inspect {
    /// Weight directory, safetensors or .gguf file, checkpoint, Arrow segment or column, or MANIFEST.json
    pub path: PathBuf,
    /// One JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

/// `slime-convert diff`.
#[derive(Debug, clap::Args)]
pub struct Diff {
    /// Weight directory, safetensors file or .gguf file
    pub a: PathBuf,
    /// The one to compare it with
    pub b: PathBuf,
}

/// A type of `--dtype`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum DtypeName {
    /// IEEE single
    F32,
    /// bfloat16
    Bf16,
}

impl From<DtypeName> for Dtype {
    fn from(name: DtypeName) -> Self {
        match name {
            DtypeName::F32 => Self::F32,
            DtypeName::Bf16 => Self::BF16,
        }
    }
}
