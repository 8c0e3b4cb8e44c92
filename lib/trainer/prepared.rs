//! A micro-batch with everything about its rows that does not change during the rollout.

use slime_config::Moe;
use slime_model::{KeptIds, Parallel, Penalties, Routes, Seen, Shaping};
use slime_record::Sample;
use tch::{Device, Kind, Tensor};

use crate::loss::Sequences;
use crate::micro_batch::{MicroBatch, Place};
use crate::mtp::{MtpBatch, num_targets};
use crate::plan::Coefficients;
use crate::row_share::RowShare;
use crate::{Result, Scored, Trainer};

/// One micro-batch of this rank.
pub(crate) struct Prepared {
    pub batch: MicroBatch,
    /// Its rows that this rank computes.
    pub share: RowShare,
    pub sequences: Sequences,
    pub known: KnownRows,
    /// The pairs, where the loss is one of pairs.
    pub pairs: Option<Pairs>,
    /// The reference's hidden states of this rank's rows, where the whole distribution is compared.
    pub ref_hidden_rd: Option<Tensor>,
    /// Whether log-probs of one of its samples are kept.
    pub is_logged: bool,
    /// Where the policy's tokens go.
    pub routes: Replay,
    /// The pass of the layer for further tokens, where that is trained, and its predictions in the global batch.
    pub mtp: Option<(MtpBatch, usize)>,
    kept: Option<KeptIds>,
    penalties: Option<Penalties>,
}

/// The experts that the policy's tokens go to.
#[derive(Debug, Default)]
pub(crate) enum Replay {
    /// Its routers choose.
    #[default]
    None,
    /// As generation says, in all layers.
    Given(Routes),
    /// As an earlier pass did, in each run of this rank's layers; `None` in one without experts.
    Recorded(Vec<Option<Routes>>),
}

impl Replay {
    /// The experts in the layers of a run.
    pub fn of_run(&self, run: usize) -> Option<&Routes> {
        match self {
            Self::None => None,
            Self::Given(routes) => Some(routes),
            Self::Recorded(runs) => runs.get(run).and_then(Option::as_ref),
        }
    }

    /// What a pass through a run chose, kept on the host; a micro-batch goes through the runs in order.
    pub fn record(&mut self, run: usize, routes: Option<Routes>) -> Result<()> {
        let routes = routes.map(|routes| routes.to_device(Device::Cpu)).transpose()?;
        match self {
            Self::Recorded(runs) if run > 0 => runs.push(routes),
            _ => *self = Self::Recorded(vec![routes]),
        }
        Ok(())
    }
}

/// What is known of the rows of a micro-batch, or of some of them, before the policy's forward pass.
#[expect(clippy::struct_field_names, reason = "tensors carry their shape")]
pub(crate) struct KnownRows {
    /// Coefficient of each row in the loss.
    pub coefficient_r: Tensor,
    /// Coefficient of each row in a sample mean, whatever the loss has.
    pub mean_coefficient_r: Tensor,
    /// NaN where the rollout did not record any.
    pub rollout_log_prob_r: Tensor,
    /// Set once the advantages are estimated.
    pub advantage_r: Option<Tensor>,
    pub return_r: Option<Tensor>,
    /// The critic's values before its first update.
    pub old_value_r: Option<Tensor>,
    /// Log-probs before the first update; `None` where they are the current ones.
    pub old_log_prob_r: Option<Tensor>,
    /// The entropy then.
    pub old_entropy_r: Option<Tensor>,
    pub ref_log_prob_r: Option<Tensor>,
    pub teacher_log_prob_r: Option<Tensor>,
}

/// The pairs of a micro-batch, by number of their sequences.
#[expect(clippy::struct_field_names, reason = "tensors carry their shape")]
pub(crate) struct Pairs {
    pub chosen_p: Tensor,
    pub rejected_p: Tensor,
    pub margin_p: Tensor,
    pub coefficient_p: Tensor,
}

impl KnownRows {
    /// The `len` rows from `start` on.
    pub(crate) fn narrow(&self, start: i64, len: i64) -> Result<Self> {
        self.map(|x| Ok(x.f_narrow(0, start, len)?))
    }

    /// The rows that this rank computes.
    pub(crate) fn own(&self, share: &RowShare) -> Result<Self> {
        self.map(|x| share.own(x))
    }

    fn map(&self, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let of = |x: &Option<Tensor>| x.as_ref().map(&part).transpose();
        Ok(Self {
            coefficient_r: part(&self.coefficient_r)?,
            mean_coefficient_r: part(&self.mean_coefficient_r)?,
            rollout_log_prob_r: part(&self.rollout_log_prob_r)?,
            advantage_r: of(&self.advantage_r)?,
            return_r: of(&self.return_r)?,
            old_value_r: of(&self.old_value_r)?,
            old_log_prob_r: of(&self.old_log_prob_r)?,
            old_entropy_r: of(&self.old_entropy_r)?,
            ref_log_prob_r: of(&self.ref_log_prob_r)?,
            teacher_log_prob_r: of(&self.teacher_log_prob_r)?,
        })
    }
}

