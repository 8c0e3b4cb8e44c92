//! Rewards of samples and of whole sealed segments, as the tools that stay with a run need them.

use rayon::prelude::*;
use serde_json::{Map, Value};
use slime_exchange::ColumnRow;
use slime_record::{Sample, decode_segment};

use crate::error::Result;
use crate::{Error, RewardSet, Row, Scored};

/// The key of a sample's token rewards among the details of its reward.
const TOKEN_REWARDS: &str = "token_rewards";
/// The key of the number of types that failed for a sample, so that a configured default stands in.
const FAILED: &str = "failed";

impl RewardSet {
    /// One reward for each sample, in their order.
    ///
    /// # Errors
    /// As [`RewardSet::score`].
    pub fn score_samples(&self, samples: &[Sample]) -> Result<Vec<f32>> {
        let offsets = self.offsets(samples)?;
        Ok(self.score(&rows(samples, &offsets))?.into_iter().map(|scored| scored.reward as f32).collect())
    }

    /// The rows of the reward column over the sealed segment `path` with content `bytes`, with the parts as details.
    ///
    /// # Errors
    /// As [`RewardSet::score`], and those of reading the segment; all name it.
    pub fn score_segment(&self, path: &str, bytes: &[u8]) -> Result<Vec<ColumnRow>> {
        let in_segment = |source: Error| Error::Segment { path: path.to_owned(), source: Box::new(source) };
        let segment = decode_segment(bytes.to_vec()).and_then(|segment| segment.samples());
        let samples = segment.map_err(|error| in_segment(error.into()))?;
        let offsets = self.offsets(&samples).map_err(in_segment)?;
        let scored = self.score(&rows(&samples, &offsets)).map_err(in_segment)?;
        let row = |(sample, scored): (&Sample, &Scored)| {
            let parts = self.names().iter().cloned().zip(scored.parts.iter().map(|part| part.reward.into()));
            let mut details: Map<String, Value> = parts.collect();
            if !scored.token_rewards.is_empty() {
                details.insert(TOKEN_REWARDS.to_owned(), scored.token_rewards.clone().into());
            }
            let num_failed = scored.parts.iter().filter(|part| part.failure.is_some()).count();
            if num_failed > 0 {
                details.insert(FAILED.to_owned(), num_failed.into());
            }
            let details = Some(Value::Object(details).to_string());
            ColumnRow { details, ..ColumnRow::about(sample, scored.reward as f32) }
        };
        Ok(samples.iter().zip(&scored).map(row).collect())
    }

    /// Where the tokens of each sample begin, as [`RewardSet::token_offsets`] tells.
    fn offsets(&self, samples: &[Sample]) -> Result<Vec<Option<Vec<usize>>>> {
        samples.par_iter().map(|sample| self.token_offsets(sample)).collect()
    }
}

fn rows<'a>(samples: &'a [Sample], offsets: &'a [Option<Vec<usize>>]) -> Vec<Row<'a>> {
    samples
        .iter()
        .zip(offsets)
        .map(|(sample, offsets)| Row {
            prompt: Some(&sample.prompt),
            response: &sample.response,
            label: sample.label.as_deref(),
            metadata: sample.metadata.as_deref(),
            num_tokens: Some(sample.response_len()),
            token_offsets: offsets.as_deref(),
            group: Some((sample.step, u64::from(sample.group))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use slime_record::{Provenance, encode_segment};

    use super::*;

    fn sample(index: u32, label: Option<&str>) -> Sample {
        Sample {
            index,
            prompt: "\"1 + 1\"".to_owned(),
            response: "2".to_owned(),
            tokens: vec![1, 2 + index],
            prompt_len: 1,
            loss_mask: vec![1],
            rollout_log_probs: vec![-1.0],
            label: label.map(str::to_owned),
            ..Sample::default()
        }
    }

    #[test]
    fn rows_are_about_the_samples_of_the_segment_and_errors_name_it() {
        let set = RewardSet::parse(&["number"]).unwrap();
        let samples = [sample(0, Some("2")), sample(1, Some("3"))];
        let bytes = encode_segment(&samples, &Provenance::default()).unwrap();
        let rows = set.score_segment("a.arrow", &bytes).unwrap();
        let row = |sample, value, parts: &str| {
            let details = Some(parts.to_owned());
            ColumnRow { details, ..ColumnRow::about(sample, value) }
        };
        let expected = [row(&samples[0], 1.0, "{\"number\":1.0}"), row(&samples[1], 0.0, "{\"number\":0.0}")];
        assert_eq!(rows, expected);
        let failing = RewardSet::parse(&["command:on_error=0.5 false"]).unwrap();
        let rows = failing.score_segment("a.arrow", &bytes).unwrap();
        let details = rows[0].details.clone().unwrap();
        assert_eq!((rows[0].value, details.ends_with(",\"failed\":1}")), (0.5, true), "{details}");
        let bytes = encode_segment(&[sample(0, Some("2")), sample(1, None)], &Provenance::default()).unwrap();
        let error = set.score_segment("a.arrow", &bytes).unwrap_err();
        assert_eq!(error.exit_code(), 65);
        assert!(error.to_string().starts_with("a.arrow: row 2: the number reward needs a label"), "{error}");
        let error = set.score_segment("a.arrow", &bytes[..50]).unwrap_err();
        assert!(error.to_string().starts_with("a.arrow: ") && error.exit_code() == 65, "{error}");
    }

    #[test]
    fn spans_of_a_run_pay_the_tokens_that_the_models_tokenizer_tells() {
        let chats = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/chats");
        let program = r#"command:sh -c 'while read -r line; do echo "{\"reward\": 1, \"spans\": [{\"end\": 2, \"reward\": 0.5}, {\"start\": 2, \"end\": 6, \"reward\": -1}]}"; done'"#;
        let mut config = slime_config::RunConfig::default();
        config.reward.types = vec![program.to_owned()];
        let response = "so é 4";
        let tokens = slime_tokenizer::Tokenizer::from_dir(chats).unwrap().encode(response).unwrap();
        let num = tokens.len();
        let row = Sample {
            response: response.to_owned(),
            tokens,
            prompt_len: 0,
            loss_mask: vec![1; num],
            ..sample(0, None)
        };
        let row = Sample { rollout_log_probs: vec![-1.0; num], ..row };
        let bytes = encode_segment(&[row], &Provenance::default()).unwrap();
        let score =
            |config: &slime_config::RunConfig| RewardSet::of_run(config).unwrap().score_segment("a", &bytes);
        assert!(score(&config).unwrap_err().to_string().contains("hint: give rows `token_offsets`"));
        config.reward.spans = true;
        assert!(matches!(RewardSet::of_run(&config), Err(Error::NoTokenizer)));
        config.model.path = chats.to_owned();
        let details: Value =
            serde_json::from_str(score(&config).unwrap()[0].details.as_ref().unwrap()).unwrap();
        let rewards: Vec<f64> = serde_json::from_value(details["token_rewards"].clone()).unwrap();
        assert_eq!(rewards.len(), num);
        let paid: Vec<f64> = rewards.iter().copied().filter(|reward| *reward != 0.0).collect();
        assert_eq!((paid, rewards.last().copied()), (vec![0.5, -1.0], Some(-1.0)));
    }
}
