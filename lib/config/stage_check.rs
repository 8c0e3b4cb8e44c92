//! What a table of stages may hold, and whether each can be reached; what is said of those that were not.

use std::collections::BTreeMap;

use crate::condition::{Condition, Threshold};
use crate::error::{Error, Result};
use crate::load::RunConfig;
use crate::stage::Stage;

/// Stages that follow each other, can be reached within the run, and change something that there is.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    for (number, stage) in config.stage.iter().enumerate() {
        settings(config, number, stage)?;
        threshold(config, number, stage)?;
    }
    starts(config)?;
    config.check_stages_within(config.run.num_steps)
}

fn key(number: usize, key: &str) -> String {
    format!("stage[{number}].{key}")
}

/// What a stage changes.
fn settings(config: &RunConfig, number: usize, stage: &Stage) -> Result<()> {
    let key = |name: &str| key(number, name);
    if *stage == (Stage { start: stage.start, when: stage.when, ..Stage::default() }) {
        return Err(Error::Conflict(format!(
            "stage[{number}] changes nothing\nhint: difficulty, weights, n_samples_per_prompt, max_response_len or \
             dynamic_filter"
        )));
    }
    if stage.difficulty.is_some() && config.data.environment.is_none() {
        return Err(Error::Conflict(format!("{}: data.environment is not set", key("difficulty"))));
    }
    if stage.difficulty == Some(0) {
        return Err(Error::value(&key("difficulty"), "at least 1", 0));
    }
    if stage.max_response_len == Some(0) {
        return Err(Error::value(&key("max_response_len"), "at least 1", 0));
    }
    group_size(config, number, stage)?;
    for (name, weight) in &stage.weights {
        let known: Vec<&str> = config.data.source.iter().map(crate::DataSource::name).collect();
        if !known.contains(&name.as_str()) {
            return Err(Error::Conflict(format!(
                "{}.{name}: no [[data.source]] has that name\nhint: there are {}",
                key("weights"),
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            )));
        }
        // Written so that NaN is refused too.
        if !(*weight > 0.0 && weight.is_finite()) {
            return Err(Error::value(&format!("{}.{name}", key("weights")), "a number above 0", weight));
        }
    }
    Ok(())
}

/// The samples of a step are cut into optimizer steps of the same size, also where groups of two stages meet in one.
fn group_size(config: &RunConfig, number: usize, stage: &Stage) -> Result<()> {
    let Some(samples) = stage.n_samples_per_prompt else { return Ok(()) };
    let key = key(number, "n_samples_per_prompt");
    if samples == 0 {
        return Err(Error::value(&key, "at least 1", 0));
    }
    if config.data.kind.is_recorded() || config.algorithm.has_pairs() {
        return Err(Error::Conflict(format!(
            "{key}: recorded responses and pairs have groups of one size\nhint: leave it out"
        )));
    }
    let batch = config.batch()?;
    let (steps, groups) = (batch.num_steps_per_rollout, batch.rollout_batch_size);
    let is_whole = |samples: u32| {
        let num =
            if config.keeps_groups() { u64::from(samples) } else { u64::from(groups) * u64::from(samples) };
        num.is_multiple_of(u64::from(steps))
    };
    if is_whole(samples) && is_whole(batch.n_samples_per_prompt) {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "{key} {samples}: {groups} groups of it and of {} cannot be cut into {steps} optimizer steps of the same size\nhint: \
         a multiple of train.num_steps_per_rollout",
        batch.n_samples_per_prompt
    )))
}

/// A threshold that the metric can reach.
fn threshold(config: &RunConfig, number: usize, stage: &Stage) -> Result<()> {
    let Some(condition) = stage.when else { return Ok(()) };
    let before = number.checked_sub(1);
    let range = condition.metric.range(config.in_stage(before).rollout.max_response_len);
    let is_possible = match condition.threshold {
        Threshold::Min(min) => min <= *range.end(),
        Threshold::Max(max) => max >= *range.start(),
    };
    if !is_possible {
        return Err(Error::Conflict(format!(
            "{} \"{condition}\" is never reached: {} is from {} to {}",
            key(number, "when"),
            condition.metric.name(),
            range.start(),
            range.end()
        )));
    }
    Ok(())
}

