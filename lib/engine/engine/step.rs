//! One step: what is computed, whether the model runs ahead of the host, and what becomes of the tokens that arrive.

use std::time::Instant;

use rayon::prelude::*;

use super::{Engine, NewToken, Timing};
use crate::sequence::Sequence;
use crate::top_log_probs::top_log_probs;
use crate::{
    Batch, Completion, Error, FinishReason, ForwardModel, Result, RowDraw, Sampled, Scratch, sample, stop,
};

/// What was sampled for one sequence, and the most likely tokens where they are asked for.
type Drawn = (Sampled, Vec<(u32, f32)>);

/// Where the tokens of a step come from; `None` is a row of logits that are no numbers.
pub(super) enum Arriving {
    /// They are here.
    Here(Vec<Option<Drawn>>),
    /// The model has them.
    FromModel,
}

fn from_model(drawn: Option<(u32, f32)>) -> Option<Drawn> {
    drawn.map(|(token, log_prob)| (Sampled { token, log_prob, kept: Vec::new() }, Vec::new()))
}

impl<M: ForwardModel> Engine<M> {
    /// Computes one batch and returns the samples that ended with it.
    ///
    /// # Errors
    /// What the model says, and logits that are not finite: the sample they belong to ends as aborted, the others go on
    /// with the next step.
    pub fn step(&mut self) -> Result<Vec<Completion>> {
        let began = Instant::now();
        let runs_ahead =
            self.model.ahead().is_some() && self.drafter.is_none() && !self.scheduler.needs_logits();
        if !runs_ahead {
            // What is on its way is needed now.
            while !self.on_the_way.is_empty() {
                self.settle()?;
            }
        }
        if let Some(drafter) = &mut self.drafter {
            self.scheduler.draft(drafter);
        }
        let batch = self.scheduler.schedule();
        let is_launched = !batch.tokens.is_empty();
        if is_launched {
            self.usage.num_steps += 1;
            self.usage.num_computed_tokens += batch.tokens.len() as u64;
            let arriving =
                if runs_ahead { self.launch(&batch)? } else { Arriving::Here(self.compute(&batch)?) };
            self.scheduler.book(self.num_steps, began, self.version);
            self.on_the_way.push_back((self.num_steps, arriving));
            self.num_steps += 1;
        }
        // One step stays on its way where the model runs ahead and there is another one behind it.
        if self.on_the_way.len() > usize::from(runs_ahead && is_launched) {
            self.settle()?;
        }
        let finished = std::mem::take(&mut self.ended);
        if let Some(timings) = &mut self.timings {
            let now = Instant::now();
            timings.extend(finished.iter().map(|sequence| timing(sequence, now)));
        }
        for sequence in &finished {
            self.usage.num_prompt_tokens += sequence.prompt_len() as u64;
            self.usage.num_cached_tokens += sequence.num_cached as u64;
        }
        Ok(finished.into_iter().map(|sequence| self.complete(sequence)).collect())
    }

    /// Queues a step of a model that runs ahead.
    fn launch(&mut self, batch: &Batch) -> Result<Arriving> {
        let draws: Vec<RowDraw> = self.scheduler.sampled().map(Sequence::draw).collect();
        match self.model.ahead() {
            Some(model) => model.launch(batch, &draws).map(|()| Arriving::FromModel),
            None => Ok(Arriving::Here(Vec::new())),
        }
    }

    /// Computes a step and draws its tokens on the host.
    fn compute(&mut self, batch: &Batch) -> Result<Vec<Option<Drawn>>> {
        self.logits.clear();
        self.model.forward(batch, &mut self.logits)?;
        if batch.wants_routes {
            self.scheduler.keep_routes(&self.model.routed_experts(), batch.tokens.len());
        }
        self.constrain();
        let due: Vec<(&Sequence, usize)> =
            self.scheduler.sampled().flat_map(|s| (0..s.num_draws()).map(move |ahead| (s, ahead))).collect();
        let rows = self.logits.par_chunks_exact_mut(self.model.vocab_size()).zip(&due);
        let drawn = rows.map_init(Scratch::default, |scratch, (row, (sequence, ahead))| {
            let params = &sequence.request.params;
            if let Some(seen) = &sequence.seen {
                params.penalties.apply(seen, row);
            }
            for &(token, bias) in &params.logit_bias {
                row[token as usize] += bias;
            }
            let sampled = sample(row, params, sequence.uniform(*ahead), scratch)?;
            Some((sampled, top_log_probs(row, params.temperature, params.top_log_probs, scratch)))
        });
        Ok(drawn.collect())
    }

    /// Takes the tokens of the oldest step on its way; `ended` gets the sequences that ended with it.
    fn settle(&mut self) -> Result<()> {
        let Some((step, arriving)) = self.on_the_way.pop_front() else { return Ok(()) };
        let drawn: Vec<Option<Drawn>> = match (arriving, self.model.ahead()) {
            (Arriving::Here(drawn), _) => drawn,
            (Arriving::FromModel, Some(model)) => model.collect()?.into_iter().map(from_model).collect(),
            (Arriving::FromModel, None) => Vec::new(),
        };
        let Self { scheduler, decode, usage, new_tokens, .. } = self;
        let (mut drawn, now) = (drawn, Instant::now());
        let mut result = Ok(());
        let ended = scheduler.settle(step, |sequence, flight| {
            if sequence.finish.is_some() {
                return;
            }
            let (id, index) = (sequence.request.id, sequence.index);
            let row = drawn.get_mut(flight.row as usize).and_then(Option::take);
            let position = sequence.tokens.len();
            let Some((sampled, top)) = row else {
                sequence.finish = Some(FinishReason::Abort);
                result = Err(Error::NonFiniteLogits { id, index, position });
                return;
            };
            let Sampled { token, log_prob, .. } = sampled;
            usage.num_sampled_tokens += 1;
            sequence.first_token.get_or_insert(now);
            sequence.append(sampled, flight.version);
            if let Some(new_tokens) = new_tokens {
                new_tokens.push(NewToken { id, index, token, log_prob, top });
            }
            let is_full = sequence.tokens.len() >= sequence.max_len;
            sequence.finish = stop::finish(&sequence.request.params, sequence.response(), is_full, &**decode);
            if let Some(grammar) = &mut sequence.grammar {
                grammar.accept(token);
                if grammar.is_complete() {
                    sequence.finish = Some(FinishReason::Stop);
                }
            }
        });
        self.ended.extend(ended);
        result
    }
}

fn timing(sequence: &Sequence, finished: Instant) -> Timing {
    let started = sequence.started.unwrap_or(finished);
    Timing {
        id: sequence.request.id,
        index: sequence.index,
        submitted: sequence.submitted,
        started,
        first_token: sequence.first_token.unwrap_or(finished),
        finished,
        num_tokens: sequence.response().len(),
    }
}
