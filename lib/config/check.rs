//! The rules between values: ranges, staleness and publication, order, evaluation, checkpoints.

use crate::algorithm_check;
use crate::data::{Data, Eval, Split};
use crate::engine_weights;
use crate::error::{Error, Result};
use crate::fp8;
use crate::load::RunConfig;
use crate::lora;
use crate::rollout::Placement;
use crate::stage_check;
use crate::staleness;

/// Checks everything that can be known without reading prompts or weights.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    config.batch()?;
    schedule(config)?;
    sampling(config)?;
    training(config)?;
    algorithm_check::check(config)?;
    sources(config)?;
    stage_check::check(config)?;
    config.sync.check()?;
    metrics(config)?;
    evaluation(config)
}

fn schedule(config: &RunConfig) -> Result<()> {
    let run = &config.run;
    at_least_one("run.publish_interval", run.publish_interval)?;
    if run.num_steps == Some(0) {
        return Err(Error::value("run.num_steps", "at least 1", 0));
    }
    if run.num_epoch == Some(0) {
        return Err(Error::value("run.num_epoch", "at least 1", 0));
    }
    if run.publish_interval - 1 > run.max_staleness {
        return Err(Error::Conflict(format!(
            "run.publish_interval {} waits for ever with run.max_staleness {}: the next step needs a version that \
             is never published\nhint: publish_interval may be at most max_staleness + 1",
            run.publish_interval, run.max_staleness
        )));
    }
    staleness::check(config)?;
    at_least_one("checkpoint.keep_last", config.checkpoint.keep_last)?;
    if !config.checkpoint.keep_hf_every.is_multiple_of(run.publish_interval) {
        return Err(Error::Conflict(format!(
            "checkpoint.keep_hf_every {} is not a multiple of run.publish_interval {}: only published versions have weights",
            config.checkpoint.keep_hf_every, run.publish_interval
        )));
    }
    if !config.checkpoint.interval.is_multiple_of(run.publish_interval) {
        return Err(Error::Conflict(format!(
            "checkpoint.interval {} is not a multiple of run.publish_interval {}: checkpoints lie on published versions",
            config.checkpoint.interval, run.publish_interval
        )));
    }
    Ok(())
}

fn sampling(config: &RunConfig) -> Result<()> {
    let rollout = &config.rollout;
    let groups = config.batch()?.rollout_batch_size;
    at_least_one("rollout.max_response_len", u64::from(rollout.max_response_len))?;
    at_least_one("rollout.num_replicas", u64::from(rollout.num_replicas))?;
    at_least_one("rollout.tp", u64::from(rollout.tp))?;
    at_least_one("rollout.ep", u64::from(rollout.ep))?;
    at_least_one("rollout.max_in_flight", u64::from(rollout.max_in_flight))?;
    within("rollout.temperature", rollout.temperature, 0.0, f64::MAX, "a number of at least 0")?;
    within("rollout.top_p", rollout.top_p, f64::MIN_POSITIVE, 1.0, "a number above 0 and up to 1")?;
    within("rollout.min_p", rollout.min_p, 0.0, 1.0, "a number between 0 and 1")?;
    let repetition = rollout.repetition_penalty;
    within("rollout.repetition_penalty", repetition, f64::MIN_POSITIVE, f64::MAX, "a number above 0")?;
    for (key, penalty) in [
        ("rollout.frequency_penalty", rollout.frequency_penalty),
        ("rollout.presence_penalty", rollout.presence_penalty),
    ] {
        within(key, penalty, -2.0, 2.0, "a number between -2 and 2")?;
    }
    for (key, value) in [
        ("rollout.over_sampling_batch_size", rollout.over_sampling_batch_size),
        ("rollout.max_groups", rollout.max_groups),
    ] {
        if let Some(value) = value.filter(|&value| value < groups) {
            return Err(Error::value(key, &format!("at least rollout_batch_size {groups}"), value));
        }
    }
    // Recorded responses have no rewards; those of evaluations do.
    let evaluates_by_them = config.eval.values().any(|set| set.reward_types.is_none());
    let needs_rewards = !config.data.kind.is_recorded() || evaluates_by_them;
    if config.reward.types.is_empty() && needs_rewards {
        return Err(Error::value("reward.types", "at least one reward type, such as [\"number\"]", "[]"));
    }
    Ok(())
}

