//! What the engine promises of requests that matter more than others.

use std::sync::Arc;

use super::tests::{assert_matches_reference, config, request};
use super::*;
use crate::naive_model::NaiveModel;

fn engine(config: &EngineConfig) -> Engine<NaiveModel> {
    Engine::new(NaiveModel::default(), Arc::new(|_: &[u32]| String::new()), config, 0).unwrap()
}

fn with_priority(id: u64, n: u32, len: usize, priority: i64) -> Request {
    let mut request = request(id, 6, n, len);
    request.params.stop_token_ids.clear();
    request.params.priority = priority;
    request
}

/// Completions in the order in which they ended.
fn run(engine: &mut Engine<NaiveModel>) -> Vec<Completion> {
    let mut done = Vec::new();
    for _ in 0..5000 {
        if engine.is_idle() {
            assert_eq!(engine.blocks().num_free(), engine.blocks().num_blocks(), "blocks leaked");
            return done;
        }
        done.extend(engine.step().unwrap());
    }
    panic!("the engine makes no progress");
}

fn ids(done: &[Completion]) -> Vec<u64> {
    done.iter().map(|completion| completion.id).collect()
}

fn sorted(mut done: Vec<Completion>) -> Vec<Completion> {
    done.sort_by_key(|completion| (completion.id, completion.index));
    done
}

#[test]
fn higher_priority_takes_the_seats_of_lower_ones_which_lose_nothing() {
    let mut engine = engine(&config(200, 2, 64));
    let requests = [with_priority(0, 4, 20, 0), with_priority(1, 2, 5, 3), with_priority(2, 2, 5, -1)];
    engine.submit(requests[0].clone()).unwrap();
    for _ in 0..5 {
        engine.step().unwrap();
    }
    engine.submit(requests[2].clone()).unwrap();
    engine.submit(requests[1].clone()).unwrap();
    let done = run(&mut engine);
    assert_eq!(ids(&done), [1, 1, 0, 0, 0, 0, 2, 2]);
    assert_eq!(engine.usage().num_preemptions, 2);
    assert_matches_reference(&requests, &sorted(done));
}

#[test]
fn higher_priority_takes_the_blocks_of_lower_ones() {
    // Two samples of 24 tokens take 12 of the 13 blocks.
    let mut engine = engine(&config(13, 8, 64));
    let requests = [with_priority(0, 1, 20, 0), with_priority(1, 1, 20, 0), with_priority(2, 1, 3, 1)];
    for request in &requests[..2] {
        engine.submit(request.clone()).unwrap();
    }
    for _ in 0..18 {
        engine.step().unwrap();
    }
    engine.submit(requests[2].clone()).unwrap();
    let done = run(&mut engine);
    assert_eq!((ids(&done), engine.usage().num_preemptions), (vec![0, 2, 1], 1));
    assert_matches_reference(&requests, &sorted(done));
}

#[test]
fn equal_priorities_take_nothing_from_each_other() {
    let mut engine = engine(&config(200, 2, 64));
    let requests: Vec<_> = (0..4).map(|id| with_priority(id, 2, 7, 5)).collect();
    for request in &requests {
        engine.submit(request.clone()).unwrap();
        engine.step().unwrap();
    }
    let done = run(&mut engine);
    assert_eq!((ids(&done), engine.usage().num_preemptions), (vec![0, 0, 1, 1, 2, 2, 3, 3], 0));
    assert_matches_reference(&requests, &done);
}

#[test]
fn samples_do_not_depend_on_priorities() {
    for seed in 0..40_u64 {
        let number = |at: u64, below: u64| (seed * 31 + at * 17 + at * at * seed) % below;
        let requests: Vec<_> = (0..8)
            .map(|id| {
                let (n, len) = (1 + number(id, 4) as u32, 1 + number(id + 3, 30) as usize);
                with_priority(id, n, len, number(id + 5, 3) as i64 - 1)
            })
            .collect();
        let size = config(16 + number(1, 30) as usize, 1 + number(2, 6) as usize, 1 + number(3, 40) as usize);
        let mut engine = engine(&size);
        let mut done = Vec::new();
        for request in &requests {
            engine.submit(request.clone()).unwrap();
            for _ in 0..number(request.id, 5) {
                done.extend(engine.step().unwrap());
            }
        }
        done.extend(run(&mut engine));
        assert_matches_reference(&requests, &sorted(done));
    }
}
