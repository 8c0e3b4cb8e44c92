//! The memory that a training rank will take at its peak, from the configuration alone.
//!
//! What is counted follows the code: what autograd keeps of every operation of `lib/model`, what the output head holds while
//! it computes the loss, what the optimizer keeps. Not counted: the code of libtorch, its threads and drivers.

mod layer;

use slime_config::{Cluster, HfConfig, PipelineStage, Recompute, Train};
use slime_model::MERGE_LEN;
use slime_model::ops::head_log_probs::chunk_bytes;
use slime_weights::{Place, PlanLayout, Share, StorageSpec, gib, is_of_stage, split, storages};
use tch::Kind;

use self::layer::{LayerBytes, Precision};
use crate::Settings;
use crate::out_of_memory::Phase;
use crate::pipeline::most_kept;

/// Where and in what precision a rank computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// How ranks share the work.
    pub layout: PlanLayout,
    /// bf16 with f32 masters and gradient sums; else f32.
    pub is_bf16: bool,
    /// Chunks of the output head are larger there.
    pub is_gpu: bool,
}

/// Bytes of a rank at its peak, by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Its stage of the pipeline.
    pub stage: usize,
    /// Parameters of the policy.
    pub weights: u64,
    /// Parameters of reference and teacher, and all that is kept of a critic.
    pub other_models: u64,
    /// Gradients of a micro-batch, at the peak; of a bf16 model on a GPU there are none before its backward pass.
    pub gradients: u64,
    /// Their sums in f32, of a bf16 model.
    pub gradient_sums: u64,
    /// Masters and moments: this rank's share.
    pub optimizer: u64,
    /// Of that, what is in the memory of the host.
    pub offloaded: u64,
    /// What the layers keep of the largest micro-batches for the backward pass, at the peak: of one, or in a pipeline of
    /// several.
    pub activations: u64,
    /// What stands beside them for a moment: logits and gradients of the head, or those within a layer.
    pub workspace: u64,
    /// Messages of an all-gather or reduce-scatter, which come when there are no activations.
    pub messages: u64,
}

/// What is there beside the policy, all of the same size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Others {
    /// Models that are not trained.
    pub num_fixed: u64,
    /// Whether a critic is trained.
    pub has_critic: bool,
}

/// The largest micro-batch: a prompt with as many of the longest responses as fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Tokens of it.
    pub tokens: u64,
    /// Longest prompt that is known of.
    pub prompt_len: u64,
    /// Longest response.
    pub response_len: u64,
}

impl Batch {
    /// Responses in it.
    fn num_responses(&self) -> u64 {
        (self.tokens.saturating_sub(self.prompt_len) / self.response_len.max(1)).max(1)
    }

    /// Whether responses have attention calls of their own.
    fn is_long(&self) -> bool {
        self.prompt_len + self.response_len > MERGE_LEN as u64
    }

    /// Keys of prompt and response side by side, copied for each long response.
    fn copied_keys(&self) -> u64 {
        if self.is_long() { self.num_responses() * (self.prompt_len + self.response_len) } else { 0 }
    }

    fn mask_bytes(&self, size: u64) -> u64 {
        let row = if self.is_long() { self.prompt_len + self.response_len } else { MERGE_LEN as u64 };
        self.tokens * row * size
    }
}

/// Parameters of a rank.
#[derive(Debug, Clone, Copy, Default)]
struct Elements {
    all: u64,
    trained: u64,
    /// Of the trained ones, this rank's share of the state.
    share: u64,
    largest: u64,
    /// Of the embedding or the head.
    head: u64,
    /// Of those what has a gradient.
    trained_head: u64,
}

impl Elements {
    fn of(
        config: &HfConfig,
        settings: &Settings,
        layout: PlanLayout,
        stage: PipelineStage,
    ) -> slime_config::Result<Self> {
        let first = |size| Share { rank: 0, size };
        let place = Place { tp: first(layout.tp), ep: first(layout.ep), etp: first(layout.etp), stage };
        let whole = trained_as(config, &settings.train)?;
        let mut sum = Self::default();
        for spec in whole.iter().filter(|spec| is_of_stage(spec, config, stage)) {
            let own = split(spec.clone(), config, place);
            let num = own.num_elements() as u64;
            sum.all += num;
            if matches!(spec.name.as_str(), "embed" | "head") {
                sum.head = num;
                sum.trained_head = if spec.is_frozen { 0 } else { num };
            }
            if !spec.is_frozen {
                let copies = if spec.is_expert {
                    layout.stage_size() / (layout.ep * layout.etp)
                } else {
                    layout.dp * layout.cp
                };
                sum.trained += num;
                sum.share += num.div_ceil(copies as u64);
                sum.largest = sum.largest.max(num);
            }
        }
        Ok(sum)
    }
}

