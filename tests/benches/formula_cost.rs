//! What the formulas cost: every advantage estimator, loss, KL estimate, correction and the value loss, one after the other
//! with their gradients, over the rows of one optimizer step, as a share of that step.
//!
//! `cargo bench --workspace --bench formula_cost`: a GPU with the shape of Qwen3-0.6B in bf16 where there is one, else the CPU
//! with a tenth of it. `NUM_SAMPLES` changes the size.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and ends where it fails")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use slime_comm::Single;
use slime_config::{Algorithm, Correction, CorrectionWeight, HfConfig, KlLossType, RatioLevel, Train};
use slime_model::{Model, ParamStore};
use slime_record::Sample;
use slime_torch::cuda;
use slime_trainer::loss::Sequences;
use slime_trainer::loss::correction::{correct, off_policy_keep};
use slime_trainer::loss::kl::approx_kl;
use slime_trainer::loss::policy_loss::{Clip, cispo, gspo_log_ratio, ppo_clip};
use slime_trainer::loss::preference::{bradley_terry_loss, dpo_loss};
use slime_trainer::loss::sft::sft_loss;
use slime_trainer::loss::value_loss::value_loss;
use slime_trainer::{Place, Scored, Settings, Trainer, advantage};
use tch::{Device, Kind, Tensor};

const GROUP: u32 = 8;
const PROMPT_LEN: u32 = 128;
const RESPONSE_LEN: u32 = 512;

fn samples(num: u32, vocab: u32) -> Vec<Scored> {
    (0..num)
        .map(|at| {
            let (group, index) = (at / GROUP, at % GROUP);
            let token = |place: u32, seed: u32| (place * 7919 + seed * 104_729) % vocab;
            let prompt = (0..PROMPT_LEN).map(|place| token(place, group));
            let tokens: Vec<u32> =
                prompt.chain((0..RESPONSE_LEN).map(|place| token(place, 1000 + at))).collect();
            let sample = Sample {
                group,
                index,
                tokens,
                prompt_len: PROMPT_LEN,
                loss_mask: vec![1; RESPONSE_LEN as usize],
                rollout_log_probs: vec![-11.0; RESPONSE_LEN as usize],
                ..Sample::default()
            };
            Scored::new(sample, (at % 3) as f32)
        })
        .collect()
}

fn seconds(device: Device, repeats: usize, mut work: impl FnMut()) -> f64 {
    let wait = || {
        if let Device::Cuda(number) = device {
            tch::Cuda::synchronize(number as i64);
        }
    };
    work();
    wait();
    let began = Instant::now();
    for _ in 0..repeats {
        work();
    }
    wait();
    began.elapsed().as_secs_f64() / repeats as f64
}

/// All estimators over `num` samples, on the host.
fn advantages(num: usize) {
    let len = RESPONSE_LEN as usize;
    let rewards: Vec<f32> = (0..num).map(|at| (at % 3) as f32).collect();
    let of_tokens: Vec<Vec<f32>> = vec![vec![0.1; len]; num];
    let positions: Vec<usize> = (0..len).collect();
    let mut all = Vec::new();
    for group in rewards.chunks(GROUP as usize) {
        drop((advantage::grpo(group, true), advantage::grpo(group, false), advantage::rloo(group)));
    }
    for group in of_tokens.chunks(GROUP as usize) {
        drop(advantage::grpo_process(group, true));
    }
    for row in &of_tokens {
        all.extend(advantage::gae(row, row, 1.0, 0.95).0);
        drop(advantage::reinforce_plus_plus(0.5, &positions, row, row, 0.1, 1.0));
        drop(advantage::reinforce_plus_plus_baseline(0.5, len, row, 0.1));
        drop(advantage::distillation(row, row, 1.0));
    }
    advantage::whiten(&mut all, &Single).unwrap();
}

