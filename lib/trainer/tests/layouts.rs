//! A model that is split over ranks trains as on one: loss, every gradient and the weights after three optimizer steps, in
//! f64, with ranks as threads.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod tiny;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_config::{CpCommType, HfConfig, Lora, Pipeline, Recompute, RoutingReplay, TensorBox};
use slime_model::{Extra, Model, Parallel, WholeTensors};
use slime_trainer::{Scored, Settings, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::deep::deeper;
use tiny::{rollout, settings};

/// Largest difference of any element, relative to the largest element of its tensor.
const BOUND: f64 = 1e-9;

/// Axes of a layout: tp, dp, ep, etp.
type Split = [usize; 4];

/// Model, then tp, dp, ep and etp. The models have 4 heads and 2 key-value heads; experts are 6 (softmax) and 8 (sigmoid,
/// correction bias, a shared expert).
const SPLIT: [(&str, Split); 45] = [
    ("llama", [2, 1, 1, 1]),
    ("llama_tied", [2, 1, 1, 1]),
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
    ("mimo", [2, 1, 1, 1]),
    ("mimo", [4, 1, 1, 1]),
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
    ("qwen3_moe_fused", [2, 1, 1, 2]),
    ("qwen3_moe_fused", [2, 1, 2, 1]),
    ("glm45_air", [1, 2, 2, 1]),
    ("glm45_air", [2, 1, 2, 1]),
    ("glm4_moe", [1, 2, 2, 1]),
    ("glm4_moe", [1, 8, 8, 1]),
    ("glm4_moe", [2, 1, 2, 1]),
    ("glm4_moe", [2, 2, 2, 2]),
    ("glm4_moe", [2, 2, 4, 1]),
    ("glm4_moe", [2, 4, 4, 2]),
    ("glm4_moe", [4, 1, 4, 1]),
    ("glm4_moe", [4, 2, 8, 1]),
    ("minimax_m2", [1, 2, 2, 1]),
    ("minimax_m2", [2, 1, 2, 1]),
    ("minimax_m2", [4, 1, 2, 1]),
    ("minimax_m2", [4, 2, 2, 2]),
];

/// Model and its layers, tp, dp, ep and etp, and the pipeline.
const STAGES: [(&str, usize, Split, Pipeline); 18] = [
    ("llama", 2, [1, 1, 1, 1], Pipeline::even(2)),
    ("llama_tied", 2, [1, 1, 1, 1], Pipeline::even(2)),
    ("llama_tied", 4, [2, 2, 1, 1], Pipeline::even(2)),
    ("llama_tied", 4, [1, 1, 1, 1], Pipeline { chunks: 2, ..Pipeline::even(2) }),
    ("qwen2", 5, [1, 2, 1, 1], Pipeline::even(3)),
    ("qwen3", 4, [1, 1, 1, 1], Pipeline::even(4)),
    ("qwen3", 4, [2, 1, 1, 1], Pipeline { first: Some(1), ..Pipeline::even(2) }),
    ("qwen3", 8, [1, 2, 1, 1], Pipeline { last: Some(1), ..Pipeline::even(4) }),
    ("qwen3", 8, [1, 1, 1, 1], Pipeline { chunks: 4, ..Pipeline::even(2) }),
    ("qwen3", 8, [2, 2, 1, 1], Pipeline { chunks: 2, ..Pipeline::even(4) }),
    ("glm4", 4, [2, 1, 1, 1], Pipeline::even(2)),
    ("qwen3_moe", 4, [1, 2, 2, 1], Pipeline::even(2)),
    ("qwen3_moe", 4, [2, 2, 2, 2], Pipeline { chunks: 2, ..Pipeline::even(2) }),
    ("qwen3_moe", 4, [2, 1, 2, 1], Pipeline::even(4)),
    ("glm4_moe", 6, [2, 2, 4, 1], Pipeline::even(2)),
    ("glm4_moe", 6, [1, 4, 4, 1], Pipeline { first: Some(2), last: Some(1), ..Pipeline::even(3) }),
    ("glm4_moe", 8, [2, 2, 4, 1], Pipeline { chunks: 2, ..Pipeline::even(4) }),
    ("minimax_m2", 4, [2, 1, 2, 1], Pipeline::even(2)),
];

/// Model and its layers, tp, cp, dp, ep and etp, and the pipeline.
const CONTEXT: [(&str, usize, [usize; 5], Pipeline); 18] = [
    ("llama", 2, [1, 2, 1, 1, 1], Pipeline::WHOLE),
    ("llama_tied", 2, [1, 3, 1, 1, 1], Pipeline::WHOLE),
    ("qwen2", 2, [2, 2, 1, 1, 1], Pipeline::WHOLE),
    ("qwen3", 2, [1, 2, 2, 1, 1], Pipeline::WHOLE),
    ("qwen3", 2, [4, 2, 1, 1, 1], Pipeline::WHOLE),
    ("qwen3", 2, [1, 8, 1, 1, 1], Pipeline::WHOLE),
    ("qwen3", 4, [2, 2, 1, 1, 1], Pipeline::even(2)),
    ("qwen3", 8, [2, 2, 2, 1, 1], Pipeline { chunks: 2, ..Pipeline::even(2) }),
    ("glm4", 4, [2, 2, 1, 1, 1], Pipeline::even(2)),
    ("qwen3_moe", 2, [1, 2, 1, 2, 1], Pipeline::WHOLE),
    ("qwen3_moe", 2, [2, 2, 2, 2, 2], Pipeline::WHOLE),
    ("qwen3_moe", 4, [1, 3, 2, 3, 2], Pipeline::even(2)),
    ("glm4_moe", 3, [1, 4, 1, 4, 1], Pipeline::WHOLE),
    ("glm4_moe", 3, [2, 2, 2, 8, 1], Pipeline::WHOLE),
    ("glm4_moe", 6, [2, 2, 1, 4, 1], Pipeline { first: Some(2), ..Pipeline::even(4) }),
    ("glm4_moe", 6, [2, 2, 2, 4, 2], Pipeline { last: Some(2), ..Pipeline::even(2) }),
    ("glm4_moe", 8, [1, 2, 2, 4, 1], Pipeline { chunks: 2, ..Pipeline::even(4) }),
    ("minimax_m2", 4, [2, 2, 1, 2, 1], Pipeline::even(2)),
];

/// What one rank or all of them together computed.
struct Run {
    losses: Vec<f64>,
    norms: Vec<f64>,
    grads: BTreeMap<String, Tensor>,
    weights: BTreeMap<String, Tensor>,
    /// What the rank itself holds, each with its box of a tensor.
    parts: Vec<(String, TensorBox, Tensor)>,
}

fn three_steps() -> Settings {
    let mut settings = settings();
    settings.num_steps_per_rollout = 3;
    settings.algorithm.entropy_coef = 0.01;
    settings.train.max_tokens_per_gpu = 24;
    settings
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name)
}