/// A stage that begins at a step does so behind the one before that does.
fn starts(config: &RunConfig) -> Result<()> {
    let mut before = None;
    for (number, stage) in config.stage.iter().enumerate().filter(|(_, stage)| stage.when.is_none()) {
        if let Some(before) = before.filter(|before| stage.start <= *before) {
            return Err(Error::value(
                &key(number, "start"),
                &format!("above {before}, where the stage before begins"),
                stage.start,
            ));
        }
        before = Some(stage.start);
    }
    Ok(())
}

impl RunConfig {
    /// The first step that each stage can have.
    pub(crate) fn earliest_starts(&self) -> Vec<u64> {
        let earliest = self.stage.iter().scan(0, |earliest, stage| {
            *earliest = match stage.when {
                None => stage.start,
                Some(Condition { num_steps, .. }) => {
                    stage.start.max(*earliest + u64::from(num_steps) + self.run.max_staleness)
                }
            };
            Some(*earliest)
        });
        earliest.collect()
    }

    /// Refuses stages that cannot begin within a run of `num_steps` steps, or before the one behind them does.
    ///
    /// # Errors
    /// The first such stage.
    pub fn check_stages_within(&self, num_steps: Option<u64>) -> Result<()> {
        for (number, (stage, earliest)) in self.stage.iter().zip(self.earliest_starts()).enumerate() {
            let what = match stage.when {
                None => format!("{} {} is never reached", key(number, "start"), stage.start),
                Some(condition) => {
                    format!("{} \"{condition}\" is never reached before step {earliest}", key(number, "when"))
                }
            };
            if let Some(num_steps) = num_steps.filter(|num_steps| earliest >= *num_steps) {
                return Err(Error::Conflict(format!(
                    "{what}: the run has {num_steps} steps (run.num_steps)\nhint: begin it earlier, or drop it"
                )));
            }
            let next = self.stage[number + 1..].iter().find(|next| next.when.is_none());
            if let Some(next) = next.filter(|next| stage.when.is_some() && next.start <= earliest) {
                return Err(Error::Conflict(format!(
                    "{what}, and a stage behind it begins at {}\nhint: begin that one later",
                    next.start
                )));
            }
        }
        Ok(())
    }

    /// One sentence for each stage that a run of `num_steps` steps, which is over, did not reach. `nearest` is how near the
    /// metric came of the stage that was awaited last.
    pub fn unreached_stages(
        &self,
        begun: &BTreeMap<u32, u64>,
        nearest: Option<f64>,
        num_steps: u64,
    ) -> Vec<String> {
        let last = num_steps.saturating_sub(1);
        let awaited = self.awaited_stage(last, begun).map(|(number, ..)| number);
        let mut said = Vec::new();
        for (number, stage) in (0..).zip(&self.stage) {
            let Some(condition) = stage.when else { continue };
            let why = match (begun.get(&number), nearest.filter(|_| awaited == Some(number))) {
                (Some(first), _) if *first <= last => continue,
                (Some(first), _) => {
                    format!("its first step would have been {first}, and the run had {num_steps}")
                }
                (None, Some(nearest)) => {
                    format!("{} got to {nearest} of {}", condition.metric.name(), condition.threshold.value())
                }
                (None, None) if awaited == Some(number) => {
                    format!("{} was never there", condition.metric.name())
                }
                (None, None) => "the run did not come to the stage before it, or left that again".to_owned(),
            };
            said.push(format!("stage[{number}] ({condition}) was never reached: {why}"));
        }
        said
    }
}

#[cfg(test)]
mod tests {

    use crate::load::parse;

    const STAGES: &str = "[run]\nnum_steps = 100\n[data]\nenvironment = \"arithmetic\"\ndifficulty = 10\n\
                          [[stage]]\nstart = 20\ndifficulty = 50\n\
                          [[stage]]\nstart = 60\nmax_response_len = 2048\n";

    fn refusal(text: &str) -> String {
        parse(text, "run.toml", &[]).unwrap_err().to_string()
    }

