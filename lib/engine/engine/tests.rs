//! What the engine promises, against a model whose answers are known exactly.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::naive_model::NaiveModel;
use crate::{SampleSeed, sample};

fn engine(config: &EngineConfig) -> Engine<NaiveModel> {
    let decode = |tokens: &[u32]| tokens.iter().map(|&t| char::from(b'A' + t as u8)).collect();
    Engine::new(NaiveModel::default(), Arc::new(decode), config, 0).unwrap()
}

pub(super) fn config(num_blocks: usize, max_num_seqs: usize, max_batch_tokens: usize) -> EngineConfig {
    EngineConfig { block_size: 4, num_blocks, max_num_seqs, max_batch_tokens, ..EngineConfig::default() }
}

pub(super) fn request(id: u64, prompt_len: u32, n: u32, max_new_tokens: usize) -> Request {
    Request {
        id,
        tokens: (0..prompt_len).map(|i| (i * 5 + id as u32 * 3) % 29).collect(),
        params: SamplingParams {
            n,
            max_new_tokens,
            stop_token_ids: vec![28],
            temperature: 0.7,
            seed: SampleSeed { seed: 5, step: 1, group: id as u32, index: 0 },
            ..Default::default()
        },
    }
}

fn run(engine: &mut Engine<NaiveModel>) -> Vec<Completion> {
    let mut done = Vec::new();
    for _ in 0..5000 {
        if engine.is_idle() {
            assert_eq!(engine.blocks().num_free(), engine.blocks().num_blocks(), "blocks leaked");
            done.sort_by_key(|c: &Completion| (c.id, c.index));
            return done;
        }
        done.extend(engine.step().unwrap());
    }
    panic!("the engine makes no progress");
}

/// The same samples drawn one token at a time without engine, cache or batch.
fn reference(request: &Request) -> Vec<(Vec<u32>, Vec<f32>)> {
    let params = &request.params;
    let one = |index| {
        let seed = SampleSeed { index, ..params.seed };
        let (mut tokens, mut log_probs) = (request.tokens.clone(), Vec::new());
        while log_probs.len() < params.max_new_tokens && tokens.len() < 64 {
            let logits = NaiveModel::logits(0, tokens.iter().copied());
            let uniform = seed.uniform(log_probs.len() as u64);
            let sampled = sample(&logits, params, uniform, &mut crate::Scratch::default()).unwrap();
            tokens.push(sampled.token);
            log_probs.push(sampled.log_prob);
            if params.stop_token_ids.contains(&sampled.token) {
                break;
            }
        }
        (tokens.split_off(request.tokens.len()), log_probs)
    };
    (0..params.n).map(one).collect()
}

pub(super) fn assert_matches_reference(requests: &[Request], done: &[Completion]) {
    let expected: Vec<_> = requests.iter().flat_map(reference).collect();
    assert_eq!(done.len(), expected.len());
    for (completion, (tokens, log_probs)) in done.iter().zip(&expected) {
        assert_eq!(&completion.tokens, tokens, "request {} sample {}", completion.id, completion.index);
        assert_eq!(&completion.log_probs, log_probs);
    }
}

#[test]
fn samples_do_not_depend_on_batch_chunks_cache_or_preemption() {
    let mut num_preemptions = 0;
    for seed in 0..60 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let requests: Vec<Request> = (0..rng.random_range(1..8))
            .map(|id| request(id, rng.random_range(1..30), rng.random_range(1..6), rng.random_range(1..40)))
            .collect();
        let config = config(rng.random_range(16..60), rng.random_range(1..12), rng.random_range(1..40));
        let mut engine = engine(&config);
        for request in &requests {
            engine.submit(request.clone()).unwrap();
            if rng.random_bool(0.5) {
                let done = engine.step().unwrap();
                assert!(done.len() <= config.max_num_seqs);
                for completion in done {
                    let expected = &reference(&requests[completion.id as usize])[completion.index as usize];
                    assert_eq!(completion.tokens, expected.0);
                }
            }
        }
        let done = run(&mut engine);
        for completion in &done {
            let expected = &reference(&requests[completion.id as usize])[completion.index as usize];
            assert_eq!(
                (&completion.tokens, &completion.log_probs),
                (&expected.0, &expected.1),
                "seed {seed}"
            );
        }
        assert!(engine.model.max_batch <= config.max_batch_tokens);
        num_preemptions += engine.usage().num_preemptions;
    }
    assert!(num_preemptions > 50, "the small caches forced only {num_preemptions} preemptions");
}

