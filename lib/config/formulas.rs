//! Every advantage estimator, loss and correction: its formula, the keys it reads and where it comes from.

use toml::{Table, Value};

use crate::error::{Error, Result};
use crate::load::RunConfig;

/// One formula that a configuration can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formula {
    /// Its name in lists.
    pub name: &'static str,
    /// What it is one of.
    pub kind: Kind,
    /// The setting that chooses it.
    pub choice: &'static str,
    /// What it computes. r is a sample's reward, A an advantage, m the loss mask; new, old, rollout, ref and teacher are
    /// log-probs of a token, x = new - old.
    pub formula: &'static str,
    /// Further keys that it reads.
    pub keys: &'static [&'static str],
    /// Where it is defined.
    pub source: &'static str,
}

/// What a formula is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// From rewards to the advantage of a token.
    Advantage,
    /// From the advantage to the loss of a token.
    PolicyLoss,
    /// What is added to the loss of a token.
    Term,
    /// For samples of another distribution.
    Correction,
    /// What is trained instead of a policy loss.
    Loss,
    /// From losses of tokens to one number.
    Reducer,
    /// Which experts a token goes to.
    Routing,
}

impl Kind {
    /// The heading of its list.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Advantage => "Advantages",
            Self::PolicyLoss => "Policy losses",
            Self::Term => "Terms",
            Self::Correction => "Corrections",
            Self::Loss => "Other losses",
            Self::Reducer => "Reducers",
            Self::Routing => "Routing (models with experts)",
        }
    }
}

const CLIP: &[&str] = &["algorithm.eps_clip", "algorithm.eps_clip_high", "algorithm.eps_clip_c"];
const WEIGHT: &[&str] = &[
    "algorithm.correction.level",
    "algorithm.correction.low",
    "algorithm.correction.high",
    "algorithm.correction.normalize",
];
const REJECT: &[&str] = &["algorithm.correction.reject_low", "algorithm.correction.reject_high"];

macro_rules! formulas {
    ($($kind:ident $name:literal = $choice:literal: $formula:literal, $keys:expr, $source:literal;)*) => {
        &[$(Formula {
            name: $name,
            kind: Kind::$kind,
            choice: $choice,
            formula: $formula,
            keys: $keys,
            source: $source,
        }),*]
    };
}

