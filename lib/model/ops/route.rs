//! Which experts a token goes to, and with what weights. Suffixes: t tokens, d hidden size, e experts, g groups, k experts
//! of a token.

use slime_config::{Moe, Scoring};
use tch::{Kind, Tensor};

use crate::{Error, Result};

/// Keeps a sum of weights away from 0, as `Glm4MoeTopkRouter` of `transformers` does.
const TINY: f64 = 1e-20;

/// The router of one layer.
#[derive(Debug)]
pub struct Router {
    weight_ed: Tensor,
    /// Shifts the choice, never the weights; frozen.
    bias_e: Option<Tensor>,
    scoring: Scoring,
    top_k: i64,
    n_group: i64,
    topk_group: i64,
    norm_topk_prob: bool,
    scale: f64,
}

/// Where tokens go.
#[derive(Debug)]
pub struct Routed {
    /// The experts of each token, `[t, k]` i64.
    pub ids_tk: Tensor,
    /// Their weights, `[t, k]` in f32 (f64 for f64 models), under autograd.
    pub weights_tk: Tensor,
}

impl Router {
    /// A router over `weight_ed`, which stays shared with its owner.
    pub fn new(weight_ed: Tensor, bias_e: Option<Tensor>, moe: &Moe) -> Self {
        Self {
            weight_ed,
            bias_e,
            scoring: moe.scoring,
            top_k: moe.top_k as i64,
            n_group: moe.n_group as i64,
            topk_group: moe.topk_group as i64,
            norm_topk_prob: moe.norm_topk_prob,
            scale: moe.routed_scaling_factor,
        }
    }

    /// The scores `[t, e]` of every expert in f32 (f64 for f64 models), whatever the type of the model is.
    fn scores(&self, x_td: &Tensor) -> Result<Tensor> {
        let wide = if x_td.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let logits_te = x_td.f_to_kind(wide)?.f_linear(&self.weight_ed.f_to_kind(wide)?, None::<&Tensor>)?;
        Ok(match self.scoring {
            Scoring::Softmax => logits_te.f_softmax(-1, wide)?,
            Scoring::Sigmoid { .. } => logits_te.f_sigmoid()?,
        })
    }

    /// The `k` best experts of each token, `[t, k]`; by score and bias, and only of the best groups, which are judged by
    /// the sum of their two best.
    fn choose(&self, scores_te: &Tensor) -> Result<Tensor> {
        let mut choice_te = scores_te.f_detach()?;
        if let Some(bias_e) = &self.bias_e {
            choice_te = choice_te.f_add(bias_e)?;
        }
        if self.topk_group < self.n_group {
            let (t, e) = choice_te.size2()?;
            let grouped_tge = choice_te.f_view((t, self.n_group, e / self.n_group))?;
            let best_tg =
                grouped_tge.f_topk(2, -1, true, false)?.0.f_sum_dim_intlist(-1, false, None::<Kind>)?;
            let groups_tk = best_tg.f_topk(self.topk_group, -1, true, false)?.1;
            let is_out_tg =
                best_tg.f_ones_like()?.f_scatter_value(1, &groups_tk, 0)?.f_to_kind(Kind::Bool)?;
            let masked = grouped_tge.f_masked_fill(&is_out_tg.f_unsqueeze(-1)?, f64::NEG_INFINITY)?;
            choice_te = masked.f_view((t, e))?;
        }
        Ok(choice_te.f_topk(self.top_k, -1, true, true)?.1)
    }
}

