//! The loss of the layer that predicts the token after the next one, beside the policy's own.
//!
//! A response token t sees the trunk's residual of t and the embedding of token t + 1, and predicts token t + 2 where that is
//! trained. Samples share the prompt but for its last token: what follows that one is each sample's own.

use slime_model::{Context, Parallel, Segment};
use slime_record::Sample;
use tch::Tensor;

use crate::micro_batch::MicroBatch;
use crate::prepared::Prepared;
use crate::row_share::RowShare;
use crate::tally::{Stat, Tally};
use crate::{Error, Result, Trainer};

/// The pass of the layer over a micro-batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MtpBatch {
    /// For each token that is fed, the token of the micro-batch whose residual it takes.
    pub residual_rows: Vec<i64>,
    /// The token that follows it.
    pub next: Vec<i64>,
    /// Who sees whom.
    pub segments: Vec<Segment>,
    /// The fed tokens that predict.
    pub rows: Vec<i64>,
    /// What they predict.
    pub targets: Vec<i64>,
}

/// Trained tokens that have a token before them within the response, and so a prediction of their own.
pub(crate) fn num_targets(sample: &Sample) -> usize {
    sample.loss_mask.iter().skip(1).filter(|mask| **mask != 0).count()
}

impl MtpBatch {
    /// The pass over `batch`, whose samples are `samples`.
    pub fn new(batch: &MicroBatch, samples: &[&Sample]) -> Self {
        let mut pass = Self::default();
        // The fed prompt of the segments that follow: its first token here, its tokens there.
        let (mut start, mut prompt) = (0, Segment::alone(0, 0));
        for (segment, source) in batch.segments.iter().zip(&batch.sources) {
            let sample = samples[source.sample];
            if segment.prefix.is_none() {
                (start, prompt) = (pass.next.len(), *segment);
                let shared = segment.len.saturating_sub(1);
                if shared > 0 {
                    pass.segments.push(Segment::alone(start, shared));
                }
                pass.feed(segment.start, &sample.prompt_tokens()[1..]);
            } else {
                pass.push_response((start, prompt), segment, sample);
            }
        }
        pass
    }

    fn feed(&mut self, first_row: usize, next: &[u32]) {
        self.residual_rows.extend((first_row..first_row + next.len()).map(|row| row as i64));
        self.next.extend(next.iter().map(|token| i64::from(*token)));
    }

    /// The prompt's last token and all fed tokens of the response but the last, which predicts nothing that is trained.
    fn push_response(&mut self, (start, prompt): (usize, Segment), segment: &Segment, sample: &Sample) {
        let (at, response) = (self.next.len(), sample.response_tokens());
        let shared = prompt.len.saturating_sub(1);
        self.segments.push(match shared {
            0 => Segment::alone(at, segment.len),
            _ => Segment::after((start, shared), at, segment.len),
        });
        self.feed(prompt.start + prompt.len - 1, &response[..1]);
        self.feed(segment.start, &response[1..segment.len]);
        let ahead = response.iter().zip(&sample.loss_mask).enumerate().skip(1).take(segment.len);
        for (token, (target, _)) in ahead.filter(|(_, (_, mask))| **mask != 0) {
            self.rows.push((at + token - 1) as i64);
            self.targets.push(i64::from(*target));
        }
    }
}