/// All of them, in the order of the lists.
pub const FORMULAS: &[Formula] = formulas! {
    Advantage "grpo" = "advantage_estimator = \"grpo\"":
        "A = (r - mean) / (std + 1e-6) over the group, std with n - 1; with token_rewards plus the sum of the later ones, normalised alike",
        &["algorithm.grpo_std_normalization"], "arXiv 2402.03300, 4.1";
    Advantage "dr_grpo" = "advantage_estimator = \"dr_grpo\"":
        "A = r - mean over the group; the reducer is constant_length",
        &["algorithm.loss_len"], "arXiv 2503.20783, 3.2";
    Advantage "gspo" = "advantage_estimator = \"gspo\"":
        "A as grpo; the policy loss is gspo",
        &["algorithm.grpo_std_normalization"], "arXiv 2507.18071";
    Advantage "cispo" = "advantage_estimator = \"cispo\"":
        "A as grpo; the policy loss is cispo",
        &["algorithm.grpo_std_normalization"], "arXiv 2506.13585";
    Advantage "rloo" = "advantage_estimator = \"rloo\"":
        "A = r - mean of the group's other rewards",
        &[], "arXiv 2402.14740";
    Advantage "reinforce_plus_plus" = "advantage_estimator = \"reinforce_plus_plus\"":
        "A_t = sum over k >= t of gamma^(k-t) rho_k, rho_k = token_reward_k - kl_coef kl_k, plus r at the last trained token",
        &["algorithm.gamma", "algorithm.kl_coef", "algorithm.kl_loss_type"], "arXiv 2501.03262";
    Advantage "reinforce_plus_plus_baseline" = "advantage_estimator = \"reinforce_plus_plus_baseline\"":
        "A_t = r - mean over the group - kl_coef kl_t",
        &["algorithm.kl_coef", "algorithm.kl_loss_type"], "arXiv 2501.03262";
    Advantage "ppo" = "advantage_estimator = \"ppo\"":
        "A_t = sum over k >= t of (gamma lambda)^(k-t) delta_k, delta_k = rho_k + gamma V_(k+1) - V_k over trained tokens, rho as reinforce_plus_plus; the critic learns A + V",
        &["algorithm.gamma", "algorithm.lambda", "algorithm.kl_coef", "algorithm.kl_loss_type", "critic.path", "critic.lr",
          "critic.value_clip", "critic.num_critic_only_steps"],
        "arXiv 1506.02438, 1707.06347";
    Advantage "distillation" = "advantage_estimator = \"distillation\"":
        "A_t = opd_kl_coef (teacher_t - old_t); teacher.opd_kl_coef adds it to any other estimator",
        &["teacher.path", "teacher.opd_kl_coef"], "arXiv 2306.13649; slime, apply_opd_kl_to_advantages";
    Advantage "whitening" = "normalize_advantages = true":
        "A <- (A - mean) / sqrt(var + 1e-8) over all trained tokens of the rollout, on all ranks, var with N - 1",
        &[], "slime, distributed_masked_whiten";
    PolicyLoss "ppo_clip" = "policy_loss = \"ppo_clip\"":
        "max(-e^x A, -clip(e^x, 1 - eps_clip, 1 + eps_clip_high) A); for A < 0 at most -eps_clip_c A",
        CLIP, "arXiv 1707.06347, eq. 7; 1912.09729, eq. 5";
    PolicyLoss "gspo_loss" = "policy_loss = \"gspo\"":
        "ppo_clip with x the mean of new - old over the trained tokens of the sequence",
        CLIP, "arXiv 2507.18071, eq. 7";
    PolicyLoss "cispo_loss" = "policy_loss = \"cispo\"":
        "-sg(clip(e^x, 1 - eps_clip, 1 + eps_clip_high)) A new",
        &["algorithm.eps_clip", "algorithm.eps_clip_high"], "arXiv 2506.13585, eq. 4";
    Term "k1" = "kl_loss_type = \"k1\"": "d = new - ref", &["algorithm.kl_loss_coef", "algorithm.kl_coef"],
        "Schulman, Approximating KL divergence";
    Term "k2" = "kl_loss_type = \"k2\"": "d^2 / 2", &["algorithm.kl_loss_coef", "algorithm.kl_coef"],
        "Schulman, Approximating KL divergence";
    Term "k3" = "kl_loss_type = \"k3\"": "e^(-d) - 1 + d", &["algorithm.kl_loss_coef", "algorithm.kl_coef"],
        "Schulman, Approximating KL divergence";
    Term "low_var_kl" = "kl_loss_type = \"low_var_kl\"": "k3 within [-10, 10]",
        &["algorithm.kl_loss_coef", "algorithm.kl_coef"], "slime, compute_approx_kl";
    Term "full_kl" = "kl_loss_type = \"full\"": "sum over the vocabulary of p (log p - log q)",
        &["algorithm.kl_loss_coef"], "the definition";
    Term "unbiased_kl" = "unbiased_kl = true": "the estimate times e^x, with gradient", &["algorithm.kl_loss_coef"],
        "arXiv 2512.02556, 3.1";
    Term "entropy" = "entropy_coef": "-entropy_coef H(new), H over the whole vocabulary", &[], "arXiv 1602.01783";
    Correction "truncated_importance" = "correction.weight = \"truncate\"":
        "loss times min(w, high), w = e^(old - rollout) of the token, the sequence or its geometric mean",
        WEIGHT, "arXiv 1802.01561; slime, vanilla_tis_function";
    Correction "clipped_importance" = "correction.weight = \"clip\"": "loss times clamp(w, low, high)",
        WEIGHT, "slime, vanilla_tis_function, mis.py";
    Correction "icepop" = "correction.weight = \"mask\"": "loss times w within [low, high], else 0",
        WEIGHT, "arXiv 2510.18855";
    Correction "decoupled_ppo" = "correction.weight = \"truncate\", no high":
        "loss times w without a bound: old is the proximal policy, rollout the behaviour",
        &[], "arXiv 2110.00641, 2505.24298";
    Correction "token_rejection" = "correction.reject = \"token\"":
        "tokens whose ratio lies outside [reject_low, reject_high] leave the loss, not its denominator",
        REJECT, "slime, mis.py";
    Correction "sequence_rejection" = "correction.reject = \"sequence\" or \"geometric\"":
        "the same of whole sequences", REJECT, "slime, mis.py";
    Correction "veto" = "correction.veto": "a sequence with a token of a smaller ratio leaves the loss", &[],
        "slime, mis.py";
    Correction "off_policy_sequence_masking" = "correction.opsm_delta":
        "tokens of A < 0 leave the loss where the sequence's mean of old - new is above opsm_delta", &[],
        "arXiv 2512.02556, 3.1";
    Loss "value_loss" = "advantage_estimator = \"ppo\" (the critic's)":
        "max((V - G)^2, (V_old + clamp(V - V_old, +-value_clip) - G)^2), no factor 1/2",
        &["critic.value_clip"], "arXiv 2005.12729; slime, value_loss_function";
    Loss "sft" = "loss = \"sft\"": "-new", &[], "cross-entropy";
    Loss "dpo" = "loss = \"dpo\"":
        "-log sigmoid(dpo_beta (sum of new - ref over the better answer - the same of the worse)); mean over pairs",
        &["algorithm.dpo_beta", "algorithm.dpo_label_smoothing"], "arXiv 2305.18290, eq. 7";
    Loss "reward_model" = "loss = \"reward_model\"":
        "-log sigmoid(score of the better answer - score of the worse - margin); mean over pairs",
        &[], "arXiv 2203.02155, eq. 1; 2307.09288, eq. 2";
    Reducer "sample_mean" = "loss_reducer = \"sample_mean\"":
        "mean over samples, by weight, of the mean over a sample's trained tokens", &[], "arXiv 2402.03300, eq. 3";
    Reducer "token_mean" = "loss_reducer = \"token_mean\"": "mean over all trained tokens of the global batch", &[],
        "arXiv 2503.14476, eq. 8";
    Reducer "constant_length" = "loss_reducer = \"constant_length\"":
        "mean over samples of the sum over a sample's trained tokens / loss_len", &["algorithm.loss_len"],
        "arXiv 2503.20783, 3.2";
    Reducer "episode_mean" = "loss_reducer = \"episode_mean\"":
        "mean over episodes of the mean over all trained tokens of an episode's samples", &[],
        "slime, get_sum_of_sample_mean";
};

