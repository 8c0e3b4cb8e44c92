//! Settings that were given and have no effect.

use crate::algorithm::{AdvantageEstimator, CorrectionWeight, LossReducer, LossType};
use crate::data::Kind;
use crate::load::RunConfig;
use crate::routing_replay::RoutingReplay;
use crate::sync::SyncTransport;
use crate::train::Schedule;

/// When keys have no effect, which, and why.
type Rule = (bool, &'static [&'static str], &'static str);

/// The keys of advantages and losses that the configured formulas do not read.
fn of_algorithm(config: &RunConfig) -> [Rule; 15] {
    let (algorithm, correction) = (&config.algorithm, &config.algorithm.correction);
    let (estimator, is_policy) = (algorithm.advantage_estimator, algorithm.loss == LossType::Policy);
    let has_weight = correction.weight != CorrectionWeight::None;
    let has_kl = algorithm.kl_loss_coef.is_some() || algorithm.kl_coef.is_some();
    let has_teacher = config.opd_kl_coef().is_some();
    [
        (
            !is_policy,
            &[
                "algorithm.advantage_estimator",
                "algorithm.policy_loss",
                "algorithm.normalize_advantages",
                "algorithm.kl_coef",
                "algorithm.kl_loss_coef",
                "algorithm.entropy_coef",
                "algorithm.eps_clip",
                "algorithm.eps_clip_high",
                "algorithm.eps_clip_c",
                "algorithm.old_log_probs",
                "algorithm.routing_replay",
                "algorithm.correction",
                "teacher",
                "critic",
            ],
            "algorithm.loss is not policy",
        ),
        (
            is_policy && !estimator.divides_by_std(),
            &["algorithm.grpo_std_normalization"],
            "the advantage estimator never divides by a standard deviation",
        ),
        (
            is_policy
                && !matches!(estimator, AdvantageEstimator::Ppo | AdvantageEstimator::ReinforcePlusPlus),
            &["algorithm.gamma"],
            "the advantage estimator does not discount",
        ),
        (
            is_policy && !algorithm.has_critic(),
            &["algorithm.lambda", "critic"],
            "there is no critic: algorithm.advantage_estimator is not ppo",
        ),
        (
            is_policy && !has_kl,
            &["algorithm.kl_loss_type"],
            "neither algorithm.kl_loss_coef nor algorithm.kl_coef is set",
        ),
        (
            is_policy && algorithm.kl_loss_coef.is_none(),
            &["algorithm.unbiased_kl"],
            "algorithm.kl_loss_coef is not set",
        ),
        (!algorithm.has_reference(), &["reference"], "no formula compares with a reference"),
        (
            algorithm.loss != LossType::Dpo,
            &["algorithm.dpo_beta", "algorithm.dpo_label_smoothing"],
            "algorithm.loss is not dpo",
        ),
        (
            algorithm.loss_reducer() != LossReducer::ConstantLength,
            &["algorithm.loss_len"],
            "algorithm.loss_reducer is not constant_length",
        ),
        (algorithm.has_pairs(), &["algorithm.loss_reducer"], "the denominator of pairs is their number"),
        (
            is_policy && !has_weight,
            &[
                "algorithm.correction.low",
                "algorithm.correction.high",
                "algorithm.correction.level",
                "algorithm.correction.normalize",
            ],
            "algorithm.correction.weight is none",
        ),
        (
            is_policy && correction.weight == CorrectionWeight::Truncate,
            &["algorithm.correction.low"],
            "algorithm.correction.weight is truncate",
        ),
        (
            is_policy && correction.reject.is_none(),
            &["algorithm.correction.reject_low", "algorithm.correction.reject_high"],
            "algorithm.correction.reject is not set",
        ),
        (
            is_policy
                && algorithm.routing_replay == RoutingReplay::Recomputed
                && config.batch().is_ok_and(|batch| batch.num_steps_per_rollout == 1),
            &["algorithm.routing_replay"],
            "a rollout is one optimizer step, before which nothing moves",
        ),
        (is_policy && !has_teacher, &["teacher.path"], "teacher.opd_kl_coef is not set"),
    ]
}