fn run(dir: &Path, comm: Arc<dyn Communicator>, site: Option<Site>) -> Run {
    run_as((dir, Extra::None, Kind::Double), &three_steps(), &rollout(5, 3), comm, site)
}

/// How a model is laid out.
type Site = (Mesh, Pipeline, CpCommType);

fn run_as(
    (dir, extra, kind): (&Path, Extra<'_>, Kind),
    settings: &Settings,
    scored: &[Scored],
    comm: Arc<dyn Communicator>,
    site: Option<Site>,
) -> Run {
    let parallel = site.map(|(mesh, pipeline, comm_type)| {
        let parallel = Parallel::new(&comm, mesh, Device::Cpu).unwrap();
        Arc::new(parallel.with_pipeline(pipeline).with_cp_comm_type(comm_type))
    });
    let model = Model::load_part(dir, (kind, Device::Cpu), extra, parallel).unwrap();
    let mut trainer = Trainer::new(model, comm, settings.clone()).unwrap();
    let mut first = Vec::new();
    let steps = trainer
        .train_rollout_with(scored, |_, grads| {
            if first.is_empty() {
                first = grads.whole()?;
            }
            Ok(())
        })
        .unwrap();
    let params = trainer.policy().params();
    let whole = |whole: WholeTensors<'_>| {
        let whole = whole.map(Result::unwrap);
        whole.filter_map(|(name, tensor)| Some((name, tensor?.copy()))).collect()
    };
    let views = params.views().unwrap();
    let boxes = params.iter().flat_map(|(spec, _)| spec.views.iter().map(|view| view.part.clone()));
    let parts = views.into_iter().zip(boxes).map(|((name, tensor), part)| (name, part, tensor.copy()));
    Run {
        parts: parts.collect(),
        losses: steps.iter().map(|step| step.loss).collect(),
        norms: steps.iter().map(|step| step.grad_norm).collect(),
        grads: whole(params.whole_gradients(&first)),
        weights: whole(params.whole_tensors()),
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

/// Ranks that hold the same part of a tensor hold the same bits.
fn holds_alike(ranks: &[Run], what: &str) {
    let mut seen: BTreeMap<(&String, &TensorBox), &Tensor> = BTreeMap::new();
    for (name, part, tensor) in ranks.iter().flat_map(|rank| &rank.parts) {
        let first = seen.entry((name, part)).or_insert(tensor);
        assert!(first.equal(tensor), "{what}: {name}");
    }
}

/// A model on a layout.
struct Case {
    name: &'static str,
    num_layers: usize,
    layout: Layout,
    pipeline: Pipeline,
}

impl Case {
    /// The row of the README's table.
    fn row(&self) -> String {
        let Self { name, num_layers, layout: Layout { tp, pp, cp, dp, ep, etp }, pipeline } = self;
        let layers = match (pipeline.first.or(pipeline.last), pipeline.num_stages) {
            (None, _) | (_, 1) => num_layers.to_string(),
            _ => {
                let runs = pipeline.layers(*num_layers);
                runs.iter().map(|run| run.len().to_string()).collect::<Vec<_>>().join(" + ")
            }
        };
        let pp = if pipeline.chunks > 1 { format!("{pp} x {}", pipeline.chunks) } else { pp.to_string() };
        format!("| `{name}` | {layers} | {tp} | {pp} | {cp} | {dp} | {ep} | {etp} | yes | yes | yes |\n")
    }

    fn check(&self, dir: &Path, alone: &Run, comm_type: CpCommType) {
        let Layout { tp, pp, cp, dp, .. } = self.layout;
        let mesh = Mesh::new(self.layout, tp * pp * cp * dp).unwrap();
        let site = Some((mesh, self.pipeline, comm_type));
        let ranks = Threads::spawn(mesh.size(), |comm| run(dir, Arc::new(comm), site)).unwrap();
        let what =
            |of: &str| format!("{}, {:?}, {:?}, {comm_type:?}: {of}", self.name, self.layout, self.pipeline);
        for rank in &ranks {
            numbers_apart(&rank.losses, &alone.losses, &what("loss"));
            numbers_apart(&rank.norms, &alone.norms, &what("gradient norm"));
        }
        holds_alike(&ranks, &what("replicas"));
        let first = &ranks[0];
        let loss = numbers_apart(&first.losses, &alone.losses, &what("loss"));
        let grads = apart(&first.grads, &alone.grads, &what("gradient"));
        let weights = apart(&first.weights, &alone.weights, &what("weights"));
        println!("{}: {loss:.1e}, gradients {grads:.1e}, weights {weights:.1e}", what("loss"));
    }
}

fn cases() -> Vec<Case> {
    let num_layers = |name| HfConfig::load(fixture(name)).unwrap().num_hidden_layers;
    let mut cases = Vec::new();
    for (name, [tp, dp, ep, etp]) in SPLIT {
        let layout = Layout { tp, dp, ep, etp, ..Layout::default() };
        cases.push(Case { name, num_layers: num_layers(name), layout, pipeline: Pipeline::WHOLE });
    }
    for (name, num_layers, [tp, dp, ep, etp], pipeline) in STAGES {
        let layout = Layout { tp, dp, ep, etp, pp: pipeline.num_stages, ..Layout::default() };
        cases.push(Case { name, num_layers, layout, pipeline });
    }
    for (name, num_layers, [tp, cp, dp, ep, etp], pipeline) in CONTEXT {
        let layout = Layout { tp, cp, dp, ep, etp, pp: pipeline.num_stages };
        cases.push(Case { name, num_layers, layout, pipeline });
    }
    cases
}

const HEAD: &str = "| model | layers | tp | pp | cp | dp | ep | etp | loss | gradients | weights after 3 steps |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|\n";

/// Set `SLIME_WRITE_TABLE=1` to write the table into the README instead of comparing it.
#[test]
fn split_models_train_as_on_one_rank_and_the_readme_says_which() {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let mut alone: BTreeMap<(&str, usize), (PathBuf, Run)> = BTreeMap::new();
    let mut table = HEAD.to_owned();
    for case in cases() {
        let (dir, alone) = alone.entry((case.name, case.num_layers)).or_insert_with(|| {
            let dir = deeper(folder.path(), case.name, case.num_layers);
            let alone = run(&dir, Arc::new(Single), None);
            (dir, alone)
        });
        case.check(dir, alone, CpCommType::AllGather);
        if case.layout.cp > 1 {
            case.check(dir, alone, CpCommType::P2p);
        }
        table.push_str(&case.row());
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

/// The model of one rank and of several under the same settings.
fn compare((name, extra): (&str, Extra<'_>), settings: &Settings, scored: &[Scored], layout: Layout) {
    tch::set_num_threads(1);
    let dir = fixture(name);
    let model = (dir.as_path(), extra, Kind::Double);
    let mesh = Mesh::new(layout, layout.tp * layout.pp * layout.cp * layout.dp).unwrap();
    let site = Some((mesh, Pipeline::even(layout.pp), CpCommType::default()));
    let alone = run_as(model, settings, scored, Arc::new(Single), None);
    let ranks =
        Threads::spawn(mesh.size(), |comm| run_as(model, settings, scored, Arc::new(comm), site)).unwrap();
    numbers_apart(&ranks[0].losses, &alone.losses, "loss");
    apart(&ranks[0].grads, &alone.grads, "gradient");
    apart(&ranks[0].weights, &alone.weights, "weights");
}

#[test]
fn layer_for_further_tokens_is_split_too() {
    let mut settings = three_steps();
    settings.train.mtp_loss_coef = Some(0.3);
    for [tp, pp, cp, dp] in
        [[2, 1, 1, 2], [4, 1, 1, 1], [1, 2, 1, 1], [2, 2, 1, 2], [1, 1, 2, 1], [2, 2, 3, 1]]
    {
        let layout = Layout { tp, pp, cp, dp, ..Layout::default() };
        compare(("mimo", Extra::Mtp), &settings, &rollout(5, 3), layout);
    }
}

#[test]
fn replayed_tokens_go_where_they_went_on_every_layout() {
    let mut scored = rollout(5, 3);
    for scored in &mut scored {
        // Two layers with experts, three of eight for each token.
        let rows = scored.sample.tokens.len() - 1;
        scored.sample.routed_experts = (0..rows as u16 * 6).map(|at| (at + at / 6) % 8).collect();
    }
    let split = Layout { tp: 2, dp: 2, ep: 4, ..Layout::default() };
    for layout in [split, Layout { pp: 3, ..Layout::default() }, Layout { cp: 2, ep: 2, ..Layout::default() }]
    {
        for replay in [RoutingReplay::Rollout, RoutingReplay::Recomputed] {
            let mut settings = three_steps();
            settings.algorithm.routing_replay = replay;
            compare(("glm4_moe", Extra::None), &settings, &scored, layout);
        }
    }
}

#[test]
fn bf16_stays_near_one_rank() {
    tch::set_num_threads(1);
    let dir = fixture("qwen3");
    let run = |comm: Arc<dyn Communicator>, site| {
        run_as((&dir, Extra::None, Kind::BFloat16), &three_steps(), &rollout(5, 3), comm, site)
    };
    let alone = run(Arc::new(Single), None);
    let mesh = Mesh::new(Layout { tp: 2, pp: 2, dp: 2, ..Layout::default() }, 8).unwrap();
    let ranks =
        Threads::spawn(8, |comm| run(Arc::new(comm), Some((mesh, Pipeline::even(2), CpCommType::default()))))
            .unwrap();
    holds_alike(&ranks, "bf16");
    for (got, expected) in ranks[0].norms.iter().zip(&alone.norms) {
        assert!((got - expected).abs() < 0.05 * expected, "{got} and {expected}");
    }
    for (name, expected) in &alone.grads {
        let apart = (&ranks[0].grads[name] - expected).norm().double_value(&[]);
        let bound = 0.1 * expected.norm().double_value(&[]);
        assert!(apart < bound, "{name}: gradient differs by {apart}, bound {bound}");
    }
}

#[test]
fn ranks_hold_a_part_of_the_model() {
    let dir = fixture("glm4_moe");
    let whole = Model::load(&dir, Kind::Float, Device::Cpu).unwrap().params().num_parameters();
    let layout = Layout { tp: 2, dp: 2, ep: 4, ..Layout::default() };
    let mesh = Mesh::new(layout, 4).unwrap();
    let parts = Threads::spawn(4, |comm| {
        let comm: Arc<dyn Communicator> = Arc::new(comm);
        let parallel = Arc::new(Parallel::new(&comm, mesh, Device::Cpu).unwrap());
        let model = Model::load_part(&dir, (Kind::Float, Device::Cpu), Extra::None, Some(parallel)).unwrap();
        model.params().num_parameters()
    })
    .unwrap();
    assert!(parts.iter().all(|part| *part < whole / 2 && *part > whole / 4), "{parts:?} of {whole}");
}

#[test]
fn adapters_are_split_as_the_matrices_beside_them() {
    let lora = Lora { rank: 3, alpha: 6.0, targets: Vec::new() };
    let attention = Lora { targets: vec!["*.1.self_attn.k_proj.weight".to_owned()], ..lora.clone() };
    for (name, lora, [tp, pp, cp, dp, ep]) in [
        ("llama", &lora, [1, 1, 1, 2, 1]),
        ("llama", &lora, [1, 1, 1, 3, 1]),
        ("llama_tied", &lora, [2, 1, 1, 1, 1]),
        ("qwen2", &lora, [4, 1, 1, 1, 1]),
        ("qwen3", &lora, [2, 2, 1, 2, 1]),
        ("qwen3", &attention, [4, 2, 1, 1, 1]),
        ("qwen3", &lora, [1, 1, 2, 1, 1]),
        ("glm4", &lora, [2, 1, 1, 1, 1]),
        ("glm4_moe", &lora, [2, 1, 1, 2, 4]),
    ] {
        for recompute in [Recompute::None, Recompute::Full] {
            let mut settings = three_steps();
            settings.train.recompute = recompute;
            let layout = Layout { tp, pp, cp, dp, ep, ..Layout::default() };
            compare((name, Extra::Adapters { lora, seed: 2 }), &settings, &rollout(5, 3), layout);
        }
    }
}

/// Attention over several calls: prompts and responses that are too long to share one.
#[test]
fn long_samples_are_cut_in_the_middle_of_prompt_and_response() {
    tch::set_num_threads(1);
    let mut scored = rollout(2, 2);
    for (at, scored) in scored.iter_mut().enumerate() {
        let token = |at: usize| (at * 37 % 96) as u32;
        let (prompt_len, response_len) = (401 + at / 2, 500 + 13 * at);
        let sample = &mut scored.sample;
        sample.tokens = (0..prompt_len)
            .map(|i| token(i + at / 2))
            .chain((0..response_len).map(|i| token(i * i + at)))
            .collect();
        sample.prompt_len = prompt_len as u32;
        sample.loss_mask = (0..response_len).map(|i| u8::from(i % 7 != 3)).collect();
    }
    let mut settings = settings();
    settings.train.max_tokens_per_gpu = 4096;
    let dir = fixture("qwen3");
    let model = (dir.as_path(), Extra::None, Kind::Double);
    let alone = run_as(model, &settings, &scored, Arc::new(Single), None);
    for comm_type in [CpCommType::AllGather, CpCommType::P2p] {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            let mut settings = settings.clone();
            settings.train.recompute = recompute;
            let mesh = Mesh::new(Layout { cp: 3, ..Layout::default() }, 3).unwrap();
            let site = Some((mesh, Pipeline::WHOLE, comm_type));
            let ranks = Threads::spawn(3, |comm| run_as(model, &settings, &scored, Arc::new(comm), site));
            let ranks = ranks.unwrap();
            numbers_apart(&ranks[0].losses, &alone.losses, "loss");
            apart(&ranks[0].grads, &alone.grads, "gradient");
            apart(&ranks[0].weights, &alone.weights, "weights");
        }
    }
}

/// A stage of which nothing is trained, and one that lacks what others hold in copies, make the calls of the others.
#[test]
fn frozen_stages_hand_on_what_they_are_given() {
    let embedding = "model.embed_tokens.weight".to_owned();
    for patterns in [
        vec![embedding.clone(), "model.layers.0.*".to_owned()],
        vec!["model.layers.0.*norm*".to_owned()],
        vec!["model.layers.1.*".to_owned(), "lm_head.weight".to_owned(), "model.norm.weight".to_owned()],
        vec![embedding],
    ] {
        for recompute in [Recompute::None, Recompute::Full] {
            let mut settings = three_steps();
            settings.train.freeze.clone_from(&patterns);
            settings.train.recompute = recompute;
            for [tp, pp, cp] in [[2, 2, 1], [1, 2, 2]] {
                let layout = Layout { tp, pp, cp, ..Layout::default() };
                compare(("qwen3", Extra::None), &settings, &rollout(5, 3), layout);
            }
        }
    }
    // Key-value heads that are held twice are then the last stage's alone.
    let mut settings = three_steps();
    settings.train.mtp_loss_coef = Some(0.3);
    settings.train.freeze = vec!["model.layers.*.self_attn.*".to_owned()];
    let layout = Layout { tp: 4, pp: 2, ..Layout::default() };
    compare(("mimo", Extra::Mtp), &settings, &rollout(5, 3), layout);
}
