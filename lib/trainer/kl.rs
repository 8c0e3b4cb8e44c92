//! Estimators of KL(policy || reference) from one sampled token (Schulman, "Approximating KL divergence").

use slime_config::KlLossType;
use tch::Tensor;

use crate::Result;

/// Bound of `low_var_kl`, in nats (slime, `compute_approx_kl`).
const LOW_VAR_BOUND: f64 = 10.0;

/// The estimate `[r]` of each token, with d = `log_probs - ref_log_probs`:
/// k1 is d, k2 is d^2 / 2, k3 is exp(-d) - 1 + d, `low_var_kl` is k3 within [-10, 10].
/// Gradients flow through `log_probs`.
///
/// # Errors
/// The shapes differ.
pub fn approx_kl(log_probs_r: &Tensor, ref_log_probs_r: &Tensor, estimator: KlLossType) -> Result<Tensor> {
    let d_r = log_probs_r.f_sub(ref_log_probs_r)?;
    let k3 = || d_r.f_neg()?.f_expm1()?.f_add(&d_r);
    Ok(match estimator {
        KlLossType::K1 => d_r,
        KlLossType::K2 => d_r.f_square()?.f_mul_scalar(0.5)?,
        KlLossType::K3 => k3()?,
        KlLossType::LowVarKl => k3()?.f_clamp(-LOW_VAR_BOUND, LOW_VAR_BOUND)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{cases, close, floats};

    #[test]
    fn golden_vectors_of_the_estimators() {
        let mut checked = 0;
        for case in cases("approx_kl") {
            let estimator = match case["params"]["kl_loss_type"].as_str().unwrap() {
                "k1" => KlLossType::K1,
                "k2" => KlLossType::K2,
                "k3" => KlLossType::K3,
                "low_var_kl" => KlLossType::LowVarKl,
                other => panic!("{other}"),
            };
            let tensor = |name: &str| Tensor::from_slice(&floats(&case["input"][name]));
            let kl = approx_kl(&tensor("log_probs"), &tensor("base_log_probs"), estimator).unwrap();
            close(&Vec::<f32>::try_from(kl).unwrap(), &floats(&case["output"]));
            checked += 1;
        }
        assert_eq!(checked, 8);
    }

    #[test]
    fn low_var_kl_is_bounded() {
        let (log_probs, base) =
            (Tensor::from_slice(&[-9.0_f32, -1.0]), Tensor::from_slice(&[-1.0_f32, -1.5]));
        let of = |estimator| Vec::<f32>::try_from(approx_kl(&log_probs, &base, estimator).unwrap()).unwrap();
        let (k3, bounded) = (of(KlLossType::K3), of(KlLossType::LowVarKl));
        assert!(k3[0] > 2000.0);
        assert_eq!(bounded, [10.0, k3[1]]);
    }
}