/// One sentence for each key that was set to something and that nothing will read under the other settings.
pub(crate) fn warnings(config: &RunConfig) -> Vec<String> {
    let from_environment = config.data.environment.is_some();
    let rollout = &config.rollout;
    let constant = config.train.schedule == Schedule::Constant;
    let greedy = rollout.temperature == 0.0;
    let kind = config.data.kind;
    let recorded = format!("data.kind is {}: responses are recorded", kind.as_str());
    let not_recorded = format!("data.kind is {}", kind.as_str());
    let unsampled = kind.is_recorded() && config.eval.is_empty();
    let mut rules: Vec<(bool, &[&str], &str)> = vec![
        (kind.is_recorded(), &["rollout.temperature"], &recorded),
        (
            unsampled,
            &[
                "rollout.max_response_len",
                "rollout.top_p",
                "rollout.top_k",
                "rollout.min_p",
                "rollout.repetition_penalty",
                "rollout.frequency_penalty",
                "rollout.presence_penalty",
                "rollout.stop",
                "rollout.max_in_flight",
                "rollout.prefix_cache",
                "rollout.speculative_num_draft_tokens",
            ],
            &recorded,
        ),
        (unsampled && !config.reward.types.is_empty(), &["reward.types"], &recorded),
        (!kind.is_recorded(), &["data.loss_mask", "data.max_len"], &not_recorded),
        (kind != Kind::Conversations, &["data.messages_key", "data.completion_key"], &not_recorded),
        (
            kind != Kind::Preferences,
            &["data.chosen_key", "data.rejected_key", "data.margin_key"],
            &not_recorded,
        ),
        (
            kind.is_recorded() && !config.data.apply_chat_template,
            &["data.loss_mask"],
            "data.apply_chat_template is false",
        ),
        (config.run.num_steps.is_some(), &["run.num_epoch"], "run.num_steps is set"),
        (
            from_environment,
            &["data.input_key", "data.label_key", "data.metadata_key", "data.tool_key", "data.shuffle"],
            "prompts come from data.environment",
        ),
        (!from_environment, &["data.difficulty"], "data.environment is not set"),
        (
            !config.data.apply_chat_template,
            &["data.chat_template_kwargs"],
            "data.apply_chat_template is false",
        ),
        (
            greedy && !unsampled,
            &["rollout.top_p", "rollout.top_k", "rollout.min_p"],
            "rollout.temperature is 0 (greedy)",
        ),
        (!config.has_filter(), &["rollout.max_groups"], "rollout.dynamic_filter is none"),
        (
            config.algorithm.has_pairs(),
            &["train.mtp_loss_coef"],
            "a loss of pairs is no loss of tokens that a further one could be predicted beside",
        ),
        (!config.runs_code(), &["reward.sandbox_min"], "no type of reward.types runs code"),
        (constant, &["train.min_lr"], "train.schedule is constant"),
        (
            config.sync.transport != SyncTransport::Delta,
            &["sync.full_interval"],
            "sync.transport is not delta",
        ),
        (config.sync.transport == SyncTransport::Disk, &["sync.memory_dir"], "sync.transport is disk"),
    ];
    rules.extend(of_algorithm(config));
    let mut found = Vec::new();
    for (without_effect, keys, because) in rules {
        for key in keys.iter().filter(|_| without_effect) {
            let below = format!("{key}.");
            if config.chosen.iter().any(|chosen| chosen == key || chosen.starts_with(&below)) {
                found.push(format!("{key} has no effect: {because}"));
            }
        }
    }
    for (name, set) in &config.eval {
        let inherits = set.prompts.is_none() && set.environment.is_none() && from_environment;
        for key in ["difficulty", "split"] {
            let is_chosen = config.chosen.contains(&format!("eval.{name}.{key}"));
            // A set without prompts of its own says with its split that it means those of training.
            let is_read = key == "split" && set.prompts.is_none();
            if is_chosen && set.environment.is_none() && !inherits && !is_read {
                found.push(format!("eval.{name}.{key} has no effect: its prompts come from a file"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::load::parse;

    #[test]
    fn settings_without_effect_are_told() {
        for (text, key) in [
            ("[algorithm]\nkl_loss_type = \"k1\"\n", "algorithm.kl_loss_type"),
            ("[reference]\npath = \"a\"\n", "reference"),
            ("[critic]\nlr = 1e-5\n", "critic"),
            ("[teacher]\npath = \"a\"\n", "teacher.path"),
            ("[algorithm]\ngamma = 0.9\n", "algorithm.gamma"),
            ("[algorithm]\ndpo_beta = 0.2\n", "algorithm.dpo_beta"),
            ("[algorithm]\nloss_len = 9\n", "algorithm.loss_len"),
            ("[algorithm]\nrouting_replay = \"recomputed\"\n", "algorithm.routing_replay"),
            ("[algorithm.correction]\nhigh = 2\n", "algorithm.correction.high"),
            ("[algorithm]\nloss = \"sft\"\nentropy_coef = 0.1\n", "algorithm.entropy_coef"),
            ("[run]\nnum_steps = 3\nnum_epoch = 1\n", "run.num_epoch"),
            ("[data]\nenvironment = \"arithmetic\"\ninput_key = \"q\"\n", "data.input_key"),
            ("[data]\ndifficulty = 5\n", "data.difficulty"),
            (
                "[data]\napply_chat_template = false\nchat_template_kwargs = { a = 1 }\n",
                "data.chat_template_kwargs",
            ),
            ("[rollout]\ntemperature = 0\ntop_k = 5\n", "rollout.top_k"),
            ("[train]\nmin_lr = 1e-9\n", "train.min_lr"),
            ("[reward]\nsandbox_min = \"seccomp\"\n", "reward.sandbox_min"),
            ("[data]\nloss_mask = \"prefix\"\n", "data.loss_mask"),
            ("[data]\nkind = \"preferences\"\nprompts = \"a\"\nmessages_key = \"m\"\n", "data.messages_key"),
            ("[data]\nkind = \"conversations\"\nprompts = \"a\"\nchosen_key = \"c\"\n", "data.chosen_key"),
            ("[data]\nkind = \"conversations\"\n[rollout]\ntemperature = 0\n", "rollout.temperature"),
            ("[data]\nkind = \"conversations\"\n[reward]\ntypes = [\"exact\"]\n", "reward.types"),
            (
                "[data]\nkind = \"conversations\"\n[rollout]\nmax_response_len = 7\n",
                "rollout.max_response_len",
            ),
            (
                "[data]\nkind = \"conversations\"\napply_chat_template = false\nloss_mask = \"qwen\"\n",
                "data.loss_mask",
            ),
            ("[eval.a]\nprompts = \"a.jsonl\"\nsplit = \"train\"\n", "eval.a.split"),
        ] {
            let warnings = parse(text, "run.toml", &[]).unwrap().warnings();
            assert_eq!(warnings.len(), 1, "{text}: {warnings:?}");
            assert!(warnings[0].starts_with(&format!("{key} has no effect")), "{warnings:?}");
        }
    }

    #[test]
    fn settings_with_effect_are_quiet() {
        let text = "[algorithm]\nkl_loss_coef = 0.1\nkl_loss_type = \"k2\"\n[data]\nprompts = \"a\"\ninput_key = \"q\"\n";
        assert!(parse(text, "run.toml", &[]).unwrap().warnings().is_empty());
        let text = "[data]\nkind = \"conversations\"\nprompts = \"a\"\nloss_mask = \"qwen\"\nmax_len = 9\n\
                    [reward]\ntypes = [\"exact\"]\n[rollout]\nmax_response_len = 7\n[eval.a]\nprompts = \"b\"\n";
        assert!(parse(text, "run.toml", &[]).unwrap().warnings().is_empty());
    }
}
