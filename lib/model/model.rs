//! A decoder: embedding, layers, final norm and output head. Suffixes: t tokens, d hidden size, r rows, v vocabulary.

use std::ops::Range;

use slime_config::{HfConfig, PipelineStage};
use slime_weights::Share;
use tch::{Kind, Tensor};

use crate::fp8_products::{Fp8Products, Product};
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
    /// Where the embedding is: a first stage, and a last one that reads it too.
    embed_vd: Option<Tensor>,
    layers: Vec<Layer>,
    /// Which of them form the runs of this stage.
    runs: Vec<Range<usize>>,
    /// What stands behind the last layer, on a last stage.
    end: Option<End>,
    rope: Rope,
    sequence: Sequence,
    /// Which ids embedding and head have, where the vocabulary is split.
    shard: Option<Shard>,
    /// The scales of products in fp8, where they are.
    pub(crate) fp8: Option<Fp8Products>,
}

/// What stands behind the last layer.
#[derive(Debug)]
struct End {
    final_norm_d: Tensor,
    head: Linear,
    value_head: Option<Linear>,
    mtp: Option<Mtp>,
}

impl Model {
    /// A model over parameters that were already read.
    ///
    /// # Errors
    /// A storage of the family is missing in `params`.
    pub fn new(config: HfConfig, params: ParamStore) -> Result<Self> {
        let stage = params.place().stage;
        let embed_vd = params.find("embed");
        if stage.is_first() {
            let _ = params.get("embed")?;
        }
        let (mut layers, mut runs) = (Vec::new(), Vec::new());
        for run in stage.layers(config.num_hidden_layers) {
            runs.push(layers.len()..layers.len() + run.len());
            for at in run {
                layers.push(Layer::new(&params, &config, at)?);
            }
        }
        let rope = Rope::new(&config, params.kind(), params.device())?;
        let end = if stage.is_last() { Some(End::new(&params, &config)?) } else { None };
        let (sequence, tp) = (params.sequence(), params.place().tp);
        let shard = sequence.group().map(|group| Shard {
            start: tp.of(config.vocab_size).start as i64,
            vocab: config.vocab_size as i64,
            group: group.clone(),
            // The gather of the hidden states adds them up, row by row.
            sums_hidden_grad: false,
        });
        Ok(Self { config, params, embed_vd, layers, runs, end, rope, sequence, shard, fp8: None })
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

    /// Whether the adapters of the model, if it has any, add to its products from now on: without them it is what it was
    /// before training.
    pub fn set_adapted(&mut self, is_adapted: bool) {
        self.linears_mut().for_each(|linear| linear.set_adapted(is_adapted));
    }

    /// The products of the layers that fp8 can take, in order, with the names of their storages, those of experts without an ending.
    pub(crate) fn each_product(&mut self, f: &mut dyn FnMut(&str, Product<'_>) -> Result<()>) -> Result<()> {
        self.layers.iter_mut().try_for_each(|layer| layer.each_product(f))
    }

    fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let head = self.end.iter_mut().map(|end| &mut end.head);
        self.layers.iter_mut().flat_map(Layer::linears_mut).chain(head)
    }

    /// The hidden states `[t, d]` after the final norm of `tokens_t` (i64, on the device of the model).
    ///
    /// # Errors
    /// The context describes another number of tokens, a token is outside the vocabulary, or libtorch has no room.
    pub fn forward(&self, context: &mut Context<'_>, tokens_t: &Tensor) -> Result<Tensor> {
        let (cos_sin, x_td) = self.begin(context, tokens_t)?;
        self.forward_layers(context, x_td, &cos_sin)
    }

    /// Whether the model predicts the token after the next one.
    pub fn has_mtp(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.mtp.is_some())
    }

    /// The hidden states `[t, d]` that predict the tokens after the next ones. `residual_sd` is the residual behind the last
    /// layer of all tokens of a pass; of them `sources_t` (i64) are the tokens of `context`, and `next_t` (i64) is the token
    /// after each of these. Gradients reach the layer for further tokens alone: residual and embedding are taken as they are.
    ///
    /// # Errors
    /// The model has no such layer, or the shapes do not fit.
    pub fn mtp_hidden_states(
        &self,
        context: &mut Context<'_>,
        residual_sd: &Tensor,
        (sources_t, next_t): (&Tensor, &Tensor),
    ) -> Result<Tensor> {
        let missing = || Error::MissingStorage { name: "mtp.input_proj".to_owned() };
        let mtp = self.end()?.mtp.as_ref().ok_or_else(missing)?;
        let cos_sin = self.rope.cos_sin(context.positions())?;
        let residual_td = residual_sd.f_detach()?.f_index_select(0, &self.sequence.own(sources_t)?)?;
        let next_td = self.embedded(&self.embed()?.f_detach()?, next_t)?;
        let hidden_td = mtp.forward(context, &residual_td, &next_td, &cos_sin)?;
        self.sequence.gather(&hidden_td, context.num_tokens())
    }