#[test]
fn prompt_of_a_group_is_computed_once() {
    let mut engine = engine(&config(200, 16, 64));
    let mut group = request(0, 22, 8, 3);
    group.params.stop_token_ids.clear();
    engine.submit(group.clone()).unwrap();
    let done = run(&mut engine);
    assert_matches_reference(&[group], &done);
    // 22 tokens by the first sample; each of the other seven computes the last one again for its logits.
    // Of the three tokens sampled, two go through the model.
    assert_eq!(engine.model.num_tokens, 22 + 7 + 8 * 2);
}

#[test]
fn preempted_sequence_keeps_its_tokens_and_returns() {
    let requests = [request(0, 8, 1, 30), request(1, 8, 1, 30), request(2, 8, 1, 30)];
    let mut engine = engine(&config(12, 8, 32));
    for request in &requests {
        engine.submit(request.clone()).unwrap();
    }
    let done = run(&mut engine);
    assert!(engine.usage().num_preemptions > 0);
    assert_matches_reference(&requests, &done);
}

#[test]
fn swapped_weights_show_in_the_version_runs() {
    for kv in [KvOnSwap::Recompute, KvOnSwap::Keep] {
        let mut engine = engine(&config(64, 8, 32));
        let mut group = request(0, 5, 2, 12);
        group.params.stop_token_ids.clear();
        engine.submit(group).unwrap();
        for _ in 0..6 {
            assert_eq!(engine.step().unwrap(), vec![]);
        }
        engine
            .swap_weights::<Error>(3, kv, |model| {
                model.salt = 99;
                Ok(())
            })
            .unwrap();
        assert_eq!(engine.version(), 3);
        for completion in run(&mut engine) {
            let [old, new] = completion.weight_versions[..] else { panic!("two runs expected") };
            assert_eq!((old.version, new.version, old.len + new.len), (0, 3, 12));
            assert_eq!(completion.tokens.len(), 12);
        }
    }
}

#[test]
fn failed_swap_keeps_the_version() {
    let mut engine = engine(&config(64, 8, 32));
    assert_eq!(engine.swap_weights(1, KvOnSwap::Keep, |_| Err("gone")), Err("gone"));
    assert_eq!(engine.version(), 0);
}

#[test]
fn continued_sample_draws_what_the_uninterrupted_one_would() {
    let mut whole = request(4, 9, 1, 20);
    whole.params.stop_token_ids.clear();
    let (tokens, _) = reference(&whole).remove(0);
    let mut rest = whole.clone();
    rest.tokens.extend(&tokens[..7]);
    rest.params.first_token = 7;
    rest.params.max_new_tokens = 13;
    let mut engine = engine(&config(64, 8, 32));
    engine.submit(rest).unwrap();
    assert_eq!(run(&mut engine)[0].tokens, tokens[7..]);
}

#[test]
fn response_ends_with_the_context() {
    let mut engine = engine(&config(64, 8, 32));
    let mut long = request(0, 60, 1, 100);
    long.params.stop_token_ids.clear();
    engine.submit(long).unwrap();
    let done = run(&mut engine);
    assert_eq!((done[0].tokens.len(), done[0].finish_reason), (4, FinishReason::Length));
}

#[test]
fn aborted_request_comes_back_as_it_is_and_frees_its_blocks() {
    let mut engine = engine(&config(64, 2, 32));
    engine.submit(request(0, 9, 4, 40)).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
    }
    let aborted = engine.abort(0);
    assert!(aborted.iter().all(|c| c.finish_reason == FinishReason::Abort));
    assert!(engine.is_idle() && aborted.len() + 1 >= 4);
    assert_eq!(engine.blocks().num_free(), 64);
}

