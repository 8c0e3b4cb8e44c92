//! What stands behind attention in a layer: a gated MLP, or a router with experts. Suffixes: t tokens, d hidden size.

use slime_config::HfConfig;
use tch::Tensor;

use crate::fp8_products::Product;
use crate::ops::dispatch::Dispatch;
use crate::ops::experts::Experts;
use crate::ops::linear::{self, Linear};
use crate::ops::route::Router;
use crate::ops::sequence::Sequence;
use crate::ops::silu_mul::silu_mul;
use crate::ops::{adapter, as_trained};
use crate::{Context, Error, ParamStore, Result, Workspace};

/// The second half of a layer.
#[derive(Debug)]
pub(crate) enum Mlp {
    /// One MLP for every token.
    Dense(Box<Gated>),
    /// The experts of each token.
    Sparse(Box<Sparse>),
}

/// `down(silu(gate x) * up x)`.
#[derive(Debug)]
pub(crate) struct Gated {
    gate_up: Linear,
    down: Linear,
    sequence: Sequence,
}

/// Experts behind their router, and the MLP that every token goes through beside them.
#[derive(Debug)]
pub(crate) struct Sparse {
    /// Which of the layers with experts this is.
    place: usize,
    router: Router,
    experts: Experts,
    dispatch: Dispatch,
    sequence: Sequence,
    shared: Option<Gated>,
}

impl Mlp {
    /// Of layer `at` of the model in `params`, whose storages are called `<prefix>.*`.
    pub fn new(prefix: &str, params: &ParamStore, config: &HfConfig, at: usize) -> Result<Self> {
        let name = |suffix: &str| format!("{prefix}.{suffix}");
        let gated = |prefix: &str| {
            let linear = |suffix: &str| {
                let name = name(&format!("{prefix}{suffix}"));
                Ok::<_, Error>(
                    Linear::new(params.get(&name)?, None).with_adapters(params.adapters_of(&name)?),
                )
            };
            let (gate_up, down) = (linear("gate_up")?, linear("down")?);
            Ok::<_, Error>(Gated { gate_up, down, sequence: params.sequence() })
        };
        let moe = config.moe.as_ref().and_then(|moe| Some((moe, moe.place_of(at)?)));
        let Some((moe, place)) = moe else { return gated("").map(|gated| Self::Dense(Box::new(gated))) };
        let get = |suffix: &str| params.get(&name(suffix));
        let shared = if moe.shared_intermediate_size > 0 { Some(gated("shared_")?) } else { None };
        let router = Router::new(get("router")?, params.find(&name("router_bias")), moe);
        let num_experts = params.place().ep.of(moe.num_experts).len();
        let experts = Experts::new(get("experts_gate_up")?, get("experts_down")?, num_experts)?;
        let dispatch = Dispatch::new(params.parallel(), moe.num_experts);
        Ok(Self::Sparse(Box::new(Sparse {
            place,
            router,
            experts,
            dispatch,
            sequence: params.sequence(),
            shared,
        })))
    }

    /// The delta `[t, d]` of `h_td`; both this rank's share of the tokens.
    pub fn forward(&self, context: &mut Context<'_>, h_td: &Tensor) -> Result<Tensor> {
        let num_tokens = context.num_tokens();
        match self {
            Self::Dense(gated) => gated.forward(context, h_td, num_tokens),
            Self::Sparse(sparse) => {
                let shares = (&sparse.sequence, num_tokens);
                let routed = context.routing().route(&sparse.router, h_td, sparse.place, shares)?;
                let delta_td = sparse.dispatch.run(&sparse.experts, h_td, &routed)?;
                match &sparse.shared {
                    Some(shared) => Ok(delta_td.f_add(&shared.forward(context, h_td, num_tokens)?)?),
                    None => Ok(delta_td),
                }
            }
        }
    }

    /// The products that fp8 can take, with their names behind that of the layer.
    pub fn each_product(&mut self, f: &mut dyn FnMut(&str, Product<'_>) -> Result<()>) -> Result<()> {
        let (gated, prefix) = match self {
            Self::Dense(gated) => (Some(&mut **gated), ""),
            Self::Sparse(sparse) => {
                f("experts", Product::Experts(&mut sparse.experts))?;
                (sparse.shared.as_mut(), "shared_")
            }
        };
        let Some(gated) = gated else { return Ok(()) };
        f(&format!("{prefix}gate_up"), Product::Linear(&mut gated.gate_up))?;
        f(&format!("{prefix}down"), Product::Linear(&mut gated.down))
    }

    /// The products that can be packed.
    pub fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let gated = match self {
            Self::Dense(gated) => Some(&mut **gated),
            Self::Sparse(sparse) => sparse.shared.as_mut(),
        };
        gated.into_iter().flat_map(|gated| [&mut gated.gate_up, &mut gated.down])
    }
}

impl Gated {
    fn forward(&self, context: &Context<'_>, h_td: &Tensor, num_tokens: usize) -> Result<Tensor> {
        let workspace = &*context.workspace();
        let h_td = self.sequence.gather(h_td, num_tokens)?;
        let gate_up = self.gate_up.forward(workspace, &h_td)?;
        let down_td = if context.recomputes_ops() {
            self.recomputed_down(&gate_up)?
        } else {
            self.down.forward(workspace, &silu_mul(workspace, &gate_up)?)?
        };
        self.sequence.scatter(down_td)
    }

    /// The product of the gated activation, which is not kept for the backward pass.
    fn recomputed_down(&self, gate_up: &Tensor) -> Result<Tensor> {
        let (outputs, matrices) = self.down.adapters();
        let (fp8, scales) = self.down.fp8();
        let num_scales = scales.len();
        let down = move |inputs: &[Tensor]| {
            let [gate_up, weight, rest @ ..] = inputs else {
                let what = "inputs of the MLP's second half";
                return Err(Error::Context { what, expected: 2, got: inputs.len() });
            };
            let rest: Vec<&Tensor> = rest.iter().collect();
            let (scales, matrices) = rest.split_at(num_scales.min(rest.len()));
            // Both times as training does it, wherever the backward pass runs.
            let act_tm = as_trained(|| silu_mul(&Workspace::default(), gate_up))?;
            let down_td = linear::train(&act_tm, (weight, None), fp8, scales)?;
            adapter::add(down_td, &act_tm, &outputs, matrices)
        };
        let text = move |inputs: &[Tensor]| down(inputs).map_err(|error| error.to_string());
        let inputs: Vec<&Tensor> =
            [gate_up, self.down.weight()].into_iter().chain(scales).chain(matrices).collect();
        Ok(slime_torch::recomputed(&inputs, text)?)
    }
}
