//! What one layer keeps of a micro-batch for its backward pass, and what it needs beside that while it runs.
//!
//! Per token, in elements: d hidden size, q and k widths of all query and key-value heads of the rank, m width of an MLP of
//! the rank. f32 norms keep their input as it is; bf16 ones an f32 copy of it, but for those that are one kernel on a GPU.

use slime_config::{HfConfig, QkNormScope};
use slime_weights::{PlanLayout, Share, kv_heads};

use super::Batch;

/// In what precision a layer computes, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Bytes of an element.
    pub size: u64,
    /// Whether norms, gates and attention are kernels that keep their inputs alone: in bf16 on a GPU.
    pub is_fused: bool,
    /// Whether products are in fp8.
    pub is_fp8: bool,
}

impl Precision {
    /// Bytes of an element that a product keeps of its input.
    fn input(self) -> u64 {
        if self.is_fp8 { 1 } else { self.size }
    }

    /// Bytes of the codes of a product's backward pass: weight, gradient along rows and columns.
    fn codes(self, tokens: u64, [inputs, outputs]: [u64; 2]) -> u64 {
        if self.is_fp8 { inputs * outputs + 2 * tokens * outputs } else { 0 }
    }
}

/// Bytes of one layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerBytes {
    /// What autograd keeps.
    pub kept: u64,
    /// What gradients within the layer take beside it.
    pub transient: u64,
    /// What is kept where operations between products are computed again.
    pub selective: u64,
    /// What these and their gradients take then.
    pub recomputed: u64,
}

impl LayerBytes {
    /// Of layer `at` for a micro-batch.
    pub fn of(config: &HfConfig, at: usize, layout: PlanLayout, precision: Precision, batch: Batch) -> Self {
        // Of a rank, where ranks have the tokens between them.
        let cp = layout.cp as u64;
        let (tokens, Precision { size, is_fused, .. }) = (batch.tokens.div_ceil(cp), precision);
        let tp = Share { rank: 0, size: layout.tp };
        let (d, dim) = (config.hidden_size as u64, config.head_dim as u64);
        let q = tp.of(config.num_attention_heads).len() as u64 * dim;
        let k = kv_heads(config, tp).len() as u64 * dim;
        let own = tokens.div_ceil(layout.tp as u64);
        // A norm keeps its input in f32, the normed rows and their scaled copy; where ranks share the tokens, a product keeps
        // all rows of the latter.
        let norm = |rows: u64, width: u64| rows * width * (4 + size);
        let kept_norm = if is_fused { own * d * size } else { norm(own, d) };
        let post_norms = if config.has_post_norms { 2 * norm(own, d) } else { 0 };
        let norms = 2 * kept_norm + post_norms + 2 * tokens * d * precision.input();
        let head_norms = if config.qk_norm.is_some() {
            // In f32 the input is the projection, which is kept anyway.
            tokens * (q + k) * if size == 4 { size } else { 4 + size }
        } else {
            0
        };
        // The projection; queries and keys after the rotation; what attention gives, and the copy that the next product reads.
        let (projection, attended) = (tokens * (q + 2 * k) * size, tokens * q * size);
        let of_output = if precision.is_fp8 { tokens * q } else { 0 };
        let codes = precision.codes(tokens, [d, q + 2 * k]);
        // Keys and values of all tokens, where ranks gather them, and those of prompts beside those of responses.
        let gathered = if cp > 1 { batch.tokens * 2 * k * size } else { 0 };
        let copied = gathered + batch.copied_keys() * 2 * k * size;
        let of_scores = tokens * q / dim * 4;
        let between = head_norms + tokens * (q + k) * size + copied + attended + of_scores;
        let mlp = Mlp::of(config, at, layout, precision, [tokens, own]);
        let attention = norms + projection + attended + of_output;
        if is_fused && cp == 1 && has_fused_attention(config) {
            // Heads again, their gradients and that of the projection.
            let in_attention = 3 * projection + copied + attended;
            let in_attention = in_attention.max(projection + codes);
            return Self {
                kept: attention + of_scores + mlp.kept,
                transient: mlp.transient.max(in_attention),
                selective: attention + of_scores + mlp.selective,
                recomputed: mlp.recomputed.max(in_attention),
            };
        }
        Self {
            kept: attention + between + mlp.kept,
            transient: mlp.transient,
            selective: attention + mlp.selective,
            recomputed: mlp.recomputed.max(between + 2 * projection),
        }
    }
}