fn training(config: &RunConfig) -> Result<()> {
    let train = &config.train;
    at_least_one("train.max_tokens_per_gpu", u64::from(train.max_tokens_per_gpu))?;
    for (key, value) in [
        ("train.lr", train.lr),
        ("train.min_lr", train.min_lr),
        ("train.weight_decay", train.weight_decay),
        ("train.clip_grad", train.clip_grad),
    ] {
        within(key, value, 0.0, f64::MAX, "a number of at least 0")?;
    }
    within("train.adam_eps", train.adam_eps, f64::MIN_POSITIVE, f64::MAX, "a number above 0")?;
    for (key, value) in [("train.adam_beta1", train.adam_beta1), ("train.adam_beta2", train.adam_beta2)] {
        within(key, value, 0.0, 1.0 - f64::EPSILON, "a number from 0 to below 1")?;
    }
    if train.min_lr > train.lr {
        return Err(Error::value("train.min_lr", &format!("at most train.lr {}", train.lr), train.min_lr));
    }
    engine_weights::check(config)?;
    fp8::check(config)?;
    lora::check(config)?;
    config.cluster.check()?;
    config.parallel.check_sizes()
}

fn sources(config: &RunConfig) -> Result<()> {
    let data = &config.data;
    one_source("data", data.prompts.as_deref(), data.environment.as_deref())?;
    weighted_sources(data)?;
    if data.max_prompt_len == Some(0) {
        return Err(Error::value("data.max_prompt_len", "at least 1", 0));
    }
    if data.max_len == Some(0) {
        return Err(Error::value("data.max_len", "at least 1", 0));
    }
    if data.environment.is_some() {
        at_least_one("data.difficulty", data.difficulty)?;
    }
    if let (Some(curriculum), Some(environment)) = (&data.curriculum, &data.environment) {
        return Err(Error::Conflict(format!(
            "data.curriculum {curriculum} asks prompts again, and those of data.environment \"{environment}\" hardly ever come \
             twice\nhint: a [[stage]] with another difficulty, and when = \"pass_rate:min=0.8\""
        )));
    }
    if data.kind.is_recorded() { recorded(config) } else { Ok(()) }
}

/// What recorded responses cannot be combined with.
fn recorded(config: &RunConfig) -> Result<()> {
    let kind = config.data.kind.as_str();
    if let Some(environment) = &config.data.environment {
        return Err(Error::Conflict(format!(
            "data.environment \"{environment}\" makes prompts, and data.kind = \"{kind}\" needs rows with responses\n\
             hint: data.prompts = \"FILE\" or [[data.source]]"
        )));
    }
    if config.has_filter() {
        return Err(Error::Conflict(format!(
            "rollout.dynamic_filter compares rewards, which data.kind = \"{kind}\" does not have\nhint: leave it out"
        )));
    }
    if let Some(curriculum) = &config.data.curriculum {
        return Err(Error::Conflict(format!(
            "data.curriculum {curriculum} goes by rewards, which data.kind = \"{kind}\" does not have\nhint: leave it out"
        )));
    }
    if config.reward.placement == Placement::Separate {
        return Err(Error::Conflict(format!(
            "reward.placement = \"separate\" has workers score responses, and those of data.kind = \"{kind}\" have no \
             rewards\nhint: leave it out"
        )));
    }
    let orphan = config.eval.iter().find(|(_, set)| set.prompts.is_none() && set.environment.is_none());
    if let Some((name, _)) = orphan {
        return Err(Error::Conflict(format!(
            "[eval.{name}] has no prompts of its own, and those of [data] are recorded {kind}\nhint: \
             eval.{name}.prompts = \"FILE\" or eval.{name}.environment"
        )));
    }
    Ok(())
}

