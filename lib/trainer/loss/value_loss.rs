//! The loss of a critic's values, per row.

use tch::Tensor;

use crate::Result;

/// What the loss says about each row `[r]`.
#[derive(Debug)]
pub struct ValueLoss {
    /// The loss, with gradient.
    pub loss_r: Tensor,
    /// 1 where the value had moved further than the clip.
    pub clipped_r: Tensor,
}

/// max((clip(v) - G)^2, (v - G)^2) with clip(v) = `old + clamp(v - old, -clip, clip)` (PPO's implementation, arXiv
/// 2005.12729, section 3; slime, `value_loss_function`): no factor 1/2. A clip of 0 does not clip.
///
/// # Errors
/// The shapes differ.
pub fn value_loss(
    values_r: &Tensor,
    old_values_r: &Tensor,
    returns_r: &Tensor,
    clip: f64,
) -> Result<ValueLoss> {
    let plain_r = values_r.f_sub(returns_r)?.f_square()?;
    if clip == 0.0 {
        return Ok(ValueLoss { clipped_r: plain_r.f_detach()?.f_zeros_like()?, loss_r: plain_r });
    }
    let moved_r = values_r.f_sub(old_values_r)?;
    let clipped_r = old_values_r.f_add(&moved_r.f_clamp(-clip, clip)?)?.f_sub(returns_r)?.f_square()?;
    let is_clipped_r = moved_r.f_detach()?.f_abs()?.f_gt(clip)?.f_to_kind(values_r.kind())?;
    Ok(ValueLoss { loss_r: plain_r.f_maximum(&clipped_r)?, clipped_r: is_clipped_r })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_the_reference() {
        let tensor = |values: [f64; 2]| Tensor::from_slice(&values);
        let loss = value_loss(&tensor([1.0, 2.0]), &tensor([0.5, 2.1]), &tensor([2.0, 2.0]), 0.2).unwrap();
        let list = |x: Tensor| Vec::<f64>::try_from(x).unwrap();
        let got = list(loss.loss_r);
        assert!((got[0] - 1.69).abs() < 1e-12 && got[1].abs() < 1e-12, "{got:?}");
        assert_eq!(list(loss.clipped_r), [1.0, 0.0]);
        let plain = value_loss(&tensor([1.0, 2.0]), &tensor([0.5, 2.1]), &tensor([2.0, 2.0]), 0.0).unwrap();
        assert_eq!(list(plain.loss_r), [1.0, 0.0]);
        assert_eq!(list(plain.clipped_r), [0.0, 0.0]);
    }
}
