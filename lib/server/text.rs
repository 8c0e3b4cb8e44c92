//! Tokens of one sample as text: whole characters, without what ended it, and never a letter too early.

use slime_engine::{Completion, Drafting, FinishReason, KeptIds, NewToken};
use slime_record::VersionRun;
use slime_tokenizer::{DecodeStream, Tokenizer};

use crate::{ApiError, ApiResult};

/// How the tokens of a sample become text.
#[derive(Debug, Clone, Default)]
pub struct TextRules {
    /// Special tokens are left out.
    pub skip_special_tokens: bool,
    /// What ended a response stays part of its text.
    pub keep_stop: bool,
    /// Strings that end a response.
    pub stop: Vec<String>,
    /// Tokens that end a response.
    pub stop_token_ids: Vec<u32>,
}

/// What ended a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// A token.
    Token(u32),
    /// A string.
    Text(String),
}

/// One sample, as far as it is known.
#[derive(Debug, Default)]
pub struct Sample {
    /// Response tokens.
    pub tokens: Vec<u32>,
    /// One per response token.
    pub log_probs: Vec<f32>,
    /// The most likely tokens in their places; empty unless they were asked for.
    pub top: Vec<Vec<(u32, f32)>>,
    /// The response.
    pub text: String,
    /// Why it ended; none while it goes on.
    pub finish: Option<FinishReason>,
    /// What ended it.
    pub matched: Option<Matched>,
    /// The tokens that truncation left to each choice, where they were asked for.
    pub kept: KeptIds,
    /// Prompt tokens the cache had.
    pub num_cached: usize,
    /// What became of guessed tokens.
    pub drafting: Drafting,
    /// Which weights sampled which tokens.
    pub weight_versions: Vec<VersionRun>,
    /// What the weights that sampled last are called.
    pub weight_version: Option<String>,
}

/// A sample in the making.
pub struct Assembler<'a> {
    rules: &'a TextRules,
    stream: Option<DecodeStream<'a>>,
    /// Text that may be the beginning of a stop string.
    held: String,
    /// What is known so far; its text is what [`Assembler::token`] and [`Assembler::done`] gave out.
    pub sample: Sample,
}

impl<'a> Assembler<'a> {
    /// A sample without tokens.
    pub fn new(tokenizer: &'a Tokenizer, rules: &'a TextRules) -> Self {
        let stream = Some(tokenizer.decode_stream(rules.skip_special_tokens));
        Self { rules, stream, held: String::new(), sample: Sample::default() }
    }

    /// Adds a token and returns the text that has become certain.
    ///
    /// # Errors
    /// The tokenizer refuses the token.
    pub fn token(&mut self, token: NewToken) -> ApiResult<String> {
        let NewToken { token, log_prob, top, .. } = token;
        self.sample.log_probs.push(log_prob);
        if !top.is_empty() {
            self.sample.top.push(top);
        }
        self.push(token)
    }

    /// The sample ended: returns the rest of its text.
    ///
    /// # Errors
    /// The tokenizer refuses a token.
    pub fn done(&mut self, completion: Completion, weight_version: String) -> ApiResult<String> {
        let mut delta = String::new();
        for &token in completion.tokens.iter().skip(self.sample.tokens.len()) {
            delta += &self.push(token)?;
        }
        if let Some(stream) = self.stream.take() {
            self.held += &stream.finish().map_err(|error| ApiError::internal(error.to_string()))?;
        }
        if completion.finish_reason == FinishReason::Stop {
            let last = completion.tokens.last().copied();
            let token = last.filter(|token| self.rules.stop_token_ids.contains(token));
            self.sample.matched = token.map(Matched::Token);
            if let (None, Some((start, stop))) = (token, self.first_stop()) {
                self.sample.matched = Some(Matched::Text(stop));
                if !self.rules.keep_stop {
                    self.held.truncate(start);
                }
            }
        }
        delta += &self.held;
        self.sample.text += &self.held;
        self.held.clear();
        self.sample.finish = Some(completion.finish_reason);
        self.sample.tokens = completion.tokens;
        self.sample.log_probs = completion.log_probs;
        self.sample.kept = completion.kept;
        self.sample.num_cached = completion.num_cached;
        self.sample.drafting = completion.drafting;
        self.sample.weight_versions = completion.weight_versions;
        self.sample.weight_version = Some(weight_version);
        Ok(delta)
    }

