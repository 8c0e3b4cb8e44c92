//! When a response ends: stop tokens, stop strings and lengths.

use crate::SamplingParams;

/// Turns tokens into text; special tokens are left out.
pub type Decode = dyn Fn(&[u32]) -> String + Send + Sync;

/// Tokens decoded beyond the length of the longest stop string, for characters that span several tokens.
const CONTEXT_TOKENS: usize = 8;

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or a stop string.
    Stop,
    /// `max_new_tokens` or the end of the context.
    Length,
    /// The caller took the request back.
    Abort,
}

impl FinishReason {
    /// The word in the `finish_reason` column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// Whether a response that just got its last token ends there.
pub(crate) fn finish(
    params: &SamplingParams,
    response: &[u32],
    is_context_full: bool,
    decode: &Decode,
) -> Option<FinishReason> {
    let last = response.last()?;
    if params.stop_token_ids.contains(last) || ends_with_stop(&params.stop, response, decode) {
        Some(FinishReason::Stop)
    } else if response.len() >= params.max_new_tokens || is_context_full {
        Some(FinishReason::Length)
    } else {
        None
    }
}

/// Looks at the tail only: a stop string that had appeared earlier would have ended the response there.
fn ends_with_stop(stop: &[String], response: &[u32], decode: &Decode) -> bool {
    let Some(longest) = stop.iter().map(String::len).max() else {
        return false;
    };
    let tail = decode(&response[response.len().saturating_sub(longest + CONTEXT_TOKENS)..]);
    stop.iter().any(|s| tail.contains(s.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(tokens: &[u32]) -> String {
        tokens.iter().filter_map(|&t| char::from_u32(t + u32::from(b'a'))).collect()
    }

    #[test]
    fn stop_string_that_spans_tokens_ends_the_response() {
        let params = SamplingParams { stop: vec!["cab".into()], ..Default::default() };
        assert_eq!(finish(&params, &[5, 2, 0], false, &letters), None);
        assert_eq!(finish(&params, &[5, 2, 0, 1], false, &letters), Some(FinishReason::Stop));
    }

    #[test]
    fn stop_token_wins_over_length() {
        let params = SamplingParams { stop_token_ids: vec![3], max_new_tokens: 1, ..Default::default() };
        assert_eq!(finish(&params, &[3], false, &letters), Some(FinishReason::Stop));
        assert_eq!(finish(&params, &[4], false, &letters), Some(FinishReason::Length));
    }
}
