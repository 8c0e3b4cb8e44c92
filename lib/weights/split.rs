//! How a model is split over ranks: which rows and columns of every storage a rank holds.
//!
//! Of the products of a layer the first of two is cut by rows and the second by columns, so that between them nothing has to
//! be exchanged: `qkv` and `o_proj` by heads, `gate_up` and `down` by width. The vocabulary (`embed`, `head`) is cut by rows.
//! Experts are dealt out whole and, with `etp`, cut by width as well. Everything else is held whole by every rank, which
//! sees its share of the tokens. Before all that the stages of a pipeline have the layers between them; the first has the
//! embedding, the last the final norm and the heads. (Shoeybi et al., arXiv 1909.08053; the shares of tokens: Korthikanti et al., arXiv
//! 2205.05198.) No storage is padded: where something does not divide, the first ranks have one more.

use std::ops::Range;

use slime_config::{HfConfig, PipelineStage, QkNormScope, TensorBox};

use crate::adapter::split_adapter;
use crate::{StorageSpec, ViewSpec};

/// The part of one of several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which of them, from 0.
    pub rank: usize,
    /// How many.
    pub size: usize,
}

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self { rank: 0, size: 1 };

    /// This rank's part of `len` things: equal parts, the first `len % size` ranks have one more.
    pub fn of(self, len: usize) -> Range<usize> {
        let start = |rank: usize| rank * (len / self.size) + rank.min(len % self.size);
        start(self.rank)..start(self.rank + 1)
    }
}

/// The place of a rank in a split model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Among the ranks that share heads, widths and vocabulary.
    pub tp: Share,
    /// Among those that have the experts between them.
    pub ep: Share,
    /// Among those that share the width of an expert.
    pub etp: Share,
    /// The stage of the pipeline.
    pub stage: PipelineStage,
}

impl Default for Place {
    fn default() -> Self {
        Self { tp: Share::WHOLE, ep: Share::WHOLE, etp: Share::WHOLE, stage: PipelineStage::WHOLE }
    }
}

/// The key-value heads a tensor-parallel rank holds. Where there are fewer heads than ranks, neighbours hold the same one.
pub fn kv_heads(config: &HfConfig, tp: Share) -> Range<usize> {
    let num = config.num_key_value_heads;
    if num >= tp.size {
        return tp.of(num);
    }
    let head = tp.rank / kv_copies(config, tp.size);
    head..head + 1
}

/// Tensor-parallel ranks that hold the same key-value heads.
pub fn kv_copies(config: &HfConfig, tp: usize) -> usize {
    (tp / config.num_key_value_heads).max(1)
}

/// Whether a stage holds a storage of the whole model. A tied head that is not where the embedding is holds a copy of that.
pub fn is_of_stage(spec: &StorageSpec, config: &HfConfig, stage: PipelineStage) -> bool {
    match spec.layer() {
        Some(layer) => stage.layers(config.num_hidden_layers).iter().any(|run| run.contains(&layer)),
        None if spec.name == "embed" => stage.is_first() || config.tie_word_embeddings && stage.is_last(),
        None => stage.is_last(),
    }
}

