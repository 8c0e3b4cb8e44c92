//! `[train.lora]`: low-rank adapters that are trained in place of the parameters (Hu et al., arXiv 2106.09685).

use serde::{Deserialize, Serialize};

use crate::algorithm::LossType;
use crate::check::{at_least_one, within};
use crate::freeze::{matches, nearest};
use crate::load::RunConfig;
use crate::{Error, Result};

/// `[train.lora]`: beside each adapted matrix `W` `[out, in]` of the policy stands `(alpha / rank) B A`, with `A` `[rank, in]`
/// and `B` `[out, rank]`; these alone are trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lora {
    /// Rows of `A` and columns of `B`.
    pub rank: u32,
    /// The product is taken times `alpha / rank`.
    pub alpha: f64,
    /// Patterns of Hugging Face names as in `train.freeze`; none stands for every matrix of attention, MLPs and shared experts.
    pub targets: Vec<String>,
}

impl Default for Lora {
    fn default() -> Self {
        Self { rank: 16, alpha: 32.0, targets: Vec::new() }
    }
}

impl Lora {
    /// What the product of the two matrices is taken times.
    pub fn scale(&self) -> f64 {
        self.alpha / f64::from(self.rank)
    }

    /// Which of the tensors called `names` are adapted; each comes with whether it can be.
    ///
    /// # Errors
    /// A pattern that matches nothing, with the names nearest to it, or a tensor that cannot be adapted.
    pub fn adapted(&self, names: &[(&str, bool)]) -> Result<Vec<bool>> {
        for pattern in &self.targets {
            let mut matched = names.iter().filter(|(name, _)| matches(pattern, name)).peekable();
            if matched.peek().is_none() {
                let adaptable = names.iter().filter(|(_, can)| *can).map(|(name, _)| *name);
                return Err(Error::Conflict(format!(
                    "train.lora.targets: {pattern:?} matches no parameter of the model\nhint: did you mean {}?",
                    nearest(pattern, adaptable).join(", ")
                )));
            }
            if let Some((name, _)) = matched.find(|(_, can)| !can) {
                return Err(Error::Conflict(format!(
                    "train.lora.targets: {pattern:?} matches {name}, which has no adapter: only matrices of attention, of \
                     dense MLPs and of shared experts have\nhint: a narrower pattern, such as \"*.self_attn.*_proj.weight\""
                )));
            }
        }
        let is_target = |name: &str| self.targets.iter().any(|pattern| matches(pattern, name));
        Ok(names.iter().map(|(name, can)| *can && (self.targets.is_empty() || is_target(name))).collect())
    }
}

/// Adapters leave everything else of the policy as it is.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    let Some(lora) = &config.train.lora else { return Ok(()) };
    at_least_one("train.lora.rank", u64::from(lora.rank))?;
    within("train.lora.alpha", lora.alpha, f64::MIN_POSITIVE, f64::MAX, "a number above 0")?;
    let clashes = [
        (!config.train.freeze.is_empty(), "train.freeze: all but the adapters is frozen"),
        (
            config.train.mtp_loss_coef.is_some(),
            "train.mtp_loss_coef: the layer for further tokens has no adapters",
        ),
        (
            config.algorithm.loss == LossType::RewardModel,
            "algorithm.loss \"reward_model\": its head has no adapter",
        ),
        (
            config.reference.update_interval.is_some(),
            "reference.update_interval: the reference is the policy without them",
        ),
    ];
    match clashes.into_iter().find(|(is_set, _)| *is_set) {
        Some((_, clash)) => Err(Error::Conflict(format!("[train.lora] rules out {clash}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [(&str, bool); 4] = [
        ("model.embed_tokens.weight", false),
        ("model.layers.0.self_attn.q_proj.weight", true),
        ("model.layers.0.self_attn.v_proj.weight", true),
        ("model.layers.0.mlp.experts.0.up_proj.weight", false),
    ];

    fn of(targets: &[&str]) -> Result<Vec<bool>> {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        Lora { targets, ..Lora::default() }.adapted(&NAMES)
    }

    #[test]
    fn no_pattern_stands_for_all_that_can_be_adapted() {
        assert_eq!(of(&[]).unwrap(), [false, true, true, false]);
        assert_eq!(of(&["*.v_proj.weight"]).unwrap(), [false, false, true, false]);
    }

    #[test]
    fn what_matches_nothing_and_what_has_no_adapter_is_named() {
        assert_eq!(
            of(&["*.w_proj.weight"]).unwrap_err().to_string(),
            "train.lora.targets: \"*.w_proj.weight\" matches no parameter of the model\nhint: did you mean \
             model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.v_proj.weight?"
        );
        let error = of(&["*_proj.weight"]).unwrap_err().to_string();
        assert!(
            error.contains("matches model.layers.0.mlp.experts.0.up_proj.weight, which has no adapter"),
            "{error}"
        );
    }
}
