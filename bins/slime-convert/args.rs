//! The command line of slime-convert.
#![expect(clippy::doc_markdown, reason = "help pages show these comments as they are")]

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use slime_cli::Verbosity;
use slime_weights::{Dtype, QuantisedForm, Quantiser};

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
    /// Weight directory to Hugging Face directory; adapters in a checkpoint of the trainer to PEFT directory
    Export(Export),
    /// Shows what weights, a GGUF file, a checkpoint, a segment, a column or a manifest holds
    Inspect(Inspect),
    /// Compares two checkpoints tensor by tensor
    Diff(Diff),
}

/// `slime-convert import`.
#[derive(Debug, clap::Args)]
#[command(after_help = FORMS)]
pub struct Import {
    /// Hugging Face directory or .gguf file
    pub src: PathBuf,
    /// Weight directory to make
    pub dst: PathBuf,
    #[command(flatten)]
    pub written: Written,
}

/// `slime-convert export`.
#[derive(Debug, clap::Args)]
#[command(after_help = FORMS)]
pub struct Export {
    /// Weight directory, or checkpoint of a run with [train.lora]
    pub src: PathBuf,
    /// Hugging Face directory to make, or for a checkpoint the one with adapter_model.safetensors and adapter_config.json
    pub dst: PathBuf,
    #[command(flatten)]
    pub written: Written,
    /// Take config.json, the tokenizer and every tensor that SRC lacks from here; its vocab_size is that of the result. For
    /// adapters the model beside which they were trained (default: model.path of the run)
    #[arg(long, value_name = "DIR")]
    pub origin_hf: Option<PathBuf>,
}

const FORMS: &str = "\
Quantised are the matrices of attention, MLPs and experts; embeddings, output head, norms and routers
stay bf16, and of int4 also matrices that the groups do not divide (quantization_config names them).
A quantised SRC is read as bf16. Under mpirun or srun the files are divided among the ranks; the
result has the same bytes as that of one.

Example: slime-convert export weights/Qwen3-8B Qwen3-8B-FP8 --dtype fp8_block
         mpirun -n 4 slime-convert import Qwen3-30B-A3B weights/Qwen3-30B-A3B --experts fused";

/// How tensors are written.
#[derive(Debug, clap::Args)]
pub struct Written {
    /// Type of the written floating tensors (default: as they are, bf16 of quantised ones, f32 of GGUF)
    #[arg(long)]
    pub dtype: Option<DtypeName>,
    /// Columns that share a scale (int4)
    #[arg(long, value_name = "N", default_value = "128", value_parser = positive)]
    pub group_size: usize,
    /// Groups have a zero of their own, which fits values to one side of 0 (int4_gptq, int4_ct; int4_awq always has)
    #[arg(long)]
    pub asymmetric: bool,
    /// Attention, dense MLPs and shared experts are not quantised
    #[arg(long)]
    pub only_experts: bool,
    /// Experts of a layer in a tensor for each, or in one for all (default: as they are)
    #[arg(long)]
    pub experts: Option<Experts>,
    /// Rows of embedding and output head: more are zeros, fewer are cut off (default: as config.json says)
    #[arg(long, value_name = "N", value_parser = positive)]
    pub vocab_size: Option<usize>,
    /// Largest size of a file of the weights, such as 500MB or 5GiB; a larger tensor has a file of its own
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
    pub max_shard_size: usize,
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("expected a whole number above 0, got {text}"))
}

/// A value of `--experts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Experts {
    /// A tensor for each matrix of each expert, as on the hub
    Split,
    /// One tensor for all gates and ups of a layer, one for all downs
    Fused,
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
  plan        model_type, layout, world_size, num_parameters, num_activated, num_mtp_parameters,
              parameters_by_kind, kv_bytes_per_token, stages: layers, has_embedding, has_head,
              vocab_rows, heads, key_value_heads, experts, num_parameters, weight_bytes,
              gradient_bytes, optimizer_bytes

--plan reads config.json alone. For a rank of every stage it shows the parameters it holds, their
bytes in bf16, those of gradients (6 a parameter: bf16, and their f32 sum) and of AdamW (12: f32
weights and two moments, divided over the ranks that hold the same parameters). Activations are
not counted.

A file of a run that slime-stat archive packed is shown as if it were in its place.

Example: slime-convert inspect runs/quickstart/checkpoint/000012.e001
         slime-convert inspect configs/models/GLM-4.7.json --plan --tp 8 --pp 4 --cp 2 --ep 16")]
pub struct Inspect {
    /// Weight directory, safetensors or .gguf file, checkpoint, Arrow segment or column, or MANIFEST.json; with --plan a
    /// config.json or its directory
    pub path: PathBuf,
    /// What the model comes to on a layout of ranks
    #[arg(long)]
    pub plan: bool,
    #[command(flatten)]
    pub layout: Layout,
    /// One JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Ranks along the axes of a plan.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Layout {
    /// Ranks that divide every matrix
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive, requires = "plan")]
    pub tp: usize,
    /// Stages of the pipeline
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive, requires = "plan")]
    pub pp: usize,
    /// Ranks that divide a sequence
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive, requires = "plan")]
    pub cp: usize,
    /// Ranks of a stage that divide the experts
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive, requires = "plan")]
    pub ep: usize,
    /// Ranks that divide the width of each expert
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive, requires = "plan")]
    pub etp: usize,
    /// Copies of all of it
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive, requires = "plan")]
    pub dp: usize,
}

/// `slime-convert diff`.
#[derive(Debug, clap::Args)]
pub struct Diff {
    /// Weight directory, safetensors file or .gguf file
    pub a: PathBuf,
    /// The one to compare it with
    pub b: PathBuf,
}

/// A value of `--dtype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum DtypeName {
    /// IEEE single
    F32,
    /// bfloat16
    Bf16,
    /// Eight bits, a scale for 128 x 128 (DeepSeek, Qwen3-FP8)
    Fp8Block,
    /// Eight bits, a scale for a matrix (compressed-tensors)
    Fp8Tensor,
    /// Four bits as AutoAWQ
    Int4Awq,
    /// Four bits as AutoGPTQ
    Int4Gptq,
    /// Four bits as compressed-tensors
    Int4Ct,
}

impl Written {
    /// The type of what is not quantised, where it is not left as it is.
    pub fn plain_dtype(&self) -> Option<Dtype> {
        self.dtype.map(|dtype| if dtype == DtypeName::F32 { Dtype::F32 } else { Dtype::BF16 })
    }

    /// What becomes of matrices.
    pub fn quantiser(&self) -> Option<Quantiser> {
        let form = match self.dtype? {
            DtypeName::F32 | DtypeName::Bf16 => return None,
            DtypeName::Fp8Block => QuantisedForm::Fp8Block,
            DtypeName::Fp8Tensor => QuantisedForm::Fp8Tensor,
            DtypeName::Int4Awq => QuantisedForm::Int4Awq,
            DtypeName::Int4Gptq => QuantisedForm::Int4Gptq,
            DtypeName::Int4Ct => QuantisedForm::Int4Ct,
        };
        let (is_symmetric, only_experts) = (!self.asymmetric, self.only_experts);
        Some(Quantiser { form, group_size: self.group_size, is_symmetric, only_experts })
    }
}
