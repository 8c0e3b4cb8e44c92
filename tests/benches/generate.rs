//! Generation on the CPU by turns with transformers' `generate` and with the bare matrix products it needs.
//!
//! `cargo bench -p slime-engine --bench generate -- WEIGHTS_DIR`; `SLIME_BENCH_PYTHON` names a Python with torch and
//! transformers. `NUM_GROUPS`, `NUM_SAMPLES`, `NEW_TOKENS`, `REPEATS` and `OMP_NUM_THREADS` change the sizes.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "rival/mod.rs"]
mod rival;

use std::path::Path;
use std::sync::Arc;

use rival::{Rival, Seconds, report, setting, timed};
use slime_engine::{Engine, EngineConfig, ModelRunner, Request, SampleSeed, SamplingParams};
use slime_model::Model;
use slime_torch::PackedLinear;
use tch::{Device, Kind, Tensor};

/// Group g has a prompt of this many tokens, so lengths are ragged.
fn prompt(group: usize) -> Vec<u32> {
    let len = 24 + 56 * (group * 5 % 4) / 3 + 3 * group;
    (0..len).map(|i| (1000 + (i * 7919 + group * 104_729) % 40_000) as u32).collect()
}

/// Responses of group g are this long, so some end early; a padded batch computes them to the end of the longest.
fn response_len(group: usize, groups: usize, new_tokens: usize) -> usize {
    (new_tokens * (group + 1)).div_ceil(groups)
}

fn generate(engine: &mut Engine<ModelRunner>, groups: usize, samples: usize, new_tokens: usize, step: u64) {
    for group in 0..groups {
        let params = SamplingParams {
            n: samples as u32,
            max_new_tokens: response_len(group, groups, new_tokens),
            seed: SampleSeed { seed: 1, step, group: group as u32, index: 0 },
            ..SamplingParams::default()
        };
        engine.submit(Request { id: group as u64, tokens: prompt(group), params }).unwrap();
    }
    let mut num_tokens = 0;
    while !engine.is_idle() {
        num_tokens += engine.step().unwrap().iter().map(|done| done.tokens.len()).sum::<usize>();
    }
    let wanted: usize = (0..groups).map(|group| response_len(group, groups, new_tokens)).sum();
    assert_eq!(num_tokens, samples * wanted);
}

/// The matrix products of a forward pass, as libtorch does them and over weights packed beforehand.
struct Products {
    matrices: Vec<(Tensor, PackedLinear)>,
    head: (Tensor, PackedLinear),
}

impl Products {
    fn new(model: &Model) -> Self {
        let with_packed = |weight: &Tensor| {
            let packed = PackedLinear::new(weight).unwrap().expect("f32 on a CPU can be packed");
            (weight.shallow_clone(), packed)
        };
        let is_matrix = |name: &str, dims: usize| dims == 2 && name != "embed" && name != "head";
        let matrices = model
            .params()
            .iter()
            .filter(|(spec, _)| is_matrix(&spec.name, spec.shape.len()))
            .map(|(_, weight)| with_packed(weight))
            .collect();
        let head = model.params().find("head").unwrap_or_else(|| model.params().get("embed").unwrap());
        Self { matrices, head: with_packed(&head) }
    }

    fn run(&self, rows: usize, head_rows: usize, is_packed: bool) {
        let product = |(weight, packed): &(Tensor, PackedLinear), rows: usize| {
            let x = Tensor::ones([rows as i64, weight.size()[1]], (Kind::Float, Device::Cpu));
            let _ =
                if is_packed { packed.forward(&x, None).unwrap() } else { x.linear(weight, None::<&Tensor>) };
        };
        self.matrices.iter().for_each(|matrix| product(matrix, rows));
        product(&self.head, head_rows);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let Some(dir) = arguments.first() else {
        println!("no weight directory given, nothing measured");
        return;
    };
    let (groups, samples) = (setting("NUM_GROUPS", 4), setting("NUM_SAMPLES", 8));
    let (new_tokens, repeats) = (setting("NEW_TOKENS", 32), setting("REPEATS", 3));
    let threads = setting("OMP_NUM_THREADS", std::thread::available_parallelism().unwrap().get() as i32);
    tch::set_num_threads(threads);
    let prompts: Vec<Vec<u32>> = (0..groups * samples).map(|sample| prompt(sample / samples)).collect();
    let prompt_tokens: usize = (0..groups).map(|group| prompt(group).len()).sum();
    println!(
        "{} samples of {groups} prompts of {:?} tokens, {new_tokens} new tokens at most, {threads} threads, f32",
        groups * samples,
        (0..groups).map(|group| prompt(group).len()).collect::<Vec<_>>(),
    );

    let products = Products::new(&Model::load(dir, Kind::Float, Device::Cpu).unwrap());
    let config = EngineConfig { max_num_seqs: groups * samples, ..EngineConfig::default() };
    let runner = ModelRunner::load(Path::new(dir), Kind::Float, Device::Cpu).unwrap();
    let mut engine = Engine::new(runner, Arc::new(|_: &[u32]| String::new()), &config, 0).unwrap();
    let job = format!(
        r#"{{"weights": {dir:?}, "threads": {threads}, "new_tokens": {new_tokens}, "prompts": {prompts:?}}}"#
    );
    let mut rival = Rival::start("rival_generate.py", threads, &job);

    let mut ours: Vec<Seconds> = Vec::new();
    let (mut bare, mut packed, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    generate(&mut engine, groups, samples, 2, 0);
    for repeat in 1..=repeats {
        ours.push(timed(|| generate(&mut engine, groups, samples, new_tokens, repeat)));
        for (is_packed, seconds) in [(false, &mut bare), (true, &mut packed)] {
            seconds.push(timed(|| {
                tch::no_grad(|| {
                    products.run(prompt_tokens, groups, is_packed);
                    for token in 1..new_tokens {
                        let is_running = |group: &usize| response_len(*group, groups, new_tokens) > token;
                        let rows = samples * (0..groups).filter(is_running).count();
                        products.run(rows, rows, is_packed);
                    }
                });
            }));
        }
        theirs.extend(rival.as_mut().map(Rival::run));
    }
    if rival.is_some() {
        report("generation against transformers' generate:", &ours, &theirs);
        report("bare matrix products of libtorch against generate:", &bare, &theirs);
    }
    report("generation against the bare matrix products of libtorch:", &ours, &bare);
    report("generation against bare products of packed weights:", &ours, &packed);
    let middle = rival::median(&ours).wall;
    println!(
        "for orientation: {:.0} tokens/s on the clock of this run",
        (samples * (0..groups).map(|group| response_len(group, groups, new_tokens)).sum::<usize>()) as f64
            / middle
    );
}
