//! Training steps of tiny models: shared prompts against separate ones, 1, 2 and 3 ranks, several steps, learning.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::sync::Arc;

use slime_comm::{Communicator, Single, Threads};
use slime_config::{KlLossType, LossReducer};
use slime_model::{Context, Model, Segment};
use slime_record::Sample;
use slime_trainer::log_probs::log_probs;
use slime_trainer::{Error, Roles, Scored, Settings, StepMetrics, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::{model, packed, rollout, settings, trainer};

/// Steps over fresh weights: the metrics, the first reduced gradients, the weights afterwards.
fn run(
    comm: Arc<dyn Communicator>,
    settings: Settings,
    scored: &[Scored],
) -> (Vec<StepMetrics>, Vec<Tensor>, Vec<Tensor>) {
    let mut trainer = trainer(Kind::Float, comm, settings);
    let mut first = Vec::new();
    let metrics = trainer
        .train_rollout_with(scored, |_, grads| {
            if first.is_empty() {
                first = grads.whole()?.into_iter().map(|(_, grad)| grad).collect();
            }
            Ok(())
        })
        .unwrap();
    let weights = trainer.policy().params().iter().map(|(_, tensor)| tensor.detach().copy()).collect();
    (metrics, first, weights)
}

fn largest_difference(a: &[Tensor], b: &[Tensor]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs().max().double_value(&[])).fold(0.0, f64::max)
}

#[test]
fn shared_prompt_gives_the_gradients_of_separate_sequences() {
    for name in ["llama", "llama_tied", "qwen2", "qwen3", "qwen3_moe", "glm4", "glm4_moe", "minimax_m2"] {
        let samples: Vec<Sample> = rollout(3, 4).into_iter().map(|scored| scored.sample).collect();
        let shared = model(name, Kind::Double);
        shared.params().set_requires_grad(true);
        let mut total = 0.0;
        for batch in packed(&samples, 40) {
            let (log_probs_r, entropy_r) = log_probs(&shared, &batch, 0.7).unwrap();
            let weights: Vec<f64> = batch.places.iter().map(|p| 1.0 + (p.sample + p.token) as f64).collect();
            let loss = ((log_probs_r + entropy_r * 0.1) * Tensor::from_slice(&weights)).sum(Kind::Double);
            total += loss.double_value(&[]);
            loss.backward();
        }
        let separate = model(name, Kind::Double);
        separate.params().set_requires_grad(true);
        let mut expected = 0.0;
        for (i, sample) in samples.iter().enumerate() {
            let tokens: Vec<i64> = sample.tokens.iter().map(|t| i64::from(*t)).collect();
            let (len, prompt_len) = (tokens.len(), i64::from(sample.prompt_len));
            let tokens = Tensor::from_slice(&tokens);
            let mut context = Context::packed(&[Segment::alone(0, len)], Kind::Double, Device::Cpu).unwrap();
            let hidden = separate.forward(&mut context, &tokens).unwrap();
            let num = len as i64 - prompt_len;
            let logits = separate.logits(&hidden.narrow(0, prompt_len - 1, num)).unwrap() / 0.7;
            let all = logits.log_softmax(-1, None::<Kind>);
            let picked = all.gather(1, &tokens.narrow(0, prompt_len, num).unsqueeze(1), false).squeeze_dim(1);
            let entropy = -(all.exp() * &all).sum_dim_intlist(-1, false, None::<Kind>);
            let weights: Vec<f64> = sample
                .loss_mask
                .iter()
                .enumerate()
                .map(|(token, mask)| f64::from(*mask) * (1.0 + (i + token) as f64))
                .collect();
            let loss = ((picked + entropy * 0.1) * Tensor::from_slice(&weights)).sum(Kind::Double);
            expected += loss.double_value(&[]);
            loss.backward();
        }
        assert!((total - expected).abs() < 1e-10 * expected.abs(), "{name}: {total} and {expected}");
        for ((spec, a), (_, b)) in shared.params().trained().zip(separate.params().trained()) {
            assert!(a.grad().allclose(&b.grad(), 1e-9, 1e-10, false), "{name}: gradient of {}", spec.name);
        }
    }
}

