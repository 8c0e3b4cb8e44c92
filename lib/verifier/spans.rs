//! Process rewards of spans of text, given to the token in which each span ends.

use serde::Deserialize;
use serde_json::Value;

use crate::row::Row;

/// A step of a response and its reward.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    /// Its first character, counted from 0.
    #[serde(default)]
    start: usize,
    /// The character behind its last.
    end: usize,
    reward: f64,
}

/// One reward for each token of the response: a span's reward stands at the token that holds its last character, and
/// spans that end in the same token add up.
pub(crate) fn token_rewards(spans: &Value, row: &Row<'_>) -> Result<Vec<f64>, String> {
    let spans: Vec<Span> = serde_json::from_value(spans.clone())
        .map_err(|error| format!("spans: expected a list of {{\"start\", \"end\", \"reward\"}}: {error}"))?;
    let offsets = row.token_offsets.ok_or(
        "spans: the row does not say where its tokens begin\nhint: give rows `token_offsets`, or token_rewards instead",
    )?;
    let mut starts: Vec<usize> = row.response.char_indices().map(|(at, _)| at).collect();
    let num_characters = starts.len();
    starts.push(row.response.len());
    let mut rewards = vec![0.0; offsets.len()];
    for Span { start, end, reward } in spans {
        let last = end.checked_sub(1).filter(|_| start < end && end <= num_characters);
        let Some(byte) = last.and_then(|last| starts.get(last)) else {
            return Err(format!("spans: expected start < end <= {num_characters}, got {start} and {end}"));
        };
        let token = offsets.partition_point(|offset| offset <= byte).checked_sub(1);
        match token.and_then(|token| rewards.get_mut(token)) {
            Some(sum) => *sum += reward,
            None => return Err(format!("spans: the span that ends at {end} ends before the first token")),
        }
    }
    Ok(rewards)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_span_pays_the_token_it_ends_in() {
        // "é" is two bytes: tokens "ab", "é c", "d".
        let row = Row { response: "abé cd", token_offsets: Some(&[0, 2, 6]), ..Row::default() };
        let rewards = |spans: Value| token_rewards(&spans, &row);
        let spans = json!([{"start": 0, "end": 3, "reward": 1}, {"start": 3, "end": 5, "reward": 0.5}, {"end": 6, "reward": -1}]);
        assert_eq!(rewards(spans).unwrap(), [0.0, 1.5, -1.0]);
        assert!(
            rewards(json!([{"start": 2, "end": 2, "reward": 1}])).unwrap_err().contains("start < end <= 6")
        );
        assert!(rewards(json!([{"end": 7, "reward": 1}])).unwrap_err().contains("got 0 and 7"));
        assert!(rewards(json!([{"reward": 1}])).unwrap_err().starts_with("spans: expected a list"));
        let blind = Row { token_offsets: None, ..row };
        assert!(token_rewards(&json!([]), &blind).unwrap_err().contains("hint: give rows `token_offsets`"));
    }
}
