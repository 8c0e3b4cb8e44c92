//! A model that is split over ranks trains as on one: loss, every gradient and the weights after three optimizer steps, in
//! f64, with ranks as threads.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_model::{Extra, Model, Parallel};
use slime_trainer::{Settings, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::{rollout, settings};

/// Largest difference of any element, relative to the largest element of its tensor.
const BOUND: f64 = 1e-9;

/// Model, then tp, dp, ep and etp. The models have 4 heads and 2 key-value heads; experts are 6 (softmax) and 8 (sigmoid,
/// correction bias, a shared expert).
const LAYOUTS: [(&str, [usize; 4]); 36] = [
    ("llama_tied", [4, 2, 1, 1]),
    ("qwen2", [2, 2, 1, 1]),
    ("qwen2", [4, 1, 1, 1]),
    ("qwen3", [1, 2, 1, 1]),
    ("qwen3", [1, 8, 1, 1]),
    ("qwen3", [2, 1, 1, 1]),
    ("qwen3", [2, 2, 1, 1]),
    ("qwen3", [2, 3, 1, 1]),
    ("qwen3", [2, 4, 1, 1]),
    ("qwen3", [4, 1, 1, 1]),
    ("qwen3", [4, 2, 1, 1]),
    ("glm4", [2, 1, 1, 1]),
    ("glm4", [4, 2, 1, 1]),
    ("qwen3_moe", [1, 2, 1, 1]),
    ("qwen3_moe", [1, 3, 3, 1]),
    ("qwen3_moe", [1, 4, 2, 2]),
    ("qwen3_moe", [1, 6, 6, 1]),
    ("qwen3_moe", [2, 1, 1, 1]),
    ("qwen3_moe", [2, 1, 1, 2]),
    ("qwen3_moe", [2, 1, 2, 1]),
    ("qwen3_moe", [2, 2, 2, 2]),
    ("qwen3_moe", [2, 3, 3, 2]),
    ("qwen3_moe", [4, 1, 2, 2]),
    ("qwen3_moe", [4, 2, 2, 1]),
    ("qwen3_moe", [4, 2, 2, 4]),
    ("glm4_moe", [1, 2, 2, 1]),
    ("glm4_moe", [1, 8, 8, 1]),
    ("glm4_moe", [2, 1, 2, 1]),
    ("glm4_moe", [2, 2, 2, 2]),
    ("glm4_moe", [2, 2, 4, 1]),
    ("glm4_moe", [2, 4, 4, 2]),
    ("glm4_moe", [4, 1, 4, 1]),
    ("glm4_moe", [4, 2, 8, 1]),
    ("minimax_m2", [2, 1, 2, 1]),
    ("minimax_m2", [4, 1, 2, 1]),
    ("minimax_m2", [4, 2, 2, 2]),
];

/// What one rank or all of them together computed.
struct Run {
    losses: Vec<f64>,
    norms: Vec<f64>,
    grads: BTreeMap<String, Tensor>,
    weights: BTreeMap<String, Tensor>,
}

fn three_steps() -> Settings {
    let mut settings = settings();
    settings.num_steps_per_rollout = 3;
    settings.algorithm.entropy_coef = 0.01;
    settings
}

fn run(name: &str, comm: Arc<dyn Communicator>, mesh: Option<Mesh>) -> Run {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    let parallel = mesh.map(|mesh| Arc::new(Parallel::new(&comm, mesh, Device::Cpu).unwrap()));
    let model = Model::load_part(dir, (Kind::Double, Device::Cpu), Extra::None, parallel).unwrap();
    let mut trainer = Trainer::new(model, comm, three_steps()).unwrap();
    let mut first = Vec::new();
    let steps = trainer
        .train_rollout_with(&rollout(5, 3), |_, grads| {
            if first.is_empty() {
                first = grads.iter().map(|(name, grad)| (name.clone(), grad.copy())).collect();
            }
            Ok(())
        })
        .unwrap();
    let params = trainer.policy().params();
    let whole = |tensors: &[(String, Tensor)]| {
        let whole = params.whole_tensors(tensors).map(Result::unwrap);
        whole.filter_map(|(name, tensor)| Some((name, tensor?.copy()))).collect()
    };
    Run {
        losses: steps.iter().map(|step| step.loss).collect(),
        norms: steps.iter().map(|step| step.grad_norm).collect(),
        grads: whole(&first),
        weights: whole(&params.by_storage()),
    }
}

/// The largest relative difference of two sets of tensors.
fn apart(got: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>, what: &str) -> f64 {
    assert_eq!(got.len(), expected.len(), "{what}: tensors");
    let of = |(name, expected): (&String, &Tensor)| {
        assert_eq!(got[name].size(), expected.size(), "{what} of {name}");
        let largest = expected.abs().max().double_value(&[]).max(1e-12);
        let apart = (&got[name] - expected).abs().max().double_value(&[]) / largest;
        assert!(apart <= BOUND, "{what} of {name} differs by {apart:e}");
        apart
    };
    expected.iter().map(of).fold(0.0, f64::max)
}

fn numbers_apart(got: &[f64], expected: &[f64], what: &str) -> f64 {
    let of = |(got, expected): (&f64, &f64)| {
        let apart = (got - expected).abs() / expected.abs().max(1e-3);
        assert!(apart <= BOUND, "{what}: {got} and {expected}");
        apart
    };
    got.iter().zip(expected).map(of).fold(0.0, f64::max)
}

/// The row of the README's table.
fn check(name: &str, [tp, dp, ep, etp]: [usize; 4], alone: &Run) -> String {
    let layout = Layout { tp, dp, ep, etp, ..Layout::default() };
    let mesh = Mesh::new(layout, tp * dp).unwrap();
    let ranks = Threads::spawn(tp * dp, |comm| run(name, Arc::new(comm), Some(mesh))).unwrap();
    let what = |of: &str| format!("{name}, tp {tp} dp {dp} ep {ep} etp {etp}: {of}");
    for rank in &ranks {
        numbers_apart(&rank.losses, &alone.losses, &what("loss"));
        numbers_apart(&rank.norms, &alone.norms, &what("gradient norm"));
    }
    let first = &ranks[0];
    let loss = numbers_apart(&first.losses, &alone.losses, &what("loss"));
    let grads = apart(&first.grads, &alone.grads, &what("gradient"));
    let weights = apart(&first.weights, &alone.weights, &what("weights"));
    println!("{}: {loss:.1e}, gradients {grads:.1e}, weights {weights:.1e}", what("loss"));
    format!("| `{name}` | {tp} | {dp} | {ep} | {etp} | yes | yes | yes |\n")
}

const HEAD: &str = "| model | tp | dp | ep | etp | loss | gradients | weights after 3 steps |\n|---|---|---|---|---|---|---|---|\n";

/// Set `SLIME_WRITE_TABLE=1` to write the table into the README instead of comparing it.
#[test]
fn split_models_train_as_on_one_rank_and_the_readme_says_which() {
    tch::set_num_threads(1);
    let mut alone: BTreeMap<&str, Run> = BTreeMap::new();
    let mut table = HEAD.to_owned();
    for (name, layout) in LAYOUTS {
        let alone = alone.entry(name).or_insert_with(|| run(name, Arc::new(Single), None));
        table.push_str(&check(name, layout, alone));
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- layouts: begin -->\n", "<!-- layouts: end -->");
    let (before, rest) = text.split_once(begin).expect("a table of layouts in the README");
    let (old, after) = rest.split_once(end).expect("the end of the table");
    if std::env::var_os("SLIME_WRITE_TABLE").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert!(old == table, "the README's table is not this one (SLIME_WRITE_TABLE=1 writes it):\n{table}");
}
