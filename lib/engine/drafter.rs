//! Drafts of a sample's next tokens: what stood behind the same last tokens earlier in its prompt, in its response or in those
//! of its siblings (prompt lookup, n-gram speculation).
//!
//! A draft is only a guess. The model computes all of its tokens in one pass, each is then drawn from its own logits with its
//! own random number as if there were no draft, and the first one that differs ends the step. So samples are token by token
//! those without drafts, in distribution and for a given seed.

use std::collections::HashMap;

use crate::sequence::Sequence;

/// Tokens that have to agree before a guess is made, at least and at most.
const NGRAM_LENS: std::ops::RangeInclusive<usize> = 2..=4;

/// What became of drafts, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drafting {
    /// Passes that computed a draft.
    pub num_verified: u64,
    /// Tokens guessed.
    pub num_drafted: u64,
    /// Tokens guessed rightly.
    pub num_accepted: u64,
}

impl Drafting {
    /// Tokens that a pass with a draft yields on average, from 1 on: those guessed rightly and the one behind them.
    pub fn accept_length(&self) -> Option<f64> {
        (self.num_verified > 0).then(|| 1.0 + self.num_accepted as f64 / self.num_verified as f64)
    }

    /// Share of the guessed tokens that were right.
    pub fn accept_rate(&self) -> Option<f64> {
        (self.num_drafted > 0).then(|| self.num_accepted as f64 / self.num_drafted as f64)
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            num_verified: self.num_verified - before.num_verified,
            num_drafted: self.num_drafted - before.num_drafted,
            num_accepted: self.num_accepted - before.num_accepted,
        }
    }

    /// Adds what another one counted.
    pub(crate) fn add(&mut self, other: Self) {
        self.num_verified += other.num_verified;
        self.num_drafted += other.num_drafted;
        self.num_accepted += other.num_accepted;
    }
}

/// The texts of all requests on their way, and where their n-grams stand.
#[derive(Debug)]
pub(crate) struct Drafter {
    max_len: usize,
    requests: HashMap<u64, Texts>,
}

impl Drafter {
    /// Drafts of up to `max_len` tokens.
    pub fn new(max_len: usize) -> Self {
        Self { max_len, requests: HashMap::new() }
    }

    /// The guess for a sequence whose next token is due; empty where nothing like its last tokens stood anywhere.
    pub fn propose(&mut self, sequence: &Sequence) -> Vec<u32> {
        let texts =
            self.requests.entry(sequence.order).or_insert_with(|| Texts::new(&sequence.request.tokens));
        texts.read(sequence);
        // The last token there may be is drawn from logits, never guessed.
        let room = sequence.max_len.saturating_sub(sequence.tokens.len() + 1);
        let len = sequence.draft_len.clamp(1, self.max_len).min(room);
        texts.behind(&sequence.tokens, len).to_vec()
    }

    /// The length of the next draft after one of `num_drafted` tokens of which `num_accepted` were right.
    pub fn next_len(num_drafted: usize, num_accepted: usize) -> usize {
        if num_accepted == num_drafted { num_drafted + 2 } else { num_accepted.max(1) }
    }

    /// The request `order` has ended.
    pub fn forget(&mut self, order: u64) {
        self.requests.remove(&order);
    }
}

/// The texts of one request: its prompt, then the end of the prompt with the response of each sample.
#[derive(Debug)]
struct Texts {
    texts: Vec<Vec<u32>>,
    /// The newest place behind an n-gram: text and position.
    places: HashMap<u64, (u32, u32)>,
}

impl Texts {
    fn new(prompt: &[u32]) -> Self {
        let mut texts = Self { texts: vec![Vec::new()], places: HashMap::new() };
        texts.extend(0, prompt);
        texts
    }

