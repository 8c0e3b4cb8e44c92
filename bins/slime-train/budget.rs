//! What a `--dry-run` says of the memory of a rank and of an optimizer step.

use std::path::Path;

use slime_cli::Failure;
use slime_config::{Device, Dtype, HfConfig, RunConfig};
use slime_trainer::budget::{Batch, Budget, Others, Site};
use slime_trainer::{Settings, StepPlan};
use slime_weights::{Plan, PlanLayout};

use crate::failure;

/// The budget and the plan of a step as comments of a TOML; nothing where no model is, or one that is only planned.
///
/// # Errors
/// Patterns of `train.freeze` or of `train.lora` that do not fit the model; a rank that takes more than `[cluster]` has.
pub fn budget_comment(config: &RunConfig, layout: PlanLayout) -> Result<String, Failure> {
    let path = Path::new(&config.model.path);
    let Ok(model) = HfConfig::load(path) else { return Ok(String::new()) };
    let settings = Settings::new(config).map_err(failure!())?;
    let is_bf16 = config.model.dtype == Dtype::Bf16;
    let site = Site { layout, is_bf16, is_gpu: config.run.device == Device::Cuda };
    let others = Others {
        num_fixed: u64::from(config.reference_path().is_some()) + u64::from(config.opd_kl_coef().is_some()),
        has_critic: config.algorithm.has_critic(),
    };
    let batch = largest_batch(config, layout);
    let budgets = Budget::of_stages(&model, &settings, site, batch, others).map_err(failure!())?;
    let Some(budget) = budgets.iter().max_by_key(|budget| budget.device_bytes(site.is_gpu)) else {
        return Ok(String::new());
    };
    let mut lines = budget.lines(&settings, site, batch);
    lines.extend(step_lines(config, &model, &settings, (layout, batch))?);
    if let Some((problem, hint)) =
        budgets.iter().find_map(|budget| budget.misfit(&config.cluster, &config.train))
    {
        return Err(Failure::new(78, format!("{problem}\n{}", lines.join("\n"))).with_hint(hint));
    }
    Ok(lines.iter().map(|line| format!("# {line}\n")).collect::<Vec<_>>().concat())
}

/// What an optimizer step comes to; nothing where it is not known how many samples it has.
fn step_lines(
    config: &RunConfig,
    model: &HfConfig,
    settings: &Settings,
    (layout, batch): (PlanLayout, Batch),
) -> Result<Vec<String>, Failure> {
    let path = Path::new(&config.model.path).join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::open(path.display(), &error))?;
    let plan = Plan::new(&text, &path, layout).map_err(failure!())?;
    let (Ok(sizes), Some(stage)) = (config.batch(), plan.largest_stage()) else { return Ok(Vec::new()) };
    let elements = [stage.num_elements - stage.num_expert_elements, stage.num_expert_elements];
    let samples = (u64::from(sizes.global_batch_size), batch);
    Ok(StepPlan::new(model, settings, layout, samples, elements).lines(layout, &config.cluster))
}

/// As full as the budget of tokens allows, or the longest sample alone.
fn largest_batch(config: &RunConfig, layout: PlanLayout) -> Batch {
    let budget = u64::from(config.train.max_tokens_per_gpu) * layout.cp as u64;
    let prompt_len = config.data.max_prompt_len.map_or(0, u64::from);
    let response_len = if config.data.kind.is_recorded() {
        config.data.max_len.map_or(budget, u64::from).saturating_sub(prompt_len)
    } else {
        u64::from(config.longest_response())
    };
    Batch { tokens: budget.max(prompt_len + response_len), prompt_len, response_len }
}
