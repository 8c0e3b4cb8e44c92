//! KL(policy || reference): estimates from the sampled token (Schulman, "Approximating KL divergence"), and the whole.

use slime_config::KlLossType;
use tch::{Kind, Tensor};

use crate::Result;

/// Bound of `low_var_kl`, in nats (slime, `compute_approx_kl`).
const LOW_VAR_BOUND: f64 = 10.0;

/// The estimate `[r]` of each token, with d = `log_probs - ref_log_probs`:
/// k1 is d, k2 is d^2 / 2, k3 is exp(-d) - 1 + d, `low_var_kl` is k3 within [-10, 10].
///
/// With `ratio_r`, policy over the policy that sampled, the estimate is multiplied by it (before the bound), which makes
/// its gradient that of the divergence ("unbiased KL", `DeepSeek-V3.2`, arXiv 2512.02556, section 3.1). Gradients flow
/// through `log_probs` and through the ratio.
///
/// # Errors
/// The shapes differ; `full` is none of these (see [`exact_kl`]).
pub fn approx_kl(
    log_probs_r: &Tensor,
    ref_log_probs_r: &Tensor,
    estimator: KlLossType,
    ratio_r: Option<&Tensor>,
) -> Result<Tensor> {
    let d_r = log_probs_r.f_sub(ref_log_probs_r)?;
    let k3 = || d_r.f_neg()?.f_expm1()?.f_add(&d_r);
    let estimate_r = match estimator {
        KlLossType::K1 | KlLossType::Full => d_r.shallow_clone(),
        KlLossType::K2 => d_r.f_square()?.f_mul_scalar(0.5)?,
        KlLossType::K3 | KlLossType::LowVarKl => k3()?,
    };
    let weighted_r = match ratio_r {
        Some(ratio_r) => estimate_r.f_mul(ratio_r)?,
        None => estimate_r,
    };
    Ok(match estimator {
        KlLossType::LowVarKl => weighted_r.f_clamp(-LOW_VAR_BOUND, LOW_VAR_BOUND)?,
        _ => weighted_r,
    })
}

/// `[r]`: sum over the vocabulary of p (log p - log q), from logits `[r, v]` of policy and reference. The plain
/// definition; training takes `slime_model::Model::head_kl`, which holds a chunk of rows at a time.
///
/// # Errors
/// The shapes differ.
pub fn exact_kl(logits_rv: &Tensor, ref_logits_rv: &Tensor) -> Result<Tensor> {
    let log_p = logits_rv.f_log_softmax(-1, None::<Kind>)?;
    let log_q = ref_logits_rv.f_log_softmax(-1, None::<Kind>)?;
    Ok(log_p.f_exp()?.f_mul(&log_p.f_sub(&log_q)?)?.f_sum_dim_intlist(-1, false, None::<Kind>)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_var_kl_is_bounded() {
        let (log_probs, base) =
            (Tensor::from_slice(&[-9.0_f32, -1.0]), Tensor::from_slice(&[-1.0_f32, -1.5]));
        let of =
            |estimator| Vec::<f32>::try_from(approx_kl(&log_probs, &base, estimator, None).unwrap()).unwrap();
        let (k3, bounded) = (of(KlLossType::K3), of(KlLossType::LowVarKl));
        assert!(k3[0] > 2000.0);
        assert_eq!(bounded, [10.0, k3[1]]);
    }

    #[test]
    fn estimators_have_the_expectation_of_the_exact_divergence() {
        let logits = Tensor::from_slice(&[0.3, -1.0, 2.0, 0.1]).unsqueeze(0);
        let reference = Tensor::from_slice(&[1.0, 0.0, 0.5, -0.5]).unsqueeze(0);
        let exact = exact_kl(&logits, &reference).unwrap().double_value(&[0]);
        let (log_p, log_q) = (logits.log_softmax(-1, None::<Kind>), reference.log_softmax(-1, None::<Kind>));
        for estimator in [KlLossType::K1, KlLossType::K3] {
            let estimate = approx_kl(&log_p, &log_q, estimator, None).unwrap();
            let expected = (log_p.exp() * estimate).sum(None::<Kind>).double_value(&[]);
            assert!((expected - exact).abs() < 1e-12, "{estimator:?}: {expected} and {exact}");
        }
    }
}
