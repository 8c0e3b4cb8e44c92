//! Trains on one rollout and ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use slime_cli::Failure;
use slime_comm::{Communicator, Layout, Mesh, Placement};
use slime_config::{Dtype, HfConfig, LossType, RunConfig, paths};
use slime_exchange::join_attempt;
use slime_model::{Extra, Model, Parallel};
use slime_trainer::{Gradients, Roles, Scored, Settings, StepMetrics, Trainer};
use slime_weights::{PlanLayout, WeightDir, WeightWriter, dry_run_comment};
use tch::{Device, Kind};

use crate::args::Args;
use crate::budget::budget_comment;
use crate::failure;
use crate::follow::{Start, follow};
use crate::observe::Observer;
use crate::read_samples::read_samples;
use crate::write_dump::write_dump;
use crate::write_weights::{write_adapter, write_weights};

/// The whole tool, on every rank.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.profile.is_some() && args.follow.is_none() {
        // Where another flag rules --follow out, the command line's own rule does not speak.
        return Err(Failure::usage("--profile needs a run: --follow RUN"));
    }
    if let Some(name) = &args.algorithm {
        let text = slime_config::formulas::describe(name).map_err(failure!())?;
        return Err(Failure { code: 0, message: text, hint: None });
    }
    let mut config = args.config()?;
    if args.dry_run {
        check_layout(&config)?;
        let layout = plan_layout(&config);
        let model = dry_run_comment(Path::new(&config.model.path), layout).map_err(failure!())?;
        let memory = budget_comment(&config, layout)?;
        let message = model + &memory + &config.to_toml().map_err(failure!())?;
        // Text that was asked for: `run` prints it on stdout.
        return Err(Failure { code: 0, message, hint: None });
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    if config.model.path.is_empty() {
        return Err(Failure::new(78, "no weights to start from")
            .with_hint("--weights DIR, or model.path in the TOML"));
    }
    if args.follow.is_none() && args.output.is_none() && args.dump.is_none() {
        return Err(
            Failure::usage("nothing would be written").with_hint("--output DIR, --dump DIR or --follow RUN")
        );
    }
    if args.follow.is_some() {
        // From here on a signal drains, also while weights are still being read.
        slime_cli::drain::install();
        config.run.num_steps = Some(slime_environment::num_steps(&config).map_err(failure!())?);
    }
    let placement = Placement::detect().map_err(failure!())?;
    if args.follow.is_some() {
        join_attempt(&paths::rank(paths::TRAINER, placement.rank), &config.watchdog);
    }
    tch::set_num_threads(slime_cli::threads_per_rank(placement.local_size.unwrap_or(1)) as i32);
    let comm = slime_comm::world().map_err(failure!())?;
    let result = train_once(args, &config, &comm);
    match result {
        Ok(()) => comm.finish().map_err(failure!()),
        Err(failure) if comm.size() > 1 => {
            Placement::let_rank_0_speak();
            let message = format!("rank {}: {}", comm.rank(), failure.message);
            slime_cli::report("slime-train", &Failure { message, ..failure.clone() });
            comm.abort(failure.code)
        }
        Err(failure) => Err(failure),
    }
}

fn train_once(args: &Args, config: &RunConfig, comm: &Arc<dyn Communicator>) -> Result<(), Failure> {
    if comm.rank() == 0 {
        check_outputs(args)?;
    }
    let mut trainer = load(config, comm)?;
    if let Some(run) = &args.follow {
        let start = Start { takeover: args.takeover, resume: args.resume };
        let mut observer = Observer::new(run, config, comm.rank(), args.profile);
        let followed = follow(run, config, start, &mut trainer, comm, &mut observer);
        observer.finish();
        return followed;
    }
    let scored = read_samples(&args.samples, &config.algorithm, &**comm)?;
    if comm.rank() == 0 && config.algorithm.loss == LossType::Policy {
        warn_of_uneven_groups(&scored);
    }
    let started = Instant::now();
    let mut first_grads = None;
    let look = |_: &StepMetrics, grads: &Gradients| {
        if args.dump.is_some() && first_grads.is_none() {
            first_grads = Some(grads.whole()?);
        }
        Ok(())
    };
    let steps = trainer.train_rollout_with(&scored, look).map_err(failure!())?;
    if comm.rank() == 0 {
        report(&steps, started);
    }
    if comm.rank() == 0 || config.parallel.is_split() {
        if let Some(dump) = &args.dump {
            write_dump(dump, trainer.policy().params(), &steps, first_grads.as_deref())?;
        }
        if let Some(output) = &args.output {
            write_weights(output, trainer.policy(), Path::new(&config.model.path))?;
            if let Some(lora) = &config.train.lora {
                write_adapter(&output.join("adapter"), trainer.policy(), lora, &config.model.path)?;
            }
            if let Some(critic) = trainer.critic() {
                write_weights(&output.join("critic"), critic, Path::new(&config.model.path))?;
            }
        }
    }
    Ok(())
}