#[test]
fn loss_and_weights_are_the_same_on_one_two_and_three_ranks() {
    let scored = rollout(5, 4);
    let mut settings = settings();
    settings.num_steps_per_rollout = 2;
    settings.algorithm.entropy_coef = 0.01;
    let (metrics, grads, weights) = run(Arc::new(Single), settings.clone(), &scored);
    for size in [2, 3] {
        let ranks = Threads::spawn(size, |comm| {
            let (metrics, grads, weights) = run(Arc::new(comm), settings.clone(), &scored);
            (metrics, grads, weights)
        })
        .unwrap();
        for (rank, (ranks_metrics, rank_grads, rank_weights)) in ranks.iter().enumerate() {
            for (a, b) in ranks_metrics.iter().zip(&metrics) {
                assert!((a.loss - b.loss).abs() < 1e-6, "rank {rank} of {size}: {} and {}", a.loss, b.loss);
                assert!((a.grad_norm - b.grad_norm).abs() < 1e-5 * b.grad_norm);
                assert_eq!(a.num_trained_tokens, b.num_trained_tokens);
            }
            assert!(largest_difference(rank_grads, &grads) < 1e-6);
            assert!(largest_difference(rank_weights, &weights) < 1e-4);
            assert_eq!(
                largest_difference(rank_weights, &ranks[0].2).to_bits(),
                0,
                "ranks hold the same bits"
            );
        }
    }
}

#[test]
fn loss_by_rows_has_the_gradients_of_the_loss_of_all_rows() {
    let mut scored = rollout(4, 4);
    for scored in &mut scored {
        let response_len = scored.sample.response_len();
        scored.sample.rollout_log_probs = (0..response_len).map(|at| -4.0 - at as f32 / 8.0).collect();
    }
    for (estimator, entropy_coef) in [("grpo", 0.02), ("cispo", 0.0)] {
        let mut by_row = settings();
        by_row.algorithm.advantage_estimator = serde_json::from_value(serde_json::json!(estimator)).unwrap();
        by_row.algorithm.entropy_coef = entropy_coef;
        by_row.algorithm.correction.weight = slime_config::CorrectionWeight::Truncate;
        by_row.algorithm.correction.high = Some(1.5);
        by_row.num_steps_per_rollout = 2;
        let mut whole = by_row.clone();
        // A bound that no ratio falls below keeps every row and has to see all of a sequence.
        whole.algorithm.correction.veto = Some(1e-30);
        let (metrics, grads, weights) = run(Arc::new(Single), by_row, &scored);
        let (expected, expected_grads, expected_weights) = run(Arc::new(Single), whole, &scored);
        for (got, expected) in metrics.iter().zip(&expected) {
            assert!((got.loss - expected.loss).abs() < 1e-6, "{} and {}", got.loss, expected.loss);
            assert!((got.grad_norm - expected.grad_norm).abs() < 1e-5 * expected.grad_norm);
            assert!((got.entropy - expected.entropy).abs() < 1e-5);
        }
        assert!(largest_difference(&grads, &expected_grads) < 1e-6, "{estimator}");
        assert!(largest_difference(&weights, &expected_weights) < 1e-4, "{estimator}");
    }
}

#[test]
fn budget_and_sample_order_do_not_change_the_loss() {
    let scored = rollout(4, 4);
    let (metrics, grads, _) = run(Arc::new(Single), settings(), &scored);
    let mut small = settings();
    small.train.max_tokens_per_gpu = 12;
    let mut reversed = scored.clone();
    reversed.reverse();
    let (other, other_grads, _) = run(Arc::new(Single), small, &reversed);
    assert!((metrics[0].loss - other[0].loss).abs() < 1e-6);
    assert!(largest_difference(&grads, &other_grads) < 1e-6);
    assert!(metrics[0].num_forward_tokens < other[0].num_forward_tokens, "a smaller budget shares less");
}

#[test]
fn first_step_has_ratio_one_and_later_steps_keep_the_old_log_probs() {
    let mut settings = settings();
    settings.num_steps_per_rollout = 2;
    settings.train.lr = 1e-2;
    let (metrics, ..) = run(Arc::new(Single), settings, &rollout(4, 4));
    assert!(metrics[0].ppo_kl.abs() < 1e-6, "{}", metrics[0].ppo_kl);
    assert!(metrics[1].ppo_kl.abs() > 1e-5, "{}", metrics[1].ppo_kl);
}

#[test]
fn reference_adds_a_kl_that_is_zero_at_first_and_positive_later() {
    let mut settings = settings();
    settings.algorithm.kl_loss_coef = Some(0.1);
    settings.algorithm.kl_loss_type = KlLossType::K3;
    settings.train.lr = 1e-2;
    let reference = Some(model("llama", Kind::Float));
    let roles = Roles { reference, ..Roles::from(model("llama", Kind::Float)) };
    let mut trainer = Trainer::new(roles, Arc::new(Single), settings).unwrap();
    let scored = rollout(3, 4);
    let first = trainer.train_rollout(&scored).unwrap().remove(0);
    let second = trainer.train_rollout(&scored).unwrap().remove(0);
    assert!(first.kl_loss.abs() < 1e-6, "{}", first.kl_loss);
    assert!(second.kl_loss > 1e-6, "{}", second.kl_loss);
    assert!((second.loss - second.pg_loss - 0.1 * second.kl_loss).abs() < 1e-6);
}

