//! One picture: every advantage estimator teaches the same small model to add, from the same start and the same seeds.
//!
//! The model (of the test fixtures) first sees right sums until it knows some of them; then each estimator trains a copy of
//! it on its own samples. Prints the mean reward at the start and the end, and writes the curves as an SVG.
//!
//! Settings: `NUM_STEPS` (150), `NUM_SEEDS` (3), `SVG` (where the picture goes; tests/benches/formulas.svg).
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and ends where it fails")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::Single;
use slime_config::{AdvantageEstimator, Algorithm, Checks, LossType, OnFailure, Train};
use slime_model::{Context, Model, ParamStore, Segment};
use slime_record::Sample;
use slime_trainer::{Roles, Scored, Settings, Trainer};
use tch::{Device, Kind, Tensor};

const BEGIN: u32 = 3;
const DIGIT: u32 = 10;
const PLUS: u32 = 21;
const EQUALS: u32 = 22;
const END: u32 = 23;
/// A sum has one or two digits; the last token ends the answer.
const RESPONSE_LEN: usize = 3;
const NUM_GROUPS: u32 = 16;
const NUM_SAMPLES: u32 = 8;
/// Where the right sums stop: the model answers about this share of the questions.
const START: f64 = 0.3;
/// Where the teacher of distillation stops.
const TEACHER: f64 = 0.97;

const ESTIMATORS: [(AdvantageEstimator, &str); 9] = [
    (AdvantageEstimator::Grpo, "#1f77b4"),
    (AdvantageEstimator::DrGrpo, "#17becf"),
    (AdvantageEstimator::Gspo, "#9467bd"),
    (AdvantageEstimator::Cispo, "#e377c2"),
    (AdvantageEstimator::Rloo, "#2ca02c"),
    (AdvantageEstimator::ReinforcePlusPlus, "#bcbd22"),
    (AdvantageEstimator::ReinforcePlusPlusBaseline, "#8c564b"),
    (AdvantageEstimator::Ppo, "#d62728"),
    (AdvantageEstimator::Distillation, "#ff7f0e"),
];

fn main() {
    let number = |name: &str, default: usize| {
        std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
    };
    let (num_steps, num_seeds) = (number("NUM_STEPS", 150), number("NUM_SEEDS", 3));
    tch::set_num_threads(1);
    let start = supervised(None, START);
    let teacher = supervised(Some(&start), TEACHER);
    let mut curves = Vec::new();
    println!("estimator                      first 3 steps  last 3 steps");
    for (estimator, color) in ESTIMATORS {
        let mut mean = vec![0.0; num_steps];
        for seed in 0..num_seeds {
            for (at, reward) in
                reinforced(estimator, &start, &teacher, num_steps, seed as u64).iter().enumerate()
            {
                mean[at] += reward / num_seeds as f64;
            }
        }
        let part = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (first, last) = (part(&mean[..3]), part(&mean[num_steps - 3..]));
        println!("{:<30} {first:>13.3} {last:>13.3}", estimator.name());
        curves.push((estimator.name(), color, mean));
    }
    let default = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/benches/formulas.svg");
    let path = std::env::var_os("SVG").map_or(default, PathBuf::from);
    std::fs::write(&path, picture(&curves)).unwrap();
    println!("{}", path.display());
}

/// A model whose parameters are those of `from`.
fn copy(from: Option<&Model>, has_value_head: bool, seed: u64) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
    let model = if has_value_head {
        Model::load_with_value_head(dir, Kind::Float, Device::Cpu, seed)
    } else {
        Model::load(dir, Kind::Float, Device::Cpu)
    };
    let model = model.unwrap();
    if let Some(from) = from {
        copy_params(from.params(), model.params());
    }
    model
}

fn copy_params(from: &ParamStore, to: &ParamStore) {
    tch::no_grad(|| {
        for (spec, tensor) in to.iter() {
            if let Some(source) = from.find(&spec.name) {
                tensor.shallow_clone().copy_(&source);
            }
        }
    });
}

fn settings(lr: f64, algorithm: Algorithm) -> Settings {
    Settings {
        train: Train { lr, max_tokens_per_gpu: 4096, ..Train::default() },
        algorithm,
        checks: Checks { on_failure: OnFailure::Fail, ..Checks::default() },
        loss_len: RESPONSE_LEN as f64,
        ..Settings::default()
    }
}

