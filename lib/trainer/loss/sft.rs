//! The loss of supervised fine-tuning, per row.

use tch::Tensor;

use crate::Result;

/// -`log_probs`: the cross-entropy of each trained token.
///
/// # Errors
/// libtorch has no room.
pub fn sft_loss(log_probs_r: &Tensor) -> Result<Tensor> {
    Ok(log_probs_r.f_neg()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_the_negative_log_prob() {
        let loss = sft_loss(&Tensor::from_slice(&[-1.5, -0.25])).unwrap();
        assert_eq!(Vec::<f64>::try_from(loss).unwrap(), [1.5, 0.25]);
    }
}
