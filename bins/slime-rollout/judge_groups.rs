//! The open choices of the step builder: prompts in the order of the data stream or by a curriculum, dynamic filters, what
//! the buffer of accepted groups is ordered by, and stages that a metric begins.

use std::time::Instant;

use serde_json::{Value, json};
use slime_cli::Failure;
use slime_config::{BufferOrder, DynamicFilter, FilterRule, RunConfig};
use slime_environment::{Asked, PassRates, PromptSource, train_source};
use slime_exchange::{DrawnPrompt, Error, FinishedGroup, History, Standing, StepPolicy, Verdict};
use slime_metrics::Trace;
use slime_metrics::trace::Span;
use slime_record::{GroupEntry, Scores, Stages};
use slime_verifier::Program;

use crate::failure;
use crate::reach_stages;
use crate::read_prompts::{self, GroupShape};
use crate::write_metrics::EQUAL_REWARDS;

/// The column that filters and trainer read.
pub const REWARD: &str = "reward";
/// The reason of a program that gives none.
const BY_PROGRAM: &str = "command";

/// Prompts, filters and order as a run is configured.
pub struct Policy {
    config: RunConfig,
    /// Those that stand before the first stage, then the stages.
    stages: Vec<Stage>,
    /// What draws of one step choose by.
    pass_rates: Option<(u64, PassRates)>,
    /// The program that orders the buffer.
    order: Option<Program>,
    trace: Trace,
}

/// Prompts and filters of a stage.
struct Stage {
    source: Box<dyn PromptSource>,
    shape: GroupShape,
    filters: Vec<Filter>,
}

struct Filter {
    rule: Rule,
    is_fallback: bool,
}

enum Rule {
    NonzeroStd,
    /// Of the share of samples whose reward is 1.
    PassRate(f64, f64),
    /// Of the mean number of response tokens.
    ResponseLen(f64, f64),
    Program(Program),
}

impl Policy {
    /// Programs start with the first group they are asked about.
    pub fn new(config: &RunConfig) -> Result<Self, Failure> {
        let stage = |number| {
            let config = config.in_stage(number);
            let source = train_source(&config).map_err(failure!())?;
            let filters = config.rollout.dynamic_filter.iter().map(Filter::new).collect::<Result<_, _>>()?;
            Ok(Stage { source, shape: GroupShape::of(&config)?, filters })
        };
        let numbers = std::iter::once(None).chain((0..config.stage.len()).map(Some));
        let stages = numbers.map(stage).collect::<Result<_, Failure>>()?;
        let order = match &config.rollout.buffer_order {
            BufferOrder::Command(line) => {
                Some(Program::new("rollout.buffer_order", line).map_err(failure!())?)
            }
            _ => None,
        };
        let (config, trace) = (config.clone(), Trace::default());
        Ok(Self { config, stages, pass_rates: None, order, trace })
    }

    /// With spans of the filters in a trace.
    pub fn traced(self, trace: Trace) -> Self {
        Self { trace, ..self }
    }

    /// Prompts of an epoch, as the first step has them; none where they have no end.
    pub fn num_prompts(&self) -> Option<u64> {
        self.stages.get(self.stage_number(0, &Stages::default())).and_then(|stage| stage.source.len())
    }

    fn stage(&mut self, step: u64, stages: &Stages) -> &mut Stage {
        let number = self.stage_number(step, stages);
        &mut self.stages[number]
    }

    /// The place of a step's stage among all.
    fn stage_number(&self, step: u64, stages: &Stages) -> usize {
        self.config.stage_at(step, &stages.begun).map_or(0, |stage| stage + 1)
    }

    /// What the first filter says that does not keep the group.
    fn filter(&mut self, group: &FinishedGroup<'_>) -> Result<Verdict, Error> {
        let mut spared = Verdict::Keep;
        for filter in &mut self.stage(group.step, group.stages).filters {
            match filter.judge(group)? {
                refused @ Verdict::Refuse(_) => return Ok(refused),
                verdict if spared == Verdict::Keep => spared = verdict,
                _ => {}
            }
        }
        Ok(spared)
    }
}

