//! Decides what each step computes: running sequences first, long prompts in chunks, waiting sequences as room
//! allows. Out of blocks, the newest sequence of the lowest priority goes back to the queue and keeps every token it has; so
//! does one of lower priority when one of higher priority waits.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::block_manager::Told;
use crate::drafter::Drafter;
use crate::sequence::{Flight, Sequence};
use crate::{Batch, BlockCopy, BlockManager};

/// Sequences waiting and running, and the blocks they hold.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// By falling priority, and of one priority in the order they came.
    waiting: VecDeque<Sequence>,
    /// Likewise, in the order they were let in; new ones are at the end until the next step.
    running: Vec<Sequence>,
    blocks: BlockManager,
    max_num_seqs: usize,
    max_batch_tokens: usize,
    num_preemptions: u64,
}

/// Samples of one running request.
struct Siblings {
    priority: i64,
    num_waiting: usize,
}

impl Scheduler {
    pub fn new(blocks: BlockManager, max_num_seqs: usize, max_batch_tokens: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::new(),
            blocks,
            max_num_seqs: max_num_seqs.max(1),
            max_batch_tokens: max_batch_tokens.max(1),
            num_preemptions: 0,
        }
    }

    pub fn blocks(&mut self) -> &mut BlockManager {
        &mut self.blocks
    }

    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Share of the blocks that are in use.
    pub fn kv_used(&self) -> f64 {
        let num_blocks = self.blocks.num_blocks();
        (num_blocks - self.blocks.num_free()) as f64 / num_blocks.max(1) as f64
    }

    pub fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }

    pub fn add(&mut self, sequence: Sequence) {
        let place = self.waiting.partition_point(|s| s.priority() >= sequence.priority());
        self.waiting.insert(place, sequence);
    }

    /// Guesses the next tokens of the running sequences that can be guessed.
    pub fn draft(&mut self, drafter: &mut Drafter) {
        for sequence in self.running.iter_mut().filter(|s| s.is_draftable() && !s.is_full()) {
            sequence.draft = drafter.propose(sequence);
        }
    }

    /// Chooses the next step's chunks and returns them as a batch; empty when there is nothing to do.
    pub fn schedule(&mut self) -> Batch {
        let mut budget = self.max_batch_tokens;
        let mut copies = Vec::new();
        for sequence in &mut self.running {
            tell(&mut self.blocks, sequence);
        }
        self.running.sort_by_key(|s| Reverse(s.priority()));
        self.make_room();
        let before = self.num_preemptions;
        // Sequences that only decode go first, so that long prompts never make them wait.
        self.continue_running(&mut budget, &mut copies, |s| s.num_pending() == 1 && !s.is_full());
        self.continue_running(&mut budget, &mut copies, |s| s.num_pending() > 1 && !s.is_full());
        if self.num_preemptions == before {
            self.admit(&mut budget, &mut copies);
        }
        self.batch(copies)
    }

    /// Puts running sequences back while one of higher priority waits for their seats or blocks.
    fn make_room(&mut self) {
        while let Some(wanted) = self.first_admissible()
            && let Some(last) = self.running.last()
            && last.priority() < wanted.priority()
        {
            let is_above = |s: &&Sequence| s.priority() > last.priority();
            let num_seats = self.running.len() + self.waiting.iter().take_while(is_above).count();
            let num_blocks = self.blocks.num_needed(&[], 0, wanted.tokens.len().min(self.max_batch_tokens));
            if num_seats <= self.max_num_seqs && num_blocks + self.num_kept_free() <= self.blocks.num_free() {
                return;
            }
            self.preempt(self.running.len() - 1);
        }
    }

    /// The first waiting sequence that does not wait for its sibling's prompt, or for tokens on their way.
    fn first_admissible(&self) -> Option<&Sequence> {
        let is_due = |s: &&Sequence| {
            let mut siblings = self.running.iter().filter(|other| other.order == s.order).peekable();
            !s.is_full() && (siblings.peek().is_none() || siblings.any(Sequence::has_prompt))
        };
        self.waiting.iter().find(is_due)
    }

    /// Blocks that are left to the running sequences when another one is let in.
    fn num_kept_free(&self) -> usize {
        if self.running.is_empty() { 0 } else { self.blocks.num_blocks() / 100 }
    }

    fn continue_running(
        &mut self,
        budget: &mut usize,
        copies: &mut Vec<BlockCopy>,
        is_due: impl Fn(&Sequence) -> bool,
    ) {
        let mut i = 0;
        while i < self.running.len() && *budget > 0 {
            if self.running[i].is_scheduled() || !is_due(&self.running[i]) {
                i += 1;
            } else if self.reserve(i, *budget, copies) {
                *budget -= self.running[i].chunk_len;
                i += 1;
            } else {
                let victim = self.running.iter().rposition(|s| !s.is_scheduled()).unwrap_or(i);
                self.preempt(victim);
            }
        }
    }

    /// Schedules running sequence `i` for at most `budget` tokens; false when blocks are missing. Guesses take no block that
    /// another one needs, and no room that is not there.
    fn reserve(&mut self, i: usize, budget: usize, copies: &mut Vec<BlockCopy>) -> bool {
        let sequence = &mut self.running[i];
        let (num_pending, start) = (sequence.num_pending(), sequence.num_computed);
        sequence.draft.truncate(budget.saturating_sub(num_pending));
        let with_draft = start + num_pending + sequence.draft.len();
        if self.blocks.num_needed(&sequence.block_table, start, with_draft) > self.blocks.num_free() {
            sequence.draft.clear();
        }
        let chunk_len = (num_pending + sequence.draft.len()).min(budget);
        let Some(new) = self.blocks.reserve(&mut sequence.block_table, start, start + chunk_len) else {
            return false;
        };
        copies.extend(new);
        sequence.chunk_len = chunk_len;
        true
    }

    /// Lets waiting sequences in. A request's first sample computes the prompt; its siblings wait for that, then
    /// share the blocks and compute only the prompt's last token, whose logits each of them needs.
    fn admit(&mut self, budget: &mut usize, copies: &mut Vec<BlockCopy>) {
        let mut siblings = self.waiting_siblings();
        let (mut level, mut num_reserved) = (None, 0);
        let mut i = 0;
        while i < self.waiting.len() && *budget > 0 && self.running.len() < self.max_num_seqs {
            let (order, priority) = (self.waiting[i].order, self.waiting[i].priority());
            if level != Some(priority) {
                let is_before = |siblings: &&Siblings| siblings.priority >= priority;
                num_reserved = siblings.values().filter(is_before).map(|siblings| siblings.num_waiting).sum();
                level = Some(priority);
            }
            let is_sibling = siblings.contains_key(&order);
            let donor = self.running.iter().position(|s| s.order == order && s.has_prompt());
            if is_sibling && donor.is_none() || self.waiting[i].is_full() {
                i += 1;
                continue;
            }
            if !is_sibling
                && !self.running.is_empty()
                && self.running.len() + num_reserved >= self.max_num_seqs
            {
                i += 1;
                continue;
            }
            if !self.admit_one(i, donor, *budget, copies) {
                break;
            }
            *budget -= self.running.last().map_or(0, |s| s.chunk_len);
            if let Some(siblings) = siblings.get_mut(&order) {
                siblings.num_waiting -= 1;
                num_reserved -= 1;
            } else {
                let num_waiting = self.waiting.iter().filter(|s| s.order == order).count();
                siblings.insert(order, Siblings { priority, num_waiting });
                num_reserved += num_waiting;
            }
        }
    }

    /// The samples of each running request that still wait.
    fn waiting_siblings(&self) -> HashMap<u64, Siblings> {
        let none = |s: &Sequence| (s.order, Siblings { priority: s.priority(), num_waiting: 0 });
        let mut siblings: HashMap<u64, Siblings> = self.running.iter().map(none).collect();
        for sequence in &self.waiting {
            if let Some(siblings) = siblings.get_mut(&sequence.order) {
                siblings.num_waiting += 1;
            }
        }
        siblings
    }

    /// Moves waiting sequence `i` to the running ones if its first chunk and a small reserve fit.
    fn admit_one(
        &mut self,
        i: usize,
        donor: Option<usize>,
        budget: usize,
        copies: &mut Vec<BlockCopy>,
    ) -> bool {
        let Some(mut sequence) = self.waiting.remove(i) else {
            return false;
        };
        if let Some(donor) = donor {
            let shared_len = sequence.prompt_len().min(sequence.tokens.len() + sequence.flights.len() - 1);
            sequence.block_table = self.blocks.share(&self.running[donor].block_table, shared_len);
            sequence.num_computed = shared_len;
            sequence.told = self.blocks.told(&sequence.tokens[..sequence.prompt_len()]);
            if sequence.response().is_empty() {
                sequence.num_cached = shared_len;
            }
            sequence.routes = self.running[donor].routes.first(shared_len);
        } else {
            (sequence.block_table, sequence.told) = self.blocks.find(&sequence.tokens);
            sequence.num_computed = sequence.block_table.len() * self.blocks.block_size();
            if sequence.response().is_empty() {
                sequence.num_cached = sequence.num_computed;
            }
        }
        let start = sequence.num_computed;
        let end = start + sequence.num_pending().min(budget);
        let needed = self.blocks.num_needed(&sequence.block_table, start, end);
        let reserve = self.num_kept_free();
        self.running.push(sequence);
        let last = self.running.len() - 1;
        if needed + reserve <= self.blocks.num_free() && self.reserve(last, budget, copies) {
            return true;
        }
        if let Some(mut sequence) = self.running.pop() {
            self.give_up(&mut sequence);
            self.waiting.insert(i, sequence);
        }
        false
    }

    fn preempt(&mut self, i: usize) {
        let mut sequence = self.running.remove(i);
        self.give_up(&mut sequence);
        let place = self.waiting.partition_point(|s| s.priority() > sequence.priority());
        self.waiting.insert(place, sequence);
        self.num_preemptions += 1;
    }

    /// Takes its blocks from a sequence.
    fn give_up(&mut self, sequence: &mut Sequence) {
        self.blocks.release(&mut sequence.block_table);
        sequence.num_computed = 0;
        sequence.draft.clear();
        sequence.told = Told::default();
    }

    /// Puts every running sequence back in the queue, in order, so that all of the cache is computed anew.
    pub fn preempt_all(&mut self) {
        let before = self.num_preemptions;
        while !self.running.is_empty() {
            self.preempt(self.running.len() - 1);
        }
        self.num_preemptions = before;
    }

    fn batch(&self, copies: Vec<BlockCopy>) -> Batch {
        let mut batch = Batch { copies, ..Batch::default() };
        for sequence in self.running.iter().filter(|s| s.is_scheduled()) {
            let Sequence { tokens, draft, num_computed, chunk_len, block_table, flights, .. } = sequence;
            batch.push((tokens, draft), *num_computed, *chunk_len, block_table, self.blocks.block_size());
            batch.wants_routes |= sequence.request.params.keeps_routes;
            if let Some(flight) = flights.last().filter(|_| sequence.is_sampled()) {
                batch.make_last_late(flight.row);
            }
            batch.want_last(sequence.num_draws());
        }
        batch
    }

    /// Hands the experts of the scheduled tokens, `num_tokens` rows in the order of the batch, to their sequences.
    pub fn keep_routes(&mut self, routes: &[u16], num_tokens: usize) {
        let width = routes.len() / num_tokens.max(1);
        let mut rest = routes;
        for sequence in self.running.iter_mut().filter(|s| s.is_scheduled()) {
            let (rows, others) = rest.split_at(sequence.chunk_len * width);
            rest = others;
            if sequence.request.params.keeps_routes && width > 0 {
                sequence.routes.keep(sequence.num_computed, rows, width);
            }
        }
    }

    /// The sequences that get tokens from the scheduled step, in the order of its logit rows; each has
    /// [`Sequence::num_draws`] of them.
    pub fn sampled(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().filter(|s| s.is_sampled())
    }

    /// The same, to change them.
    pub fn sampled_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.running.iter_mut().filter(|s| s.is_sampled())
    }

    /// Books the scheduled step, number `step`, which began at `began` under weights `version`: its chunks count as computed,
    /// and its tokens are on their way.
    pub fn book(&mut self, step: u64, began: Instant, version: u64) {
        let mut row = 0;
        for sequence in self.running.iter_mut().filter(|s| s.is_scheduled()) {
            sequence.started.get_or_insert(began);
            let num_draws = sequence.num_draws() as u32;
            sequence.num_computed += std::mem::take(&mut sequence.chunk_len);
            sequence.flights.extend((row..row + num_draws).map(|row| Flight { step, row, version }));
            row += num_draws;
        }
    }

    /// The tokens of step `step` arrive: `update` sees each sequence that waits for one of its rows. Returns the sequences
    /// that finished; their blocks are free again, for what comes later.
    pub fn settle(&mut self, step: u64, mut update: impl FnMut(&mut Sequence, Flight)) -> Vec<Sequence> {
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            while sequence.flights.first().is_some_and(|flight| flight.step == step) {
                let flight = sequence.flights.remove(0);
                update(sequence, flight);
                sequence.check_draft();
            }
        }
        self.take(|s| s.finish.is_some())
    }

    /// Whether a sample of the request `order` waits or runs.
    pub fn has_request(&self, order: u64) -> bool {
        self.running.iter().chain(&self.waiting).any(|s| s.order == order)
    }

    /// Whether any sequence's logits have to come to the host.
    pub fn needs_logits(&self) -> bool {
        self.running.iter().chain(&self.waiting).any(Sequence::needs_logits)
    }

    /// Removes the sequences `is_chosen` names, waiting ones too, and frees their blocks.
    pub fn take(&mut self, is_chosen: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let mut taken: Vec<Sequence> = self.running.extract_if(.., |s| is_chosen(s)).collect();
        for sequence in &mut taken {
            tell(&mut self.blocks, sequence);
            self.blocks.release(&mut sequence.block_table);
        }
        if self.waiting.iter().any(&is_chosen) {
            let (chosen, kept): (VecDeque<_>, VecDeque<_>) = self.waiting.drain(..).partition(is_chosen);
            self.waiting = kept;
            taken.extend(chosen);
        }
        taken
    }
}

/// Lets the whole blocks of a sequence be found again.
fn tell(blocks: &mut BlockManager, sequence: &mut Sequence) {
    let Sequence { told, block_table, tokens, num_computed, .. } = sequence;
    blocks.tell(told, block_table, tokens, *num_computed);
}
