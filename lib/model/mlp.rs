//! What stands behind attention in a layer: a gated MLP, or a router with experts. Suffixes: t tokens, d hidden size.

use slime_config::HfConfig;
use tch::Tensor;

use crate::ops::experts::{self, Experts};
use crate::ops::linear::Linear;
use crate::ops::route::Router;
use crate::ops::silu_mul::silu_mul;
use crate::{Context, ParamStore, Result, Workspace};

/// The second half of a layer.
#[derive(Debug)]
pub(crate) enum Mlp {
    /// One MLP for every token.
    Dense(Gated),
    /// The experts of each token.
    Sparse(Box<Sparse>),
}

/// `down(silu(gate x) * up x)`.
#[derive(Debug)]
pub(crate) struct Gated {
    gate_up: Linear,
    down: Linear,
}

/// Experts behind their router, and the MLP that every token goes through beside them.
#[derive(Debug)]
pub(crate) struct Sparse {
    /// Which of the layers with experts this is.
    place: usize,
    router: Router,
    experts: Experts,
    shared: Option<Gated>,
}

impl Mlp {
    /// Of layer `at` of the model in `params`, whose storages are called `<prefix>.*`.
    pub fn new(prefix: &str, params: &ParamStore, config: &HfConfig, at: usize) -> Result<Self> {
        let name = |suffix: &str| format!("{prefix}.{suffix}");
        let gated = |prefix: &str| {
            let get = |suffix: &str| params.get(&name(&format!("{prefix}{suffix}")));
            let (gate_up, down) = (get("gate_up")?, get("down")?);
            Ok(Gated { gate_up: Linear::new(gate_up, None), down: Linear::new(down, None) })
        };
        let moe = config.moe.as_ref().and_then(|moe| Some((moe, moe.place_of(at)?)));
        let Some((moe, place)) = moe else { return gated("").map(Self::Dense) };
        let get = |suffix: &str| params.get(&name(suffix));
        let shared = if moe.shared_intermediate_size > 0 { Some(gated("shared_")?) } else { None };
        let router = Router::new(get("router")?, params.find(&name("router_bias")), moe);
        let experts = Experts::new(get("experts_gate_up")?, get("experts_down")?, moe.num_experts)?;
        Ok(Self::Sparse(Box::new(Sparse { place, router, experts, shared })))
    }

    /// The delta `[t, d]` of `h_td`.
    pub fn forward(&self, context: &mut Context<'_>, h_td: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(gated) => gated.forward(&context.workspace(), h_td),
            Self::Sparse(sparse) => {
                let routed = context.routing().route(&sparse.router, h_td, sparse.place)?;
                let delta_td = experts::train(&sparse.experts, h_td, &routed)?;
                match &sparse.shared {
                    Some(shared) => Ok(delta_td.f_add(&shared.forward(&context.workspace(), h_td)?)?),
                    None => Ok(delta_td),
                }
            }
        }
    }

    /// The products that can be packed.
    pub fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let gated = match self {
            Self::Dense(gated) => Some(gated),
            Self::Sparse(sparse) => sparse.shared.as_mut(),
        };
        gated.into_iter().flat_map(|gated| [&mut gated.gate_up, &mut gated.down])
    }
}

impl Gated {
    fn forward(&self, workspace: &Workspace, h_td: &Tensor) -> Result<Tensor> {
        let gate_up = self.gate_up.forward(workspace, h_td)?;
        self.down.forward(workspace, &silu_mul(workspace, &gate_up)?)
    }
}
