//! A model that runs ahead gives the samples of one that does not, whatever happens on the way.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::tests::config;
use super::*;
use crate::naive_model::{AheadModel, NaiveModel};
use crate::{SampleSeed, Scratch, sample};

fn engine<M: ForwardModel>(model: M, config: &EngineConfig) -> Engine<M> {
    Engine::new(model, Arc::new(|_: &[u32]| String::new()), config, 0).unwrap()
}

/// At a temperature whose inverse is exact in f32 too.
fn request(id: u64, prompt_len: u32, n: u32, max_new_tokens: usize) -> Request {
    let mut request = tests::request(id, prompt_len, n, max_new_tokens);
    request.params.temperature = 0.5;
    request
}

fn run<M: ForwardModel>(
    engine: &mut Engine<M>,
    mut at_step: impl FnMut(&mut Engine<M>, usize),
) -> Vec<Completion> {
    let mut done = Vec::new();
    for step in 0..5000 {
        if engine.is_idle() {
            assert_eq!(engine.blocks().num_free(), engine.blocks().num_blocks(), "blocks leaked");
            done.sort_by_key(|c: &Completion| (c.id, c.index));
            return done;
        }
        at_step(engine, step);
        done.extend(engine.step().unwrap());
    }
    panic!("the engine makes no progress");
}

#[test]
fn samples_are_those_of_a_model_that_does_not_run_ahead() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..60 {
        let config =
            config(random.random_range(18..60), random.random_range(1..9), random.random_range(1..40));
        let requests: Vec<Request> = (0..random.random_range(1..7))
            .map(|id| {
                let (prompt_len, n) = (random.random_range(1..30), random.random_range(1..4));
                request(id, prompt_len, n, random.random_range(1..34))
            })
            .collect();
        let (mut plain, mut ahead) =
            (engine(NaiveModel::default(), &config), engine(AheadModel::default(), &config));
        for request in &requests {
            plain.submit(request.clone()).unwrap();
            ahead.submit(request.clone()).unwrap();
        }
        let (expected, done) = (run(&mut plain, |_, _| ()), run(&mut ahead, |_, _| ()));
        assert_eq!(expected.len(), done.len());
        for (expected, done) in expected.iter().zip(&done) {
            assert_eq!(
                (expected.id, expected.index, &expected.tokens, expected.finish_reason),
                (done.id, done.index, &done.tokens, done.finish_reason)
            );
            assert_eq!(expected.log_probs, done.log_probs);
        }
    }
}

#[test]
fn tokens_on_their_way_carry_the_version_they_were_computed_with() {
    for kv in [KvOnSwap::Recompute, KvOnSwap::Keep] {
        let mut ahead = engine(AheadModel::default(), &config(60, 8, 40));
        for id in 0..5 {
            ahead.submit(request(id, 6, 2, 30)).unwrap();
        }
        let done = run(&mut ahead, |engine, step| {
            if step % 7 == 6 {
                let version = engine.version() + 1;
                let swapped = engine.swap_weights(version, kv, |model| {
                    model.naive.salt = version;
                    Ok::<_, Error>(())
                });
                swapped.unwrap();
            }
        });
        for Completion { id, index, tokens, log_probs, weight_versions, .. } in done {
            assert_eq!(weight_versions.iter().map(|run| run.len as usize).sum::<usize>(), tokens.len());
            let mut sequence = request(id, 6, 2, 30).tokens;
            let versions = weight_versions.iter().flat_map(|run| (0..run.len).map(|_| run.version));
            for ((token, log_prob), version) in tokens.into_iter().zip(log_probs).zip(versions) {
                // With a cache that is kept the naive model's logits are still those of all tokens under the newest weights.
                let logits = NaiveModel::logits(version, sequence.iter().copied());
                let params = request(id, 6, 2, 30).params;
                let seed = SampleSeed { index, ..params.seed };
                let uniform = seed.uniform((sequence.len() - 6) as u64);
                let sampled = sample(&logits, &params, uniform, &mut Scratch::default()).unwrap();
                assert_eq!((sampled.token, sampled.log_prob.to_bits()), (token, log_prob.to_bits()));
                sequence.push(token);
            }
        }
    }
}

#[test]
fn aborted_and_constrained_samples_go_beside_those_that_run_ahead() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for _ in 0..30 {
        let config = config(40, random.random_range(2..9), 24);
        let penalised = |id: u64| {
            let mut request = request(id, 9, 1, 12);
            request.params.penalties.repetition = 1.5;
            request
        };
        let mut alone = engine(NaiveModel::default(), &config);
        let mut ahead = engine(AheadModel::default(), &config);
        for id in 0..6 {
            let request = if id == 4 { penalised(id) } else { request(id, 9, 2, 20) };
            alone.submit(request.clone()).unwrap();
            ahead.submit(request).unwrap();
        }
        let expected = run(&mut alone, |_, _| ());
        let at = random.random_range(1..20);
        let mut aborted = Vec::new();
        let done = run(&mut ahead, |engine, step| {
            if step == at {
                aborted = engine.abort(2);
                aborted.extend(engine.abort_sample(3, 1));
                engine.retract();
            }
        });
        for Completion { id, index, tokens, log_probs, .. } in done.iter().chain(&aborted) {
            let full = expected.iter().find(|full| (full.id, full.index) == (*id, *index)).unwrap();
            assert_eq!(full.tokens[..tokens.len()], tokens[..]);
            assert_eq!(full.log_probs[..log_probs.len()], log_probs[..]);
        }
        assert_eq!(done.len() + aborted.len(), expected.len());
    }
}
