//! Generates: prompts to groups of samples through one engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use slime_cli::Failure;
use slime_config::{Eval, RunConfig};
use slime_environment::Prompt;
use slime_record::LogProbSpace;
use slime_tokenizer::Tokenizer;

use crate::args::Once;
use crate::evaluate;
use crate::failure;
use crate::generator::Generator;
use crate::ranks;
use crate::read_prompts::Prompts;
use crate::remote::Remote;
use crate::replay;
use crate::sampler::{GroupId, Purpose, Sampler, decoder};
use crate::tokens_ahead::{TokensAhead, Upcoming};
use crate::write_samples::SampleWriter;

/// `slime-rollout` over all prompts, once; groups leave in the order of their prompts.
pub fn generate(args: &Once) -> Result<(), Failure> {
    if args.resident.profile.is_some() {
        // Where another flag rules --follow out, the command line's own rule does not speak.
        return Err(Failure::usage("--profile needs a run: --follow RUN"));
    }
    let config = args.config()?;
    let is_recorded = config.data.kind.is_recorded() && args.eval.is_none();
    let is_engine = !is_recorded && args.engines.engine.is_empty();
    ranks::run(&config, is_engine, || generate_groups(args, config.clone()))
}

fn generate_groups(args: &Once, mut config: RunConfig) -> Result<(), Failure> {
    if config.data.kind.is_recorded() && args.eval.is_none() {
        if !args.engines.engine.is_empty() {
            return Err(Failure::usage("--engine: recorded responses (data.kind) are not sampled"));
        }
        return replay::replay(args, &config);
    }
    let tokenizer = Arc::new(Tokenizer::from_dir(Path::new(&config.model.path)).map_err(failure!())?);
    let mut purpose = Purpose::Training;
    let prompts: Box<dyn Iterator<Item = Result<Prompt, Failure>>> = match &args.eval {
        Some(name) => {
            let set = eval_set(&config, name)?;
            config = evaluate::settings_of(&config, &set);
            purpose = Purpose::Evaluation;
            Box::new(evaluate::prompts_of(&config, &set)?)
        }
        None => Box::new(Prompts::open(&config, args.num_prompts)?.into_iter()),
    };
    let connect = || Remote::connect(&args.engines, &config, decoder(tokenizer.clone()));
    let remote = (!args.engines.engine.is_empty()).then(connect).transpose()?;
    // A place that cannot be written is told before weights are loaded.
    let space = remote.as_ref().map_or(LogProbSpace::AfterTruncation, Remote::log_prob_space);
    let mut output = SampleWriter::create(&args.output, args.format, &config, space)?;
    let ahead = TokensAhead::start(tokenizer.clone(), &config.data);
    let mut sampler = match remote {
        Some(remote) => Sampler::new(&config, &tokenizer, Box::new(remote), purpose)?,
        None => Sampler::load(&config, &tokenizer, 0, purpose)?,
    };
    let id = |group| GroupId { step: 0, group, attempt: 0 };
    let prompts = (0..).zip(prompts).map(|(group, prompt)| Ok((id(group), prompt?)));
    let mut upcoming = Upcoming::new(prompts, ahead);
    let mut finished = BTreeMap::new();
    let mut next = 0;
    loop {
        while sampler.has_room() {
            let Some((id, prompt)) = upcoming.next()? else { break };
            sampler.submit(id, prompt, sampler.shape(), Vec::new())?;
        }
        if sampler.is_idle() {
            break;
        }
        finished.extend(sampler.step()?.into_iter().map(|(id, samples)| (id.group, samples)));
        while let Some(group) = finished.remove(&next) {
            output.write(group)?;
            next += 1;
        }
    }
    if next == 0 {
        return Err(Failure::data("no prompts: nothing to sample"));
    }
    let usage = sampler.engine.usage();
    if let Some(accept_length) = usage.drafting.accept_length() {
        tracing::info!(accept_length, accept_rate = usage.drafting.accept_rate(), "tokens were guessed");
    }
    tracing::info!(
        groups = next,
        tokens = usage.num_sampled_tokens,
        forward_passes = usage.num_steps,
        preemptions = usage.num_preemptions,
        "generated"
    );
    output.finish()
}

/// The evaluation set of that name.
fn eval_set(config: &RunConfig, name: &str) -> Result<Eval, Failure> {
    let known: Vec<&str> = config.eval.keys().map(String::as_str).collect();
    let unknown = || {
        let message = format!("--eval {name}: the configuration has no [eval.{name}]");
        let hint = if known.is_empty() {
            "it has no evaluation set".to_owned()
        } else {
            format!("it has {}", known.join(", "))
        };
        Failure::usage(message).with_hint(hint)
    };
    config.eval.get(name).cloned().ok_or_else(unknown)
}