fn weighted_sources(data: &Data) -> Result<()> {
    let other = data.prompts.as_ref().map(|_| "prompts").or(data.environment.as_ref().map(|_| "environment"));
    if let (Some(other), false) = (other, data.source.is_empty()) {
        return Err(Error::Conflict(format!(
            "[data] has both {other} and [[data.source]]\nhint: keep the one the prompts come from"
        )));
    }
    for (i, source) in data.source.iter().enumerate() {
        let key = |key: &str| format!("data.source[{i}].{key}");
        if source.path.is_empty() || source.path == "-" {
            return Err(Error::value(&key("path"), "a file", format!("\"{}\"", source.path)));
        }
        // Written so that NaN is refused too.
        if !(source.weight > 0.0 && source.weight.is_finite()) {
            return Err(Error::value(&key("weight"), "a number above 0", source.weight));
        }
        if let Some(before) = data.source[..i].iter().position(|other| other.name() == source.name()) {
            return Err(Error::Conflict(format!(
                "data.source[{before}] and data.source[{i}] are both called {name}: samples could not tell them \
                 apart\nhint: give one of them a name",
                name = source.name()
            )));
        }
    }
    Ok(())
}

fn evaluation(config: &RunConfig) -> Result<()> {
    for (name, set) in &config.eval {
        let section = format!("eval.{name}");
        // The name becomes a folder of the run directory.
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') || name.is_empty() {
            return Err(Error::value(&section, "a name of letters, digits, _ and -", format!("\"{name}\"")));
        }
        one_source(&section, set.prompts.as_deref(), set.environment.as_deref())?;
        if set.split == Split::HeldOut && asks_training_prompts(&config.data, set) {
            return Err(Error::Conflict(format!(
                "[{section}] has no prompts of its own, so it would ask those of training and call them held out\nhint: \
                 {section}.prompts = \"FILE\", or {section}.split = \"train\" where that is what is meant"
            )));
        }
        at_least_one(&format!("{section}.interval"), set.interval)?;
        at_least_one(&format!("{section}.num_prompts"), set.num_prompts)?;
        at_least_one(&format!("{section}.n_samples_per_prompt"), u64::from(set.n_samples_per_prompt))?;
        let key = |name: &str| format!("{section}.{name}");
        within(&key("temperature"), set.temperature, 0.0, f64::MAX, "a number of at least 0")?;
        let top_p = set.top_p.unwrap_or(1.0);
        within(&key("top_p"), top_p, f64::MIN_POSITIVE, 1.0, "a number above 0 and up to 1")?;
        within(&key("min_p"), set.min_p.unwrap_or(0.0), 0.0, 1.0, "a number between 0 and 1")?;
        if set.reward_types.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::value(&key("reward_types"), "at least one reward type", "[]"));
        }
        if !set.interval.is_multiple_of(config.run.publish_interval) {
            return Err(Error::Conflict(format!(
                "{section}.interval {} is not a multiple of run.publish_interval {}: only published versions are \
                 evaluated",
                set.interval, config.run.publish_interval
            )));
        }
    }
    Ok(())
}

/// Files have no part that training never sees, as environments have.
fn asks_training_prompts(data: &Data, set: &Eval) -> bool {
    let has_own = set.prompts.is_some() || set.environment.is_some();
    let from_files = data.prompts.is_some() || !data.source.is_empty();
    !has_own && from_files
}

fn metrics(config: &RunConfig) -> Result<()> {
    let (metrics, warnings) = (&config.metrics, &config.metrics.warnings);
    at_least_one("metrics.warnings.window", u64::from(warnings.window))?;
    if let Some(peak) = metrics.peak_tflops {
        within("metrics.peak_tflops", peak, f64::MIN_POSITIVE, f64::MAX, "a number above 0")?;
    }
    for (key, value) in [
        ("metrics.warnings.entropy_drop", warnings.entropy_drop),
        ("metrics.warnings.response_len_drop", warnings.response_len_drop),
        ("metrics.warnings.equal_rewards", warnings.equal_rewards),
        ("metrics.warnings.truncated", warnings.truncated),
    ] {
        within(key, value, 0.0, 1.0, "a number between 0 and 1")?;
    }
    for (key, value) in [
        ("metrics.warnings.mismatch_rise", warnings.mismatch_rise),
        ("metrics.warnings.not_finite", warnings.not_finite),
        ("metrics.warnings.reward_jump", warnings.reward_jump),
        ("metrics.warnings.dead_environment", warnings.dead_environment),
    ] {
        within(key, value, 0.0, f64::MAX, "a number of at least 0")?;
    }
    Ok(())
}