    fn push(&mut self, token: u32) -> ApiResult<String> {
        self.sample.tokens.push(token);
        if !self.rules.keep_stop && self.rules.stop_token_ids.contains(&token) {
            return Ok(String::new());
        }
        let Some(stream) = &mut self.stream else { return Ok(String::new()) };
        self.held += &stream.push(token).map_err(|error| ApiError::internal(error.to_string()))?;
        let certain = self.first_stop().map_or_else(
            || self.held.len() - beginning_of_a_stop(&self.held, &self.rules.stop),
            |(start, _)| start,
        );
        let delta: String = self.held.drain(..certain).collect();
        self.sample.text += &delta;
        Ok(delta)
    }

    /// Where the first stop string begins in the held text.
    fn first_stop(&self) -> Option<(usize, String)> {
        let found =
            self.rules.stop.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop.clone())));
        found.min_by_key(|(start, _)| *start)
    }
}

/// Bytes at the end of `text` that may become one of `stops`.
pub fn beginning_of_a_stop<S: AsRef<str>>(text: &str, stops: &[S]) -> usize {
    let longest = stops.iter().map(|stop| stop.as_ref().len().saturating_sub(1)).max().unwrap_or(0);
    (1..=longest.min(text.len()))
        .rev()
        .filter(|len| text.is_char_boundary(text.len() - len))
        .find(|len| stops.iter().any(|stop| stop.as_ref().starts_with(&text[text.len() - len..])))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::letters;

    fn completion(text: &str, finish_reason: FinishReason) -> Completion {
        let tokens: Vec<u32> = letters().encode(text).unwrap();
        Completion {
            id: 0,
            index: 0,
            log_probs: vec![-0.5; tokens.len()],
            tokens,
            text: String::new(),
            finish_reason,
            weight_versions: Vec::new(),
            num_cached: 0,
            drafting: Drafting::default(),
            kept: KeptIds::default(),
            routed_experts: Vec::new(),
        }
    }

    /// The pieces that come out when tokens come one by one, and the sample.
    fn stream(rules: &TextRules, text: &str, finish: FinishReason) -> (Vec<String>, Sample) {
        let tokenizer = letters();
        let mut assembler = Assembler::new(&tokenizer, rules);
        let done = completion(text, finish);
        let mut pieces = Vec::new();
        for &token in &done.tokens {
            let token = NewToken { id: 0, index: 0, token, log_prob: -0.5, top: Vec::new() };
            pieces.push(assembler.token(token).unwrap());
        }
        pieces.push(assembler.done(done, "v".to_owned()).unwrap());
        (pieces, assembler.sample)
    }

    #[test]
    fn stop_strings_are_held_back_and_cut() {
        let rules = TextRules { stop: vec!["CAB".to_owned()], ..TextRules::default() };
        let (pieces, sample) = stream(&rules, "ACACAB", FinishReason::Stop);
        assert_eq!(pieces, ["A", "", "", "CA", "", "", ""]);
        assert_eq!((sample.text.as_str(), sample.matched), ("ACA", Some(Matched::Text("CAB".to_owned()))));
        let (pieces, sample) = stream(&rules, "ACA", FinishReason::Length);
        assert_eq!((pieces.concat().as_str(), sample.text.as_str(), sample.matched), ("ACA", "ACA", None));
        let (_, sample) = stream(&TextRules { keep_stop: true, ..rules }, "ACAB", FinishReason::Stop);
        assert_eq!(sample.text, "ACAB");
    }

    #[test]
    fn stop_tokens_are_tokens_but_no_text() {
        let rules = TextRules { stop_token_ids: vec![1], ..TextRules::default() };
        let (pieces, sample) = stream(&rules, "ACB", FinishReason::Stop);
        assert_eq!(pieces.concat(), "AC");
        assert_eq!((sample.tokens.len(), sample.matched), (3, Some(Matched::Token(1))));
    }

    #[test]
    fn samples_that_come_whole_are_those_that_come_in_pieces() {
        let rules = TextRules { stop: vec!["BA".to_owned()], ..TextRules::default() };
        let (_, streamed) = stream(&rules, "ABBA", FinishReason::Stop);
        let tokenizer = letters();
        let mut assembler = Assembler::new(&tokenizer, &rules);
        let delta = assembler.done(completion("ABBA", FinishReason::Stop), "v".to_owned()).unwrap();
        assert_eq!((delta.as_str(), &assembler.sample.text), ("AB", &streamed.text));
        assert_eq!(assembler.sample.tokens, streamed.tokens);
    }
}
