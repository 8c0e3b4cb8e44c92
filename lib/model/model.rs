//! A decoder: embedding, layers, final norm and output head. Suffixes: t tokens, d hidden size, r rows, v vocabulary.

use slime_config::HfConfig;
use tch::{Kind, Tensor};

use crate::mtp::Mtp;
use crate::ops::add_norm::add_norm;
use crate::ops::head_log_probs::{Fused, Rows, Shaping, Shard, Slopes, kl};
use crate::ops::linear::Linear;
use crate::ops::sequence::Sequence;
use crate::ops::{embed, head_log_probs};
use crate::{Context, Error, Layer, ParamStore, Result, Rope, Workspace};

/// A model with its parameters; of a split model a rank's part of them, with the ranks it computes with.
#[derive(Debug)]
pub struct Model {
    config: HfConfig,
    params: ParamStore,
    embed_vd: Tensor,
    layers: Vec<Layer>,
    final_norm_d: Tensor,
    head: Linear,
    value_head: Option<Linear>,
    mtp: Option<Mtp>,
    rope: Rope,
    sequence: Sequence,
    /// Which ids embedding and head have, where the vocabulary is split.
    shard: Option<Shard>,
}

impl Model {
    /// A model over parameters that were already read.
    ///
    /// # Errors
    /// A storage of the family is missing in `params`.
    pub fn new(config: HfConfig, params: ParamStore) -> Result<Self> {
        let embed_vd = params.get("embed")?;
        let head_vd =
            if config.tie_word_embeddings { embed_vd.shallow_clone() } else { params.get("head")? };
        let layers = (0..config.num_hidden_layers)
            .map(|at| Layer::new(&params, &config, at))
            .collect::<Result<Vec<_>>>()?;
        let rope = Rope::new(&config, params.kind(), params.device())?;
        let (head, final_norm_d) = (Linear::new(head_vd, None), params.get("final_norm")?);
        let value_head = params.find("score").map(|weight| Linear::new(weight, params.find("score_bias")));
        let mtp = Mtp::new(&params, &config)?;
        let (sequence, tp) = (params.sequence(), params.place().tp);
        let shard = sequence.group().map(|group| Shard {
            start: tp.of(config.vocab_size).start as i64,
            vocab: config.vocab_size as i64,
            group: group.clone(),
            // The gather of the hidden states adds them up, row by row.
            sums_hidden_grad: false,
        });
        Ok(Self {
            config,
            params,
            embed_vd,
            layers,
            final_norm_d,
            head,
            value_head,
            mtp,
            rope,
            sequence,
            shard,
        })
    }

    /// The architecture.
    pub fn config(&self) -> &HfConfig {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &ParamStore {
        &self.params
    }

    /// The parameters, to be overwritten in place; packed copies of them are given up.
    pub fn params_mut(&mut self) -> &mut ParamStore {
        self.linears_mut().for_each(Linear::unpack);
        &mut self.params
    }

    /// Copies every matrix into the layout that is fastest without gradients, where there is one: f32 on a CPU. The
    /// copies take the memory of the matrices again (of the embedding too where the head is tied to it) and stay as they
    /// are until [`Self::params_mut`]; a model that trains is never packed.
    ///
    /// # Errors
    /// libtorch has no room.
    pub fn pack(&mut self) -> Result<()> {
        self.linears_mut().try_for_each(Linear::pack)
    }

    fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.layers.iter_mut().flat_map(Layer::linears_mut).chain([&mut self.head])
    }

    /// The hidden states `[t, d]` after the final norm of `tokens_t` (i64, on the device of the model).
    ///
    /// # Errors
    /// The context describes another number of tokens, a token is outside the vocabulary, or libtorch has no room.
    pub fn forward(&self, context: &mut Context<'_>, tokens_t: &Tensor) -> Result<Tensor> {
        Ok(self.run(context, tokens_t, |_, _| Ok(()))?.1)
    }

