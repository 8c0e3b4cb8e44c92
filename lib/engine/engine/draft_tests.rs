//! Guessed tokens change how fast samples come, never which ones.

use std::sync::Arc;

use super::tests::{assert_matches_reference, config, request};
use super::*;
use crate::naive_model::{NaiveModel, VOCAB};
use crate::{Batch, sample};

/// Logits that depend on the last two tokens alone and leave little choice, so that texts repeat themselves.
#[derive(Debug, Default)]
struct Repeating {
    cache: Vec<u32>,
    block_size: usize,
    /// Rows of logits that were computed.
    num_rows: usize,
}

impl Repeating {
    fn logits(before: u32, last: u32) -> Vec<f32> {
        let next = (before * 3 + last * 7 + 1) % 7;
        (0..VOCAB as u32).map(|token| if token % 7 == next { 3.0 - token as f32 } else { -4.0 }).collect()
    }
}

impl ForwardModel for Repeating {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_len(&self) -> usize {
        200
    }

    fn allocate(&mut self, num_blocks: usize, block_size: usize, _max_num_seqs: usize) -> Result<()> {
        (self.cache, self.block_size) = (vec![0; num_blocks * block_size], block_size);
        Ok(())
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<()> {
        for copy in &batch.copies {
            let from = copy.from as usize * self.block_size;
            self.cache.copy_within(from..from + self.block_size, copy.to as usize * self.block_size);
        }
        for (&slot, &token) in batch.slots.iter().zip(&batch.tokens) {
            self.cache[slot as usize] = token;
        }
        let chunks = batch.q_lens.iter().zip(&batch.block_tables);
        let tables: Vec<_> = chunks.flat_map(|(len, table)| vec![table; *len as usize]).collect();
        self.num_rows += batch.logit_rows.len();
        logits.clear();
        for &row in &batch.logit_rows {
            let (position, table) = (batch.positions[row as usize] as usize, tables[row as usize]);
            let token = |at: usize| {
                self.cache[table[at / self.block_size] as usize * self.block_size + at % self.block_size]
            };
            logits.extend(Self::logits(token(position - 1), token(position)));
        }
        Ok(())
    }
}

fn letters(tokens: &[u32]) -> String {
    tokens.iter().map(|&t| char::from(b'A' + t as u8)).collect()
}

fn drafting(config: &EngineConfig, num_draft_tokens: usize) -> EngineConfig {
    EngineConfig { num_draft_tokens, ..config.clone() }
}

fn run<M: ForwardModel>(engine: &mut Engine<M>, requests: &[Request]) -> Vec<Completion> {
    for request in requests {
        engine.submit(request.clone()).unwrap();
    }
    let mut done = Vec::new();
    while !engine.is_idle() {
        done.extend(engine.step().unwrap());
    }
    assert_eq!(engine.blocks().num_free(), engine.blocks().num_blocks(), "blocks leaked");
    done.sort_by_key(|c: &Completion| (c.id, c.index));
    done
}

/// A completion without what tells how it came about.
fn bare(mut completions: Vec<Completion>) -> Vec<Completion> {
    for completion in &mut completions {
        (completion.drafting, completion.num_cached) = (Drafting::default(), 0);
    }
    completions
}

#[test]
fn wrong_guesses_leave_no_trace() {
    // Nearly every guess is wrong: logits hash the whole sequence as the cache shows it.
    let requests: Vec<Request> = (0..6).map(|id| request(id, 3 + id as u32, 3, 40)).collect();
    for (num_blocks, max_num_seqs, max_batch_tokens) in
        [(400, 18, 500), (400, 18, 20), (40, 6, 64), (16, 4, 7)]
    {
        let config = drafting(&config(num_blocks, max_num_seqs, max_batch_tokens), 5);
        let mut engine = Engine::new(NaiveModel::default(), Arc::new(letters), &config, 0).unwrap();
        assert_matches_reference(&requests, &run(&mut engine, &requests));
        let drafting = engine.usage().drafting;
        assert!(drafting.num_drafted > drafting.num_accepted && drafting.num_verified > 0, "{drafting:?}");
        assert!(engine.model.max_batch <= max_batch_tokens);
    }
}

fn repeating(num_draft_tokens: usize, temperature: f64) -> (Vec<Completion>, Usage, usize) {
    let mut requests: Vec<Request> = (0..4).map(|id| request(id, 6, 4, 90)).collect();
    for request in &mut requests {
        request.params.temperature = temperature;
        request.params.keeps_ids = true;
        request.params.top_k = 6;
    }
    let config = drafting(&config(600, 16, 400), num_draft_tokens);
    let mut engine = Engine::new(Repeating::default(), Arc::new(letters), &config, 0).unwrap();
    let done = run(&mut engine, &requests);
    (bare(done), engine.usage(), engine.model.num_rows)
}

#[test]
fn right_guesses_save_passes_and_change_no_sample() {
    for temperature in [0.0, 0.5] {
        let (plain, without, _) = repeating(0, temperature);
        let (drafted, with, num_rows) = repeating(8, temperature);
        assert_eq!(plain, drafted);
        let length = with.drafting.accept_length().unwrap();
        assert!(with.num_steps * 4 < without.num_steps * 3 && length > 2.0, "{with:?} {without:?}");
        assert_eq!(with.num_sampled_tokens, without.num_sampled_tokens);
        let wasted = (with.drafting.num_drafted - with.drafting.num_accepted) as usize;
        // A right guess whose token ends the sample leaves the rows behind it unused.
        assert!(num_rows <= with.num_sampled_tokens as usize + wasted + with.drafting.num_verified as usize);
    }
}

#[test]
fn stops_aborts_penalties_and_swaps_do_as_they_do_without_guesses() {
    let run = |num_draft_tokens: usize| {
        let config = drafting(&config(300, 16, 300), num_draft_tokens);
        let mut engine = Engine::new(Repeating::default(), Arc::new(letters), &config, 0).unwrap();
        engine.keep_tokens();
        let mut requests: Vec<Request> = (0..4).map(|id| request(id, 6, 2, 60)).collect();
        requests[0].params.stop = vec!["ABC".to_owned(), "CA".to_owned()];
        requests[1].params.penalties.frequency = 0.5;
        requests[2].params.top_log_probs = 2;
        let mut done = run(&mut engine, &requests);
        let tokens = engine.take_tokens();
        for completion in &done {
            let mine = |new: &&NewToken| (new.id, new.index) == (completion.id, completion.index);
            let told: Vec<u32> = tokens.iter().filter(mine).map(|new| new.token).collect();
            assert_eq!(told, completion.tokens);
        }
        let mut last = request(9, 6, 2, 60);
        last.params.stop_token_ids.clear();
        engine.submit(last).unwrap();
        let before = engine.usage().num_sampled_tokens;
        while engine.usage().num_sampled_tokens < before + 30 {
            assert_eq!(engine.step().unwrap(), []);
        }
        engine.swap_weights(1, KvOnSwap::Keep, |_| Ok::<_, Error>(())).unwrap();
        engine.step().unwrap();
        let aborted = engine.abort(9);
        assert_eq!(aborted.len(), 2);
        for completion in &aborted {
            let total: u32 = completion.weight_versions.iter().map(|run| run.len).sum();
            assert_eq!((total as usize, completion.weight_versions.len()), (completion.tokens.len(), 2));
        }
        assert_eq!(engine.blocks().num_free(), engine.blocks().num_blocks());
        assert!(done.iter().all(|c| !c.tokens.is_empty()));
        bare(std::mem::take(&mut done))
    };
    assert_eq!(run(0), run(6));
}

#[test]
fn tokens_behind_guesses_follow_the_distribution_of_the_model() {
    let prompt = [2, 4, 0, 1, 2];
    let params = |index: u32| SamplingParams {
        max_new_tokens: 3,
        temperature: 2.0,
        seed: crate::SampleSeed { seed: 3, step: 0, group: 0, index },
        ..Default::default()
    };
    let probs = |before: u32, last: u32| {
        let weights: Vec<f64> =
            Repeating::logits(before, last).iter().map(|x| (f64::from(*x) / 2.0).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect::<Vec<_>>()
    };
    let config = drafting(&config(4000, 2000, 100_000), 4);
    let mut engine = Engine::new(Repeating::default(), Arc::new(letters), &config, 0).unwrap();
    let num = 8000;
    let requests: Vec<Request> = (0..num)
        .map(|id| Request { id: u64::from(id), tokens: prompt.to_vec(), params: params(id) })
        .collect();
    let done = run(&mut engine, &requests);
    assert!(engine.usage().drafting.num_verified > 1000);
    // The third token, drawn behind a guess of the second wherever the first is 4.
    let mut expected = vec![0.0; VOCAB];
    for (first, p) in probs(1, 2).iter().enumerate() {
        for (second, q) in probs(2, first as u32).iter().enumerate() {
            for (third, r) in probs(first as u32, second as u32).iter().enumerate() {
                expected[third] += p * q * r * f64::from(num);
            }
        }
    }
    let mut counts = vec![0.0; VOCAB];
    for completion in &done {
        counts[completion.tokens[2] as usize] += 1.0;
    }
    let (mut chi_square, mut num_cells) = (0.0, 0);
    for (count, mean) in counts.iter().zip(&expected).filter(|(_, mean)| **mean >= 5.0) {
        chi_square += f64::powi(count - mean, 2) / mean;
        num_cells += 1;
    }
    // The mean is the number of cells less one, the variance twice that: five deviations.
    let degrees = f64::from(num_cells - 1);
    assert!(
        num_cells > 5 && chi_square < degrees + 5.0 * (2.0 * degrees).sqrt(),
        "{chi_square} of {degrees}"
    );
    // And token by token what a loop without engine draws.
    for completion in done.iter().take(200) {
        let (mut tokens, request) = (prompt.to_vec(), &requests[completion.id as usize]);
        for position in 0..3 {
            let logits = Repeating::logits(tokens[tokens.len() - 2], tokens[tokens.len() - 1]);
            let uniform = request.params.seed.uniform(position);
            tokens.push(
                sample(&logits, &request.params, uniform, &mut crate::Scratch::default()).unwrap().token,
            );
        }
        assert_eq!(completion.tokens, tokens[prompt.len()..]);
    }
}
