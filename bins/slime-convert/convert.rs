//! `import` and `export`: arranges the tensors of the result, then every rank writes its share of the files.

use std::path::Path;
use std::sync::Arc;

use slime_cli::{Failure, report};
use slime_comm::{Collectives, Communicator, Placement};
use slime_weights::WeightWriter;

use crate::args::{Experts, Written};
use crate::arrange::{self, Output, Piece};
use crate::failure;
use crate::read_weights::Checkpoint;
use crate::side_files::{Changes, SideFiles};
use crate::write_weights::TensorWriter;

/// Converts `src` to the new directory `dst`; tensors and files that `src` lacks come from `origin`.
pub fn convert(src: &Path, dst: &Path, written: &Written, origin: Option<&Path>) -> Result<(), Failure> {
    let comm = slime_comm::world().map_err(of_comm)?;
    match convert_share(src, dst, written, origin, &comm) {
        Ok(()) => comm.finish().map_err(of_comm),
        Err(failure) if comm.size() > 1 => {
            Placement::let_rank_0_speak();
            let message = format!("rank {}: {}", comm.rank(), failure.message);
            report("slime-convert", &Failure { message, ..failure.clone() });
            comm.abort(failure.code)
        }
        Err(failure) => Err(failure),
    }
}

fn convert_share(
    src: &Path,
    dst: &Path,
    written: &Written,
    origin: Option<&Path>,
    comm: &Arc<dyn Communicator>,
) -> Result<(), Failure> {
    let checkpoints = open(src, origin)?;
    let plan = Plan::new(&checkpoints, written, origin, comm.rank() == 0)?;
    let specs: Vec<_> = plan.outputs.iter().map(|output| output.spec.clone()).collect();
    let writer = begin(dst, specs, written.max_shard_size, &**comm)?;
    let mut writer = TensorWriter::new(writer, &checkpoints, &plan.pieces, written.quantiser());
    let num_shards = writer.num_shards();
    for shard in (comm.rank()..num_shards).step_by(comm.size()) {
        writer.write_shard(shard, &plan.outputs)?;
    }
    writer.sync()?;
    comm.barrier().map_err(of_comm)?;
    if comm.rank() > 0 {
        return Ok(());
    }
    let others = (0..num_shards).filter(|shard| shard % comm.size() > 0);
    writer.finish(others, plan.side_files)?;
    tracing::info!("wrote {} tensors to {}", plan.outputs.len(), dst.display());
    Ok(())
}

