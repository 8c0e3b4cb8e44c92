//! The command line of `slime-sync plan`.

use std::path::PathBuf;

use clap::ValueEnum;
use slime_transport::{Hosts, Rates, Target};
use slime_weights::{PlanLayout, QuantisedForm, Quantiser};

/// Columns that share a scale in int4.
const GROUP_SIZE: usize = 128;

/// `slime-sync plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A layout is given as tp=N,pp=N,cp=N,ep=N,etp=N,dp=N; what is left out is 1. Every rank of a stage
has all experts unless ep deals them out or etp divides their width. Trainer rank i has GPU i. The
ranks of the engines follow, replica after replica, on the next GPUs, or with --colocate on the same
ones. A box goes from the nearest rank that holds it, of equally near ones from the one that has
least to send. The estimate is the time of the busiest GPU at the given rates.

Reads:   CONFIG
Writes:  on stdout the bytes by way and by sender and the estimate; with --list a line with
         tabs for each link or transfer; with --json one object: model_type, trainer, engine,
         num_replicas, num_transfers, bytes (same_gpu, same_node, network), sent (of each
         trainer rank), seconds, links: [from GPU, to GPU, bytes]
Example: slime-sync plan configs/models/GLM-4.7.json --trainer tp=8,pp=4,cp=2,ep=16 \\
             --engine tp=4,etp=4 --replicas 16 --dtype fp8_block
Exit:    0 ok, 64 usage, 65 a layout does not fit the model, 66 no input, 74 I/O,
         78 the engine's layout cuts through blocks of --dtype")]
pub struct Plan {
    /// config.json of the model, or its directory
    pub config: PathBuf,
    /// Layout of the trainer
    #[arg(long, value_name = "AXES", value_parser = parse_layout)]
    pub trainer: PlanLayout,
    /// Layout of an engine
    #[arg(long, value_name = "AXES", value_parser = parse_layout)]
    pub engine: PlanLayout,
    /// Engines
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    pub replicas: usize,
    /// Form of the matrices in the engines
    #[arg(long, default_value = "bf16")]
    pub dtype: Dtype,
    /// Engines run on the trainer's GPUs
    #[arg(long)]
    pub colocate: bool,
    /// GPUs of a node
    #[arg(long, value_name = "N", default_value = "8", value_parser = positive)]
    pub gpus_per_node: usize,
    /// GB/s out of a GPU, and as many into it, within a node
    #[arg(long, value_name = "GB/S", default_value = "360", value_parser = rate)]
    pub node_rate: f64,
    /// GB/s out of a GPU, and as many into it, between nodes
    #[arg(long, value_name = "GB/S", default_value = "50", value_parser = rate)]
    pub network_rate: f64,
    /// Every link or transfer instead of the sums
    #[arg(long, conflicts_with = "json")]
    pub list: Option<List>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// A value of `--dtype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Dtype {
    /// As the trainer has it
    Bf16,
    /// fp8, a scale for 128 x 128
    Fp8Block,
    /// fp8, a scale for a matrix
    Fp8Tensor,
    /// int4 in groups of 128 columns (compressed-tensors)
    Int4Ct,
}

/// A value of `--list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum List {
    /// From GPU, to GPU, way, bytes
    Links,
    /// Sending rank, replica, receiving rank, tensor, start, shape, form, bytes
    Transfers,
}

impl Plan {
    /// The form the engines want.
    pub fn target(&self) -> Target {
        let form = match self.dtype {
            Dtype::Bf16 => None,
            Dtype::Fp8Block => Some(QuantisedForm::Fp8Block),
            Dtype::Fp8Tensor => Some(QuantisedForm::Fp8Tensor),
            Dtype::Int4Ct => Some(QuantisedForm::Int4Ct),
        };
        let quantiser = form.map(|form| Quantiser {
            form,
            group_size: GROUP_SIZE,
            is_symmetric: true,
            only_experts: false,
        });
        Target { quantiser }
    }

    /// Where both run.
    pub fn hosts(&self) -> Hosts {
        Hosts { gpus_per_node: self.gpus_per_node, is_colocated: self.colocate }
    }

    /// Bytes a second.
    pub fn rates(&self) -> Rates {
        Rates { node: self.node_rate * 1e9, network: self.network_rate * 1e9 }
    }
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("expected a whole number above 0, got {text}"))
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("expected GB/s above 0, got {text}"))
}

fn parse_layout(text: &str) -> Result<PlanLayout, String> {
    let mut layout = PlanLayout::SINGLE;
    for part in text.split(',') {
        let (axis, size) = part.split_once('=').ok_or_else(|| format!("expected AXIS=N, got {part:?}"))?;
        let place = match axis {
            "tp" => &mut layout.tp,
            "pp" => &mut layout.pipeline.num_stages,
            "cp" => &mut layout.cp,
            "ep" => &mut layout.ep,
            "etp" => &mut layout.etp,
            "dp" => &mut layout.dp,
            _ => return Err(format!("expected tp, pp, cp, ep, etp or dp, got {axis:?}")),
        };
        *place = positive(size)?;
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use slime_config::Pipeline;

    use super::*;

    #[test]
    fn axes_left_out_are_one() {
        let layout = parse_layout("tp=8,ep=16,pp=4").unwrap();
        assert_eq!(layout, PlanLayout { tp: 8, ep: 16, pipeline: Pipeline::even(4), ..PlanLayout::SINGLE });
        assert_eq!(parse_layout("tp8").unwrap_err(), "expected AXIS=N, got \"tp8\"");
        assert_eq!(parse_layout("vp=2").unwrap_err(), "expected tp, pp, cp, ep, etp or dp, got \"vp\"");
        assert_eq!(parse_layout("tp=0").unwrap_err(), "expected a whole number above 0, got 0");
    }
}
