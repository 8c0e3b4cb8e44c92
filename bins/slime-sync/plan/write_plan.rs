//! Prints a plan: as sums, line by line, or as JSON.

use std::io::{BufWriter, Write, stdout};
use std::path::Path;

use serde_json::json;
use slime_cli::Failure;
use slime_config::HfConfig;
use slime_transport::{ReshardPlan, Way, Wire};
use slime_weights::PlanLayout;

use super::args::Plan;

/// Few lines for people.
pub fn sums(plan: &Plan, path: &Path, reshard: &ReshardPlan) -> Result<(), Failure> {
    let traffic = reshard.traffic();
    let sent = traffic.sent();
    let mean = sent.iter().sum::<u64>() / sent.len().max(1) as u64;
    let least_and_most = |bytes: &[u64]| {
        let of = |bytes: Option<&u64>| gigabytes(bytes.copied().unwrap_or_default());
        format!("{} to {}, mean {}", of(bytes.iter().min()), of(bytes.iter().max()), gigabytes(mean))
    };
    let num_later = reshard.transfers.iter().filter(|t| t.wire == Wire::QuantisedLater).count();
    let replicas = plan.replicas;
    let mut lines = vec![
        ("model", path.display().to_string()),
        ("trainer", layout(plan.trainer)),
        ("engines", format!("{replicas} of {}", layout(plan.engine))),
        ("transfers", format!("{} to each engine", reshard.transfers.len())),
    ];
    if num_later > 0 {
        lines.push(("", format!("{num_later} of them quantised by the receiver")));
    }
    let ways = [(Way::SameGpu, "same GPU"), (Way::SameNode, "same node"), (Way::Network, "network")];
    lines.extend(ways.map(|(way, name)| (name, gigabytes(traffic.bytes_over(way)))));
    lines.push(("a sender", least_and_most(&sent)));
    let (node, network) = (plan.node_rate, plan.network_rate);
    let seconds = traffic.seconds(plan.rates());
    lines.push((
        "estimate",
        format!("{seconds:.3} s at {node} GB/s in a node and {network} GB/s between nodes"),
    ));
    print(lines.iter().map(|(name, value)| format!("{name:<9}  {value}")))
}

/// A line for each pair of GPUs.
pub fn links(reshard: &ReshardPlan) -> Result<(), Failure> {
    let traffic = reshard.traffic();
    let head = std::iter::once("from\tto\tway\tbytes".to_owned());
    print(head.chain(traffic.links.iter().map(|((from, to), bytes)| {
        let way = match reshard.hosts.way(*from, *to) {
            Way::SameGpu => "same_gpu",
            Way::SameNode => "same_node",
            Way::Network => "network",
        };
        format!("{from}\t{to}\t{way}\t{bytes}")
    })))
}

/// A line for each transfer to each replica.
pub fn transfers(reshard: &ReshardPlan) -> Result<(), Failure> {
    let head = "sender\treplica\treceiver\ttensor\tstart\tshape\tform\tbytes".to_owned();
    let line = |(index, replica): (usize, usize)| {
        let transfer = &reshard.transfers[index];
        let form = match transfer.wire {
            Wire::Plain => "plain",
            Wire::Quantised => "quantised",
            Wire::QuantisedLater => "quantised_later",
        };
        let numbers = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        format!(
            "{}\t{replica}\t{}\t{}\t{}\t{}\t{form}\t{}",
            reshard.sender(index, replica),
            transfer.receiver,
            reshard.tensors[transfer.tensor].name,
            numbers(&transfer.part.start),
            numbers(&transfer.part.shape),
            transfer.num_bytes
        )
    };
    let all = (0..reshard.transfers.len())
        .flat_map(|index| (0..reshard.num_replicas).map(move |replica| (index, replica)));
    print(std::iter::once(head).chain(all.map(line)))
}

/// One object.
pub fn json(plan: &Plan, config: &HfConfig, reshard: &ReshardPlan) -> Result<(), Failure> {
    let traffic = reshard.traffic();
    let axes = |layout: PlanLayout| {
        let (PlanLayout { tp, cp, ep, etp, dp, .. }, pp) = (layout, layout.pp());
        json!({"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "dp": dp})
    };
    let object = json!({
        "model_type": config.model_type,
        "trainer": axes(plan.trainer),
        "engine": axes(plan.engine),
        "num_replicas": reshard.num_replicas,
        "num_transfers": reshard.transfers.len(),
        "bytes": {
            "same_gpu": traffic.bytes_over(Way::SameGpu),
            "same_node": traffic.bytes_over(Way::SameNode),
            "network": traffic.bytes_over(Way::Network),
        },
        "sent": traffic.sent(),
        "seconds": traffic.seconds(plan.rates()),
        "links": traffic.links.iter().map(|((from, to), bytes)| json!([from, to, bytes])).collect::<Vec<_>>(),
    });
    print(std::iter::once(object.to_string()))
}

fn layout(layout: PlanLayout) -> String {
    let (PlanLayout { tp, cp, ep, etp, dp, .. }, pp) = (layout, layout.pp());
    let axes = [("tp", tp), ("pp", pp), ("cp", cp), ("ep", ep), ("etp", etp), ("dp", dp)];
    let given: Vec<String> =
        axes.iter().filter(|(_, size)| *size > 1).map(|(axis, size)| format!("{axis} {size}")).collect();
    let ranks = layout.world_size();
    let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    if given.is_empty() { ranks } else { format!("{}: {ranks}", given.join(", ")) }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.3} GB", bytes as f64 / 1e9)
}

fn print(lines: impl Iterator<Item = String>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::io("stdout", &error);
    let mut out = BufWriter::new(stdout().lock());
    for line in lines {
        writeln!(out, "{line}").map_err(failed)?;
    }
    out.flush().map_err(failed)
}