/// The source, and the origin where it has weights.
fn open(src: &Path, origin: Option<&Path>) -> Result<Vec<Checkpoint>, Failure> {
    let mut checkpoints = vec![Checkpoint::open(src)?];
    if let Some(origin) = origin {
        match Checkpoint::open(origin) {
            Ok(checkpoint) => checkpoints.push(checkpoint),
            // A directory of configuration and tokenizer alone gives these.
            Err(failure)
                if failure.code == slime_cli::exit::NO_INPUT && origin.join("config.json").exists() => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(checkpoints)
}

/// What is written.
struct Plan {
    pieces: Vec<Piece>,
    outputs: Vec<Output>,
    side_files: SideFiles,
}

impl Plan {
    fn new(
        checkpoints: &[Checkpoint],
        written: &Written,
        origin: Option<&Path>,
        is_told: bool,
    ) -> Result<Self, Failure> {
        let (src, quantiser) = (&checkpoints[0], written.quantiser());
        let mut side_files = match origin {
            Some(origin) => SideFiles::of_dir(origin)?,
            None => src.side_files()?,
        };
        if origin.is_none() {
            for name in src.check()?.into_iter().filter(|_| is_told) {
                tracing::warn!(
                    "{}: tensor {name} is copied, but the model does not use it",
                    src.path().display()
                );
            }
        }
        let config = side_files.hf_config(origin.unwrap_or(src.path()));
        let mut pieces = arrange::pieces(0, src.tensors()?);
        let experts = if quantiser.is_some() { Some(Experts::Split) } else { written.experts };
        let arrange = |pieces: &mut Vec<Piece>, experts: Option<Experts>| {
            if let (Some(config), Some(experts)) = (&config, experts) {
                arrange::arrange_experts(pieces, config, experts);
            }
        };
        arrange(&mut pieces, experts);
        if let Some(origin) = checkpoints.get(1) {
            let mut others = arrange::pieces(1, origin.tensors()?);
            // In the form that the source has them in, so that what is there is found.
            arrange(&mut others, experts.or(Some(form_of(&pieces))));
            let added = arrange::fill_in(&mut pieces, others, config.as_ref());
            if is_told && !added.is_empty() {
                tracing::info!(
                    "{} tensors, first {}, come from {}",
                    added.len(),
                    added[0],
                    origin.path().display()
                );
            }
        }
        let vocab_size =
            vocab_size(&side_files, config.as_ref().map(|config| config.vocab_size), written, origin)?;
        if let Some(vocab_size) = vocab_size {
            arrange::arrange_vocab(&mut pieces, vocab_size);
        }
        if matches!(src, Checkpoint::Safetensors(_)) {
            pieces.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let kept = quantiser.map(|quantiser| arrange::kept_modules(&pieces, &quantiser)).transpose()?;
        side_files.change(Changes {
            dtype: written.plain_dtype(),
            vocab_size,
            quantization_config: quantiser.zip(kept).map(|(quantiser, kept)| quantiser.config(&kept)),
        })?;
        let outputs = arrange::outputs(&pieces, written.plain_dtype(), quantiser);
        Ok(Self { pieces, outputs, side_files })
    }
}

fn form_of(pieces: &[Piece]) -> Experts {
    if pieces.iter().any(|piece| piece.name.ends_with(".experts.down_proj")) {
        Experts::Fused
    } else {
        Experts::Split
    }
}

/// The rows that embedding and head get: as asked, else with an origin as its configuration says.
fn vocab_size(
    side_files: &SideFiles,
    of_config: Option<usize>,
    written: &Written,
    origin: Option<&Path>,
) -> Result<Option<usize>, Failure> {
    let wanted = written.vocab_size.or(of_config.filter(|_| origin.is_some()));
    let num_tokens = side_files.num_tokens()?;
    match wanted.filter(|wanted| *wanted < num_tokens) {
        None => Ok(wanted),
        Some(wanted) => {
            let message =
                format!("a vocabulary of {wanted} rows: the tokenizer has ids up to {}", num_tokens - 1);
            Err(Failure::data(message).with_hint(format!("--vocab-size {num_tokens} or more")))
        }
    }
}

/// The directory, begun by rank 0.
fn begin(
    dst: &Path,
    specs: Vec<slime_weights::TensorSpec>,
    max_shard_size: usize,
    comm: &dyn Communicator,
) -> Result<WeightWriter, Failure> {
    if comm.rank() == 0 {
        let writer = WeightWriter::create(dst, specs, max_shard_size).map_err(failure)?.without_hashes();
        let path = writer.temporary().as_os_str().as_encoded_bytes().to_vec();
        share(path, comm)?;
        return Ok(writer);
    }
    let path = String::from_utf8(share(Vec::new(), comm)?);
    let path = path.map_err(|_| Failure::usage(format!("{}: expected a name in UTF-8", dst.display())))?;
    Ok(WeightWriter::join(dst, path, specs, max_shard_size).without_hashes())
}

/// Rank 0's bytes on every rank.
fn share(mut bytes: Vec<u8>, comm: &dyn Communicator) -> Result<Vec<u8>, Failure> {
    let mut len = [bytes.len() as u64];
    comm.broadcast(&mut len, 0).map_err(of_comm)?;
    bytes.resize(len[0] as usize, 0);
    comm.broadcast(&mut bytes, 0).map_err(of_comm)?;
    Ok(bytes)
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn of_comm(error: slime_comm::Error) -> Failure {
    Failure::from_error(error.exit_code(), &error)
}
