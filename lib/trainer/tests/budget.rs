//! What the plan of a rank's memory says, against what is measured: on one rank and two, kept and computed again.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod tiny;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_config::{HfConfig, Lora, Pipeline, Recompute, Train};
use slime_model::{Extra, Model, Parallel};
use slime_record::Sample;
use slime_trainer::budget::{Batch, Budget, Others, Site};
use slime_trainer::{Scored, Settings, Trainer};
use slime_weights::PlanLayout;
use tch::{Device, Kind};
use tiny::sized::{Shape, status_bytes};

/// The share by which plan and measurement may differ.
const BOUND: f64 = 0.10;
const PROMPT_LEN: usize = 32;
/// Names the case to the process that is measured: it must have done nothing else before.
const CASE: &str = "SLIME_BUDGET_CASE";

/// A run that is measured.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    kind: Kind,
    recompute: Recompute,
    is_offloaded: bool,
    /// tp, pp, cp, dp
    layout: [usize; 4],
    shape: Shape,
    response_len: usize,
    num_responses: usize,
    /// Adapters are trained in place of the parameters.
    is_adapted: bool,
}

/// Activations outweigh the state.
const WIDE: Shape = Shape { hidden: 256, intermediate: 1024, vocab: 2048, num_layers: 4, heads: [4, 2] };
/// The head outweighs the layers.
const HEAD: Shape = Shape { hidden: 256, intermediate: 512, vocab: 16_384, num_layers: 2, heads: [4, 2] };

const KEPT: Case = Case {
    name: "kept",
    kind: Kind::Float,
    recompute: Recompute::None,
    is_offloaded: false,
    layout: [1, 1, 1, 1],
    shape: WIDE,
    response_len: 400,
    num_responses: 2,
    is_adapted: false,
};

fn cases() -> Vec<Case> {
    let of = |name, recompute| Case { name, recompute, ..KEPT };
    vec![
        KEPT,
        of("selective", Recompute::Selective),
        of("full", Recompute::Full),
        Case { name: "two ranks", layout: [1, 1, 1, 2], ..KEPT },
        Case { name: "tp 2", layout: [2, 1, 1, 1], ..KEPT },
        Case { name: "tp 2, full", layout: [2, 1, 1, 1], recompute: Recompute::Full, ..KEPT },
        Case { name: "pp 2", layout: [1, 2, 1, 1], ..KEPT },
        Case { name: "pp 2, full", layout: [1, 2, 1, 1], recompute: Recompute::Full, ..KEPT },
        Case { name: "cp 2", layout: [1, 1, 2, 1], ..KEPT },
        Case { name: "tp 2, cp 2, full", layout: [2, 1, 2, 1], recompute: Recompute::Full, ..KEPT },
        Case { name: "bf16", kind: Kind::BFloat16, ..KEPT },
        Case { name: "head", shape: HEAD, ..KEPT },
        Case { name: "offloaded", shape: HEAD, is_offloaded: true, ..KEPT },
        Case { name: "adapters", is_adapted: true, ..KEPT },
        Case { name: "head, adapters", shape: HEAD, is_adapted: true, ..KEPT },
        Case { name: "tp 2, adapters", layout: [2, 1, 1, 1], is_adapted: true, ..KEPT },
        Case { name: "short responses", response_len: 100, num_responses: 8, ..KEPT },
    ]
}

impl Case {
    fn settings(&self) -> Settings {
        let train = Train {
            lr: 1e-4,
            max_tokens_per_gpu: (PROMPT_LEN + self.num_responses * self.response_len) as u32,
            recompute: self.recompute,
            optimizer_offload: self.is_offloaded,
            lora: self.is_adapted.then(Lora::default),
            ..Train::default()
        };
        Settings { train, num_optimizer_steps: 10, ..Settings::default() }
    }

    fn planned(&self, dir: &Path) -> u64 {
        let [tp, pp, cp, dp] = self.layout;
        let (settings, config) = (self.settings(), HfConfig::load(dir).unwrap());
        let layout = PlanLayout { tp, cp, dp, pipeline: Pipeline::even(pp), ..PlanLayout::SINGLE };
        let site = Site { layout, is_bf16: self.kind == Kind::BFloat16, is_gpu: false };
        let batch = Batch {
            tokens: u64::from(settings.train.max_tokens_per_gpu) * cp as u64,
            prompt_len: PROMPT_LEN as u64,
            response_len: self.response_len as u64,
        };
        let budgets = Budget::of_stages(&config, &settings, site, batch, Others::default()).unwrap();
        for budget in &budgets {
            println!("{}: {}", self.name, budget.lines(&settings, site, batch).join("\n"));
        }
        (tp * cp * dp) as u64 * budgets.iter().map(|budget| budget.device_bytes(false)).sum::<u64>()
    }

