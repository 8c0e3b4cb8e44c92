//! The command line of slime-convert.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use slime_cli::Verbosity;
use slime_weights::Dtype;

/// Brings checkpoints into weight directories and out again, shows and compares them
///
/// A weight directory is the Hugging Face layout: safetensors (with an index when there are several), the
/// configuration, the generation settings and the tokenizer. Every tool of the suite loads it, and so do others.
#[derive(Debug, Parser)]
#[command(
    name = "slime-convert",
    version,
    after_help = "\
Reads:   Hugging Face directories, .gguf files
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
    /// Shows what a weight directory or GGUF file holds
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
    /// Take config.json and the tokenizer from here instead of from SRC
    #[arg(long, value_name = "DIR")]
    pub origin_hf: Option<PathBuf>,
}

/// `slime-convert inspect`.
#[derive(Debug, clap::Args)]
pub struct Inspect {
    /// Weight directory, safetensors file or .gguf file
    pub path: PathBuf,
    /// One JSON object instead of a table
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