/// What is no formula of numbers, but chosen like one.
pub const ROUTING: &[Formula] = formulas! {
    Routing "routing_replay_recomputed" = "routing_replay = \"recomputed\"":
        "tokens go to the experts of the pass before the rollout's first update; gradients flow through their scores of now",
        &[], "arXiv 2507.18071, 5.3; slime, --use-routing-replay";
    Routing "routing_replay_rollout" = "routing_replay = \"rollout\"":
        "tokens go to the experts that generation chose (the samples' routed_experts), in old and new log-probs",
        &[], "arXiv 2510.11370; slime, --use-rollout-routing-replay";
};

fn all() -> impl Iterator<Item = &'static Formula> {
    FORMULAS.iter().chain(ROUTING)
}

/// The text of `--algorithm NAME`: one formula, or all of them for `list`.
///
/// # Errors
/// There is no formula of this name.
pub fn describe(name: &str) -> Result<String> {
    if name != "list" {
        let found: Vec<&Formula> = all().filter(|formula| formula.name == name).collect();
        if found.is_empty() {
            let names: Vec<&str> = all().map(|formula| formula.name).collect();
            return Err(Error::Conflict(format!("no formula is called {name}\nhint: {}", names.join(", "))));
        }
        return Ok(found.into_iter().map(entry).collect());
    }
    let mut text = String::from(
        "r reward of a sample, A advantage, V value, G return; new, old, rollout, ref, teacher: log-probs of a token; \
         x = new - old\nsg: no gradient. Keys without a section are of [algorithm]; a value in brackets is the \
         default.\n",
    );
    let mut kind = None;
    for formula in all() {
        if kind != Some(formula.kind) {
            text.extend(["\n", formula.kind.heading(), "\n"]);
            kind = Some(formula.kind);
        }
        text += &entry(formula);
    }
    Ok(text)
}

fn entry(formula: &Formula) -> String {
    let keys: Vec<String> = formula.keys.iter().map(|key| with_default(key)).collect();
    let keys = if keys.is_empty() {
        String::new()
    } else {
        format!("      {}\n", wrapped(&format!("reads {}", keys.join(", "))))
    };
    format!(
        "  {}\n      {}\n      set {}\n{keys}      from {}\n",
        formula.name,
        wrapped(formula.formula),
        formula.choice,
        formula.source
    )
}