impl Trainer {
    /// The weighted loss of the layer over a micro-batch, from the residual `[t, d]` behind the last layer; `None` where it
    /// predicts nothing. The denominator is the number of predictions in the global batch.
    pub(crate) fn mtp_loss(
        &self,
        prepared: &Prepared,
        residual_td: &Tensor,
        tally: &mut Tally,
    ) -> Result<Option<Tensor>> {
        let Some((pass, num_targets)) = prepared.mtp.as_ref().filter(|(pass, _)| !pass.rows.is_empty())
        else {
            return Ok(None);
        };
        let Some(coef) = self.settings.mtp_loss_coef() else { return Ok(None) };
        let (policy, device) = (self.policy(), residual_td.device());
        let residual_td = policy.whole_residual(residual_td, prepared.share.tokens().len())?;
        let residual_sd = prepared.share.all_tokens(&residual_td)?;
        let cp = policy.params().parallel().and_then(Parallel::cp);
        let share = RowShare::new(&pass.segments, &pass.rows, cp, device)?;
        let own = |values: &[i64], numbers: &[usize]| {
            let own: Vec<i64> = numbers.iter().map(|at| values[*at]).collect();
            Tensor::f_from_slice(&own)?.f_to_device(device)
        };
        let mut context = Context::packed_over(&pass.segments, (policy.params().kind(), device), cp)?;
        let tokens = (&own(&pass.residual_rows, share.tokens())?, &own(&pass.next, share.tokens())?);
        let hidden_td = policy.mtp_hidden_states(&mut context, &residual_sd, tokens)?;
        let targets_o = own(&pass.targets, share.rows())?;
        let log_probs_o = policy.mtp_log_probs(&share.of_hidden(&hidden_td)?, &targets_o)?;
        let coefficient_o = log_probs_o.f_detach()?.f_full_like(-1.0 / *num_targets as f64)?;
        tally.add(Stat::MtpLoss, &log_probs_o, &coefficient_o)?;
        Ok(Some(log_probs_o.f_mul(&coefficient_o)?.f_sum(log_probs_o.kind())?.f_mul_scalar(coef)?))
    }

    /// An error where a layer is to be trained that the policy does not have.
    pub(crate) fn check_mtp(&self) -> Result<()> {
        let is_here = self.policy().has_mtp() || !self.policy().stage().is_last();
        if self.settings.mtp_loss_coef().is_some() && !is_here {
            return Err(Error::Role {
                role: "a policy with a layer for further tokens (train.mtp_loss_coef)",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::{Packing, pack};

    fn sample(prompt: &[u32], response: &[u32], loss_mask: &[u8]) -> Sample {
        Sample {
            tokens: [prompt, response].concat(),
            prompt_len: prompt.len() as u32,
            loss_mask: loss_mask.to_vec(),
            ..Sample::default()
        }
    }

    #[test]
    fn prompts_are_shared_but_for_their_last_token_and_responses_predict_two_ahead() {
        let samples = [
            sample(&[1, 2, 3], &[4, 5, 6], &[1, 0, 1]),
            sample(&[1, 2, 3], &[7, 8], &[1, 1]),
            sample(&[1, 2, 3], &[9], &[1]),
        ];
        let samples: Vec<&Sample> = samples.iter().collect();
        let batch =
            pack(&samples, Packing { max_tokens: 100, ..Packing::default() }, 1, |_| 0.0).unwrap().remove(0);
        // Fed: 1 2 3, then 4 5 of the first, 7 of the second and nothing of the third.
        assert_eq!(batch[0].tokens, [1, 2, 3, 4, 5, 7]);
        let pass = MtpBatch::new(&batch[0], &samples);
        assert_eq!(pass.residual_rows, [0, 1, 2, 3, 2]);
        assert_eq!(pass.next, [2, 3, 4, 5, 7]);
        let after = |start, len| Segment::after((0, 2), start, len);
        assert_eq!(pass.segments, [Segment::alone(0, 2), after(2, 2), after(4, 1)]);
        assert_eq!((pass.rows.as_slice(), pass.targets.as_slice()), (&[3, 4][..], &[6, 8][..]));
        assert_eq!(samples.iter().map(|sample| num_targets(sample)).collect::<Vec<_>>(), [1, 1, 0]);
    }

    #[test]
    fn prompt_of_one_token_shares_nothing() {
        let samples = [sample(&[1], &[4, 5], &[1, 1]), sample(&[1], &[6, 7], &[1, 1])];
        let samples: Vec<&Sample> = samples.iter().collect();
        let batch =
            pack(&samples, Packing { max_tokens: 100, ..Packing::default() }, 1, |_| 0.0).unwrap().remove(0);
        let pass = MtpBatch::new(&batch[0], &samples);
        assert_eq!(pass.segments, [Segment::alone(0, 1), Segment::alone(1, 1)]);
        assert_eq!((pass.next.as_slice(), pass.targets.as_slice()), (&[4, 6][..], &[5, 7][..]));
    }
}
