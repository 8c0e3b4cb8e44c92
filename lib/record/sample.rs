//! The sample: one response to one prompt, with everything a trainer needs to learn from it.

use crate::{Error, Result, raw_json};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How far a sample has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Drawn, not yet generated.
    #[default]
    Pending,
    /// Ended by a stop token or a stop string.
    Completed,
    /// Ended by the length limit.
    Truncated,
    /// Cut off by the step builder; a later part may continue it.
    Aborted,
    /// Generation failed; the response is not usable.
    Failed,
}

impl Status {
    /// The word written in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Status {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        [Self::Pending, Self::Completed, Self::Truncated, Self::Aborted, Self::Failed]
            .into_iter()
            .find(|status| status.as_str() == word)
            .ok_or_else(|| Error::Status { got: word.to_owned() })
    }
}

/// A run of response tokens that were sampled under one policy version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VersionRun {
    /// The policy version.
    pub version: u64,
    /// How many consecutive response tokens it produced.
    pub len: u32,
}

/// The name of a sample: unique within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SampleId {
    /// The step the sample was drawn for.
    pub step: u64,
    /// The group within the step: all samples of one prompt.
    pub group: u32,
    /// The place within the group.
    pub index: u32,
    /// How many times the sample was handed out again after a lost replica.
    pub attempt: u32,
    /// The continuation number of a partial sample.
    pub part: u32,
}

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, group, index, attempt, part } = self;
        write!(f, "{step}/{group}/{index}.{attempt}.{part}")
    }
}

/// One sample. In JSONL `prompt`, `tools` and `metadata` are embedded as the JSON they hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The step the sample was drawn for; it never changes.
    pub step: u64,
    /// The group within the step.
    pub group: u32,
    /// The place within the group.
    pub index: u32,
    /// How many times it was handed out again.
    pub attempt: u32,
    /// Samples of one episode (fan-out) share this number and the episode's weight.
    pub episode: u64,
    /// The continuation number of a partial sample.
    pub part: u32,
    /// The prompt's name within its source.
    pub prompt_id: String,
    /// Where the prompt came from: a file or an environment.
    pub source: String,
    /// How far the sample has come.
    pub status: Status,
    /// Why generation ended: `stop`, `length`, `abort`.
    pub finish_reason: String,
    /// The prompt as JSON text: a string or a list of messages ([`crate::PromptContent`]).
    #[serde(with = "raw_json::required")]
    pub prompt: String,
    /// The tools offered to the model, as JSON text.
    #[serde(with = "raw_json::optional", skip_serializing_if = "Option::is_none")]
    pub tools: Option<String>,
    /// The response as text, without the stop token.
    pub response: String,
    /// Token ids of prompt and response, as they were generated.
    pub tokens: Vec<u32>,
    /// How many of `tokens` are the prompt.
    pub prompt_len: u32,
    /// For each response token 1 where it is trained, else 0.
    pub loss_mask: Vec<u8>,
    /// For each response token the log-probability it was sampled with; empty when not known.
    #[serde(with = "crate::float_list")]
    pub rollout_log_probs: Vec<f32>,
    /// The token ids that truncation (top-k, top-p, min-p) left to each response token, one list after the other; empty
    /// where nothing was truncated or nobody wants to train on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept_token_ids: Vec<u32>,
    /// For each response token how many of `kept_token_ids` are its own, 0 where all ids were left; or empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept_lens: Vec<u32>,
    /// The experts that the routers chose for each token but the last while the sample was generated, `[tokens - 1, layers
    /// with experts, experts of a token]` row-major; 65535 in rows that nobody recorded. Empty where nobody wants to train
    /// on the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routed_experts: Vec<u16>,
    /// The policy versions of the response tokens, run-length coded.
    pub weight_versions: Vec<VersionRun>,
    /// The reference answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Anything the prompt's author attached, as JSON text, passed through unchanged.
    #[serde(with = "raw_json::optional", skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// The sample's weight in the loss.
    pub weight: f32,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            step: 0,
            group: 0,
            index: 0,
            attempt: 0,
            episode: 0,
            part: 0,
            prompt_id: String::new(),
            source: String::new(),
            status: Status::Pending,
            finish_reason: String::new(),
            prompt: String::new(),
            tools: None,
            response: String::new(),
            tokens: Vec::new(),
            prompt_len: 0,
            loss_mask: Vec::new(),
            rollout_log_probs: Vec::new(),
            kept_token_ids: Vec::new(),
            kept_lens: Vec::new(),
            routed_experts: Vec::new(),
            weight_versions: Vec::new(),
            label: None,
            metadata: None,
            weight: 1.0,
        }
    }
}

impl Sample {
    /// The sample's name.
    pub fn id(&self) -> SampleId {
        let &Self { step, group, index, attempt, part, .. } = self;
        SampleId { step, group, index, attempt, part }
    }

    /// How many response tokens there are.
    pub fn response_len(&self) -> usize {
        self.tokens.len().saturating_sub(self.prompt_len as usize)
    }

    /// The prompt's token ids.
    pub fn prompt_tokens(&self) -> &[u32] {
        let end = (self.prompt_len as usize).min(self.tokens.len());
        &self.tokens[..end]
    }

    /// The response's token ids.
    pub fn response_tokens(&self) -> &[u32] {
        let start = (self.prompt_len as usize).min(self.tokens.len());
        &self.tokens[start..]
    }

    /// The oldest policy version among the trained tokens; `None` when no token is trained.
    pub fn oldest_trained_version(&self) -> Option<u64> {
        let mut mask = self.loss_mask.iter();
        self.weight_versions
            .iter()
            .filter(|run| mask.by_ref().take(run.len as usize).max() > Some(&0))
            .map(|run| run.version)
            .min()
    }