/// A place that cannot be written is told before anything is computed.
fn check_outputs(args: &Args) -> Result<(), Failure> {
    let folder_of_dump =
        args.dump.as_ref().map(|dump| if dump.exists() { dump.join("new") } else { dump.clone() });
    let mut places = args.output.iter().chain(&folder_of_dump);
    places.try_for_each(WeightWriter::check_target).map_err(failure!())
}

/// Advantages compare the samples of a group, so an input that was cut off on its way changes them without an error.
fn warn_of_uneven_groups(scored: &[Scored]) {
    let mut sizes: BTreeMap<(u64, u32), usize> = BTreeMap::new();
    for scored in scored {
        *sizes.entry((scored.sample.step, scored.sample.group)).or_default() += 1;
    }
    let (smallest, largest) = (sizes.iter().min_by_key(|(_, size)| **size), sizes.values().max());
    if let (Some(((step, group), smallest)), Some(largest)) = (smallest, largest)
        && smallest < largest
    {
        tracing::warn!(
            "group {group} of step {step} has {smallest} samples, others have up to {largest}; was the input cut off?"
        );
    }
}

fn load(config: &RunConfig, comm: &Arc<dyn Communicator>) -> Result<Trainer, Failure> {
    let kind = match config.model.dtype {
        Dtype::F32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
    };
    if config.train.deterministic {
        slime_torch::deterministic::require().map_err(failure!())?;
    }
    let place = Placement::detect().map_err(failure!())?.local_rank;
    let device = slime_torch::cuda::choose(config.run.device, place).map_err(failure!())?;
    tracing::info!("computing in {}", slime_torch::cuda::describe(kind, device));
    let (algorithm, path) = (&config.algorithm, config.model.path.as_str());
    let parallel = split_over(config, comm, device)?;
    let load = |path: &str, extra: Extra<'_>| {
        if parallel.is_some() {
            // Each of the models has to be shared out alike.
            let model = HfConfig::load(path).map_err(failure!())?;
            config.parallel.data_parallel(comm.size(), &model).map_err(failure!())?;
        }
        Model::load_part(path, (kind, device), extra, parallel.clone()).map_err(failure!())
    };
    let open = |path: &str| load(path, Extra::None);
    let with_head = |path: &str| load(path, Extra::ValueHead { seed: config.run.seed });
    let is_scored = algorithm.loss == LossType::RewardModel;
    let roles = Roles {
        policy: match config.train.mtp_loss_coef {
            _ if is_scored => with_head(path)?,
            Some(_) if !algorithm.has_pairs() => load(path, Extra::Mtp)?,
            _ => match &config.train.lora {
                Some(lora) => load(path, Extra::Adapters { lora, seed: config.run.seed })?,
                None => open(path)?,
            },
        },
        reference: config.reference_path().map(open).transpose()?,
        teacher: config
            .teacher
            .path
            .as_deref()
            .filter(|_| config.opd_kl_coef().is_some())
            .map(open)
            .transpose()?,
        critic: algorithm
            .has_critic()
            .then(|| with_head(config.critic.path.as_deref().unwrap_or(path)))
            .transpose()?,
    };
    check_teacher(&roles)?;
    let settings = Settings::new(config).map_err(failure!())?;
    let mut trainer = Trainer::new(roles, comm.clone(), settings).map_err(failure!())?;
    if config.model.dtype == Dtype::Bf16 {
        let open = |path: &str| WeightDir::open(path).map_err(failure!());
        let critic = trainer.critic().map(|_| config.critic.path.as_deref().unwrap_or(path));
        let critic = critic.map(open).transpose()?;
        trainer.read_masters(&open(path)?, critic.as_ref()).map_err(failure!())?;
    }
    Ok(trainer)
}

