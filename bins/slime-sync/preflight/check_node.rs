//! All checks of one node, side by side, so that the whole takes as long as the slowest.

use std::time::Duration;

use slime_cli::Failure;

use super::args::Node;
use super::check::{Check, Probe};
use super::line::{Reporter, now, place, text, write};
use super::{check_gpu_links, check_libraries, check_limits, check_network, check_run_dir, gpu};

/// What a check that counts its own time gets on top, so that it can say more than that it did not end.
const GRACE: Duration = Duration::from_secs(2);
/// Time of checks that start programs or open libraries, some of them over the network.
const PROGRAMS: Duration = Duration::from_secs(45);

/// Checks this node and prints its lines.
///
/// # Errors
/// Only stdout can fail: what is wrong with the node is in the lines.
pub fn run(args: &Node) -> Result<(), Failure> {
    let unix_s = now();
    let (node, host) = place();
    let checks: Vec<Check> = start(args, &node).into_iter().flat_map(Probe::finish).collect();
    write(&text(&node, &host, &Reporter::Node { unix_s }, &checks)?)
}

fn start(args: &Node, node: &str) -> Vec<Probe> {
    let deadline = args.deadline_s;
    let has_gpus = gpu::has_devices() || args.gpus.is_some_and(|num| num > 0);
    let mut probes = Vec::new();
    if let (Some(file), Some(token)) = (args.canary_file.clone(), args.canary.clone()) {
        probes.push(Probe::start("canary", deadline + GRACE, move || {
            vec![check_run_dir::canary(&file, &token, deadline)]
        }));
    }
    if let Some(run) = args.run.clone() {
        let (node, min_free_gb) = (node.to_owned(), args.min_free_gb);
        probes.push(Probe::start("run_dir_writable", deadline, move || {
            check_run_dir::run_dir(&run, &node, min_free_gb)
        }));
    }
    let (scratch, name) = (check_run_dir::scratch_dir(args.scratch.as_ref()), node.to_owned());
    probes.push(Probe::start("scratch", deadline, move || {
        let hint = "set TMPDIR to a folder of the node, or name one with --scratch";
        vec![check_run_dir::writable("scratch", &scratch, &name, hint)]
    }));
    let name = node.to_owned();
    probes.push(Probe::start("limits", PROGRAMS, move || check_limits::limits(has_gpus)));
    probes.push(Probe::start("shared_memory", deadline, move || {
        vec![check_limits::shared_memory(&name, has_gpus)]
    }));
    let interface = args.interface.clone();
    probes.push(Probe::start("tcp", PROGRAMS, move || vec![check_network::tcp(interface.as_deref())]));
    let expected = args.gpus;
    probes.push(Probe::start("gpus", PROGRAMS, move || gpu::gpus(expected)));
    if has_gpus {
        probes.push(Probe::start("gpu_links", PROGRAMS, check_gpu_links::gpu_links));
    }
    probes.push(Probe::start("tools", PROGRAMS, check_libraries::tools));
    let is_needed = args.mpi;
    probes.push(Probe::start("mpi_plugin", PROGRAMS, move || vec![check_libraries::plugin(is_needed)]));
    probes
}