/// Whether norms of heads, rotation and attention are one operation, as `ops::attention` decides.
fn has_fused_attention(config: &HfConfig) -> bool {
    matches!(config.head_dim, 64 | 128 | 256)
        && config.rotary_dim == config.head_dim
        && !config.is_rope_interleaved
        && config.qk_norm.is_none_or(|scope| scope == QkNormScope::Head)
}

/// Bytes of what stands behind attention.
#[derive(Debug, Clone, Copy, Default)]
struct Mlp {
    kept: u64,
    transient: u64,
    selective: u64,
    recomputed: u64,
}

impl Mlp {
    fn of(
        config: &HfConfig,
        at: usize,
        layout: PlanLayout,
        precision: Precision,
        [tokens, own]: [u64; 2],
    ) -> Self {
        let Precision { size, is_fused, .. } = precision;
        let d = config.hidden_size as u64;
        let split = |width: usize, ranks: usize| width.div_ceil(ranks) as u64;
        let moe = config.moe.as_ref().filter(|moe| moe.place_of(at).is_some());
        let Some(moe) = moe else {
            return Self::gated(tokens, [d, split(config.intermediate_size, layout.tp)], precision);
        };
        let mut sum = Self::default();
        if moe.shared_intermediate_size > 0 {
            sum = Self::gated(tokens, [d, split(moe.shared_intermediate_size, layout.tp)], precision);
        }
        let m = split(moe.intermediate_size, layout.etp);
        // Pairs of a token and an expert, as many as come in when experts are chosen alike.
        let pairs = own * moe.top_k as u64;
        let is_spread = layout.ep * layout.etp > 1;
        let scores = own * (moe.num_experts as u64 * 4 + moe.top_k as u64 * 24);
        let sent = if is_spread { 2 * pairs * d * size } else { 0 };
        // The router reads its rows in f32.
        let routed = if size < 4 { own * d * 4 } else { 0 };
        let kept = 2 * pairs * m * size + scores + sent + routed;
        let num_own = moe.num_experts as u64 / layout.ep as u64;
        let weights = num_own * 3 * m * d * size;
        // The larger of the storages, and the rows that it is multiplied with.
        let codes = if precision.is_fp8 { num_own * 2 * m * d + pairs * d.max(2 * m) } else { 0 };
        let transient = if is_fused {
            // Gradients of pairs' rows and gates, beside the activation or their rows.
            pairs * (d + 2 * m + d.max(2 * m)) * size + codes
        } else {
            pairs * (10 * m + 2 * d) * size + weights
        };
        Self {
            kept: sum.kept + kept,
            transient: sum.transient.max(transient),
            selective: sum.selective + kept,
            recomputed: sum.recomputed.max(transient),
        }
    }

    /// Of an MLP of `m` columns: gate and up, the gate's activation (but of a kernel) and its product are kept.
    fn gated(tokens: u64, [d, m]: [u64; 2], precision: Precision) -> Self {
        let width = tokens * m * precision.size;
        let of_gate = if precision.is_fused { 2 * width } else { 3 * width };
        let codes = precision.codes(tokens, [d, 2 * m]);
        let kept = of_gate + tokens * m * precision.input();
        Self { kept, transient: 2 * width + codes, selective: 2 * width, recomputed: 4 * width + codes }
    }
}