    /// Takes the tokens of a sample that came since the last call.
    fn read(&mut self, sequence: &Sequence) {
        let at = sequence.index as usize + 1;
        let shared = sequence.prompt_len().min(*NGRAM_LENS.end());
        let start = sequence.prompt_len() - shared;
        while self.texts.len() <= at {
            self.texts.push(sequence.tokens[start..start + shared].to_vec());
        }
        let known = start + self.texts[at].len();
        self.extend(at, &sequence.tokens[known..]);
    }

    fn extend(&mut self, at: usize, tokens: &[u32]) {
        let text = &mut self.texts[at];
        for &token in tokens {
            for len in NGRAM_LENS.filter(|len| *len <= text.len()) {
                let place = (at as u32, text.len() as u32);
                self.places.insert(key(&text[text.len() - len..]), place);
            }
            text.push(token);
        }
    }

    /// Up to `len` tokens that stood behind the longest known end of `tokens`.
    fn behind(&self, tokens: &[u32], len: usize) -> &[u32] {
        let mut ends =
            NGRAM_LENS.rev().filter(|len| *len <= tokens.len()).map(|len| &tokens[tokens.len() - len..]);
        let place = ends.find_map(|end| self.places.get(&key(end)));
        let Some(&(text, position)) = place else { return &[] };
        let rest = &self.texts[text as usize][position as usize..];
        &rest[..len.min(rest.len())]
    }
}

/// A number for an n-gram; two with the same number cost a wrong guess.
fn key(ngram: &[u32]) -> u64 {
    ngram.iter().fold(ngram.len() as u64, |hash, token| {
        (hash.rotate_left(23) ^ u64::from(*token)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Request, Sampled, SamplingParams};

    fn sequence(prompt: &[u32], index: u32) -> Sequence {
        let params = SamplingParams { n: 2, max_new_tokens: 20, ..Default::default() };
        let request = Request { id: 1, tokens: prompt.to_vec(), params };
        Sequence::new(Arc::new(request), 0, index, 100)
    }

    fn push(sequence: &mut Sequence, tokens: &[u32]) {
        for &token in tokens {
            sequence.append(Sampled { token, ..Default::default() }, 0);
        }
    }

    #[test]
    fn guesses_come_from_the_prompt_the_response_and_the_siblings() {
        let mut drafter = Drafter::new(3);
        let mut first = sequence(&[1, 2, 3, 4, 5, 9], 0);
        first.draft_len = 8;
        assert!(drafter.propose(&first).is_empty(), "nothing ends in 5, 9 before");
        push(&mut first, &[7, 2, 3]);
        assert_eq!(drafter.propose(&first), [4, 5, 9], "behind 2, 3 in the prompt");
        push(&mut first, &[6, 5, 7, 2, 3]);
        assert_eq!(drafter.propose(&first), [6, 5, 7], "behind 7, 2, 3 in the response");
        let mut second = sequence(&[1, 2, 3, 4, 5, 9], 1);
        second.draft_len = 2;
        push(&mut second, &[7]);
        assert_eq!(drafter.propose(&second), [2, 3], "as the sibling went on from the end of the prompt");
        drafter.forget(0);
        assert!(drafter.requests.is_empty());
    }

    #[test]
    fn guesses_end_where_the_sample_has_to() {
        let mut drafter = Drafter::new(8);
        let mut sequence = sequence(&[1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2], 0);
        (sequence.draft_len, sequence.max_len) = (8, 15);
        assert_eq!(drafter.propose(&sequence).len(), 2);
        sequence.max_len = 13;
        assert!(drafter.propose(&sequence).is_empty());
    }

    #[test]
    fn lengths_follow_what_was_right() {
        assert_eq!([(3, 3), (4, 2), (4, 0)].map(|(n, right)| Drafter::next_len(n, right)), [5, 2, 1]);
        let drafting = Drafting { num_verified: 4, num_drafted: 10, num_accepted: 6 };
        assert_eq!((drafting.accept_length(), drafting.accept_rate()), (Some(2.5), Some(0.6)));
        assert_eq!(Drafting::default().accept_length(), None);
    }
}
