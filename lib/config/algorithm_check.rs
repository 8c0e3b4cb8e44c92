//! The rules of `[algorithm]` and its models: ranges, and every combination that means nothing.

use crate::algorithm::{CorrectionWeight, KlLossType, LossType, OldLogProbs, PolicyLoss, RatioLevel};
use crate::check::{at_least_one, within};
use crate::data::Kind;
use crate::error::{Error, Result};
use crate::load::RunConfig;

/// The largest number.
const ANY: f64 = f64::MAX;

/// Checks ranges one by one, then names all combinations that mean nothing.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    ranges(config)?;
    let problems = combinations(config);
    if problems.is_empty() { Ok(()) } else { Err(Error::Conflict(problems.join("\n"))) }
}

fn ranges(config: &RunConfig) -> Result<()> {
    let (algorithm, correction) = (&config.algorithm, &config.algorithm.correction);
    for (key, value) in [
        ("algorithm.kl_coef", algorithm.kl_coef),
        ("algorithm.kl_loss_coef", algorithm.kl_loss_coef),
        ("algorithm.entropy_coef", Some(algorithm.entropy_coef)),
        ("algorithm.eps_clip_high", algorithm.eps_clip_high),
        ("algorithm.correction.low", correction.low),
        ("algorithm.correction.reject_low", correction.reject_low),
        ("critic.lr", config.critic.lr),
        ("train.mtp_loss_coef", config.train.mtp_loss_coef),
        ("critic.value_clip", Some(config.critic.value_clip)),
        ("teacher.opd_kl_coef", config.teacher.opd_kl_coef),
        ("checks.max_mismatch", config.checks.max_mismatch),
    ] {
        within(key, value.unwrap_or(0.0), 0.0, ANY, "a number of at least 0")?;
    }
    for (key, value) in [
        ("algorithm.correction.high", correction.high),
        ("algorithm.correction.reject_high", correction.reject_high),
        ("algorithm.correction.veto", correction.veto),
        ("algorithm.dpo_beta", Some(algorithm.dpo_beta)),
    ] {
        within(key, value.unwrap_or(1.0), f64::MIN_POSITIVE, ANY, "a number above 0")?;
    }
    // CISPO's lower bound is often taken away by an eps_clip of 1.
    for (key, value) in [
        ("algorithm.eps_clip", algorithm.eps_clip),
        ("algorithm.gamma", algorithm.gamma),
        ("algorithm.lambda", algorithm.lambda),
    ] {
        within(key, value, 0.0, 1.0, "a number between 0 and 1")?;
    }
    within(
        "algorithm.dpo_label_smoothing",
        algorithm.dpo_label_smoothing,
        0.0,
        0.5,
        "a number from 0 to 0.5",
    )?;
    within("algorithm.correction.opsm_delta", correction.opsm_delta.unwrap_or(0.0), -ANY, ANY, "a number")?;
    if let Some(bound) = algorithm.eps_clip_c.filter(|bound| bound.is_nan() || *bound <= 1.0) {
        return Err(Error::value("algorithm.eps_clip_c", "a number above 1", bound));
    }
    at_least_one("algorithm.loss_len", algorithm.loss_len.unwrap_or(1).into())?;
    at_least_one("reference.update_interval", config.reference.update_interval.unwrap_or(1))
}

/// One sentence for each combination that means nothing.
fn combinations(config: &RunConfig) -> Vec<String> {
    let algorithm = &config.algorithm;
    let mut problems = match algorithm.loss {
        LossType::Policy => policy(config),
        LossType::Sft | LossType::Dpo | LossType::RewardModel => Vec::new(),
    };
    let given = config.rollout.n_samples_per_prompt.filter(|_| algorithm.has_pairs());
    if let Some(given) = given.filter(|given| *given != 2) {
        problems.push(format!(
            "rollout.n_samples_per_prompt {given}: algorithm.loss = \"{}\" learns from pairs\nhint: leave it out",
            word(algorithm.loss)
        ));
    }
    let fits = match config.data.kind {
        Kind::Prompts => true,
        Kind::Conversations => algorithm.loss == LossType::Sft,
        Kind::Preferences => algorithm.has_pairs(),
    };
    // The default loss says nothing: a tool that only reads the data does not need one.
    if !fits && algorithm.loss != LossType::Policy {
        problems.push(format!(
            "data.kind = \"{}\" with algorithm.loss = \"{}\"\nhint: conversations are for sft, preferences for dpo and \
             reward_model",
            config.data.kind.as_str(),
            word(algorithm.loss)
        ));
    }
    problems
}