    #[test]
    fn stages_that_cannot_be_are_named() {
        let late = STAGES.replace("start = 60", "start = 100");
        assert!(refusal(&late).starts_with("stage[1].start 100 is never reached: the run has 100 steps"));
        let disordered = STAGES.replace("start = 60", "start = 20");
        assert!(refusal(&disordered).contains("stage[1].start"), "{}", refusal(&disordered));
        assert!(refusal("[[stage]]\nstart = 3\n").contains("stage[0] changes nothing"));
        assert!(refusal("[[stage]]\nstart = 3\ndifficulty = 4\n").contains("data.environment is not set"));
        let unknown = "[[stage]]\nstart = 3\nweights = { a = 1.0 }\n";
        assert!(refusal(unknown).contains("stage[0].weights.a: no [[data.source]] has that name"));
    }

    #[test]
    fn thresholds_that_no_step_can_reach_are_named() {
        let when = |condition: &str| format!("[[stage]]\nwhen = \"{condition}\"\nmax_response_len = 9\n");
        for (condition, range) in [
            ("pass_rate:min=1.5", "pass_rate is from 0 to 1"),
            ("truncated:max=-0.1", "truncated is from 0 to 1"),
            ("response_len:min=2000", "response_len is from 0 to 1024"),
        ] {
            let said = refusal(&when(condition));
            assert!(
                said.starts_with(&format!("stage[0].when \"{condition}\" is never reached: {range}")),
                "{said}"
            );
        }
        assert!(parse(&when("reward_mean:min=7"), "run.toml", &[]).is_ok(), "rewards have any size");
        let run = |steps, text: &str| format!("[run]\nnum_steps = {steps}\nmax_staleness = 1\n{text}");
        let slow = when("pass_rate:min=0.5 steps=3");
        assert!(parse(&run(5, &slow), "run.toml", &[]).is_ok());
        let said = refusal(&run(4, &slow));
        assert!(said.contains("is never reached before step 4: the run has 4 steps"), "{said}");
        let passed = format!("{slow}[[stage]]\nstart = 4\nmax_response_len = 8\n");
        assert!(
            refusal(&run(50, &passed))
                .contains("is never reached before step 4, and a stage behind it begins at 4")
        );
    }

    #[test]
    fn group_sizes_that_optimizer_steps_cannot_share_are_named() {
        let text = |order: &str| {
            format!(
                "[run]\nmax_staleness = 1\norder = \"{order}\"\n[rollout]\nrollout_batch_size = 4\n\
                 n_samples_per_prompt = 4\n[train]\nnum_steps_per_rollout = 4\n[[stage]]\nstart = 3\n\
                 n_samples_per_prompt = 6\n"
            )
        };
        assert!(parse(&text("fixed"), "run.toml", &[]).is_ok());
        let said = refusal(&text("arrival"));
        assert!(
            said.starts_with("stage[0].n_samples_per_prompt 6: 4 groups of it and of 4 cannot be cut"),
            "{said}"
        );
        let pairs = "[algorithm]\nloss = \"reward_model\"\n[[stage]]\nstart = 3\nn_samples_per_prompt = 6\n";
        assert!(refusal(pairs).contains("groups of one size"), "{}", refusal(pairs));
    }

    #[test]
    fn stages_that_a_run_did_not_reach_are_told_with_how_near_it_came() {
        let text = "[run]\nnum_steps = 10\n[[stage]]\nwhen = \"reward_mean:min=0.6\"\nmax_response_len = 9\n\
                    [[stage]]\nwhen = \"truncated:max=0.1\"\nmax_response_len = 8\n";
        let config = parse(text, "run.toml", &[]).unwrap();
        let told = |begun: &[(u32, u64)], nearest| {
            config.unreached_stages(&begun.iter().copied().collect(), nearest, 10)
        };
        assert_eq!(
            told(&[], Some(0.41)),
            [
                "stage[0] (reward_mean:min=0.6) was never reached: reward_mean got to 0.41 of 0.6",
                "stage[1] (truncated:max=0.1) was never reached: the run did not come to the stage before it, or left that \
                 again"
            ]
        );
        assert_eq!(told(&[(0, 4), (1, 9)], None), [""; 0]);
        let late = "stage[1] (truncated:max=0.1) was never reached: its first step would have been 10, and the run had 10";
        assert_eq!(told(&[(0, 4), (1, 10)], None), [late]);
    }
}