fn one_source(section: &str, prompts: Option<&str>, environment: Option<&str>) -> Result<()> {
    match (prompts, environment) {
        (Some(_), Some(_)) => Err(Error::Conflict(format!(
            "[{section}] has both prompts and environment\nhint: keep the one the prompts come from"
        ))),
        (Some(""), None) => Err(Error::value(&format!("{section}.prompts"), "a file", "\"\"")),
        _ => Ok(()),
    }
}

pub(crate) fn at_least_one(key: &str, value: u64) -> Result<()> {
    if value == 0 { Err(Error::value(key, "at least 1", 0)) } else { Ok(()) }
}

pub(crate) fn within(key: &str, value: f64, least: f64, most: f64, expected: &str) -> Result<()> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(Error::value(key, expected, value)) }
}

#[cfg(test)]
mod tests {
    use crate::load::parse;

    fn refusal(text: &str) -> String {
        parse(text, "run.toml", &[]).unwrap_err().to_string()
    }

    #[test]
    fn files_have_no_held_out_part() {
        let with = |set: &str| format!("[data]\nprompts = \"a.jsonl\"\n[eval.test]\n{set}");
        assert!(refusal(&with("num_prompts = 3\n")).starts_with("[eval.test] has no prompts of its own"));
        let mixed = "[[data.source]]\npath = \"a.jsonl\"\nweight = 1.0\n[eval.test]\nsplit = \"held_out\"\n";
        assert!(refusal(mixed).contains("eval.test.prompts = \"FILE\""));
        for set in ["prompts = \"b.jsonl\"\n", "split = \"train\"\n", "environment = \"arithmetic\"\n"] {
            let parsed = parse(&with(set), "run.toml", &[]).unwrap();
            assert!(parsed.warnings().is_empty(), "{set}");
        }
    }