fn policy(config: &RunConfig) -> Vec<String> {
    let (algorithm, correction) = (&config.algorithm, &config.algorithm.correction);
    let (estimator, kl) = (algorithm.advantage_estimator, algorithm.kl_loss_type);
    let is_full = kl == KlLossType::Full;
    let bounds = |low: Option<f64>, high: Option<f64>| match (low, high) {
        (Some(low), Some(high)) => low >= high,
        (None, Some(high)) => high <= 1.0,
        _ => false,
    };
    let rules = [
        (
            algorithm.kl_coef.is_some() && !estimator.reads_token_kl(),
            format!(
                "algorithm.kl_coef puts the KL into the rewards of single tokens, which {} does not have\nhint: \
                 algorithm.kl_loss_coef puts it into the loss",
                estimator.name()
            ),
        ),
        (
            algorithm.kl_coef.is_some() && is_full,
            "algorithm.kl_coef with kl_loss_type \"full\": the reward of a token reads the sampled token alone\nhint: \
             k1 to k3 or low_var_kl"
                .to_owned(),
        ),
        (
            algorithm.unbiased_kl && is_full,
            "algorithm.unbiased_kl with kl_loss_type \"full\": the whole divergence is no estimate that wants a \
             weight\nhint: leave one of them out"
                .to_owned(),
        ),
        (
            algorithm.eps_clip_c.is_some() && algorithm.policy_loss() == PolicyLoss::Cispo,
            "algorithm.eps_clip_c with policy_loss \"cispo\": its ratio has no gradient that a second bound could \
             stop\nhint: leave eps_clip_c out"
                .to_owned(),
        ),
        (
            algorithm.old_log_probs == OldLogProbs::Rollout && correction.weight != CorrectionWeight::None,
            "algorithm.old_log_probs \"rollout\" with algorithm.correction.weight: the ratio of training to \
             generation would count twice\nhint: old_log_probs = \"recomputed\", or no weight"
                .to_owned(),
        ),
        (
            matches!(correction.weight, CorrectionWeight::Clip | CorrectionWeight::Mask)
                && correction.high.is_none(),
            "algorithm.correction.weight \"clip\" or \"mask\" without algorithm.correction.high".to_owned(),
        ),
        (
            matches!(correction.weight, CorrectionWeight::Clip | CorrectionWeight::Mask)
                && bounds(correction.low, correction.high),
            "algorithm.correction: low is not below high\nhint: low is 1 / high where it is missing".to_owned(),
        ),
        (
            correction.reject.is_some() && correction.reject_high.is_none(),
            "algorithm.correction.reject without algorithm.correction.reject_high".to_owned(),
        ),
        (
            correction.reject.is_some() && bounds(correction.reject_low, correction.reject_high),
            "algorithm.correction: reject_low is not below reject_high\nhint: reject_low is 1 / reject_high where it \
             is missing"
                .to_owned(),
        ),
        (
            correction.normalize && correction.level == RatioLevel::Geometric,
            "algorithm.correction.normalize with level \"geometric\": a mean of geometric means is no density\nhint: \
             level = \"token\" or \"sequence\""
                .to_owned(),
        ),
    ];
    rules.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, problem)| problem).collect()
}

/// The word of a loss in a configuration.
fn word(loss: LossType) -> &'static str {
    match loss {
        LossType::Policy => "policy",
        LossType::Sft => "sft",
        LossType::Dpo => "dpo",
        LossType::RewardModel => "reward_model",
    }
}

#[cfg(test)]
mod tests {
    use crate::load::parse;

    fn refusal(text: &str) -> String {
        parse(text, "run.toml", &[]).unwrap_err().to_string()
    }