/// The experts and weights of `x_td`. With `given_tk` (i64) the choice is that, except in rows of which the first entry is
/// negative: those choose freely. Gradients flow through the scores of the chosen experts, whoever chose them.
///
/// Never reads a value on the host, so it runs in a graph.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(router: &Router, x_td: &Tensor, given_tk: Option<&Tensor>) -> Result<Routed> {
    let scores_te = router.scores(x_td)?;
    let free_tk = router.choose(&scores_te)?;
    let ids_tk = match given_tk {
        None => free_tk,
        Some(given_tk) if given_tk.size() == free_tk.size() => {
            let is_given_t1 = given_tk.f_narrow(1, 0, 1)?.f_ge(0)?;
            given_tk.f_where_self(&is_given_t1, &free_tk)?
        }
        Some(given_tk) => {
            return Err(Error::Argument {
                what: "experts to replay",
                expected: format!("{:?}", free_tk.size()),
                got: format!("{:?}", given_tk.size()),
            });
        }
    };
    let mut weights_tk = scores_te.f_gather(1, &ids_tk, false)?;
    if router.norm_topk_prob {
        let sum_t1 = weights_tk.f_sum_dim_intlist(-1, true, None::<Kind>)?;
        weights_tk = weights_tk.f_div(&sum_t1.f_add_scalar(TINY)?)?;
    }
    if (router.scale - 1.0).abs() > 0.0 {
        weights_tk = weights_tk.f_mul_scalar(router.scale)?;
    }
    Ok(Routed { ids_tk, weights_tk })
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn moe(scoring: Scoring, n_group: usize, topk_group: usize) -> Moe {
        Moe {
            num_experts: 4,
            top_k: 2,
            intermediate_size: 1,
            shared_intermediate_size: 0,
            scoring,
            n_group,
            topk_group,
            norm_topk_prob: true,
            routed_scaling_factor: 2.5,
            layers: vec![0],
        }
    }

    fn router(logits: &[f64; 4], bias: Option<[f64; 4]>, moe: &Moe) -> Router {
        let bias_e = bias.map(|bias| Tensor::from_slice(&bias));
        Router::new(Tensor::from_slice(logits).view([4, 1]), bias_e, moe)
    }

    fn one() -> Tensor {
        Tensor::ones([1, 1], (Kind::Double, Device::Cpu))
    }

    fn ids(routed: &Routed) -> Vec<i64> {
        Vec::try_from(routed.ids_tk.view([-1])).unwrap()
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn bias_moves_the_choice_and_not_the_weights() {
        let moe = moe(Scoring::Sigmoid { has_bias: true }, 1, 1);
        let routed =
            reference(&router(&[2.0, 1.0, 0.0, -1.0], Some([0.0, 0.0, 0.0, 0.9]), &moe), &one(), None);
        let routed = routed.unwrap();
        assert_eq!(ids(&routed), [3, 0]);
        let (a, b) = (sigmoid(-1.0), sigmoid(2.0));
        let weights = Vec::<f64>::try_from(routed.weights_tk.view([-1])).unwrap();
        assert!((weights[0] - 2.5 * a / (a + b)).abs() < 1e-12, "{weights:?}");
        assert!((weights[1] - 2.5 * b / (a + b)).abs() < 1e-12, "{weights:?}");
    }

    #[test]
    fn only_the_best_groups_are_chosen_from() {
        // The best expert stands in the group whose two best together are worse.
        let logits = [3.0, -9.0, 2.0, 1.9];
        let moe_of = |groups| moe(Scoring::Sigmoid { has_bias: false }, 2, groups);
        assert_eq!(ids(&reference(&router(&logits, None, &moe_of(2)), &one(), None).unwrap()), [0, 2]);
        assert_eq!(ids(&reference(&router(&logits, None, &moe_of(1)), &one(), None).unwrap()), [2, 3]);
    }

    #[test]
    fn given_experts_are_taken_with_gradient_in_their_scores_and_rows_without_choose() {
        let router = router(&[0.3, 0.1, -0.2, 0.4], None, &moe(Scoring::Softmax, 1, 1));
        let weight = router.weight_ed.set_requires_grad(true);
        let x_td = Tensor::from_slice(&[1.0, 2.0]).view([2, 1]);
        let given = Tensor::from_slice(&[1i64, 2, -1, -1]).view([2, 2]);
        let routed = reference(&router, &x_td, Some(&given)).unwrap();
        assert_eq!(ids(&routed), [1, 2, 3, 0]);
        routed.weights_tk.get(0).get(0).backward();
        // 2.5 sigmoid(w1 - w2): the slope in w1, and none in experts that were not given.
        let p = sigmoid(0.3);
        let grad = Vec::<f64>::try_from(weight.grad().view([-1])).unwrap();
        assert!((grad[1] - 2.5 * p * (1.0 - p)).abs() < 1e-12, "{grad:?}");
        assert!(grad[0].abs() < 1e-12 && grad[3].abs() < 1e-12, "{grad:?}");
        let short = given.narrow(1, 0, 1);
        let error = reference(&router, &x_td, Some(&short)).unwrap_err().to_string();
        assert_eq!(error, "experts to replay: expected [2, 2], got [2, 1]");
    }
}