/// The ranks that the models are split over, if they are; a world that cannot be shared out as configured is refused.
fn split_over(
    config: &RunConfig,
    comm: &Arc<dyn Communicator>,
    device: Device,
) -> Result<Option<Arc<Parallel>>, Failure> {
    let model = HfConfig::load(&config.model.path).map_err(failure!())?;
    let dp = config.parallel.data_parallel(comm.size(), &model).map_err(failure!())?;
    if !config.parallel.is_split() {
        return Ok(None);
    }
    let axes = &config.parallel;
    let [tp, pp, cp, ep, etp] = [axes.tp, axes.pp, axes.cp, axes.ep, axes.etp].map(|axis| axis as usize);
    let mesh = Mesh::new(Layout { tp, cp, dp, pp, ep, etp }, comm.size()).map_err(failure!())?;
    let parallel = Parallel::new(comm, mesh, device).map_err(failure!())?;
    Ok(Some(Arc::new(parallel.with_pipeline(axes.pipeline()).with_cp_comm_type(axes.cp_comm_type))))
}

/// What can be said of `[parallel]` before there is a world: whether the model can be shared out like that.
fn check_layout(config: &RunConfig) -> Result<(), Failure> {
    if config.parallel.is_asked_for() && !config.model.path.is_empty() {
        let model = HfConfig::load(&config.model.path).map_err(failure!())?;
        config.parallel.check(&model).map_err(failure!())?;
    }
    Ok(())
}

/// The layout of the smallest world of the configuration.
fn plan_layout(config: &RunConfig) -> PlanLayout {
    let parallel = &config.parallel;
    let [tp, cp, ep, etp] = [parallel.tp, parallel.cp, parallel.ep, parallel.etp].map(|size| size as usize);
    PlanLayout { tp, pipeline: parallel.pipeline(), cp, ep, etp, dp: parallel.fewest_data_parallel() }
}

/// Log-probs of another vocabulary cannot be compared.
fn check_teacher(roles: &Roles) -> Result<(), Failure> {
    let vocab = |model: &Model| model.config().vocab_size;
    for (role, model) in [("reference", &roles.reference), ("teacher", &roles.teacher)] {
        if let Some(model) = model.as_ref().filter(|model| vocab(model) != vocab(&roles.policy)) {
            return Err(Failure::new(
                78,
                format!(
                    "the {role} has a vocabulary of {}, the policy one of {}",
                    vocab(model),
                    vocab(&roles.policy)
                ),
            ));
        }
    }
    Ok(())
}

fn report(steps: &[StepMetrics], started: Instant) {
    for (i, step) in steps.iter().enumerate() {
        if step.is_skipped {
            tracing::info!("optimizer step {}/{}: left out", i + 1, steps.len());
            continue;
        }
        tracing::info!(
            "optimizer step {}/{}: loss {:.6},{} grad norm {:.4}, {} samples, {} trained tokens",
            i + 1,
            steps.len(),
            step.loss,
            step.reward_mean.map(|reward| format!(" reward {reward:.4},")).unwrap_or_default(),
            step.grad_norm,
            step.num_samples,
            step.num_trained_tokens
        );
        if step.num_masked_samples > 0 {
            tracing::warn!(
                "{} samples have no trained token and count only in the mean",
                step.num_masked_samples
            );
        }
    }
    let tokens: usize = steps.iter().map(|step| step.num_forward_tokens).sum();
    let unshared: usize = steps.iter().map(|step| step.num_unshared_tokens).sum();
    let seconds = started.elapsed().as_secs_f64();
    tracing::info!("{tokens} tokens computed in {seconds:.1} s ({unshared} without shared prompts)");
}
