//! A pass through one run of layers: the whole model, or what a stage of a pipeline computes at a time. Suffixes: t tokens (of
//! a split model, this rank's share of them), d hidden size.

use tch::Tensor;

use crate::{Context, Model, Result};

/// What a run of layers begins with.
#[derive(Debug)]
pub enum Input<'a> {
    /// The ids of all tokens (i64), for the first run of a model.
    Tokens(&'a Tensor),
    /// The residual `[t, d]` behind the run before.
    Residual(Tensor),
}

/// What is behind a run of layers.
#[derive(Debug)]
pub struct Output {
    /// The residual `[t, d]`.
    pub residual_td: Tensor,
    /// Behind the last layer, the hidden states `[t, d]` of all tokens after the final norm.
    pub hidden_td: Option<Tensor>,
}

impl Model {
    /// The run of layers number `run` of this rank. Under autograd gradients reach what the input was computed from.
    ///
    /// # Errors
    /// The context describes another number of tokens, a token is outside the vocabulary, there is no such run, or libtorch
    /// has no room.
    pub fn forward_run(&self, context: &mut Context<'_>, run: usize, input: Input<'_>) -> Result<Output> {
        let (cos_sin, x_td) = self.enter(context, input)?;
        let (x_td, delta_td) = self.run_layers(context, run, x_td, &cos_sin, |_, _| Ok(()))?;
        self.leave(context, run, x_td, delta_td.as_ref())
    }

    /// The angles of the tokens, and the residual before the first layer.
    pub(crate) fn enter(
        &self,
        context: &Context<'_>,
        input: Input<'_>,
    ) -> Result<((Tensor, Tensor), Tensor)> {
        match input {
            Input::Tokens(tokens_t) => self.begin(context, tokens_t),
            Input::Residual(x_td) => Ok((self.rope().cos_sin(context.positions())?, x_td)),
        }
    }

    /// From residual and delta behind the last layer of a run to what the next one, or the heads, begin with.
    pub(crate) fn leave(
        &self,
        context: &Context<'_>,
        run: usize,
        x_td: Tensor,
        delta_td: Option<&Tensor>,
    ) -> Result<Output> {
        if self.is_end(run) {
            let (residual_td, hidden_td) = self.finish(context, x_td, delta_td)?;
            return Ok(Output { residual_td, hidden_td: Some(hidden_td) });
        }
        let residual_td = match delta_td {
            Some(delta_td) => x_td.f_add(delta_td)?,
            None => x_td,
        };
        Ok(Output { residual_td, hidden_td: None })
    }

    /// Whether a pass begins with the embedding and a run of this rank.
    pub fn is_start(&self, run: usize) -> bool {
        self.stage().is_first() && run == 0
    }

    /// Whether a pass ends with a run of this rank.
    pub fn is_end(&self, run: usize) -> bool {
        self.stage().is_last() && run + 1 == self.num_runs()
    }
}
