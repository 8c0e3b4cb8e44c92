//! What a program or a server says about a row: a number, or an object with `reward` and more.

use serde_json::Value;

use crate::row::{Row, Verdict};
use crate::spans::token_rewards;

/// Reads one reply; the error says what is wrong with it.
///
/// An object has `reward` (or `score`) and, if it likes, `reason`, and either `token_rewards`, a number for each token
/// of the response, or `spans`, a list of `{"start", "end", "reward"}` in characters of the response.
pub(crate) fn read_reply(reply: &Value, row: &Row<'_>) -> Result<Verdict, String> {
    let shown = || reply.to_string().chars().take(80).collect::<String>();
    let number = reply.as_f64().or_else(|| reply.get("reward").or_else(|| reply.get("score"))?.as_f64());
    let Some(reward) = number.filter(|reward| reward.is_finite()) else {
        return Err(format!("expected a number or {{\"reward\": number}}, got {:?}", shown()));
    };
    let reason = reply.get("reason").and_then(Value::as_str).unwrap_or("the program says so");
    let token_rewards = match (reply.get("token_rewards"), reply.get("spans")) {
        (None | Some(Value::Null), None | Some(Value::Null)) => Vec::new(),
        (Some(_), Some(_)) => return Err("expected token_rewards or spans, got both".to_owned()),
        (None, Some(spans)) => token_rewards(spans, row)?,
        (Some(list), None) => serde_json::from_value::<Vec<f64>>(list.clone())
            .map_err(|_| format!("token_rewards: expected a list of numbers, got {:?}", shown()))?,
    };
    let got = token_rewards.len();
    if let Some(num) = row.num_tokens.filter(|num| got > 0 && got != *num) {
        return Err(format!("token_rewards: expected {num} numbers, got {got}"));
    }
    Ok(Verdict { token_rewards, ..Verdict::new(reward, reason) })
}