impl Prepared {
    /// What stands between logits and log-probs of this rank's rows: those are of the distribution that was sampled from.
    pub(crate) fn shaping(&self, temperature: f64) -> Shaping<'_> {
        Shaping { temperature, kept: self.kept.as_ref(), penalties: self.penalties.as_ref() }
    }

    /// The targets of this rank's rows on a device.
    pub(crate) fn targets(&self, device: Device) -> Result<Tensor> {
        let targets: Vec<i64> = self.share.rows().iter().map(|row| self.batch.targets[*row]).collect();
        Ok(Tensor::f_from_slice(&targets)?.f_to_device(device)?)
    }
}

impl Trainer {
    pub(crate) fn prepare(
        &self,
        batch: MicroBatch,
        scored: &[&Scored],
        coefficients: &Coefficients,
        is_logged: bool,
    ) -> Result<Prepared> {
        let params = self.policy().params();
        let kind = if params.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let rows = |value: &dyn Fn(usize, usize) -> f64| {
            let values: Vec<f64> =
                batch.places.iter().map(|place| value(place.sample, place.token)).collect();
            Tensor::f_from_slice(&values)?.f_to_kind(kind)?.f_to_device(params.device())
        };
        let at = |values: &[f32], token: usize| f64::from(values.get(token).copied().unwrap_or(f32::NAN));
        let teacher_log_prob_r = match &self.teacher {
            None if self.settings.opd_kl_coef.is_some() => {
                Some(rows(&|sample, token| at(&scored[sample].teacher_log_probs, token))?)
            }
            _ => None,
        };
        let known = KnownRows {
            coefficient_r: rows(&|sample, _| coefficients.loss[sample])?,
            mean_coefficient_r: rows(&|sample, _| coefficients.mean[sample])?,
            rollout_log_prob_r: rows(&|sample, token| at(&scored[sample].sample.rollout_log_probs, token))?,
            advantage_r: None,
            return_r: None,
            old_value_r: None,
            old_log_prob_r: None,
            old_entropy_r: None,
            ref_log_prob_r: None,
            teacher_log_prob_r,
        };
        let sequences = Sequences::new(&batch.places, kind, params.device())?;
        let pairs = if self.settings.algorithm.has_pairs() {
            Some(self.pairs(&sequences, scored, kind)?)
        } else {
            None
        };
        let cp = params.parallel().and_then(Parallel::cp);
        let share = RowShare::new(&batch.segments, &batch.rows, cp, params.device())?;
        let own: Vec<Place> = share.rows().iter().map(|row| batch.places[*row]).collect();
        let (kept, penalties) = (kept_ids(&batch, &own, scored)?, self.penalties(&own, scored)?);
        let routes = match self.replayed() {
            Some(moe) => Replay::Given(routes(&batch, share.tokens(), scored, moe)?),
            None => Replay::None,
        };
        let mtp = self.settings.mtp_loss_coef().map(|_| {
            let samples: Vec<&Sample> = scored.iter().map(|scored| &scored.sample).collect();
            let num_targets = samples.iter().map(|sample| num_targets(sample)).sum();
            (MtpBatch::new(&batch, &samples), num_targets)
        });
        let ref_hidden_rd = None;
        Ok(Prepared {
            batch,
            share,
            sequences,
            known,
            pairs,
            ref_hidden_rd,
            is_logged,
            routes,
            mtp,
            kept,
            penalties,
        })
    }

    /// The penalties that the rollout sampled with, and what each row's token had before it.
    fn penalties(&self, places: &[Place], scored: &[&Scored]) -> Result<Option<Penalties>> {
        let settings = self.settings.penalties;
        if settings.is_none() {
            return Ok(None);
        }
        let (mut offsets, mut all) = (vec![0], Vec::new());
        let mut before = Before::default();
        for place in places {
            before.advance(place.sample, &scored[place.sample].sample, place.token);
            all.extend(before.seen.iter().copied());
            offsets.push(all.len() as i64);
        }
        let mut penalties = Penalties::new(offsets, all)?;
        penalties.repetition = settings.repetition;
        penalties.frequency = settings.frequency;
        penalties.presence = settings.presence;
        Ok(Some(penalties))
    }