/// Shows right sums until a share of them is answered.
fn supervised(from: Option<&Model>, share: f64) -> Model {
    let algorithm = Algorithm { loss: LossType::Sft, ..Algorithm::default() };
    let mut trainer =
        Trainer::new(copy(from, false, 0), Arc::new(Single), settings(3e-3, algorithm)).unwrap();
    let mut draws = Draws(1);
    for step in 0..4000_u32 {
        let answers = |group| {
            let question = Question::draw(&mut draws);
            Scored { sample: question.sample(group, 0, &question.answer(), Vec::new()), ..Scored::default() }
        };
        let scored: Vec<Scored> = (0..64).map(answers).collect();
        trainer.train_rollout(&scored).unwrap();
        if step.is_multiple_of(10) {
            let mut draws = Draws(2);
            let tried: Vec<f64> =
                (0..4).map(|_| mean_reward(&rollout(trainer.policy(), &mut draws))).collect();
            if tried.iter().sum::<f64>() / tried.len() as f64 >= share {
                break;
            }
        }
    }
    copy(Some(trainer.policy()), false, 0)
}

/// The mean reward of each step.
fn reinforced(
    estimator: AdvantageEstimator,
    start: &Model,
    teacher: &Model,
    num_steps: usize,
    seed: u64,
) -> Vec<f64> {
    let algorithm = Algorithm { advantage_estimator: estimator, ..Algorithm::default() };
    let mut settings = settings(1e-3, algorithm);
    // The second step is off the policy that sampled: there ratios and their clipping have a say.
    settings.num_steps_per_rollout = 2;
    let is_distilled = estimator == AdvantageEstimator::Distillation;
    settings.opd_kl_coef = is_distilled.then_some(1.0);
    settings.critic.lr = Some(3e-3);
    let roles = Roles {
        policy: copy(Some(start), false, 0),
        reference: None,
        teacher: is_distilled.then(|| copy(Some(teacher), false, 0)),
        critic: (estimator == AdvantageEstimator::Ppo).then(|| copy(Some(start), true, seed)),
    };
    let mut trainer = Trainer::new(roles, Arc::new(Single), settings).unwrap();
    let mut draws = Draws(1000 + seed);
    let step = |_| {
        let scored = rollout(trainer.policy(), &mut draws);
        trainer.train_rollout(&scored).unwrap();
        mean_reward(&scored)
    };
    (0..num_steps).map(step).collect()
}

/// Groups of samples of the policy at temperature 1.
fn rollout(model: &Model, draws: &mut Draws) -> Vec<Scored> {
    let questions: Vec<Question> = (0..NUM_GROUPS).map(|_| Question::draw(draws)).collect();
    let num = (NUM_GROUPS * NUM_SAMPLES) as usize;
    let question = |i: usize| &questions[i / NUM_SAMPLES as usize];
    let mut tokens: Vec<Vec<u32>> = (0..num).map(|i| question(i).prompt()).collect();
    let mut log_probs = vec![Vec::new(); num];
    for _ in 0..RESPONSE_LEN {
        let next = tch::no_grad(|| next_tokens(model, &tokens));
        for (i, next) in next.into_iter().enumerate() {
            if tokens[i].last() == Some(&END) {
                continue;
            }
            let mut rest = draws.unit();
            let token = next.iter().position(|log_prob| {
                rest -= f64::from(*log_prob).exp();
                rest <= 0.0
            });
            let token = token.unwrap_or(next.len() - 1);
            log_probs[i].push(next[token]);
            tokens[i].push(token as u32);
        }
    }
    let prompt_len = question(0).prompt().len();
    (0..num)
        .map(|i| {
            let response = &tokens[i][prompt_len..];
            let (group, index) = (i as u32 / NUM_SAMPLES, i as u32 % NUM_SAMPLES);
            let sample = question(i).sample(group, index, response, std::mem::take(&mut log_probs[i]));
            Scored::new(sample, if response == question(i).answer() { 1.0 } else { 0.0 })
        })
        .collect()
}