impl StepPolicy for Policy {
    fn choose(&mut self, step: u64, cursor: u64, history: &History) -> Result<u64, Error> {
        let Some(curriculum) = self.config.data.curriculum else { return Ok(cursor) };
        let number = self.stage_number(step, history.stages());
        let source = &*self.stages[number].source;
        if self.pass_rates.as_ref().is_none_or(|(of, _)| *of != step) {
            self.pass_rates = None;
        }
        let (_, pass_rates) = self.pass_rates.get_or_insert_with(|| {
            let asked = history.before(step).map(|outcome| Asked {
                prompt_id: &outcome.prompt_id,
                position: outcome.position,
                pass_rate: outcome.pass_rate,
            });
            (step, PassRates::new(curriculum, asked))
        });
        pass_rates.choose(cursor, self.config.run.seed, source).map_err(Error::outside)
    }

    fn draw(&mut self, step: u64, position: u64, stages: &Stages) -> Result<Option<DrawnPrompt>, Error> {
        let Stage { source, shape, .. } = self.stage(step, stages);
        let prompt = source.prompt(position).map_err(Error::outside)?;
        let num_samples = shape.n_samples_per_prompt;
        let body = read_prompts::to_body(&prompt, *shape);
        Ok(Some(DrawnPrompt { body, prompt_id: prompt.prompt_id, num_samples }))
    }

    fn advance(&mut self, before: &Stages, step: u64, groups: &[GroupEntry]) -> Stages {
        reach_stages::advance(&self.config, before, step, groups)
    }

    fn judge(&mut self, group: &FinishedGroup<'_>) -> Result<Verdict, Error> {
        let began = Instant::now();
        let verdict = self.filter(group)?;
        let is_kept = verdict == Verdict::Keep;
        let (ended, args) =
            (Instant::now(), json!({ "step": group.step, "group": group.group, "is_kept": is_kept }));
        self.trace.span(&Span { name: "filter", category: "builder", lane: 0, began, ended, args });
        Ok(verdict)
    }

    fn standing(&mut self, group: &FinishedGroup<'_>) -> Result<Standing, Error> {
        let source = group.prompt.get("source").and_then(Value::as_str).unwrap_or_default();
        let num_truncated = group.rows.iter().filter(|row| row.truncated).count();
        let scores = Scores {
            reward_mean: mean(rewards(group)),
            pass_rate: pass_rate(rewards(group)),
            truncated: num_truncated as f64 / group.rows.len().max(1) as f64,
        };
        Ok(Standing { priority: variance(rewards(group)), stratum: source.to_owned(), scores })
    }

    fn arrange(&mut self, step: u64, groups: &[&GroupEntry]) -> Result<Vec<usize>, Error> {
        let Some(program) = &mut self.order else { return Ok((0..groups.len()).collect()) };
        let about: Vec<Value> = groups
            .iter()
            .map(|group| {
                let versions = group.samples.iter().flat_map(|sample| &sample.versions);
                json!({
                    "step": group.step,
                    "group": group.group,
                    "prompt_id": group.prompt_id,
                    "source": group.stratum,
                    "reward_variance": group.priority,
                    "num_tokens": group.num_tokens(),
                    "num_uses": group.num_uses,
                    "oldest_version": versions.map(|run| run.version).min(),
                })
            })
            .collect();
        let reply = program.ask(&json!({ "step": step, "groups": about })).map_err(Error::outside)?;
        serde_json::from_value(reply.clone()).map_err(|_| {
            Error::Setting(format!("rollout.buffer_order: expected a list of places in reply, got {reply}"))
        })
    }
}

impl Filter {
    fn new(filter: &DynamicFilter) -> Result<Self, Failure> {
        let rule = match &filter.rule {
            FilterRule::NonzeroStd => Rule::NonzeroStd,
            FilterRule::PassRate { min, max } => Rule::PassRate(*min, *max),
            FilterRule::ResponseLen { min, max } => Rule::ResponseLen(*min, *max),
            FilterRule::Command(line) => {
                Rule::Program(Program::new("rollout.dynamic_filter", line).map_err(failure!())?)
            }
        };
        Ok(Self { rule, is_fallback: filter.is_fallback })
    }

