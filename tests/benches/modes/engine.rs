//! A generator of stated speed: so many sequences at once, each a token every so many milliseconds, whatever else runs;
//! how long each response is follows from its place alone.

use std::collections::VecDeque;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_exchange::SampleDigest;
use slime_record::{SampleId, VersionRun};

/// Sequences computed at once.
pub const NUM_SLOTS: usize = 64;
/// Samples of a group.
pub const NUM_SAMPLES: u32 = 8;
/// Time between two tokens of a sequence.
pub const TOKEN_MS: u64 = 10;
/// Time in which new weights are put in place and running sequences computed again; no token comes.
pub const SWAP_MS: u64 = 1000;
/// Median and longest response, and the standard deviation of the logarithm of its length.
pub const MEDIAN_LEN: f64 = 400.0;
pub const MAX_LEN: u32 = 4096;
pub const SPREAD: f64 = 1.0;

/// Tokens of a response: log-normal, cut off at [`MAX_LEN`].
pub fn response_len(step: u64, group: u32, index: u32) -> u32 {
    let seed = (step << 32) ^ (u64::from(group) << 8) ^ u64::from(index);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Box and Muller (1958).
    let (radius, angle) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
    ((MEDIAN_LEN * (SPREAD * normal).exp()) as u32).clamp(1, MAX_LEN)
}

/// A sample on its way.
struct Sequence {
    id: SampleId,
    prompt_id: String,
    num_left: u32,
    versions: Vec<VersionRun>,
    /// When it has gone on to its next token since it was let in or the weights came.
    since_ms: u64,
}

/// A group whose samples are under way.
struct Group {
    key: (u64, u32, u32),
    finished: Vec<SampleDigest>,
}

/// The engine.
#[derive(Default)]
pub struct Engine {
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    groups: Vec<Group>,
    version: u64,
    /// Whether only what the last weights sampled is trained (`rollout.partial = "mask"`).
    masks_old: bool,
    /// Tokens sampled so far.
    pub num_sampled: u64,
    /// New weights are in place from then on.
    swapped_ms: u64,
    is_stopped: bool,
}

impl Engine {
    /// An idle engine with version 0.
    pub fn new(masks_old: bool) -> Self {
        Self { masks_old, ..Self::default() }
    }

    /// Queues all samples of a group.
    pub fn submit(&mut self, (step, group, attempt): (u64, u32, u32), prompt_id: &str) {
        self.groups.push(Group { key: (step, group, attempt), finished: Vec::new() });
        self.waiting.extend((0..NUM_SAMPLES).map(|index| Sequence {
            id: SampleId { step, group, index, attempt, part: 0 },
            prompt_id: prompt_id.to_owned(),
            num_left: response_len(step, group, index),
            versions: Vec::new(),
            since_ms: 0,
        }));
    }

    /// Forgets a group.
    pub fn cancel(&mut self, (step, group, attempt): (u64, u32, u32)) {
        let is_of = |sequence: &Sequence| {
            (sequence.id.step, sequence.id.group, sequence.id.attempt) == (step, group, attempt)
        };
        self.groups.retain(|known| known.key != (step, group, attempt));
        self.waiting.retain(|sequence| !is_of(sequence));
        self.running.retain(|sequence| !is_of(sequence));
    }

    /// Tokens sampled from now on are of this version, and the next one comes after the swap.
    pub fn swap(&mut self, version: u64, now_ms: u64) {
        self.advance(now_ms);
        (self.version, self.swapped_ms) = (version, now_ms + SWAP_MS);
        self.running.iter_mut().for_each(|sequence| sequence.since_ms = now_ms + SWAP_MS);
    }

    /// From now on nothing is sampled, or again.
    pub fn stop(&mut self, is_stopped: bool, now_ms: u64) {
        if is_stopped != self.is_stopped {
            self.advance(now_ms);
            self.is_stopped = is_stopped;
            self.running.iter_mut().for_each(|sequence| sequence.since_ms = sequence.since_ms.max(now_ms));
        }
    }

    /// Samples until `now_ms`.
    pub fn advance(&mut self, now_ms: u64) {
        if self.is_stopped {
            return;
        }
        for sequence in &mut self.running {
            let num_due = (now_ms.saturating_sub(sequence.since_ms) / TOKEN_MS) as u32;
            let num_tokens = num_due.min(sequence.num_left);
            sequence.since_ms += u64::from(num_tokens) * TOKEN_MS;
            sequence.num_left -= num_tokens;
            self.num_sampled += u64::from(num_tokens);
            match sequence.versions.last_mut() {
                _ if num_tokens == 0 => {}
                Some(run) if run.version == self.version => run.len += num_tokens,
                _ => sequence.versions.push(VersionRun { version: self.version, len: num_tokens }),
            }
        }
    }

    /// Takes what has ended, and lets in what waits.
    pub fn finished(&mut self, now_ms: u64) -> Vec<((u64, u32, u32), Vec<SampleDigest>)> {
        self.advance(now_ms);
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|sequence| sequence.num_left == 0);
        self.running = running;
        for sequence in ended {
            let id = sequence.id;
            let key = (id.step, id.group, id.attempt);
            if let Some(group) = self.groups.iter_mut().find(|group| group.key == key) {
                group.finished.push(digest(sequence, self.masks_old));
            }
        }
        while !self.is_stopped
            && self.running.len() < NUM_SLOTS
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            sequence.since_ms = now_ms.max(self.swapped_ms);
            self.running.push(sequence);
        }
        let is_whole = |group: &Group| group.finished.len() == NUM_SAMPLES as usize;
        let (whole, groups): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.groups).into_iter().partition(is_whole);
        self.groups = groups;
        let rows = |mut group: Group| {
            group.finished.sort_by_key(|row| row.id.index);
            (group.key, group.finished)
        };
        whole.into_iter().map(rows).collect()
    }

    /// When the next sample ends.
    pub fn next_ms(&self) -> Option<u64> {
        let running = self.running.iter().filter(|_| !self.is_stopped);
        running.map(|sequence| sequence.since_ms + u64::from(sequence.num_left) * TOKEN_MS).min()
    }
}

fn digest(sequence: Sequence, masks_old: bool) -> SampleDigest {
    let Sequence { id, prompt_id, versions, .. } = sequence;
    let trained = if masks_old { versions[versions.len() - 1..].to_vec() } else { versions.clone() };
    SampleDigest {
        id,
        prompt_id,
        tokens_hash: u64::from(id.index),
        trained,
        response_len: versions.iter().map(|run| run.len).sum(),
        failed: false,
        truncated: false,
    }
}