/// Lines of a terminal's width.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().filter(|line| line.is_empty() || line.len() + word.len() < 88);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines.join("\n      ")
}

/// A key with its default, which is that of the schema itself.
fn with_default(key: &str) -> String {
    let short = key.strip_prefix("algorithm.").unwrap_or(key);
    let defaults = Table::try_from(RunConfig::default()).unwrap_or_default();
    let root = Value::Table(defaults);
    match key.split('.').try_fold(&root, |value, part| value.as_table()?.get(part)) {
        Some(value) => format!("{short} ({value})"),
        None => format!("{short} (none)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{
        AdvantageEstimator, CorrectionWeight, KlLossType, LossReducer, LossType, PolicyLoss, RatioLevel,
    };
    use crate::routing_replay::RoutingReplay;
    use std::collections::BTreeSet;

    fn word<T: serde::Serialize>(value: T) -> String {
        Value::try_from(value).unwrap().as_str().unwrap().to_owned()
    }

    #[test]
    fn every_choice_of_the_schema_has_an_entry() {
        use AdvantageEstimator as A;
        let choices: BTreeSet<&str> = all().map(|formula| formula.choice).collect();
        let has = |key: &str, word: String| {
            let wanted = format!("{key} = \"{word}\"");
            assert!(choices.iter().any(|choice| choice.starts_with(&wanted)), "{wanted}");
        };
        for estimator in [
            A::Grpo,
            A::DrGrpo,
            A::Gspo,
            A::Cispo,
            A::Rloo,
            A::ReinforcePlusPlus,
            A::ReinforcePlusPlusBaseline,
            A::Ppo,
            A::Distillation,
        ] {
            assert_eq!(word(estimator), estimator.name());
            has("advantage_estimator", word(estimator));
        }
        for loss in [PolicyLoss::PpoClip, PolicyLoss::Gspo, PolicyLoss::Cispo] {
            has("policy_loss", word(loss));
        }
        for kl in [KlLossType::K1, KlLossType::K2, KlLossType::K3, KlLossType::LowVarKl, KlLossType::Full] {
            has("kl_loss_type", word(kl));
        }
        for weight in [CorrectionWeight::Truncate, CorrectionWeight::Clip, CorrectionWeight::Mask] {
            has("correction.weight", word(weight));
        }
        for level in [RatioLevel::Token, RatioLevel::Sequence] {
            has("correction.reject", word(level));
        }
        for replay in [RoutingReplay::Recomputed, RoutingReplay::Rollout] {
            has("routing_replay", word(replay));
        }
        for loss in [LossType::Sft, LossType::Dpo, LossType::RewardModel] {
            has("loss", word(loss));
        }
        for reducer in [
            LossReducer::SampleMean,
            LossReducer::TokenMean,
            LossReducer::ConstantLength,
            LossReducer::EpisodeMean,
        ] {
            has("loss_reducer", word(reducer));
        }
    }

    #[test]
    fn names_are_unique_and_keys_exist() {
        let names: BTreeSet<&str> = all().map(|formula| formula.name).collect();
        assert_eq!(names.len(), FORMULAS.len() + ROUTING.len());
        for key in FORMULAS.iter().flat_map(|formula| formula.keys) {
            let parsed = crate::load::parse("", "", &[format!("{key}=1")]);
            assert!(!parsed.is_err_and(|error| error.to_string().contains("unknown key")), "{key}");
        }
    }

    #[test]
    fn list_names_everything_with_defaults_and_one_can_be_asked_for() {
        let list = describe("list").unwrap();
        assert!(all().all(|formula| list.contains(&format!("\n  {}\n", formula.name))));
        assert!(list.contains("eps_clip (0.2)") && list.contains("critic.value_clip (0.2)"), "{list}");
        assert!(list.lines().all(|line| line.len() <= 125), "{list}");
        let one = describe("rloo").unwrap();
        assert!(one.starts_with("  rloo\n") && !one.contains("grpo"), "{one}");
        let error = describe("rlo").unwrap_err().to_string();
        assert!(error.contains("no formula is called rlo") && error.contains("rloo"), "{error}");
    }
}