#[test]
fn requests_that_cannot_be_served_are_refused_with_the_reason() {
    let mut engine = engine(&config(5, 8, 32));
    let error = |engine: &mut Engine<NaiveModel>, request| engine.submit(request).unwrap_err().to_string();
    assert_eq!(
        error(&mut engine, request(7, 64, 1, 1)),
        "prompt of request 7 has 64 tokens, the context holds 64 including the response"
    );
    assert_eq!(error(&mut engine, request(7, 0, 1, 1)), "prompt of request 7 has no tokens");
    assert_eq!(error(&mut engine, request(7, 10, 1, 30)), "request 7 needs 10 KV blocks, the cache has 5");
    let foreign = Request { id: 7, tokens: vec![1, 30], ..Default::default() };
    assert_eq!(
        error(&mut engine, foreign),
        "request 7: token 30 at position 1 is outside the vocabulary of 29"
    );
    assert!(engine.is_idle());
}

#[test]
fn times_of_finished_samples_are_in_order_and_taken_once() {
    let mut engine = engine(&config(64, 2, 64));
    engine.submit(request(3, 5, 4, 6)).unwrap();
    assert_eq!(engine.load(), Load { num_running: 0, num_waiting: 4, kv_used: 0.0 });
    engine.step().unwrap();
    let load = engine.load();
    assert!(load.num_running > 0 && load.kv_used > 0.0, "{load:?}");
    assert!(engine.take_timings().is_empty(), "nobody asked for them");
    engine.keep_timings();
    run(&mut engine);
    let timings = engine.take_timings();
    assert!(!timings.is_empty() && timings.iter().all(|timing| timing.id == 3 && timing.num_tokens > 0));
    for Timing { submitted, started, first_token, finished, .. } in timings {
        assert!(submitted <= started && started <= first_token && first_token <= finished);
    }
    assert!(engine.take_timings().is_empty());
}

#[test]
fn tokens_are_told_as_they_are_sampled_and_taken_once() {
    let mut engine = engine(&config(64, 4, 64));
    engine.step().unwrap();
    assert!(engine.take_tokens().is_empty(), "nobody asked for them");
    engine.keep_tokens();
    let mut group = request(3, 5, 3, 6);
    group.params.top_log_probs = 2;
    engine.submit(group).unwrap();
    let mut told = vec![Vec::new(); 3];
    let mut done = Vec::new();
    while !engine.is_idle() {
        done.extend(engine.step().unwrap());
        for NewToken { id, index, token, log_prob, top } in engine.take_tokens() {
            assert_eq!((id, top.len()), (3, 2));
            told[index as usize].push((token, log_prob));
        }
    }
    for completion in done {
        let tokens = completion.tokens.iter().copied().zip(completion.log_probs).collect::<Vec<_>>();
        assert_eq!(told[completion.index as usize], tokens);
        // Siblings find all of the prompt but its last token.
        assert_eq!(completion.num_cached, if completion.index == 0 { 0 } else { 4 });
    }
}

#[test]
fn one_sample_is_aborted_and_its_siblings_go_on() {
    let mut engine = engine(&config(64, 8, 32));
    let mut group = request(0, 9, 3, 12);
    group.params.stop_token_ids.clear();
    engine.submit(group.clone()).unwrap();
    for _ in 0..4 {
        engine.step().unwrap();
    }
    let aborted = engine.abort_sample(0, 1).unwrap();
    assert_eq!((aborted.index, aborted.finish_reason), (1, FinishReason::Abort));
    assert_eq!(engine.abort_sample(0, 1), None);
    engine.retract();
    assert_eq!(engine.load().num_running, 0);
    assert_eq!(engine.blocks().num_free(), 64);
    let expected = reference(&group);
    let done = run(&mut engine);
    assert_eq!(done.iter().map(|c| c.index).collect::<Vec<_>>(), [0, 2]);
    for completion in done {
        assert_eq!(completion.tokens, expected[completion.index as usize].0);
    }
}

/// Allows even tokens alone, and `left` of them.
struct Even {
    left: usize,
    words: [u32; 1],
}