    fn judge(&mut self, group: &FinishedGroup<'_>) -> Result<Verdict, Error> {
        let reason = match &mut self.rule {
            Rule::NonzeroStd => {
                let is_flat = rewards(group).windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq());
                is_flat.then_some(EQUAL_REWARDS)
            }
            Rule::PassRate(min, max) => {
                outside(pass_rate(rewards(group)), *min, *max, ["too_hard", "too_easy"])
            }
            Rule::ResponseLen(min, max) => {
                let sum: u64 = group.rows.iter().map(|row| u64::from(row.response_len)).sum();
                let mean = sum as f64 / group.rows.len().max(1) as f64;
                outside(mean, *min, *max, ["too_short", "too_long"])
            }
            Rule::Program(program) => return ask(program, group),
        };
        let Some(reason) = reason.map(str::to_owned) else { return Ok(Verdict::Keep) };
        Ok(if self.is_fallback { Verdict::Spare(reason) } else { Verdict::Refuse(reason) })
    }
}

fn outside(value: f64, min: f64, max: f64, reasons: [&'static str; 2]) -> Option<&'static str> {
    let [below, above] = reasons;
    if value < min { Some(below) } else { (value > max).then_some(above) }
}

/// A program says `true`, `false`, or `{"keep": .., "reason": .., "fallback": ..}`.
fn ask(program: &mut Program, group: &FinishedGroup<'_>) -> Result<Verdict, Error> {
    let lens: Vec<u32> = group.rows.iter().map(|row| row.response_len).collect();
    let question = json!({
        "step": group.step,
        "group": group.group,
        "prompt": group.prompt,
        "rewards": rewards(group),
        "response_lens": lens,
    });
    let reply = program.ask(&question).map_err(Error::outside)?;
    let flag = |key: &str| reply.get(key).and_then(Value::as_bool);
    let Some(keeps) = reply.as_bool().or(flag("keep")) else {
        return Err(Error::Setting(format!(
            "rollout.dynamic_filter: expected true, false or an object with \"keep\" in reply, got {reply}"
        )));
    };
    let reason = reply.get("reason").and_then(Value::as_str).unwrap_or(BY_PROGRAM).to_owned();
    Ok(match (keeps, flag("fallback").unwrap_or(false)) {
        (true, _) => Verdict::Keep,
        (false, true) => Verdict::Spare(reason),
        (false, false) => Verdict::Refuse(reason),
    })
}

fn rewards<'a>(group: &'a FinishedGroup<'_>) -> &'a [f32] {
    group.columns.get(REWARD).map(Vec::as_slice).unwrap_or_default()
}

/// The share of rewards that are 1.
fn pass_rate(rewards: &[f32]) -> f64 {
    let num_right = rewards.iter().filter(|reward| reward.total_cmp(&1.0).is_eq()).count();
    num_right as f64 / rewards.len().max(1) as f64
}

/// Of finite rewards; others have none.
fn mean(rewards: &[f32]) -> Option<f64> {
    let sum: f64 = rewards.iter().map(|&reward| f64::from(reward)).sum();
    Some(sum / rewards.len() as f64).filter(|mean| mean.is_finite())
}

/// Of finite rewards; others have none.
fn variance(rewards: &[f32]) -> f64 {
    let Some(mean) = mean(rewards) else { return 0.0 };
    let sum: f64 = rewards.iter().map(|&reward| (f64::from(reward) - mean).powi(2)).sum();
    sum / rewards.len() as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use slime_exchange::SampleDigest;
    use slime_record::SampleId;

    use super::*;

    fn judged(filters: &[&str], rewards: &[f32], lens: &[u32]) -> Result<Verdict, Error> {
        let text = "[data]\nenvironment = \"arithmetic\"\n";
        let mut config = slime_config::parse(text, "run.toml", &[]).unwrap();
        config.rollout.dynamic_filter = filters.iter().map(|filter| filter.parse().unwrap()).collect();
        let mut policy = Policy::new(&config).unwrap();
        let row = |response_len: &u32| SampleDigest {
            id: SampleId::default(),
            prompt_id: "a".to_owned(),
            tokens_hash: 0,
            trained: Vec::new(),
            response_len: *response_len,
            failed: false,
            truncated: false,
        };
        let rows: Vec<SampleDigest> = lens.iter().map(row).collect();
        let columns = BTreeMap::from([(REWARD.to_owned(), rewards.to_vec())]);
        let prompt = json!({ "source": "a" });
        let stages = Stages::default();
        policy.judge(&FinishedGroup {
            step: 0,
            group: 0,
            stages: &stages,
            prompt: &prompt,
            rows: &rows,
            columns: &columns,
        })
    }

    #[test]
    fn filters_refuse_with_their_reason_and_spare_with_fallback() {
        let refused = |reason: &str| Verdict::Refuse(reason.to_owned());
        for (filters, rewards, lens, verdict) in [
            (&["nonzero_std"][..], [1.0, 1.0], [3, 5], refused("zero_std")),
            (&["nonzero_std"], [1.0, 0.0], [3, 5], Verdict::Keep),
            (&["nonzero_std:fallback"], [1.0, 1.0], [3, 5], Verdict::Spare("zero_std".to_owned())),
            (&["pass_rate:min=0.25 max=0.75"], [1.0, 0.0], [3, 5], Verdict::Keep),
            (&["pass_rate:min=0.75"], [1.0, 0.5], [3, 5], refused("too_hard")),
            (&["pass_rate:max=0.75"], [1.0, 1.0], [3, 5], refused("too_easy")),
            (&["response_len:min=4 max=4"], [1.0, 1.0], [3, 5], Verdict::Keep),
            (&["response_len:min=5"], [1.0, 1.0], [3, 5], refused("too_short")),
            (&["response_len:max=3"], [1.0, 1.0], [3, 5], refused("too_long")),
            (&["nonzero_std:fallback", "response_len:max=3"], [1.0, 1.0], [3, 5], refused("too_long")),
        ] {
            assert_eq!(judged(filters, &rewards, &lens).unwrap(), verdict, "{filters:?}");
        }
    }

    #[test]
    fn program_keeps_refuses_with_its_reason_and_is_named_when_it_says_something_else() {
        let says = |reply: &str| {
            judged(&[&format!("command:sh -c 'read line; echo \"$0\"' '{reply}'")], &[1.0], &[3])
        };
        assert_eq!(says("true").unwrap(), Verdict::Keep);
        assert_eq!(says("false").unwrap(), Verdict::Refuse("command".to_owned()));
        let odd = says("{\"keep\": false, \"reason\": \"odd\"}").unwrap();
        assert_eq!(odd, Verdict::Refuse("odd".to_owned()));
        let error = says("7").unwrap_err();
        assert!(error.to_string().contains("rollout.dynamic_filter: expected true, false"), "{error}");
        assert_eq!(error.exit_code(), 78);
    }

    #[test]
    fn stages_have_prompts_filters_and_groups_of_their_own() {
        let text = "[data]\nenvironment = \"arithmetic\"\ndifficulty = 10\n\
                    [[stage]]\nstart = 2\ndifficulty = 1000\ndynamic_filter = \"nonzero_std\"\n\
                    [[stage]]\nwhen = \"pass_rate:min=0.5\"\nn_samples_per_prompt = 3\nmax_response_len = 7\n";
        let config = slime_config::parse(text, "run.toml", &[]).unwrap();
        let mut policy = Policy::new(&config).unwrap();
        let stages = Stages { begun: BTreeMap::from([(1, 12)]), ..Stages::default() };
        let mut prompts = |step| -> Vec<DrawnPrompt> {
            (0..20).map(|position| policy.draw(step, position, &stages).unwrap().unwrap()).collect()
        };
        assert_eq!(prompts(0), prompts(1));
        assert_ne!(prompts(1), prompts(2));
        assert_eq!(prompts(2), prompts(11));
        let (before, later) = (&prompts(0)[0], &prompts(12)[0]);
        assert_eq!((before.num_samples, later.num_samples), (8, 3));
        assert_eq!((&before.prompt_id, &later.body["max_response_len"]), (&later.prompt_id, &json!(7)));
        assert!(policy.stage(1, &stages).filters.is_empty() && policy.stage(2, &stages).filters.len() == 1);
    }

    #[test]
    fn variance_is_that_of_the_population() {
        assert!((variance(&[1.0, 0.0]) - 0.25).abs() < 1e-12);
        assert!(variance(&[f32::NAN, 0.0]).abs() < 1e-12 && variance(&[]).abs() < 1e-12);
        assert_eq!((mean(&[1.0, 0.0]), mean(&[f32::NAN]), mean(&[])), (Some(0.5), None, None));
    }
}
