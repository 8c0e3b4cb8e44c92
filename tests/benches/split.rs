//! A training step on two ranks against the same step on one, one thread each, by turns: how near each way of sharing the work
//! comes to half the time. Ranks are threads; a pipeline is also held against what its stages must wait.
//!
//! `cargo bench -p slime-trainer --bench split`; `REPEATS`, `NUM_BATCHES` (16), `LEN` (512: tokens of a micro-batch), `LONG`
//! (4096: of the one sequence that context-parallel ranks share) change the sizes.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "a bench weighs nothing")]
#[path = "../../lib/trainer/tests/tiny/sized.rs"]
mod sized;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sized::Shape;
use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_config::{CpCommType, Pipeline, Train};
use slime_model::{Extra, Model, Parallel};
use slime_record::Sample;
use slime_trainer::{Scored, Settings, Trainer};
use tch::{Device, Kind};

/// Eight layers, so that both stages of a pipeline have as many.
const SHAPE: Shape = Shape { hidden: 256, intermediate: 768, vocab: 512, num_layers: 8, heads: [4, 2] };

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// `num` samples of `len` tokens, each with a prompt of its own.
fn samples(num: usize, len: usize) -> Vec<Scored> {
    let sample = |at: usize| {
        let tokens: Vec<u32> = (0..len).map(|i| ((i * 31 + at * 7) % SHAPE.vocab) as u32).collect();
        let prompt_len = len as u32 / 4;
        let loss_mask = vec![1; len - prompt_len as usize];
        let (group, index) = (at as u32 / 2, at as u32 % 2);
        let sample = Sample { group, index, tokens, prompt_len, loss_mask, ..Sample::default() };
        Scored::new(sample, index as f32)
    };
    (0..num).map(sample).collect()
}

/// One way of sharing the work.
struct Way {
    name: &'static str,
    layout: Layout,
    pipeline: Pipeline,
    comm_type: CpCommType,
}

/// Seconds of a step on every rank together, the best of some.
fn seconds(dir: &Path, way: &Way, scored: &[Scored], max_tokens: usize, repeats: usize) -> f64 {
    let rank = |comm: Arc<dyn Communicator>| {
        let Layout { tp, pp, cp, dp, .. } = way.layout;
        let parallel = (tp * pp * cp * dp > 1).then(|| {
            let mesh = Mesh::new(way.layout, comm.size()).unwrap();
            let parallel = Parallel::new(&comm, mesh, Device::Cpu).unwrap();
            Arc::new(parallel.with_pipeline(way.pipeline).with_cp_comm_type(way.comm_type))
        });
        let model = Model::load_part(dir, (Kind::Float, Device::Cpu), Extra::None, parallel).unwrap();
        let train = Train { lr: 1e-6, max_tokens_per_gpu: (max_tokens / cp) as u32, ..Train::default() };
        let settings = Settings { train, num_optimizer_steps: 1000, ..Settings::default() };
        let mut trainer = Trainer::new(model, comm.clone(), settings).unwrap();
        trainer.train_rollout(scored).unwrap();
        let mut best = f64::INFINITY;
        for _ in 0..repeats {
            comm.barrier().unwrap();
            let began = Instant::now();
            trainer.train_rollout(scored).unwrap();
            comm.barrier().unwrap();
            best = best.min(began.elapsed().as_secs_f64());
        }
        best
    };
    match Mesh::new(way.layout, way.layout.tp * way.layout.pp * way.layout.cp * way.layout.dp).unwrap().size()
    {
        1 => rank(Arc::new(Single)),
        size => Threads::spawn(size, |comm| rank(Arc::new(comm))).unwrap().into_iter().fold(0.0, f64::max),
    }
}

fn main() {
    tch::set_num_threads(1);
    let (repeats, num) = (setting("REPEATS", 3), setting("NUM_BATCHES", 16));
    let (len, long) = (setting("LEN", 512), setting("LONG", 4096));
    let dir = tempfile::tempdir().unwrap();
    SHAPE.write(dir.path());
    let way = |name, layout, pipeline| Way { name, layout, pipeline, comm_type: CpCommType::AllGather };
    let one = Layout::default();
    let alone = way("one rank", one, Pipeline::WHOLE);
    let interleaved = Pipeline { chunks: 2, ..Pipeline::even(2) };
    let ways = [
        (way("dp 2", Layout { dp: 2, ..one }, Pipeline::WHOLE), 1.0),
        (way("tp 2", Layout { tp: 2, ..one }, Pipeline::WHOLE), 1.0),
        (way("pp 2", Layout { pp: 2, ..one }, Pipeline::even(2)), num as f64 / (num + 1) as f64),
        (
            way("pp 2, two runs each", Layout { pp: 2, ..one }, interleaved),
            2.0 * num as f64 / (2 * num + 1) as f64,
        ),
    ];
    println!("{num} micro-batches of {len} tokens; times one rank's, over twice that at best (1.00):");
    let scored = samples(num, len);
    for (way, bound) in &ways {
        // By turns, so that what else the machine does falls on both.
        let base = seconds(dir.path(), &alone, &scored, len, repeats);
        let speed = base / seconds(dir.path(), way, &scored, len, repeats) / 2.0;
        println!("{:>20}: {speed:.2}; of what waiting leaves ({bound:.2}): {:.2}", way.name, speed / bound);
    }
    println!("2 sequences of {long} tokens:");
    let scored = samples(2, long);
    for comm_type in [CpCommType::AllGather, CpCommType::P2p] {
        let layout = Layout { cp: 2, ..one };
        let way = Way { name: "cp 2", layout, pipeline: Pipeline::WHOLE, comm_type };
        let base = seconds(dir.path(), &alone, &scored, long, repeats);
        let speed = base / seconds(dir.path(), &way, &scored, long, repeats) / 2.0;
        println!("{:>20}: {speed:.2}", format!("{} {comm_type:?}", way.name));
    }
}