    /// The pairs among the sequences of a micro-batch; the denominator of a pair is the weight of all pairs.
    fn pairs(&self, sequences: &Sequences, scored: &[&Scored], kind: Kind) -> Result<Pairs> {
        let all: f64 = scored.iter().step_by(2).map(|scored| f64::from(scored.sample.weight)).sum();
        let (mut chosen, mut rejected, mut margins, mut coefficients) = (vec![], vec![], vec![], vec![]);
        let place = |sample: usize| sequences.samples().iter().position(|other| *other == sample);
        // Samples are sorted and their groups whole, so a pair is an even place and the next one.
        for sample in sequences.samples().iter().copied().filter(|sample| sample.is_multiple_of(2)) {
            let (Some(first), Some(second)) = (place(sample), place(sample + 1)) else {
                return Err(scored[sample].wrong("group", "both answers of a pair in a micro-batch", "one"));
            };
            let better = scored[sample];
            chosen.push(first as i64);
            rejected.push(second as i64);
            margins.push(f64::from(better.margin.unwrap_or(0.0)));
            coefficients.push(if all > 0.0 { f64::from(better.sample.weight) / all } else { 0.0 });
        }
        let device = self.policy().params().device();
        let index = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
        let floats = |values: &[f64]| Tensor::f_from_slice(values)?.f_to_kind(kind)?.f_to_device(device);
        Ok(Pairs {
            chosen_p: index(&chosen)?,
            rejected_p: index(&rejected)?,
            margin_p: floats(&margins)?,
            coefficient_p: floats(&coefficients)?,
        })
    }
}

/// The ids before a response token, each once.
#[derive(Default)]
struct Before {
    sample: Option<usize>,
    /// Response tokens that were taken.
    len: usize,
    seen: Vec<Seen>,
    at: std::collections::HashMap<u32, usize>,
}

impl Before {
    /// Goes on to the tokens before response token `token` of a sample; rows of a sample come in order.
    fn advance(&mut self, number: usize, sample: &slime_record::Sample, token: usize) {
        if self.sample != Some(number) {
            *self = Self { sample: Some(number), ..Self::default() };
            for &id in sample.prompt_tokens() {
                self.take(id, false);
            }
        }
        for &id in sample.response_tokens().get(self.len..token).unwrap_or_default() {
            self.take(id, true);
            self.len += 1;
        }
    }

    fn take(&mut self, id: u32, is_response: bool) {
        let seen = &mut self.seen;
        let at = *self.at.entry(id).or_insert_with(|| {
            seen.push(Seen { id: i64::from(id), count: 0, is_in_prompt: false });
            seen.len() - 1
        });
        if let Some(seen) = self.seen.get_mut(at) {
            seen.count += i64::from(is_response);
            seen.is_in_prompt |= !is_response;
        }
    }
}

/// Where generation sent the fed tokens `own` of a batch.
fn routes(batch: &MicroBatch, own: &[usize], scored: &[&Scored], moe: &Moe) -> Result<Routes> {
    let width = moe.layers.len() * moe.top_k;
    let mut ids = Vec::with_capacity(batch.tokens.len() * width);
    for (segment, source) in batch.segments.iter().zip(&batch.sources) {
        let end = ids.len() + segment.len * width;
        let rows = source.token * width..(source.token + segment.len) * width;
        ids.extend_from_slice(scored[source.sample].sample.routed_experts.get(rows).unwrap_or_default());
        // A sample without a trained token brings none; its prompt may be fed for others.
        ids.resize(end, Routes::NOT_RECORDED);
    }
    let of_own: Vec<u16> =
        own.iter().flat_map(|token| &ids[token * width..(token + 1) * width]).copied().collect();
    Ok(Routes::new(&of_own, [own.len(), moe.layers.len(), moe.top_k])?)
}

/// What truncation left to each row of `places`; `None` where no sample of the batch says.
fn kept_ids(batch: &MicroBatch, places: &[Place], scored: &[&Scored]) -> Result<Option<KeptIds>> {
    if batch.places.iter().all(|place| scored[place.sample].sample.kept_lens.is_empty()) {
        return Ok(None);
    }
    let (mut offsets, mut ids, mut is_recorded) = (vec![0], Vec::new(), Vec::new());
    // Where the list of the next token of the current sample begins.
    let (mut current, mut next, mut start) = (None, 0, 0);
    for place in places {
        let sample = &scored[place.sample].sample;
        if current != Some(place.sample) {
            (current, next, start) = (Some(place.sample), 0, 0);
        }
        let skipped = sample.kept_lens.get(next..place.token).unwrap_or_default();
        start += skipped.iter().map(|len| *len as usize).sum::<usize>();
        let len = sample.kept_lens.get(place.token).copied().unwrap_or(0) as usize;
        let kept = sample.kept_token_ids.get(start..start + len).unwrap_or_default();
        ids.extend(kept.iter().map(|id| i64::from(*id)));
        is_recorded.push(len > 0);
        offsets.push(ids.len() as i64);
        (next, start) = (place.token + 1, start + len);
    }
    Ok(Some(KeptIds::new(offsets, ids, is_recorded)?))
}