    /// XXH3 (64 bits) of the token ids as little-endian bytes: with the id, the sample's identity.
    pub fn tokens_hash(&self) -> u64 {
        tokens_hash(&self.tokens)
    }

    /// Checks that the per-token fields agree in length.
    ///
    /// # Errors
    /// [`Error::Sample`] names the sample and the field, with expected and got.
    pub fn validate(&self) -> Result<()> {
        let wrong = |field: &'static str, expected: String, got: usize| {
            Err(Error::Sample { id: self.id(), field, expected, got: got.to_string() })
        };
        let (tokens, prompt_len, response_len) =
            (self.tokens.len(), self.prompt_len as usize, self.response_len());
        if prompt_len > tokens {
            return wrong("prompt_len", format!("at most the {tokens} tokens"), prompt_len);
        }
        if self.loss_mask.len() != response_len {
            return wrong("loss_mask", format!("{response_len} values"), self.loss_mask.len());
        }
        let log_probs = self.rollout_log_probs.len();
        if log_probs != 0 && log_probs != response_len {
            return wrong("rollout_log_probs", format!("{response_len} values or none"), log_probs);
        }
        let kept = self.kept_lens.len();
        if kept != 0 && kept != response_len {
            return wrong("kept_lens", format!("{response_len} values or none"), kept);
        }
        let kept_ids: u64 = self.kept_lens.iter().map(|len| u64::from(*len)).sum();
        if kept_ids != self.kept_token_ids.len() as u64 {
            return wrong(
                "kept_token_ids",
                format!("{kept_ids} ids, the sum of kept_lens"),
                self.kept_token_ids.len(),
            );
        }
        let routed = self.routed_experts.len();
        if routed != 0 && tokens.checked_sub(1).is_none_or(|rows| rows == 0 || !routed.is_multiple_of(rows)) {
            let expected =
                format!("the same number for each of {} tokens, or none", tokens.saturating_sub(1));
            return wrong("routed_experts", expected, routed);
        }
        let covered: u64 = self.weight_versions.iter().map(|run| u64::from(run.len)).sum();
        if covered != response_len as u64 && !self.weight_versions.is_empty() {
            return wrong("weight_versions", format!("{response_len} tokens or none"), covered as usize);
        }
        Ok(())
    }
}

/// XXH3 (64 bits) of token ids as little-endian bytes.
pub fn tokens_hash(tokens: &[u32]) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    let mut bytes = [0u8; 4096];
    for chunk in tokens.chunks(bytes.len() / 4) {
        for (to, token) in bytes.chunks_exact_mut(4).zip(chunk) {
            to.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..chunk.len() * 4]);
    }
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            tokens: vec![1, 2, 3, 4, 5],
            prompt_len: 2,
            loss_mask: vec![0, 0, 1],
            rollout_log_probs: vec![-0.5; 3],
            weight_versions: vec![VersionRun { version: 3, len: 2 }, VersionRun { version: 4, len: 1 }],
            ..Sample::default()
        }
    }

    #[test]
    fn oldest_trained_version_ignores_masked_tokens() {
        assert_eq!(sample().oldest_trained_version(), Some(4));
        let trained = Sample { loss_mask: vec![0, 1, 0], ..sample() };
        assert_eq!(trained.oldest_trained_version(), Some(3));
        let masked = Sample { loss_mask: vec![0; 3], ..sample() };
        assert_eq!(masked.oldest_trained_version(), None);
    }

    #[test]
    fn validate_names_the_field_that_disagrees() {
        sample().validate().unwrap();
        let bad = Sample { loss_mask: vec![1], step: 7, ..sample() };
        assert_eq!(
            bad.validate().unwrap_err().to_string(),
            "sample 7/0/0.0.0: loss_mask: expected 3 values, got 1"
        );
        let bad = Sample { prompt_len: 9, ..sample() };
        assert!(
            bad.validate()
                .unwrap_err()
                .to_string()
                .contains("prompt_len: expected at most the 5 tokens, got 9")
        );
        let bad = Sample { kept_lens: vec![2, 0, 1], kept_token_ids: vec![4, 3], ..sample() };
        assert_eq!(
            bad.validate().unwrap_err().to_string(),
            "sample 0/0/0.0.0: kept_token_ids: expected 3 ids, the sum of kept_lens, got 2"
        );
        let bad = Sample { kept_lens: vec![0], ..sample() };
        assert!(bad.validate().unwrap_err().to_string().contains("kept_lens: expected 3 values or none"));
        let routed = |len| Sample { routed_experts: vec![0; len], ..sample() };
        routed(8).validate().unwrap();
        assert_eq!(
            routed(9).validate().unwrap_err().to_string(),
            "sample 0/0/0.0.0: routed_experts: expected the same number for each of 4 tokens, or none, got 9"
        );
        let bad = Sample { weight_versions: vec![VersionRun { version: 0, len: 1 }], ..sample() };
        assert!(bad.validate().unwrap_err().to_string().contains("weight_versions"));
    }

    #[test]
    fn tokens_hash_is_xxh3_of_little_endian_bytes() {
        let tokens: Vec<u32> = (0..5000).collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        assert_eq!(tokens_hash(&tokens), xxhash_rust::xxh3::xxh3_64(&bytes));
    }

    #[test]
    fn status_words_round_trip() {
        for status in [Status::Pending, Status::Completed, Status::Truncated, Status::Aborted, Status::Failed]
        {
            assert_eq!(status.as_str().parse::<Status>().unwrap(), status);
        }
        assert!("done".parse::<Status>().is_err());
    }
}