    #[test]
    fn ranges_are_told_with_their_key() {
        for (text, key) in [
            ("[algorithm]\neps_clip_c = 1.0\n", "algorithm.eps_clip_c"),
            ("[algorithm]\ngamma = 1.1\n", "algorithm.gamma"),
            ("[algorithm]\nkl_coef = -0.1\n", "algorithm.kl_coef"),
            ("[algorithm]\ndpo_beta = 0\n", "algorithm.dpo_beta"),
            ("[algorithm]\ndpo_label_smoothing = 0.6\n", "algorithm.dpo_label_smoothing"),
            ("[algorithm]\nloss_len = 0\n", "algorithm.loss_len"),
            ("[algorithm.correction]\nhigh = 0\n", "algorithm.correction.high"),
            ("[algorithm.correction]\nopsm_delta = nan\n", "algorithm.correction.opsm_delta"),
            ("[critic]\nvalue_clip = -1\n", "critic.value_clip"),
            ("[reference]\nupdate_interval = 0\n", "reference.update_interval"),
            ("[checks]\nmax_mismatch = -1\n", "checks.max_mismatch"),
        ] {
            let message = refusal(text);
            assert!(message.starts_with(&format!("{key}: expected ")), "{message}");
        }
    }

    #[test]
    fn all_combinations_that_mean_nothing_are_named_at_once() {
        let text = "[algorithm]\nadvantage_estimator = \"cispo\"\nkl_coef = 0.1\nkl_loss_type = \"full\"\n\
                    unbiased_kl = true\neps_clip_c = 3\nold_log_probs = \"rollout\"\n[algorithm.correction]\n\
                    weight = \"mask\"\nreject = \"sequence\"\nlevel = \"geometric\"\nnormalize = true\n";
        let message = refusal(text);
        for part in [
            "which cispo does not have",
            "reads the sampled token alone",
            "is no estimate that wants a weight",
            "policy_loss \"cispo\"",
            "would count twice",
            "without algorithm.correction.high",
            "without algorithm.correction.reject_high",
            "is no density",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    #[test]
    fn pairs_are_pairs() {
        for loss in ["dpo", "reward_model"] {
            let text = format!("[algorithm]\nloss = \"{loss}\"\n[rollout]\nn_samples_per_prompt = 8\n");
            let message = refusal(&text);
            assert!(message.starts_with("rollout.n_samples_per_prompt 8: algorithm.loss"), "{message}");
        }
    }

    #[test]
    fn data_and_loss_go_together() {
        let text = |kind: &str, loss: &str| {
            format!("[data]\nkind = \"{kind}\"\nprompts = \"a\"\n[algorithm]\nloss = \"{loss}\"\n")
        };
        for (kind, loss) in
            [("conversations", "dpo"), ("preferences", "sft"), ("conversations", "reward_model")]
        {
            let message = refusal(&text(kind, loss));
            assert!(message.contains(&format!("data.kind = \"{kind}\" with algorithm.loss")), "{message}");
        }
        for (kind, loss) in
            [("conversations", "sft"), ("preferences", "dpo"), ("preferences", "reward_model")]
        {
            assert!(parse(&text(kind, loss), "run.toml", &[]).is_ok(), "{kind} {loss}");
        }
        let pairs = parse("[algorithm]\nloss = \"dpo\"\n", "run.toml", &[]).unwrap();
        assert_eq!(pairs.batch().unwrap().n_samples_per_prompt, 2);
    }

    #[test]
    fn bounds_are_in_order() {
        let correction = |more: &str| format!("[algorithm.correction]\n{more}");
        let clip = "weight = \"clip\"\n";
        assert!(
            refusal(&correction(&format!("{clip}high = 2\nlow = 3\n"))).contains("low is not below high")
        );
        assert!(refusal(&correction(&format!("{clip}high = 0.9\n"))).contains("low is not below high"));
        assert!(parse(&correction(&format!("{clip}high = 2\n")), "run.toml", &[]).is_ok());
        assert!(parse(&correction("weight = \"truncate\"\n"), "run.toml", &[]).is_ok());
    }
}