/// The log-probs of the token after each sequence.
fn next_tokens(model: &Model, sequences: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let (mut segments, mut last, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for tokens in sequences {
        segments.push(Segment::alone(ids.len(), tokens.len()));
        ids.extend(tokens.iter().map(|token| i64::from(*token)));
        last.push(ids.len() as i64 - 1);
    }
    let mut context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
    let hidden = model.forward(&mut context, &Tensor::from_slice(&ids)).unwrap();
    let logits = model.logits(&hidden.index_select(0, &Tensor::from_slice(&last))).unwrap();
    Vec::try_from(logits.log_softmax(-1, None::<Kind>)).unwrap()
}

fn mean_reward(scored: &[Scored]) -> f64 {
    scored.iter().filter_map(|scored| scored.reward).map(f64::from).sum::<f64>() / scored.len() as f64
}

/// How much is one number and another.
struct Question {
    a: u32,
    b: u32,
}

impl Question {
    fn draw(draws: &mut Draws) -> Self {
        Self { a: draws.below(10), b: draws.below(10) }
    }

    fn prompt(&self) -> Vec<u32> {
        vec![BEGIN, DIGIT + self.a, PLUS, DIGIT + self.b, EQUALS]
    }

    fn answer(&self) -> Vec<u32> {
        let sum = self.a + self.b;
        let tens = (sum >= 10).then_some(DIGIT + sum / 10);
        tens.into_iter().chain([DIGIT + sum % 10, END]).collect()
    }

    fn sample(&self, group: u32, index: u32, response: &[u32], rollout_log_probs: Vec<f32>) -> Sample {
        Sample {
            group,
            index,
            episode: u64::from(index),
            prompt_len: self.prompt().len() as u32,
            tokens: [self.prompt(), response.to_vec()].concat(),
            loss_mask: vec![1; response.len()],
            rollout_log_probs,
            ..Sample::default()
        }
    }
}

/// A linear congruential generator.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, bound: u64) -> u32 {
        (self.next() % bound) as u32
    }

    fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 31) as f64
    }
}

/// The curves with their names, on a ground that does in light and dark.
fn picture(curves: &[(&str, &str, Vec<f64>)]) -> String {
    let (left, top, width, height) = (60.0, 20.0, 620.0, 360.0);
    let num_steps = curves[0].2.len();
    let x = |step: usize| left + width * step as f64 / (num_steps - 1) as f64;
    let y = |reward: f64| top + height * (1.0 - reward);
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 940 430\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"940\" height=\"430\" fill=\"#ffffff\"/>\n",
    );
    for tenth in (0..=10).step_by(2) {
        let at = y(f64::from(tenth) / 10.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#333333\">{:.1}</text>",
            left + width,
            left - 8.0,
            at + 4.0,
            f64::from(tenth) / 10.0
        );
    }
    for step in (0..num_steps).step_by((num_steps / 6).max(1)) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#333333\">{step}</text>",
            x(step),
            top + height + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#333333\">training step</text>\
         <text x=\"16\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#333333\" transform=\"rotate(-90 16 {:.1})\">share of right sums</text>",
        left + width / 2.0,
        top + height + 38.0,
        top + height / 2.0,
        top + height / 2.0
    );
    // Names stand in the order in which the curves end.
    let mut order: Vec<usize> = (0..curves.len()).collect();
    let end = |i: usize| curves[i].2.iter().rev().take(5).sum::<f64>();
    order.sort_by(|a, b| end(*b).total_cmp(&end(*a)));
    for (place, i) in order.into_iter().enumerate() {
        let (name, color, rewards) = &curves[i];
        let points: Vec<String> = smoothed(rewards)
            .iter()
            .enumerate()
            .map(|(step, r)| format!("{:.1},{:.1}", x(step), y(*r)))
            .collect();
        let label = top + 12.0 + 22.0 * place as f64;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\"/>\
             <line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\" stroke-width=\"3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#111111\">{name}</text>",
            points.join(" "),
            left + width + 14.0,
            label - 4.0,
            left + width + 34.0,
            label - 4.0,
            left + width + 40.0,
            label
        );
    }
    svg + "</svg>\n"
}

/// The mean of each step and its two neighbours.
fn smoothed(rewards: &[f64]) -> Vec<f64> {
    let around = |at: usize| &rewards[at.saturating_sub(1)..(at + 2).min(rewards.len())];
    (0..rewards.len()).map(|at| around(at).iter().sum::<f64>() / around(at).len() as f64).collect()
}