/// All losses over the rows, each with its gradient.
fn losses(rows: [&Tensor; 3], sequences: &Sequences) {
    let [log_prob_r, old_r, advantage_r] = rows;
    let algorithm = Algorithm { eps_clip_c: Some(3.0), ..Algorithm::default() };
    let with_gradient = |loss_r: Tensor| {
        let _ = Tensor::run_backward(&[loss_r.sum(Kind::Float)], &[log_prob_r], false, false);
    };
    let ratio_r = log_prob_r - old_r;
    with_gradient(ppo_clip(&ratio_r, advantage_r, Clip::from(&algorithm)).unwrap().loss_r);
    let ratio_r = gspo_log_ratio(log_prob_r, old_r, sequences).unwrap();
    with_gradient(ppo_clip(&ratio_r, advantage_r, Clip::from(&algorithm)).unwrap().loss_r);
    with_gradient(cispo(log_prob_r, old_r, advantage_r, Clip::from(&algorithm)).unwrap().loss_r);
    for kind in [KlLossType::K1, KlLossType::K2, KlLossType::K3, KlLossType::LowVarKl] {
        with_gradient(approx_kl(log_prob_r, old_r, kind, None).unwrap());
    }
    with_gradient(sft_loss(log_prob_r).unwrap());
    with_gradient(value_loss(log_prob_r, old_r, advantage_r, 0.2).unwrap().loss_r);
    for level in [RatioLevel::Token, RatioLevel::Sequence, RatioLevel::Geometric] {
        let correction = Correction {
            weight: CorrectionWeight::Truncate,
            high: Some(2.0),
            level,
            reject: Some(level),
            reject_high: Some(4.0),
            veto: Some(1e-4),
            ..Correction::default()
        };
        drop(correct(log_prob_r, old_r, &correction, 1.0, sequences).unwrap());
    }
    drop(off_policy_keep(log_prob_r, old_r, advantage_r, 0.1, sequences).unwrap());
    let score_s = sequences.sum(log_prob_r).unwrap();
    let half = score_s.size()[0] / 2;
    let (chosen_p, rejected_p) = (score_s.narrow(0, 0, half), score_s.narrow(0, half, half));
    with_gradient(dpo_loss(&chosen_p, &rejected_p, 0.1, 0.1).unwrap().loss_p);
    let score_s = sequences.sum(log_prob_r).unwrap();
    let (chosen_p, rejected_p) = (score_s.narrow(0, 0, half), score_s.narrow(0, half, half));
    with_gradient(bradley_terry_loss(&chosen_p, &rejected_p, &chosen_p.zeros_like()).unwrap().loss_p);
}

fn main() {
    let device = if cuda::open().is_ok() { Device::Cuda(0) } else { Device::Cpu };
    let is_gpu = device.is_cuda();
    let num: u32 = std::env::var("NUM_SAMPLES")
        .map_or(if is_gpu { 32 } else { 2 }, |text| text.parse().expect("a number"));
    let (layers, kind) = if is_gpu { (28, Kind::BFloat16) } else { (3, Kind::Float) };
    let text = format!(
        r#"{{"model_type":"qwen3","hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":{layers},"head_dim":128,
        "num_attention_heads":16,"num_key_value_heads":8,"vocab_size":151936,"tie_word_embeddings":true}}"#
    );
    let config = HfConfig::parse(&text, Path::new("config.json")).unwrap();
    let model =
        Model::new(config.clone(), ParamStore::drawn_from(1, &config, kind, device).unwrap()).unwrap();
    let settings = Settings {
        train: Train { lr: 1e-6, max_tokens_per_gpu: 16_384, ..Train::default() },
        ..Settings::default()
    };
    let mut trainer = Trainer::new(model, Arc::new(Single), settings).unwrap();
    let scored = samples(num.max(GROUP), config.vocab_size as u32);
    let step = seconds(device, if is_gpu { 5 } else { 1 }, || drop(trainer.train_rollout(&scored).unwrap()));
    let places: Vec<Place> = (0..scored.len())
        .flat_map(|sample| (0..RESPONSE_LEN as usize).map(move |token| Place { sample, token }))
        .collect();
    let sequences = Sequences::new(&places, Kind::Float, device).unwrap();
    let random = || Tensor::randn([places.len() as i64], (Kind::Float, device)) * 0.1 - 2.0;
    let log_prob_r = random().set_requires_grad(true);
    let (old_r, advantage_r) = (random(), random());
    let losses = seconds(device, 20, || losses([&log_prob_r, &old_r, &advantage_r], &sequences));
    let advantages = seconds(Device::Cpu, 20, || advantages(scored.len()));
    println!(
        "a step of {} samples, {} trained tokens, on {device:?}: {:.4} s; all losses together {:.3} % of it, all advantages {:.3} %",
        scored.len(),
        places.len(),
        step,
        100.0 * losses / step,
        100.0 * advantages / step
    );
}
