//! What a `--dry-run` says of the memory of a rank.

use std::path::Path;

use slime_cli::Failure;
use slime_config::{Device, Dtype, HfConfig, RunConfig};
use slime_trainer::Settings;
use slime_trainer::budget::{Batch, Budget, Others, Site};
use slime_weights::PlanLayout;

use crate::failure;

/// The budget as comments of a TOML; nothing where no model is, or one that is only planned.
///
/// # Errors
/// Patterns of `train.freeze` that do not fit the model.
pub fn budget_comment(config: &RunConfig, layout: PlanLayout) -> Result<String, Failure> {
    let Ok(model) = HfConfig::load(Path::new(&config.model.path)) else { return Ok(String::new()) };
    let settings = Settings::new(config).map_err(failure!())?;
    let is_bf16 = config.model.dtype == Dtype::Bf16;
    let site = Site { layout, is_bf16, is_gpu: config.run.device == Device::Cuda };
    let others = Others {
        num_fixed: u64::from(config.algorithm.has_reference()) + u64::from(config.opd_kl_coef().is_some()),
        has_critic: config.algorithm.has_critic(),
    };
    let batch = largest_batch(config);
    let budget = Budget::new(&model, &settings, site, batch, others).map_err(failure!())?;
    let lines = budget.lines(&settings, site, batch);
    Ok(lines.iter().map(|line| format!("# {line}\n")).collect::<Vec<_>>().concat())
}

/// As full as the budget of tokens allows, or the longest sample alone.
fn largest_batch(config: &RunConfig) -> Batch {
    let budget = u64::from(config.train.max_tokens_per_gpu);
    let prompt_len = config.data.max_prompt_len.map_or(0, u64::from);
    let response_len = if config.data.kind.is_recorded() {
        config.data.max_len.map_or(budget, u64::from).saturating_sub(prompt_len)
    } else {
        u64::from(config.longest_response())
    };
    Batch { tokens: budget.max(prompt_len + response_len), prompt_len, response_len }
}