/// The storages of a policy with its adapters, and which of them are frozen.
fn trained_as(config: &HfConfig, train: &Train) -> slime_config::Result<Vec<StorageSpec>> {
    let mut whole = storages(config);
    let Some(lora) = &train.lora else {
        let names: Vec<Vec<&str>> =
            whole.iter().map(|spec| spec.views.iter().map(|view| view.name.as_str()).collect()).collect();
        let is_frozen = slime_config::frozen(&train.freeze, &names)?;
        whole.iter_mut().zip(is_frozen).for_each(|(spec, is_frozen)| spec.is_frozen |= is_frozen);
        return Ok(whole);
    };
    for spec in &mut whole {
        spec.is_frozen = true;
    }
    let adapters = slime_weights::adapters(config, lora)?;
    whole.extend(adapters.into_iter().flat_map(|adapter| [adapter.a, adapter.b]));
    Ok(whole)
}

impl Budget {
    /// Those of a policy, of every stage.
    ///
    /// # Errors
    /// Patterns of `train.freeze` or of `train.lora` that do not fit the model.
    pub fn of_stages(
        config: &HfConfig,
        settings: &Settings,
        site: Site,
        batch: Batch,
        others: Others,
    ) -> slime_config::Result<Vec<Self>> {
        let pipeline = site.layout.pipeline;
        let stages = (0..pipeline.num_stages).map(|rank| PipelineStage { rank, pipeline });
        stages.map(|stage| Self::of_stage(config, settings, (site, stage), batch, others)).collect()
    }

    fn of_stage(
        config: &HfConfig,
        settings: &Settings,
        (site, stage): (Site, PipelineStage),
        batch: Batch,
        others: Others,
    ) -> slime_config::Result<Self> {
        let Site { layout, is_bf16, is_gpu } = site;
        let (train, size) = (&settings.train, if is_bf16 { 2 } else { 4 });
        // Of a rank, where ranks have the tokens between them.
        let tokens = batch.tokens.div_ceil(layout.cp as u64);
        let elements = Elements::of(config, settings, layout, stage)?;
        let has_master = is_bf16 || train.optimizer_offload;
        let optimizer = elements.share * if has_master { 12 } else { 8 };
        let precision = Precision { size, is_fused: is_bf16 && is_gpu, is_fp8: train.fp8.is_some() };
        let runs: Vec<Vec<LayerBytes>> = stage
            .layers(config.num_hidden_layers)
            .into_iter()
            .map(|run| run.map(|at| LayerBytes::of(config, at, layout, precision, batch)).collect())
            .collect();
        let most = |of: fn(&LayerBytes) -> u64| runs.iter().flatten().map(of).max().unwrap_or(0);
        let own_rows = tokens.div_ceil(layout.tp as u64) * config.hidden_size as u64;
        // The gradient of a tied head waits for that of the embedding.
        let waiting = if config.tie_word_embeddings { elements.trained_head * size } else { 0 };
        // As many micro-batches as there are ever under way.
        let num_batches = 2 * layout.pipeline.num_stages * layout.pipeline.chunks;
        let all = |of: &dyn Fn(&LayerBytes) -> u64| {
            most_kept(stage, num_batches, |run| runs[run].iter().map(of).sum())
        };
        let (kept, in_layer) = match train.recompute {
            Recompute::None => (all(&|layer| layer.kept), most(|layer| layer.transient) + waiting),
            Recompute::Selective => (all(&|layer| layer.selective), most(|layer| layer.recomputed) + waiting),
            // The residual before each layer, and gradients of two of them beside the layer at hand.
            Recompute::Full => {
                (all(&|_| own_rows * size), most(|layer| layer.kept + layer.transient) + 2 * own_rows * size)
            }
        };
        // The residual behind the last layer and its norm, all rows of that; and the masks, which the layers of a pass share.
        let has_lists = precision.is_fused && layout.cp == 1;
        let of_pass = if has_lists { 0 } else { batch.mask_bytes(size) / layout.cp as u64 };
        let masks = most_kept(stage, num_batches, |_| of_pass);
        let (last, in_head) = if stage.is_last() {
            let kept_by_norm = if precision.is_fused { size } else { 4 + size };
            let rows = own_rows * kept_by_norm + tokens * config.hidden_size as u64 * size;
            let head = (elements.trained_head, size);
            (rows, head_bytes(config, settings, head, (tokens, layout.tp as u64), is_gpu))
        } else {
            (0, 0)
        };
        let last = last + masks;
        let is_alone = layout.world_size() == 1;
        let (weights, gradients) = (elements.all * size, elements.trained * size);
        let gradient_sums = if is_bf16 { 4 * elements.trained } else { 0 };
        // Those of a bf16 model go into their sums behind every micro-batch; a GPU's memory is free at once. In a pipeline
        // backward passes of some micro-batches come before forward passes of others.
        let come_late = precision.is_fused && layout.pipeline.num_stages == 1;
        let lasting = if come_late { 0 } else { gradients };
        let critic = weights + lasting + gradient_sums + optimizer;
        let beside = if come_late { in_head } else { in_layer.max(in_head) };
        let in_head = (lasting, kept + last, beside);
        // The first layer is the last one of a backward pass; what it keeps may be in what stands beside it already.
        let of_layer =
            if train.recompute == Recompute::Full { 0 } else { kept / config.num_hidden_layers as u64 };
        let before = gradients.saturating_sub(elements.trained_head * size);
        let in_first_layer = (before, of_layer, in_layer);
        let bytes = |(a, b, c): (u64, u64, u64)| a + b + c;
        let (gradients, activations, workspace) =
            if bytes(in_head) >= bytes(in_first_layer) { in_head } else { in_first_layer };
        Ok(Self {
            stage: stage.rank,
            weights,
            other_models: others.num_fixed * weights + if others.has_critic { critic } else { 0 },
            gradients,
            gradient_sums,
            optimizer,
            offloaded: if train.optimizer_offload { optimizer } else { 0 },
            activations,
            workspace,
            messages: if is_alone { 0 } else { 2 * 4 * elements.largest },
        })
    }