impl crate::Grammar for Even {
    fn begin(&self) -> Box<dyn crate::GrammarState> {
        Box::new(Even { left: self.left, words: self.words })
    }
}

impl crate::GrammarState for Even {
    fn allowed(&mut self) -> Option<&[u32]> {
        (self.left != 3).then_some(&self.words[..])
    }

    fn accept(&mut self, _: u32) {
        self.left -= 1;
    }

    fn is_complete(&self) -> bool {
        self.left == 0
    }
}

fn constrained(id: u64, left: usize) -> Request {
    let mut request = request(id, 6, 1, 9);
    request.params.stop_token_ids.clear();
    let grammar = Even { left, words: [0x5555_5555] };
    request.params.constraint = Some(crate::Constraint(Arc::new(grammar)));
    request
}

#[test]
fn constrained_samples_stay_in_their_grammar_and_others_are_as_without() {
    let mut engine = engine(&config(64, 8, 32));
    let free = request(0, 6, 2, 9);
    engine.submit(free.clone()).unwrap();
    engine.submit(constrained(1, 2)).unwrap();
    engine.submit(constrained(2, 5)).unwrap();
    let mut done = run(&mut engine);
    let stuck = done.pop().unwrap();
    // The grammar of the last one has no way on after two tokens.
    assert_eq!((stuck.tokens.len(), stuck.finish_reason), (2, FinishReason::Abort));
    let complete = done.pop().unwrap();
    assert_eq!((complete.tokens.len(), complete.finish_reason), (2, FinishReason::Stop));
    assert!(complete.tokens.iter().chain(&stuck.tokens).all(|token| token % 2 == 0));
    assert!(complete.log_probs.iter().all(|log_prob| log_prob.is_finite()));
    assert_matches_reference(&[free], &done);
}

#[test]
fn a_prompt_that_begins_like_an_earlier_one_takes_its_blocks_until_the_weights_change() {
    let mut engine = engine(&config(60, 8, 64));
    let (first, mut second) = (request(0, 22, 1, 4), request(1, 22, 1, 4));
    second.tokens[..20].copy_from_slice(&first.tokens[..20]);
    let computed = |engine: &mut Engine<NaiveModel>, request: &Request| {
        let before = engine.model.num_tokens;
        engine.submit(request.clone()).unwrap();
        let done = run(engine);
        (engine.model.num_tokens - before, done[0].num_cached, done)
    };
    let (num_first, cached, done) = computed(&mut engine, &first);
    assert_eq!(cached, 0);
    assert_matches_reference(std::slice::from_ref(&first), &done);
    let (num_second, cached, done) = computed(&mut engine, &second);
    // Five whole blocks are the same.
    assert_eq!((cached, num_first - num_second), (20, 20));
    assert_matches_reference(std::slice::from_ref(&second), &done);
    // A multi-turn prompt: prompt and response of before, and more.
    let mut third = first.clone();
    third.tokens.extend(reference(&first)[0].0.iter().chain(&[1, 2, 3]));
    let (_, cached, done) = computed(&mut engine, &third);
    assert_eq!(cached, 24);
    assert_matches_reference(&[third], &done);
    assert_eq!((engine.usage().num_cached_tokens, engine.usage().num_prompt_tokens), (44, 22 + 22 + 29));
    engine.swap_weights::<Error>(1, KvOnSwap::Keep, |_| Ok(())).unwrap();
    assert_eq!(computed(&mut engine, &second).1, 0);
    engine.forget_prefixes();
    assert_eq!(computed(&mut engine, &second).1, 0);
}

#[test]
fn prefixes_that_are_kept_never_take_room_from_samples() {
    let mut engine = engine(&config(16, 4, 32));
    for round in 0..40 {
        let requests: Vec<Request> = (0..3).map(|id| request(id + round % 5, 17, 2, 20)).collect();
        for request in &requests {
            engine.submit(request.clone()).unwrap();
        }
        let done = run(&mut engine);
        let mut requests = requests;
        requests.sort_by_key(|request| request.id);
        assert_matches_reference(&requests, &done);
    }
    assert!(engine.usage().num_cached_tokens > 0);
}