#[test]
fn rewarded_responses_become_likelier_in_f32_and_bf16() {
    let scored = rollout(2, 4);
    for kind in [Kind::Float, Kind::BFloat16] {
        for reducer in [LossReducer::SampleMean, LossReducer::TokenMean] {
            let mut settings = settings();
            settings.train.lr = 3e-3;
            settings.algorithm.loss_reducer = Some(reducer);
            let mut trainer = trainer(kind, Arc::new(Single), settings);
            let margin = |model: &Model| {
                let samples: Vec<Sample> = scored.iter().map(|scored| scored.sample.clone()).collect();
                let batch = packed(&samples, 4096).remove(0);
                let (log_probs_r, _) = tch::no_grad(|| log_probs(model, &batch, 0.7)).unwrap();
                let signs: Vec<f32> =
                    batch.places.iter().map(|p| if p.sample % 2 == 1 { 1.0 } else { -1.0 }).collect();
                (log_probs_r * Tensor::from_slice(&signs)).sum(Kind::Float).double_value(&[])
            };
            let before = margin(trainer.policy());
            for _ in 0..8 {
                trainer.train_rollout(&scored).unwrap();
            }
            let after = margin(trainer.policy());
            assert!(after > before + 1.0, "{kind:?} {reducer:?}: {before} -> {after}");
        }
    }
}

#[test]
fn state_buffers_resume_to_the_same_bits() {
    let scored = rollout(3, 4);
    let mut whole = trainer(Kind::Float, Arc::new(Single), settings());
    whole.train_rollout(&scored).unwrap();
    let mut resumed = trainer(Kind::Float, Arc::new(Single), settings());
    for buffer in whole.buffers() {
        let values = whole.read_buffer(&buffer.name).unwrap();
        assert_eq!(values.len(), buffer.len());
        resumed.write_buffer(&buffer.name, &values).unwrap();
    }
    resumed.resume(whole.progress()).unwrap();
    let expected = whole.train_rollout(&scored).unwrap();
    assert_eq!(resumed.train_rollout(&scored).unwrap(), expected);
    for ((_, a), (_, b)) in whole.policy().params().iter().zip(resumed.policy().params().iter()) {
        assert!(a.equal(b));
    }
    let error = resumed.write_buffer("exp_avg/nothing", &[]).unwrap_err();
    assert_eq!(error.exit_code(), 65);
}

#[test]
fn bad_samples_are_named() {
    let train = |scored: &[Scored]| trainer(Kind::Float, Arc::new(Single), settings()).train_rollout(scored);
    assert!(matches!(train(&[]), Err(Error::NoSamples)));
    let mut scored = rollout(1, 2);
    scored[1].sample.tokens[0] = 96;
    let error = train(&scored).unwrap_err().to_string();
    assert_eq!(error, "sample 0/0/1.0.0: tokens: expected ids below 96, got 96");
    let mut scored = rollout(1, 2);
    for scored in &mut scored {
        scored.sample.loss_mask.fill(0);
    }
    assert!(matches!(train(&scored), Err(Error::NothingTrained { step: 0 })));
    let mut scored = rollout(1, 2);
    scored[0].reward = Some(f32::NAN);
    let error = train(&scored).unwrap_err().to_string();
    assert_eq!(error, "sample 0/0/0.0.0: reward: expected a finite number, got NaN");
    let mut scored = rollout(1, 3);
    scored[2].sample.rollout_log_probs = vec![f32::NEG_INFINITY; scored[2].sample.response_len()];
    let error = train(&scored).unwrap_err().to_string();
    assert_eq!(error, "sample 0/0/2.0.0: rollout_log_probs: expected finite numbers, got -inf");
    let error = train(&rollout(2, 1)).unwrap_err().to_string();
    assert_eq!(error, "sample 0/0/0.0.0: group: expected at least 2 samples for grpo, got 1");
    let mut scored = rollout(1, 2);
    scored[1].reward = None;
    let error = train(&scored).unwrap_err().to_string();
    assert_eq!(error, "sample 0/0/1.0.0: reward: expected a number, got none");
}
