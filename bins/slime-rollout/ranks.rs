//! The ranks of an engine (`rollout.tp`): rank 0 does the work of the tool, the others compute what its models compute.

use std::path::Path;
use std::sync::OnceLock;

use slime_cli::{Failure, drain, exit};
use slime_comm::{Layout, Placement};
use slime_config::{Dtype, HfConfig, RunConfig};
use slime_engine::{ModelRunner, Ranks};
use tch::{Device, Kind};

use crate::failure;

/// Those of this process, which belongs to one world; none where it is alone.
static RANKS: OnceLock<Ranks> = OnceLock::new();

/// Runs `work` on rank 0; the other ranks of a world, as many as `rollout.tp` says if there `is_engine`, follow it.
///
/// # Errors
/// Those of `work`, a world of another number of ranks, a layout that does not fit the model.
pub fn run(
    config: &RunConfig,
    is_engine: bool,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let placement = Placement::detect().map_err(failure!())?;
    check_world(config, is_engine, placement.size).inspect_err(|_| Placement::let_rank_0_speak())?;
    if placement.size == 1 {
        return work();
    }
    if placement.rank > 0 {
        // Rank 0 tells when it has drained.
        drain::install();
    }
    let model = HfConfig::load(&config.model.path).map_err(failure!())?;
    let layout = config.rollout.layout(&model).map_err(failure!());
    let layout = layout.inspect_err(|_| Placement::let_rank_0_speak())?;
    let [tp, ep, etp] = [layout.tp, layout.ep, layout.etp].map(|axis| axis as usize);
    let comm = slime_comm::world().map_err(failure!())?;
    let ranks = RANKS.get_or_init(|| Ranks::new(comm.clone(), Layout { tp, ep, etp, ..Layout::default() }));
    let result = if placement.rank == 0 {
        work().and_then(|()| ranks.end().map_err(failure!())).or_else(|failure| {
            if failure.code == exit::TRY_AGAIN {
                ranks.end().map_err(failure!())?;
            }
            Err(failure)
        })
    } else {
        place(config).and_then(|(kind, device)| ranks.follow(kind, device).map_err(failure!()))
    };
    match result {
        Err(failure) if placement.rank > 0 || failure.code != exit::TRY_AGAIN => {
            Placement::let_rank_0_speak();
            let message = format!("rank {}: {}", comm.rank(), failure.message);
            slime_cli::report("slime-rollout", &Failure { message, ..failure.clone() });
            comm.abort(failure.code)
        }
        // Drained or done: a launcher takes any other code for a failure of the world.
        _ => comm.finish().map_err(failure!()),
    }
}

fn check_world(config: &RunConfig, is_engine: bool, size: usize) -> Result<(), Failure> {
    let expected = if is_engine { config.rollout.tp as usize } else { 1 };
    if size == expected {
        return Ok(());
    }
    let of_engine = if is_engine { format!(" (rollout.tp = {expected})") } else { String::new() };
    let ranks = |num| if num == 1 { "one rank".to_owned() } else { format!("{num} ranks") };
    let (wanted, started) = (ranks(expected), ranks(size));
    let message = format!("expected a world of {wanted}{of_engine}, but the launcher started {started}");
    let hint = if expected > 1 {
        format!(
            "mpirun -n {expected} slime-rollout ..., or srun -n {expected}; each replica is a world of its own"
        )
    } else {
        "start each replica by itself: slime-rollout --follow RUN --replica R; rollout.tp puts one on several ranks".to_owned()
    };
    Err(Failure::new(exit::CONFIG, message).with_hint(hint))
}

/// The type and the device of models in this process.
///
/// # Errors
/// A device that is not there.
pub fn place(config: &RunConfig) -> Result<(Kind, Device), Failure> {
    let Placement { local_rank, local_size, .. } = Placement::detect().map_err(failure!())?;
    tch::set_num_threads(slime_cli::threads_per_rank(local_size.unwrap_or(1)) as i32);
    let kind = match config.model.dtype {
        Dtype::F32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
    };
    // The launcher gives each engine its GPUs: they are the first that its processes see.
    let device = slime_torch::cuda::choose(config.run.device, local_rank).map_err(failure!())?;
    Ok((kind, device))
}

/// The weights of a directory on all ranks.
///
/// # Errors
/// It holds no model, or there is no room.
pub fn load(dir: &Path, (kind, device): (Kind, Device)) -> Result<ModelRunner, Failure> {
    match RANKS.get() {
        Some(ranks) => ranks.load(dir, kind, device).map_err(failure!()),
        None => ModelRunner::load(dir, kind, device).map_err(failure!()),
    }
}