    /// Trains two full micro-batches on each rank.
    fn train(&self, dir: &Path, comm: Arc<dyn Communicator>) {
        let [tp, pp, cp, dp] = self.layout;
        let mesh = Mesh::new(Layout { tp, pp, cp, dp, ..Layout::default() }, tp * pp * cp * dp).unwrap();
        let parallel = (tp * pp * cp > 1).then(|| Arc::new(Parallel::new(&comm, mesh, Device::Cpu).unwrap()));
        let lora = Lora::default();
        let extra = if self.is_adapted { Extra::Adapters { lora: &lora, seed: 1 } } else { Extra::None };
        let model = Model::load_part(dir, (self.kind, Device::Cpu), extra, parallel).unwrap();
        let vocab = model.config().vocab_size as u32;
        let mut trainer = Trainer::new(model, comm, self.settings()).unwrap();
        let groups = (0..(2 * dp * cp) as u32)
            .flat_map(|group| (0..self.num_responses as u32).map(move |i| (group, i)));
        let scored = groups.map(|(group, index)| {
            let len = PROMPT_LEN + self.response_len;
            let prompt = (0..PROMPT_LEN as u32).map(|at| (group * 7 + at) % vocab);
            let response = (0..self.response_len as u32).map(|at| (group + index * 31 + at * 13) % vocab);
            let tokens: Vec<u32> = prompt.chain(response).collect();
            let loss_mask = vec![1; len - PROMPT_LEN];
            let prompt_len = PROMPT_LEN as u32;
            let sample = Sample { group, index, tokens, prompt_len, loss_mask, ..Sample::default() };
            Scored::new(sample, (index % 2) as f32)
        });
        let scored: Vec<Scored> = scored.collect();
        trainer.train_rollout(&scored).unwrap();
    }

    /// The bytes of all ranks at the peak, beyond those before.
    fn measured(&self, dir: &Path) -> f64 {
        let run = |dir: &Path| match self.layout {
            [1, 1, 1, 1] => self.train(dir, Arc::new(Single)),
            axes => {
                let ranks = Threads::spawn(axes.iter().product(), |comm| self.train(dir, Arc::new(comm)));
                ranks.map(|_| ()).unwrap();
            }
        };
        // libtorch's own code and threads come into memory with the first step of any model.
        let warm = tempfile::tempdir().unwrap();
        Shape { hidden: 64, intermediate: 64, vocab: 128, num_layers: 1, heads: [2, 2] }.write(warm.path());
        run(warm.path());
        // Sets the peak back to what is resident now.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = status_bytes("VmRSS:");
        run(dir);
        status_bytes("VmHWM:") - before
    }
}

/// Not a test by itself: the process that [`measure`] starts.
#[test]
#[ignore = "not a test by itself"]
fn child_body() {
    let Ok(wanted) = std::env::var(CASE) else { return };
    tch::set_num_threads(1);
    let case = cases().into_iter().find(|case| case.name == wanted).unwrap();
    let dir = tempfile::tempdir().unwrap();
    case.shape.write(dir.path());
    println!("measured {}", case.measured(dir.path()));
}

fn measure(name: &str) -> f64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_body", "--ignored", "--nocapture"])
        .env(CASE, name)
        // What is freed goes back at once: what is resident is what is in use.
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = text.lines().find_map(|line| line.split_once("measured ")?.1.parse().ok());
    number.unwrap_or_else(|| panic!("{name}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn recomputation_takes_less() {
    let [kept, selective, full] = ["kept", "selective", "full"].map(measure);
    assert!(selective < 0.9 * kept && full < 0.8 * selective, "{kept} {selective} {full}");
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn plans_are_near_what_is_measured() {
    let mut wrong = Vec::new();
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        case.shape.write(dir.path());
        let (planned, measured) = (case.planned(dir.path()) as f64, measure(case.name));
        let ratio = planned / measured;
        println!(
            "{}: planned {:.1} MB, measured {:.1} MB: {ratio:.3}",
            case.name,
            planned / 1e6,
            measured / 1e6
        );
        // Stages that are threads of one process do not reach their peaks together.
        let above = if case.layout[1] > 1 { 2.0 * BOUND } else { BOUND };
        if ratio < 1.0 - BOUND || ratio > 1.0 + above {
            wrong.push(format!("{} {ratio:.3}", case.name));
        }
    }
    assert!(wrong.is_empty(), "plan / measured: {}", wrong.join(", "));
}
