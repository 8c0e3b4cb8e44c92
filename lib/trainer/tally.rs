//! Sums over the rows of all micro-batches of an optimizer step, with one copy to the host for each micro-batch.

use slime_comm::{Collectives, Communicator, Op};
use tch::{Device, Kind, Tensor};

use crate::Result;

/// What is summed, each row times a coefficient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stat {
    Loss,
    PgLoss,
    KlLoss,
    Entropy,
    Clipped,
    PpoKl,
    /// Of rows whose rollout recorded a log-prob, with coefficient 1.
    AbsDiff,
    AbsDiffCount,
    /// Sample means.
    LogProbs,
    RolloutLogProbs,
    RolloutCoefficients,
    RefLogProbs,
    TeacherLogProbs,
    Advantages,
    Returns,
    Values,
    Kl,
    OpdReverseKl,
    StartEntropy,
    /// The ratio to the old policy.
    Ois,
    /// The ratio of training to generation.
    Tis,
    TisClipped,
    TisAbs,
    MisKl,
    MisK3Kl,
    Rejected,
    OpsmClipped,
    ValueLoss,
    ValueClipped,
    /// Of pairs.
    ChosenRewards,
    RejectedRewards,
    Accuracies,
    /// Of the layer for further tokens, over its predictions.
    MtpLoss,
    Count,
}

/// What is maximised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peak {
    /// |log-prob of training - of generation|.
    AbsDiff,
    /// |log-prob - old log-prob|.
    OldDiff,
    /// |log-prob - log-prob of the reference|.
    RefDiff,
    Count,
}

const NUM_STATS: usize = Stat::Count as usize;
const NUM_PEAKS: usize = Peak::Count as usize;

/// The sums of one rank.
#[derive(Debug)]
pub(crate) struct Tally {
    sums: [f64; NUM_STATS],
    peaks: [f64; NUM_PEAKS],
    /// Numbers of the running micro-batch, still where they were computed.
    pending: Vec<(Slot, Tensor)>,
    /// Whether what comes is counted by another rank.
    is_silent: bool,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Sum(Stat),
    Peak(Peak),
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { sums: [0.0; NUM_STATS], peaks: [0.0; NUM_PEAKS], pending: Vec::new(), is_silent: false }
    }

    /// What `f` computes, counted by this rank or, where that is false, by another that computes the same.
    pub(crate) fn counted_if<T>(&mut self, is_counted: bool, f: impl FnOnce(&mut Self) -> T) -> T {
        self.is_silent = !is_counted;
        let result = f(self);
        self.is_silent = false;
        result
    }

    /// Adds the sum of `value * coefficient`, taken in f64.
    pub(crate) fn add(&mut self, stat: Stat, value: &Tensor, coefficient: &Tensor) -> Result<()> {
        if self.is_silent {
            return Ok(());
        }
        let weighted = value.f_detach()?.f_to_kind(Kind::Double)?.f_mul(coefficient)?;
        self.pending.push((Slot::Sum(stat), weighted.f_sum(Kind::Double)?));
        Ok(())
    }

    /// Takes the largest |a - b|, NaN (what is not known) left out.
    pub(crate) fn peak(&mut self, peak: Peak, a: &Tensor, b: &Tensor) -> Result<()> {
        if a.numel() > 0 && !self.is_silent {
            let diff =
                a.f_detach()?.f_sub(&b.f_detach()?)?.f_abs()?.f_nan_to_num(0.0, None::<f64>, None::<f64>)?;
            self.pending.push((Slot::Peak(peak), diff.f_max()?.f_to_kind(Kind::Double)?));
        }
        Ok(())
    }

    /// Brings the numbers of a micro-batch to the host.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let tensors: Vec<&Tensor> = pending.iter().map(|(_, tensor)| tensor).collect();
        let values = Vec::<f64>::try_from(Tensor::f_stack(&tensors, 0)?.f_to_device(Device::Cpu)?)?;
        for ((slot, _), value) in pending.iter().zip(values) {
            match slot {
                Slot::Sum(stat) => self.sums[*stat as usize] += value,
                Slot::Peak(peak) => {
                    let most = &mut self.peaks[*peak as usize];
                    *most = most.max(value);
                }
            }
        }
        Ok(())
    }

    /// Sums and peaks over all ranks.
    pub(crate) fn reduce(&mut self, comm: &dyn Communicator) -> Result<()> {
        comm.all_reduce(&mut self.sums, Op::Sum)?;
        Ok(comm.all_reduce(&mut self.peaks, Op::Max)?)
    }

    pub(crate) fn sum(&self, stat: Stat) -> f64 {
        self.sums[stat as usize]
    }

    pub(crate) fn most(&self, peak: Peak) -> f64 {
        self.peaks[peak as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_comm::Single;

    #[test]
    fn sums_are_weighted_and_peaks_leave_out_what_is_not_known() {
        let mut tally = Tally::new();
        let tensor = |values: &[f32]| Tensor::from_slice(values);
        for _ in 0..2 {
            tally.add(Stat::Loss, &tensor(&[1.0, 2.0]), &tensor(&[0.5, 2.0])).unwrap();
            tally.peak(Peak::AbsDiff, &tensor(&[1.0, 2.0]), &tensor(&[f32::NAN, 2.5])).unwrap();
            tally.peak(Peak::OldDiff, &tensor(&[]), &tensor(&[])).unwrap();
            tally.flush().unwrap();
        }
        tally.flush().unwrap();
        tally.reduce(&Single).unwrap();
        assert_eq!((tally.sum(Stat::Loss), tally.sum(Stat::Kl)), (9.0, 0.0));
        assert_eq!((tally.most(Peak::AbsDiff), tally.most(Peak::OldDiff)), (0.5, 0.0));
    }
}
