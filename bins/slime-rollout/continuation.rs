//! Samples that go on where an earlier replica was drained, and which of their tokens are trained.

use slime_config::Partial;
use slime_engine::{Completion, Decode};
use slime_record::Sample;

/// A completion with the tokens that the sample had before, as if one engine had sampled all of them.
pub fn merged(before: Option<&Sample>, completion: Completion, decode: &Decode) -> Completion {
    let Some(before) = before else { return completion };
    let mut merged = Completion { tokens: before.response_tokens().to_vec(), ..completion.clone() };
    merged.tokens.extend(completion.tokens);
    merged.text = decode(&merged.tokens);
    merged.log_probs.splice(..0, before.rollout_log_probs.iter().copied());
    merged.kept.ids.splice(..0, before.kept_token_ids.iter().copied());
    merged.kept.lens.splice(..0, before.kept_lens.iter().copied());
    // The engine has computed the earlier tokens again; what they went through when they were sampled is what counts.
    for (now, then) in merged.routed_experts.iter_mut().zip(&before.routed_experts) {
        *now = *then;
    }
    let mut versions = before.weight_versions.clone();
    for run in completion.weight_versions {
        match versions.last_mut() {
            Some(last) if last.version == run.version => last.len += run.len,
            _ => versions.push(run),
        }
    }
    Completion { weight_versions: versions, ..merged }
}

/// Which tokens are trained: all, or those that the last weights sampled.
pub fn loss_mask(completion: &Completion, partial: Partial) -> Vec<u8> {
    let num_tokens = completion.tokens.len();
    let last = completion.weight_versions.last().map_or(0, |run| run.len as usize);
    let first_trained = if partial == Partial::Mask { num_tokens.saturating_sub(last) } else { 0 };
    (0..num_tokens).map(|token| u8::from(token >= first_trained)).collect()
}

#[cfg(test)]
mod tests {
    use slime_engine::{Drafting, FinishReason, KeptIds};
    use slime_record::VersionRun;

    use super::*;

    fn completion(tokens: &[u32], version: u64) -> Completion {
        Completion {
            id: 0,
            index: 1,
            tokens: tokens.to_vec(),
            log_probs: vec![-1.0; tokens.len()],
            kept: KeptIds::default(),
            routed_experts: vec![9; 6],
            text: String::new(),
            finish_reason: FinishReason::Stop,
            weight_versions: vec![VersionRun { version, len: tokens.len() as u32 }],
            num_cached: 0,
            drafting: Drafting::default(),
        }
    }

    #[test]
    fn continued_sample_has_all_its_tokens_with_their_versions() {
        let before = Sample {
            tokens: vec![1, 2, 7, 8],
            prompt_len: 2,
            rollout_log_probs: vec![-0.5, -0.25],
            routed_experts: vec![3; 3],
            weight_versions: vec![VersionRun { version: 4, len: 2 }],
            ..Sample::default()
        };
        let text = |tokens: &[u32]| format!("{tokens:?}");
        let same = merged(Some(&before), completion(&[5], 4), &text);
        assert_eq!((same.tokens.as_slice(), same.text.as_str()), (&[7, 8, 5][..], "[7, 8, 5]"));
        assert_eq!(same.log_probs, [-0.5, -0.25, -1.0]);
        assert_eq!(same.weight_versions, [VersionRun { version: 4, len: 3 }]);
        assert_eq!(same.routed_experts, [3, 3, 3, 9, 9, 9]);
        let newer = merged(Some(&before), completion(&[5], 6), &text);
        assert_eq!(newer.weight_versions.len(), 2);
        assert_eq!(loss_mask(&newer, Partial::Train), [1, 1, 1]);
        assert_eq!(loss_mask(&newer, Partial::Mask), [0, 0, 1]);
        assert_eq!(merged(None, completion(&[5], 6), &text), completion(&[5], 6));
    }
}
