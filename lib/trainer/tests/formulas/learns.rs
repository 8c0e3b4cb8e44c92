//! Every formula learns: a tiny model finds out what is rewarded, from samples of its own.

use std::sync::Arc;

use slime_comm::Single;
use slime_config::LossType;
use slime_model::{Context, Model, Segment};
use slime_record::Sample;
use slime_trainer::{Scored, Settings};
use tch::{Device, Kind, Tensor};

use crate::rollout::{Draws, TEMPERATURE, settings, trainer};

/// Tokens below this are good: an eighth of the vocabulary.
const GOOD: u32 = 12;
const RESPONSE_LEN: usize = 4;
const NUM_GROUPS: u32 = 4;
const NUM_SAMPLES: u32 = 8;
const NUM_ROLLOUTS: usize = 25;

fn prompt(group: u32) -> Vec<u32> {
    vec![3, 40 + group, 7]
}

/// The log-probs `[v]` of the token after each sequence.
fn next_tokens(model: &Model, sequences: &[Vec<u32>]) -> Vec<Vec<f64>> {
    let (mut segments, mut last, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for tokens in sequences {
        segments.push(Segment::alone(ids.len(), tokens.len()));
        ids.extend(tokens.iter().map(|token| i64::from(*token)));
        last.push(ids.len() as i64 - 1);
    }
    let mut context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
    let hidden = model.forward(&mut context, &Tensor::from_slice(&ids)).unwrap();
    let rows = hidden.index_select(0, &Tensor::from_slice(&last));
    let log_probs = (model.logits(&rows).unwrap() / TEMPERATURE).log_softmax(-1, None::<Kind>);
    Vec::try_from(log_probs.to_kind(Kind::Double)).unwrap()
}

fn reward(response: &[u32]) -> f32 {
    response.iter().filter(|token| **token < GOOD).count() as f32 / response.len() as f32
}

/// Samples of the policy; log-probs of generation are off by up to `noise`.
fn draw_rollout(model: &Model, draws: &mut Draws, noise: f64) -> Vec<Scored> {
    let all = (0..NUM_GROUPS).flat_map(|group| (0..NUM_SAMPLES).map(move |index| (group, index)));
    let all: Vec<(u32, u32)> = all.collect();
    let mut tokens: Vec<Vec<u32>> = all.iter().map(|(group, _)| prompt(*group)).collect();
    let mut log_probs = vec![Vec::new(); all.len()];
    for _ in 0..RESPONSE_LEN {
        for (i, next) in next_tokens(model, &tokens).into_iter().enumerate() {
            let mut rest = draws.unit();
            let token = next.iter().position(|log_prob| {
                rest -= log_prob.exp();
                rest <= 0.0
            });
            let token = token.unwrap_or(next.len() - 1);
            log_probs[i].push((next[token] + noise * (2.0 * draws.unit() - 1.0)) as f32);
            tokens[i].push(token as u32);
        }
    }
    let scored = |((group, index), (tokens, log_probs)): ((u32, u32), (Vec<u32>, Vec<f32>))| {
        let prompt_len = prompt(group).len();
        let reward = reward(&tokens[prompt_len..]);
        let teacher_log_probs = teacher_log_probs(&tokens[prompt_len..]);
        let sample = Sample {
            group,
            index,
            episode: u64::from(index),
            prompt_len: prompt_len as u32,
            tokens,
            loss_mask: vec![1; RESPONSE_LEN],
            rollout_log_probs: log_probs,
            ..Sample::default()
        };
        Scored { teacher_log_probs, ..Scored::new(sample, reward) }
    };
    all.into_iter().zip(tokens.into_iter().zip(log_probs)).map(scored).collect()
}

/// A teacher that says a good token nine times out of ten.
fn teacher_log_probs(response: &[u32]) -> Vec<f32> {
    let good = (0.9 / f64::from(GOOD)).ln() as f32;
    let bad = (0.1 / f64::from(96 - GOOD)).ln() as f32;
    response.iter().map(|token| if *token < GOOD { good } else { bad }).collect()
}

/// A better answer of good tokens and a worse one of bad ones, or the better one alone.
fn recorded(num: u32) -> Vec<Scored> {
    let mut draws = Draws(5);
    let mut scored = Vec::new();
    for group in 0..NUM_GROUPS {
        for index in 0..num {
            let token = |draws: &mut Draws| match index {
                0 => (draws.next() % u64::from(GOOD)) as u32,
                _ => GOOD + (draws.next() % u64::from(96 - GOOD)) as u32,
            };
            let response: Vec<u32> = (0..RESPONSE_LEN).map(|_| token(&mut draws)).collect();
            let sample = Sample {
                group,
                index,
                prompt_len: prompt(group).len() as u32,
                tokens: [prompt(group), response].concat(),
                loss_mask: vec![1; RESPONSE_LEN],
                ..Sample::default()
            };
            scored.push(Scored { sample, ..Scored::default() });
        }
    }
    scored
}

/// What was learned: a number before and after.
pub fn check(name: &str) -> (f64, f64) {
    let mut settings = settings(name);
    settings.train.lr = 1e-2;
    settings.num_steps_per_rollout = 1;
    if name != "reward_model" && settings.algorithm.loss != LossType::Policy {
        settings.train.lr = 3e-3;
    }
    match settings.algorithm.loss {
        LossType::Policy => of_policy(name, settings),
        LossType::Sft => falls(name, settings, &recorded(1), "loss"),
        LossType::Dpo | LossType::RewardModel => falls(name, settings, &recorded(2), "loss"),
    }
}

/// The mean reward of a policy's samples, before and after; of the critic its loss, of the entropy the entropy.
fn of_policy(name: &str, mut settings: Settings) -> (f64, f64) {
    if settings.algorithm.kl_loss_coef.is_some() {
        settings.algorithm.kl_loss_coef = Some(0.02);
    }
    if settings.algorithm.kl_coef.is_some() {
        settings.algorithm.kl_coef = Some(0.002);
    }
    let noise = if settings.algorithm.correction.reads_rollout() { 0.15 } else { 0.0 };
    let mut trainer = trainer(settings, Arc::new(Single));
    let mut draws = Draws(11);
    let mut rewards = Vec::new();
    let mut values = Vec::new();
    for _ in 0..NUM_ROLLOUTS {
        let scored = tch::no_grad(|| draw_rollout(trainer.policy(), &mut draws, noise));
        let mean = scored.iter().filter_map(|scored| scored.reward).sum::<f32>() / scored.len() as f32;
        rewards.push(f64::from(mean));
        let steps = trainer.train_rollout(&scored).unwrap();
        values.extend(steps[0].extra.get("train/critic-value_loss").copied());
    }
    if name == "value_loss" {
        let (first, last) = (values[0], values[values.len() - 1]);
        assert!(last < 0.5 * first, "{name}: value loss {first} -> {last}");
        return (first, last);
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&rewards[..3]), mean(&rewards[NUM_ROLLOUTS - 3..]));
    assert!(last > first + 0.3, "{name}: reward {first} -> {last}");
    (first, last)
}

fn falls(name: &str, settings: Settings, scored: &[Scored], what: &str) -> (f64, f64) {
    let mut trainer = trainer(settings, Arc::new(Single));
    let losses: Vec<f64> =
        (0..NUM_ROLLOUTS).map(|_| trainer.train_rollout(scored).unwrap()[0].loss).collect();
    let (first, last) = (losses[0], losses[NUM_ROLLOUTS - 1]);
    assert!(last < 0.5 * first, "{name}: {what} {first} -> {last}");
    (first, last)
}
