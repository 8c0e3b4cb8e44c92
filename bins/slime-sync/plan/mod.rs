//! Who would send what to whom, between a layout of the trainer and one of the engines.

pub mod args;
mod write_plan;

use slime_cli::Failure;
use slime_config::HfConfig;
use slime_transport::{Request, ReshardPlan};

use crate::failure;
use args::{List, Plan};

/// Makes the plan and prints what was asked for.
pub fn run(plan: &Plan) -> Result<(), Failure> {
    let path = if plan.config.is_dir() { plan.config.join("config.json") } else { plan.config.clone() };
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::open(path.display(), &error))?;
    let config =
        HfConfig::parse(&text, &path).map_err(|error| failure(slime_weights::Error::from(error).into()))?;
    for layout in [plan.trainer, plan.engine] {
        slime_weights::Plan::new(&text, &path, layout).map_err(|error| failure(error.into()))?;
    }
    let request = Request {
        config: &config,
        trainer: plan.trainer,
        engine: plan.engine,
        num_replicas: plan.replicas,
        target: plan.target(),
        hosts: plan.hosts(),
    };
    let reshard = ReshardPlan::new(&request).map_err(failure)?;
    match plan.list {
        Some(List::Links) => write_plan::links(&reshard),
        Some(List::Transfers) => write_plan::transfers(&reshard),
        None if plan.json => write_plan::json(plan, &config, &reshard),
        None => write_plan::sums(plan, &path, &reshard),
    }
}