    #[test]
    fn publish_interval_beyond_staleness_would_wait_for_ever() {
        assert!(refusal("[run]\npublish_interval = 2\n").contains("waits for ever"));
        assert!(parse("[run]\npublish_interval = 2\nmax_staleness = 1\n", "run.toml", &[]).is_ok());
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, key) in [
            ("[rollout]\ntop_p = 0.0\n", "rollout.top_p"),
            ("[rollout]\nrepetition_penalty = 0.0\n", "rollout.repetition_penalty"),
            ("[rollout]\nfrequency_penalty = 2.5\n", "rollout.frequency_penalty"),
            ("[rollout]\npresence_penalty = -3\n", "rollout.presence_penalty"),
            ("[rollout]\ntemperature = -1\n", "rollout.temperature"),
            ("[rollout]\ntemperature = nan\n", "rollout.temperature"),
            ("[train]\nadam_beta2 = 1.0\n", "train.adam_beta2"),
            ("[train]\nmin_lr = 1.0\n", "train.min_lr"),
            ("[reward]\ntypes = []\n", "reward.types"),
            ("[eval.\"a/b\"]\n", "eval.a/b"),
            ("[eval.a]\nnum_prompts = 0\n", "eval.a.num_prompts"),
            ("[rollout]\nmax_groups = 1\n", "rollout.max_groups"),
            ("[parallel]\ndp = 0\n", "parallel.dp"),
            ("[parallel]\nep = 0\n", "parallel.ep"),
            ("[metrics]\npeak_tflops = 0.0\n", "metrics.peak_tflops"),
            ("[metrics.warnings]\nentropy_drop = 1.5\n", "metrics.warnings.entropy_drop"),
        ] {
            let message = refusal(text);
            assert!(message.starts_with(&format!("{key}: expected ")), "{message}");
        }
    }

    #[test]
    fn weighted_sources_that_cannot_be_drawn_from_are_named() {
        let source = |more: &str| format!("[[data.source]]\npath = \"p/a.jsonl@[0:9]\"\n{more}");
        let good = source("weight = 2\n");
        assert!(parse(&good, "run.toml", &[]).is_ok());
        for (text, expected) in [
            (source(""), "run.toml:1: missing field `weight`"),
            (source("weight = 0\n"), "data.source[0].weight: expected a number above 0, got 0"),
            (source("weight = -0.5\n"), "data.source[0].weight: expected a number above 0, got -0.5"),
            (source("weight = nan\n"), "data.source[0].weight: expected a number above 0, got NaN"),
            (source("weight = inf\n"), "data.source[0].weight: expected a number above 0, got inf"),
            (
                source("weight = 1\nwieght = 2\n"),
                "run.toml:4: unknown key data.source.wieght\nhint: did you mean data.source.weight?",
            ),
            (
                "[[data.source]]\npath = \"\"\nweight = 1\n".to_owned(),
                "data.source[0].path: expected a file, got \"\"",
            ),
            (format!("{good}{good}"), "data.source[0] and data.source[1] are both called a.jsonl"),
            (format!("[data]\nprompts = \"b\"\n{good}"), "[data] has both prompts and [[data.source]]"),
            (format!("[data]\nenvironment = \"arithmetic\"\n{good}"), "[data] has both environment and"),
        ] {
            let message = refusal(&text);
            assert!(message.starts_with(expected), "{message}");
        }
        assert!(
            parse(&format!("{good}{}", good.replace("weight", "name = \"b\"\nweight")), "run.toml", &[])
                .is_ok()
        );
    }

    #[test]
    fn recorded_responses_have_as_many_samples_as_their_rows_and_no_rewards() {
        let with = |kind: &str, more: &str| {
            format!(
                "[data]\nkind = \"{kind}\"\nprompts = \"a.jsonl\"\n[rollout]\nrollout_batch_size = 6\n{more}"
            )
        };
        for (kind, samples) in [("conversations", 1), ("preferences", 2)] {
            let config = parse(&with(kind, "[reward]\ntypes = []\n"), "run.toml", &[]).unwrap();
            assert_eq!(config.batch().unwrap().n_samples_per_prompt, samples);
            assert_eq!(config.batch().unwrap().global_batch_size, 6 * samples);
            let again = parse(&config.to_toml().unwrap(), "run.toml", &[]).unwrap();
            assert_eq!(again.warnings(), Vec::<String>::new());
            assert!(again.to_toml().unwrap().contains(&format!("# {kind} are recorded")));
            assert_eq!(again.batch().unwrap(), config.batch().unwrap());
            let message = refusal(&with(kind, "n_samples_per_prompt = 8\n"));
            let expected =
                format!("rollout.n_samples_per_prompt 8: expected {samples}, which data.kind = \"{kind}\"");
            assert!(message.starts_with(&expected), "{message}");
        }
        for (more, expected) in [
            ("dynamic_filter = \"nonzero_std\"\n", "rollout.dynamic_filter compares rewards"),
            ("[reward]\nplacement = \"separate\"\n", "reward.placement = \"separate\" has workers"),
            ("[eval.test]\nsplit = \"train\"\n", "[eval.test] has no prompts of its own"),
            ("[eval.test]\nprompts = \"b\"\n[reward]\ntypes = []\n", "reward.types: expected "),
        ] {
            let message = refusal(&with("conversations", more));
            assert!(message.starts_with(expected), "{message}");
        }
        let made_up = "[data]\nkind = \"preferences\"\nenvironment = \"arithmetic\"\n";
        assert!(refusal(made_up).starts_with("data.environment \"arithmetic\" makes prompts"));
        assert!(refusal("[data]\nmax_len = 0\n").starts_with("data.max_len: expected at least 1"));
        assert!(refusal("[data]\nloss_mask = \"qwen4\"\n").contains("`qwen3_5`"));
    }

    #[test]
    fn grids_and_sources_must_fit() {
        let grid = "[run]\nmax_staleness = 1\npublish_interval = 2\n";
        assert!(refusal(&format!("{grid}[checkpoint]\ninterval = 3\n")).contains("checkpoint.interval 3"));
        assert!(refusal(&format!("{grid}[eval.a]\ninterval = 3\n")).contains("eval.a.interval 3"));
        assert!(refusal("[data]\nprompts = \"a\"\nenvironment = \"arithmetic\"\n").contains("both prompts"));
    }
}