    /// Bytes on the device at the peak; on a CPU what is offloaded is there too.
    pub fn device_bytes(&self, is_gpu: bool) -> u64 {
        let state = self.weights + self.other_models + self.gradients + self.gradient_sums + self.optimizer;
        let away = if is_gpu { self.offloaded } else { 0 };
        state - away + (self.activations + self.workspace).max(self.messages)
    }

    /// What does not fit into the memory of a GPU or of a node with as many ranks as GPUs, with what would help.
    pub fn misfit(&self, cluster: &Cluster, train: &Train) -> Option<(String, String)> {
        let gpu = self.device_bytes(true);
        let host = self.offloaded * u64::from(cluster.gpus_per_node);
        let exceeds = |bytes: u64, gb: Option<f64>| gb.is_some_and(|gb| bytes as f64 > gb * 1e9);
        if exceeds(gpu, cluster.gpu_memory_gb) {
            let given = cluster.gpu_memory_gb.unwrap_or_default();
            let problem = format!(
                "a rank takes {} at its peak, a GPU has {given} GB (cluster.gpu_memory_gb)",
                gib(gpu)
            );
            return Some((problem, Phase::Backward.hint(train)));
        }
        exceeds(host, cluster.host_memory_gb).then(|| {
            let given = cluster.host_memory_gb.unwrap_or_default();
            let (problem, hint) = (
                format!("the ranks of a node keep {} on the host, which has {given} GB", gib(host)),
                "more ranks, or train.optimizer_offload = false where the GPUs have the room",
            );
            (format!("{problem} (cluster.host_memory_gb)"), hint.to_owned())
        })
    }

    /// For people.
    pub fn lines(&self, settings: &Settings, site: Site, batch: Batch) -> Vec<String> {
        let recompute = match settings.train.recompute {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Full => "full",
        };
        let PlanLayout { tp, cp, ep, etp, dp, .. } = site.layout;
        let pp = site.layout.pp();
        let stage = if pp > 1 { format!(", stage {}", self.stage) } else { String::new() };
        let more = [("pp", pp), ("cp", cp)].into_iter().filter(|(_, size)| *size > 1);
        let more = more.map(|(axis, size)| format!(" {axis} {size}")).collect::<Vec<_>>().concat();
        let mut parts = vec![("weights", self.weights)];
        parts.extend([("other models", self.other_models), ("gradients", self.gradients)]);
        parts.extend([("their f32 sums", self.gradient_sums), ("optimizer", self.optimizer)]);
        parts.extend([("activations", self.activations), ("workspace", self.workspace)]);
        parts.extend([("messages, when there are no activations", self.messages)]);
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(name, bytes)| format!("{name} {}", gib(bytes)))
            .collect();
        let mut lines = vec![
            format!(
                "a rank of tp {tp}{more} dp {dp} ep {ep} etp {etp}{stage} takes {} at the peak of a step of {} tokens with recompute {recompute}:",
                gib(self.device_bytes(site.is_gpu)),
                batch.tokens
            ),
            format!("  {}", parts.join(", ")),
        ];
        if self.offloaded > 0 {
            lines.push(format!("  of it in the memory of the host: {}", gib(self.offloaded)));
        }
        lines
    }
}

/// What the head holds while it computes the loss or gives it back: gradients of hidden states and weight, each twice when
/// they are handed on, and before that the logits of a chunk of rows.
fn head_bytes(
    config: &HfConfig,
    settings: &Settings,
    (elements, size): (u64, u64),
    (tokens, tp): (u64, u64),
    is_gpu: bool,
) -> u64 {
    let hidden = tokens * config.hidden_size as u64;
    let ids = config.vocab_size.div_ceil(tp as usize);
    let shape = [tokens as i64, config.hidden_size as i64, ids as i64];
    let kind = if size == 2 { Kind::BFloat16 } else { Kind::Float };
    // Without the fused loss a chunk is of ids and small; the gradients are the same.
    let logits = if settings.is_by_row() { chunk_bytes(shape, kind, is_gpu) } else { 4 * (4 << 20) };
    4 * (hidden + elements) + logits.max(size * (hidden + elements))
}