/// What of `spec`, a storage of the whole model that its stage holds, the rank at `place` holds. The axes divide heads and experts
/// (`slime_config::Parallel::data_parallel`).
#[must_use]
pub fn split(spec: StorageSpec, config: &HfConfig, place: Place) -> StorageSpec {
    let Place { tp, ep, etp, .. } = place;
    let (num_q, num_kv, dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
    let (q, kv) = (heads_of(config, tp.of(num_q)), heads_of(config, kv_heads(config, tp)));
    let copies = kv_copies(config, tp.size);
    let rows = spec.shape[0];
    let suffix = spec.name.rsplit('.').next().unwrap_or_default().to_owned();
    match suffix.as_str() {
        "lora_a" | "lora_b" => split_adapter(spec, config, place),
        "embed" | "head" => spec.keep_rows(&[tp.of(rows)]),
        "qkv" | "qkv_bias" => {
            let [k_start, v_start] = [num_q * dim, (num_q + num_kv) * dim];
            spec.keep_rows(&[q, after(k_start, &kv), after(v_start, &kv)]).with_copies(&[1, copies, copies])
        }
        "q_norm" if config.qk_norm == Some(QkNormScope::AllHeads) => spec.keep_rows(&[q]),
        "k_norm" if config.qk_norm == Some(QkNormScope::AllHeads) => {
            spec.keep_rows(&[kv]).with_copies(&[copies])
        }
        "o_proj" => spec.keep_columns(&q),
        "gate_up" | "shared_gate_up" => {
            let width = tp.of(rows / 2);
            spec.keep_rows(&[width.clone(), after(rows / 2, &width)])
        }
        "down" | "shared_down" => {
            let width = tp.of(spec.row_len());
            spec.keep_columns(&width)
        }
        "experts_gate_up" => {
            let num = config.moe.as_ref().map_or(1, |moe| moe.num_experts);
            let (of_one, width) = (rows / num, etp.of(rows / num / 2));
            let of_expert =
                |e: usize| [e * of_one, e * of_one + of_one / 2].map(|start| after(start, &width));
            let kept: Vec<_> = ep.of(num).flat_map(of_expert).collect();
            spec.keep_rows(&kept)
        }
        "experts_down" => {
            let num = config.moe.as_ref().map_or(1, |moe| moe.num_experts);
            let (own, width) = (ep.of(num), etp.of(spec.row_len()));
            let kept: Vec<_> = own.map(|e| e * (rows / num)..(e + 1) * (rows / num)).collect();
            spec.keep_rows(&kept).keep_columns(&width)
        }
        _ => {
            let copies = vec![tp.size; spec.views.len()];
            spec.with_copies(&copies)
        }
    }
}

/// The rows or columns of these heads.
pub(crate) fn heads_of(config: &HfConfig, heads: Range<usize>) -> Range<usize> {
    heads.start * config.head_dim..heads.end * config.head_dim
}

pub(crate) fn after(start: usize, range: &Range<usize>) -> Range<usize> {
    start + range.start..start + range.end
}

impl StorageSpec {
    /// The layer that a storage such as `layers.3.qkv` belongs to.
    pub fn layer(&self) -> Option<usize> {
        self.name.strip_prefix("layers.")?.split('.').next()?.parse().ok()
    }

    /// The storage of these rows alone, in order. Ranges do not cross the border of two views unless they hold both whole.
    pub(crate) fn keep_rows(self, kept: &[Range<usize>]) -> Self {
        let row_len = self.row_len();
        let keep = |views: &[ViewSpec]| {
            let (mut parts, mut offset_rows) = (Vec::new(), 0);
            for range in kept {
                for view in views {
                    let end = view.offset_rows + self.num_rows(view);
                    let (first, last) = (range.start.max(view.offset_rows), range.end.min(end));
                    if first < last {
                        for part in row_boxes(view, first - view.offset_rows..last - view.offset_rows) {
                            let rows = part.num_elements() / row_len;
                            parts.push(ViewSpec { offset_rows, part, ..view.clone() });
                            offset_rows += rows;
                        }
                    }
                }
            }
            parts
        };
        let mut shape = self.shape.clone();
        shape[0] = kept.iter().map(ExactSizeIterator::len).sum();
        Self { views: keep(&self.views), fused: keep(&self.fused), shape, ..self }
    }

    /// The storage of these columns (of the last dimension) alone.
    pub(crate) fn keep_columns(mut self, columns: &Range<usize>) -> Self {
        for view in self.views.iter_mut().chain(&mut self.fused) {
            view.part = view.part.narrow(view.shape.len() - 1, columns.clone());
        }
        if let Some(last) = self.shape.last_mut() {
            *last = columns.len();
        }
        self
    }

    /// The same with the number of ranks that hold each of its views.
    pub(crate) fn with_copies(mut self, copies: &[usize]) -> Self {
        for (view, copies) in self.views.iter_mut().zip(copies) {
            view.copies = *copies;
        }
        self
    }
}

/// The rows `rows` of a view as boxes of its tensor: one, or where the tensor stacks matrices one for each of them.
fn row_boxes(view: &ViewSpec, rows: Range<usize>) -> Vec<TensorBox> {
    if view.shape.len() < 3 {
        return vec![view.part.narrow(0, rows)];
    }
    let height = view.part.shape[1];
    if rows.start.is_multiple_of(height) && rows.end.is_multiple_of(height) {
        return vec![view.part.narrow(0, rows.start / height..rows.end / height)];
    }
    let matrices = rows.start / height..rows.end.div_ceil(height);
    let of_matrix = |at: usize| {
        let (first, last) = (rows.start.max(at * height), rows.end.min((at + 1) * height));
        view.part.narrow(0, at..at + 1).narrow(1, first - at * height..last - at * height)
    };
    matrices.map(of_matrix).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::storages;

    const MOE: &str = r#"{"model_type":"glm4_moe","hidden_size":8,"intermediate_size":13,"num_hidden_layers":2,
        "num_attention_heads":8,"num_key_value_heads":2,"head_dim":4,"vocab_size":11,"n_routed_experts":4,"num_experts_per_tok":2,
        "moe_intermediate_size":5,"n_shared_experts":2,"first_k_dense_replace":1,"use_qk_norm":true}"#;

    fn config() -> HfConfig {
        HfConfig::parse(MOE, std::path::Path::new("config.json")).unwrap()
    }

    fn places(tp: usize, ep: usize, etp: usize) -> Vec<Place> {
        let share = |rank: usize, size: usize| Share { rank: rank % size, size };
        (0..tp.max(ep * etp))
            .map(|rank| Place {
                tp: share(rank, tp),
                ep: share(rank / etp, ep),
                etp: share(rank, etp),
                ..Place::default()
            })
            .collect()
    }

    /// How often each element of each tensor is held by the ranks.
    fn times_held(
        places: &[Place],
        of: impl Fn(&StorageSpec) -> &[ViewSpec],
    ) -> BTreeMap<String, Vec<usize>> {
        let config = config();
        let mut held = BTreeMap::new();
        for place in places {
            for spec in storages(&config) {
                let spec = split(spec, &config, *place);
                let mut next = 0;
                for view in of(&spec) {
                    assert_eq!(view.offset_rows, next, "{}: views follow each other", spec.name);
                    next += spec.num_rows(view);
                    let counts: &mut Vec<usize> =
                        held.entry(view.name.clone()).or_insert_with(|| vec![0; view.shape.iter().product()]);
                    for run in view.part.runs(&TensorBox::whole(&view.shape)) {
                        counts[run.to..run.to + run.len].iter_mut().for_each(|count| *count += 1);
                    }
                }
                assert!(of(&spec).is_empty() || next == spec.shape[0], "{}: {next}", spec.name);
            }
        }
        held
    }

    #[test]
    fn ranks_hold_every_element_as_often_as_their_views_say() {
        for (tp, ep, etp) in [(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 4, 2), (2, 2, 1), (4, 2, 2), (4, 4, 1)] {
            let places = places(tp, ep, etp);
            let held = times_held(&places, |spec| &spec.views);
            let (copies, num) = (kv_copies(&config(), tp), places.len());
            for (name, counts) in held {
                let expected = match name.as_str() {
                    _ if name.contains(".experts.") => num / (ep * etp),
                    _ if name.contains("k_proj") || name.contains("v_proj") => copies * num / tp,
                    _ if name.contains("norm") || name.contains("mlp.gate.") => num,
                    _ => num / tp,
                };
                assert!(
                    counts.iter().all(|count| *count == expected),
                    "{name} at {tp}, {ep}, {etp}: {counts:?}"
                );
            }
            for (name, counts) in times_held(&places, |spec| &spec.fused) {
                assert!(counts.iter().all(|count| *count == num / (ep * etp)), "{name} at {tp}, {ep}, {etp}");
            }
        }
    }

    #[test]
    fn rank_holds_its_heads_and_neighbours_share_a_key_value_head() {
        let config = config();
        let qkv = |rank: usize| {
            let place = Place { tp: Share { rank, size: 4 }, ..Place::default() };
            let all = storages(&config).into_iter().find(|spec| spec.name == "layers.0.qkv").unwrap();
            split(all, &config, place)
        };
        let parts = |rank: usize| qkv(rank).views.iter().map(|view| view.part.start[0]).collect::<Vec<_>>();
        assert_eq!([parts(0), parts(1), parts(3)], [[0, 0, 0], [8, 0, 0], [24, 4, 4]]);
        assert_eq!(qkv(1).shape, [16, 8]);
        assert_eq!(qkv(1).views.iter().map(|view| view.copies).collect::<Vec<_>>(), [1, 2, 2]);
    }

    #[test]
    fn shares_are_even_and_follow_each_other() {
        let shares: Vec<_> = (0..3).map(|rank| Share { rank, size: 3 }.of(8)).collect();
        assert_eq!(shares, [0..3, 3..6, 6..8]);
    }
}