    /// The residual `[t, d]` behind the last layer (of a split model, of this rank's share of the tokens), and what
    /// [`Self::forward`] gives.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_with_residual(
        &self,
        context: &mut Context<'_>,
        tokens_t: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        self.run(context, tokens_t, |_, _| Ok(()))
    }

    /// Whether the model predicts the token after the next one.
    pub fn has_mtp(&self) -> bool {
        self.mtp.is_some()
    }

    /// Log-probs `[r]` of the tokens `targets_r` (i64) after the next ones. `residual_td` is what
    /// [`Self::forward_with_residual`] gives for a pass of `num_tokens` tokens; of them `sources_t` (i64) are the tokens of
    /// `context`, `next_t` (i64) the token after each of these, `rows_r` (i64) the tokens of `context` that predict. Gradients reach the layer for further tokens alone: residual, embedding and head are taken as they are.
    ///
    /// # Errors
    /// The model has no such layer, or the shapes do not fit.
    pub fn mtp_log_probs(
        &self,
        context: &mut Context<'_>,
        (residual_td, num_tokens): (&Tensor, usize),
        (sources_t, next_t): (&Tensor, &Tensor),
        (rows_r, targets_r): (&Tensor, &Tensor),
    ) -> Result<Tensor> {
        let missing = || Error::MissingStorage { name: "mtp.input_proj".to_owned() };
        let mtp = self.mtp.as_ref().ok_or_else(missing)?;
        let cos_sin = self.rope.cos_sin(context.positions())?;
        let residual_td = self.sequence.gather(&residual_td.f_detach()?, num_tokens)?;
        let residual_td = residual_td.f_index_select(0, &self.sequence.own(sources_t)?)?;
        let next_td = self.embedded(&self.embed_vd.f_detach()?, next_t)?;
        let hidden_td = mtp.forward(context, &residual_td, &next_td, &cos_sin)?;
        let hidden_td = self.sequence.gather(&hidden_td, context.num_tokens())?;
        let hidden_rd = hidden_td.f_index_select(0, rows_r)?;
        let head_vd = self.head.weight().f_detach()?;
        Ok(self.log_probs_under(&head_vd, &hidden_rd, targets_r, &Shaping::at(1.0))?.0)
    }

    /// Rows of the embedding for this rank's share of the tokens.
    fn embedded(&self, embed_vd: &Tensor, tokens_t: &Tensor) -> Result<Tensor> {
        match &self.shard {
            None => embed::reference(embed_vd, tokens_t),
            Some(shard) => self.sequence.scatter(embed::part(embed_vd, tokens_t, shard)?),
        }
    }

    fn log_probs_under(
        &self,
        head_vd: &Tensor,
        hidden_rd: &Tensor,
        targets_r: &Tensor,
        shaping: &Shaping<'_>,
    ) -> Result<(Tensor, Tensor)> {
        match &self.shard {
            None => head_log_probs::train(hidden_rd, head_vd, targets_r, shaping),
            Some(shard) => head_log_probs::train_sharded(hidden_rd, head_vd, targets_r, shaping, shard),
        }
    }

    /// The residual `[t, d]` before every layer (of a split model, of this rank's share of the tokens), then the hidden states after the final norm: what a comparison with
    /// another implementation looks at.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn hidden_states(&self, context: &mut Context<'_>, tokens_t: &Tensor) -> Result<Vec<Tensor>> {
        let mut states = Vec::with_capacity(self.layers.len() + 1);
        let (_, last) = self.run(context, tokens_t, |x_td, delta_td| {
            // A copy: a layer may add into the memory of its residual.
            states.push(match delta_td {
                Some(delta_td) => x_td.f_add(delta_td)?,
                None => x_td.f_mul_scalar(1.0)?,
            });
            Ok(())
        })?;
        states.push(last);
        Ok(states)
    }

    /// The residual behind the last layer and its norm; `look` sees residual and delta before every layer.
    fn run(
        &self,
        context: &mut Context<'_>,
        tokens_t: &Tensor,
        look: impl FnMut(&Tensor, Option<&Tensor>) -> Result<()>,
    ) -> Result<(Tensor, Tensor)> {
        let (cos_sin, x_td) = self.begin(context, tokens_t)?;
        self.run_layers(context, x_td, &cos_sin, look)
    }

    /// The angles of the tokens, and rows of the embedding for this rank's share of them.
    pub(crate) fn begin(
        &self,
        context: &Context<'_>,
        tokens_t: &Tensor,
    ) -> Result<((Tensor, Tensor), Tensor)> {
        let (expected, got) = (context.num_tokens(), tokens_t.numel());
        if expected != got {
            return Err(Error::Context { what: "tokens of a forward pass", expected, got });
        }
        let cos_sin = self.rope.cos_sin(context.positions())?;
        Ok((cos_sin, self.embedded(&self.embed_vd, tokens_t)?))
    }

    /// The layers, in order.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The weight of the norm behind the last layer.
    pub(crate) fn final_norm(&self) -> &Tensor {
        &self.final_norm_d
    }

    /// All ranks' rows of what each has its share of.
    pub(crate) fn gathered(&self, own_td: &Tensor, num_tokens: usize) -> Result<Tensor> {
        self.sequence.gather(own_td, num_tokens)
    }

    /// What [`Self::forward`] gives, from rows `[t, d]` of the embedding and their angles, as `Rope::cos_sin` makes them.
    pub(crate) fn forward_layers(
        &self,
        context: &mut Context<'_>,
        x_td: Tensor,
        cos_sin: &(Tensor, Tensor),
    ) -> Result<Tensor> {
        Ok(self.run_layers(context, x_td, cos_sin, |_, _| Ok(()))?.1)
    }

    fn run_layers(
        &self,
        context: &mut Context<'_>,
        mut x_td: Tensor,
        cos_sin: &(Tensor, Tensor),
        mut look: impl FnMut(&Tensor, Option<&Tensor>) -> Result<()>,
    ) -> Result<(Tensor, Tensor)> {
        let mut delta_td = None;
        for layer in &self.layers {
            look(&x_td, delta_td.as_ref())?;
            let (x, delta) = layer.forward(context, x_td, delta_td.as_ref(), cos_sin)?;
            (x_td, delta_td) = (x, Some(delta));
        }
        let (eps, workspace) = (self.config.rms_norm_eps, context.workspace());
        let (x_td, hidden_td) = add_norm(&workspace, x_td, delta_td.as_ref(), &self.final_norm_d, eps)?;
        Ok((x_td, self.sequence.gather(&hidden_td, context.num_tokens())?))
    }

    /// Bytes that a layer leaves in a workspace for `num_rows` tokens.
    pub(crate) fn layer_bytes(&self, num_rows: usize) -> usize {
        let HfConfig { hidden_size, intermediate_size, num_attention_heads, .. } = self.config;
        let heads = num_attention_heads + 2 * self.config.num_key_value_heads;
        let attention = (heads + 2 * num_attention_heads) * self.config.head_dim;
        // Two norms, two deltas and, after the last layer, the final norm; gate, up and their product.
        let width = 5 * hidden_size + attention + 3 * intermediate_size;
        num_rows * width * self.params.kind().elt_size_in_bytes() + (16 << 10)
    }

    /// Rows of the embedding, `[v, d]`.
    pub(crate) fn embed(&self) -> &Tensor {
        &self.embed_vd
    }

    /// The rotary frequencies.
    pub(crate) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// [`Self::logits`] into `logits_rv` (f32), without gradient; on a GPU.
    pub(crate) fn logits_into(&self, hidden_rd: &Tensor, logits_rv: &Tensor) -> Result<()> {
        head_log_probs::product_to(logits_rv, hidden_rd, self.head.weight())
    }

    /// The logits `[r, v]` in f32 (f64 for f64 models) of hidden states after the final norm; of a split model those of the
    /// ids that this rank holds.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn logits(&self, hidden_rd: &Tensor) -> Result<Tensor> {
        if self.params.device().is_cuda() {
            return head_log_probs::product(hidden_rd, self.head.weight());
        }
        let logits_rv = self.head.forward(&Workspace::default(), hidden_rd)?;
        Ok(if logits_rv.kind() == Kind::Double { logits_rv } else { logits_rv.f_to_kind(Kind::Float)? })
    }

    /// Log-probs and entropy `[r]` of `targets_r` (i64) under the head as `shaping` has it, without the logits of all rows.
    ///
    /// # Errors
    /// Shapes that do not fit, an id outside the vocabulary, a temperature that is none.
    pub fn head_log_probs(
        &self,
        hidden_rd: &Tensor,
        targets_r: &Tensor,
        shaping: &Shaping<'_>,
    ) -> Result<(Tensor, Tensor)> {
        self.log_probs_under(self.head.weight(), hidden_rd, targets_r, shaping)
    }

    /// A loss on those log-probs and entropies that is a sum over rows, with its gradients, in three products where
    /// [`Self::head_log_probs`] and backward take four; see [`head_log_probs::fused`].
    ///
    /// # Errors
    /// As [`Self::head_log_probs`], and those of `slopes`.
    pub fn head_loss<E: From<Error>>(
        &self,
        hidden_rd: &Tensor,
        targets_r: &Tensor,
        shaping: &Shaping<'_>,
        slopes: &mut dyn FnMut(Rows<'_>) -> std::result::Result<Slopes, E>,
    ) -> std::result::Result<Fused, E> {
        head_log_probs::fused(
            hidden_rd,
            self.head.weight(),
            targets_r,
            (shaping, self.shard.as_ref()),
            slopes,
        )
    }

    /// The exact divergence `KL(self || reference)` `[r]` of the next token's distributions at `temperature`, of the hidden
    /// states that each of the two models has for the same rows. Its gradient is in `hidden_rd` and this model's head.
    ///
    /// # Errors
    /// Models of different vocabularies, other shapes that do not fit, a temperature that is none.
    pub fn head_kl(
        &self,
        hidden_rd: &Tensor,
        reference: &Self,
        ref_hidden_rd: &Tensor,
        temperature: f64,
    ) -> Result<Tensor> {
        let policy = kl::Head { hidden_rd, weight_vd: self.head.weight() };
        let reference = kl::Head { hidden_rd: ref_hidden_rd, weight_vd: reference.head.weight() };
        kl::train(policy, reference, temperature, self.shard.as_ref())
    }

    /// Whether the model gives hidden states a number.
    pub fn has_value_head(&self) -> bool {
        self.value_head.is_some()
    }

    /// The number `[r]` of each hidden state after the final norm, in f32 (f64 for f64 models): a critic's value or a
    /// reward model's score.
    ///
    /// # Errors
    /// The model has no such head, or the shapes do not fit.
    pub fn values(&self, hidden_rd: &Tensor) -> Result<Tensor> {
        let head = self.value_head.as_ref();
        let head = head.ok_or_else(|| Error::MissingStorage { name: "score".to_owned() })?;
        // Rows are shared out like tokens, so that this head's gradients are a sum over the ranks like all others.
        let (own_rd, num_rows) = (self.sequence.own(hidden_rd)?, hidden_rd.size2()?.0 as usize);
        let values_r1 = head.forward(&Workspace::default(), &own_rd)?;
        let values_r = self.sequence.gather_alike(&values_r1, num_rows)?.f_squeeze_dim(1)?;
        Ok(if values_r.kind() == Kind::Double { values_r } else { values_r.f_to_kind(Kind::Float)? })
    }
}
