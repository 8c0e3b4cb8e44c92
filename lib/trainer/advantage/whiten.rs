//! Whitening over all trained tokens of a rollout, on all ranks.

use slime_comm::{Collectives, Communicator, Op};

use crate::Result;

/// Added to the variance, as in the public slime implementation.
const EPSILON: f64 = 1e-8;

/// Shifts and scales `advantages`, this rank's trained tokens, to mean 0 and variance 1 over the tokens of all ranks:
/// `(a - mean) / sqrt(variance + 1e-8)` with the unbiased variance (N - 1; slime, `distributed_masked_whiten`). The
/// variance is summed around the mean, in f64. Every rank must call this, one without tokens too.
///
/// # Errors
/// A failed collective.
pub fn whiten(advantages: &mut [f32], comm: &dyn Communicator) -> Result<()> {
    let mut first = [advantages.iter().map(|a| f64::from(*a)).sum::<f64>(), advantages.len() as f64];
    comm.all_reduce(&mut first, Op::Sum)?;
    let [sum, num] = first;
    let mean = sum / num.max(1.0);
    let mut second = [advantages.iter().map(|a| (f64::from(*a) - mean).powi(2)).sum::<f64>()];
    comm.all_reduce(&mut second, Op::Sum)?;
    let scale = 1.0 / (second[0] / (num - 1.0).max(1.0) + EPSILON).sqrt();
    for advantage in advantages {
        *advantage = ((f64::from(*advantage) - mean) * scale) as f32;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::close;
    use slime_comm::{Single, Threads};

    #[test]
    fn trained_tokens_have_mean_0_and_variance_1() {
        let mut advantages = [1.0, 2.0, 3.0];
        whiten(&mut advantages, &Single).unwrap();
        close(&advantages, &[-1.0, 0.0, 1.0]);
    }

    #[test]
    fn ranks_whiten_together_and_one_may_have_nothing() {
        let all = [0.3, -1.5, 2.0, 0.25, 7.0, -3.0];
        let mut whole = all;
        whiten(&mut whole, &Single).unwrap();
        for cuts in [vec![0, 2, 6], vec![0, 0, 1, 6], vec![0, 5, 5, 6]] {
            let parts = Threads::spawn(cuts.len() - 1, |comm| {
                let mut part = all[cuts[comm.rank()]..cuts[comm.rank() + 1]].to_vec();
                whiten(&mut part, &comm).unwrap();
                part
            })
            .unwrap();
            close(&parts.concat(), &whole);
        }
    }

    #[test]
    fn equal_advantages_stay_finite() {
        let mut advantages = [0.5; 4];
        whiten(&mut advantages, &Single).unwrap();
        assert!(advantages.iter().all(|advantage| *advantage == 0.0));
        whiten(&mut [], &Single).unwrap();
    }
}