    /// Log-probs `[r]` of the tokens `targets_r` (i64) after the next ones, of the hidden states `[r, d]` that predict them. The
    /// head is taken as it is.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn mtp_log_probs(&self, hidden_rd: &Tensor, targets_r: &Tensor) -> Result<Tensor> {
        let head_vd = self.end()?.head.weight().f_detach()?;
        Ok(self.log_probs_under(&head_vd, hidden_rd, targets_r, &Shaping::at(1.0))?.0)
    }

    /// The residual `[s, d]` of all tokens of a pass from this rank's share of them, without gradient.
    ///
    /// # Errors
    /// A failed collective.
    pub fn whole_residual(&self, residual_td: &Tensor, num_tokens: usize) -> Result<Tensor> {
        self.sequence.gather(&residual_td.f_detach()?, num_tokens)
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

    /// The residual `[t, d]` before every layer (of a split model, of this rank's share of the tokens), then the hidden states
    /// after the final norm: what a comparison with another implementation looks at. The model has all its layers.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn hidden_states(&self, context: &mut Context<'_>, tokens_t: &Tensor) -> Result<Vec<Tensor>> {
        let mut states = Vec::with_capacity(self.layers.len() + 1);
        let (cos_sin, x_td) = self.begin(context, tokens_t)?;
        let (x_td, delta_td) = self.run_layers(context, 0, x_td, &cos_sin, |x_td, delta_td| {
            // A copy: a layer may add into the memory of its residual.
            states.push(match delta_td {
                Some(delta_td) => x_td.f_add(delta_td)?,
                None => x_td.f_mul_scalar(1.0)?,
            });
            Ok(())
        })?;
        states.push(self.finish(context, x_td, delta_td.as_ref())?.1);
        Ok(states)
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
        Ok((cos_sin, self.embedded(self.embed()?, tokens_t)?))
    }

    /// The layers of a run, in order; with the number of the first among those of this rank.
    pub(crate) fn layers_of(&self, run: usize) -> Result<(usize, &[Layer])> {
        let (expected, got) = (self.runs.len(), run);
        let range = self.runs.get(run).ok_or(Error::Context { what: "runs of layers", expected, got })?;
        Ok((range.start, self.layers.get(range.clone()).unwrap_or_default()))
    }

    /// Whether anything of a layer of this rank is trained, counted from its first.
    pub(crate) fn is_trained(&self, at: usize) -> bool {
        let Some(prefix) = self.layers.get(at).map(Layer::prefix) else { return false };
        let mut own = self.params.trained().filter(|(spec, _)| spec.name.starts_with(&prefix));
        own.any(|(_, tensor)| tensor.requires_grad())
    }

    /// Runs of layers that this rank has: one, or several where stages of a pipeline interleave.
    pub fn num_runs(&self) -> usize {
        self.runs.len()
    }

    /// What [`Self::forward`] gives, from rows `[t, d]` of the embedding and their angles, as `Rope::cos_sin` makes them.
    pub(crate) fn forward_layers(
        &self,
        context: &mut Context<'_>,
        x_td: Tensor,
        cos_sin: &(Tensor, Tensor),
    ) -> Result<Tensor> {
        let (x_td, delta_td) = self.run_layers(context, 0, x_td, cos_sin, |_, _| Ok(()))?;
        Ok(self.finish(context, x_td, delta_td.as_ref())?.1)
    }

    /// Residual and delta behind a run of layers; `look` sees both before every layer.
    pub(crate) fn run_layers(
        &self,
        context: &mut Context<'_>,
        run: usize,
        mut x_td: Tensor,
        cos_sin: &(Tensor, Tensor),
        mut look: impl FnMut(&Tensor, Option<&Tensor>) -> Result<()>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let mut delta_td = None;
        for layer in self.layers_of(run)?.1 {
            look(&x_td, delta_td.as_ref())?;
            let (x, delta) = layer.forward(context, x_td, delta_td.as_ref(), cos_sin)?;
            (x_td, delta_td) = (x, Some(delta));
        }
        Ok((x_td, delta_td))
    }

    /// From residual and delta behind the last layer: the residual, and the hidden states `[t, d]` after the final norm.
    pub(crate) fn finish(
        &self,
        context: &Context<'_>,
        x_td: Tensor,
        delta_td: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (eps, workspace) = (self.config.rms_norm_eps, context.workspace());
        let (x_td, hidden_td) = add_norm(&workspace, x_td, delta_td, &self.end()?.final_norm_d, eps)?;
        Ok((x_td, self.sequence.gather(&hidden_td, context.num_tokens())?))
    }

    /// What stands behind the last layer.
    fn end(&self) -> Result<&End> {
        self.end.as_ref().ok_or_else(|| Error::MissingStorage { name: "final_norm".to_owned() })
    }

    /// This rank's stage of the pipeline.
    pub fn stage(&self) -> PipelineStage {
        self.params.place().stage
    }

    /// Rows that this rank passes on of a pass over `num_tokens` tokens.
    pub fn num_own_rows(&self, num_tokens: usize) -> usize {
        self.sequence.range(num_tokens).len()
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
    pub(crate) fn embed(&self) -> Result<&Tensor> {
        self.embed_vd.as_ref().ok_or_else(|| Error::MissingStorage { name: "embed".to_owned() })
    }

    /// The rotary frequencies.
    pub(crate) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// [`Self::logits`] into `logits_rv` (f32), without gradient; on a GPU.
    pub(crate) fn logits_into(&self, hidden_rd: &Tensor, logits_rv: &Tensor) -> Result<()> {
        head_log_probs::product_to(logits_rv, hidden_rd, self.end()?.head.weight())
    }

    /// The logits `[r, v]` in f32 (f64 for f64 models) of hidden states after the final norm; of a split model those of the
    /// ids that this rank holds.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn logits(&self, hidden_rd: &Tensor) -> Result<Tensor> {
        let head = &self.end()?.head;
        if self.params.device().is_cuda() {
            return head_log_probs::product(hidden_rd, head.weight());
        }
        let logits_rv = head.forward(&Workspace::default(), hidden_rd)?;
        Ok(if logits_rv.kind() == Kind::Double { logits_rv } else { logits_rv.f_to_kind(Kind::Float)? })
    }

    /// The same of all ids; every rank of a split model calls it and gets them.
    ///
    /// # Errors
    /// As [`Self::logits`], and a failed collective.
    pub fn whole_logits(&self, hidden_rd: &Tensor) -> Result<Tensor> {
        let logits = self.logits(hidden_rd)?;
        let Some(Shard { group, .. }) = &self.shard else { return Ok(logits) };
        let size = group.size();
        let ids = |rank| Share { rank, size }.of(self.config.vocab_size).len();
        let counts: Vec<usize> = (0..size).map(ids).collect();
        Ok(group.gather_rows(&logits.f_tr()?.f_contiguous()?, &counts)?.f_tr()?)
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
        self.log_probs_under(self.end()?.head.weight(), hidden_rd, targets_r, shaping)
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
        let weight_vd = self.end()?.head.weight();
        head_log_probs::fused(hidden_rd, weight_vd, targets_r, (shaping, self.shard.as_ref()), slopes)
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
        let policy = kl::Head { hidden_rd, weight_vd: self.end()?.head.weight() };
        let reference = kl::Head { hidden_rd: ref_hidden_rd, weight_vd: reference.end()?.head.weight() };
        kl::train(policy, reference, temperature, self.shard.as_ref())
    }

    /// Whether the model gives hidden states a number.
    pub fn has_value_head(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.value_head.is_some())
    }

    /// The number `[r]` of each hidden state after the final norm, in f32 (f64 for f64 models): a critic's value or a
    /// reward model's score.
    ///
    /// # Errors
    /// The model has no such head, or the shapes do not fit.
    pub fn values(&self, hidden_rd: &Tensor) -> Result<Tensor> {
        let head = self.end()?.value_head.as_ref();
        let head = head.ok_or_else(|| Error::MissingStorage { name: "score".to_owned() })?;
        // Rows are shared out like tokens, so that this head's gradients are a sum over the ranks like all others.
        let (own_rd, num_rows) = (self.sequence.own(hidden_rd)?, hidden_rd.size2()?.0 as usize);
        let values_r1 = head.forward(&Workspace::default(), &own_rd)?;
        let values_r = self.sequence.gather_alike(&values_r1, num_rows)?.f_squeeze_dim(1)?;
        Ok(if values_r.kind() == Kind::Double { values_r } else { values_r.f_to_kind(Kind::Float)? })
    }
}

impl End {
    fn new(params: &ParamStore, config: &HfConfig) -> Result<Self> {
        let head_vd = params.get(if config.tie_word_embeddings { "embed" } else { "head" })?;
        Ok(Self {
            final_norm_d: params.get("final_norm")?,
            head: Linear::new(head_vd, None),
            value_head: params.find("score").map(|weight| Linear::new(weight, params.find("score_bias"))),
            mtp: Mtp::new(params, config)?,
        })
    }
}
