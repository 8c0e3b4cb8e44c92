//! What a forward pass knows about its tokens: positions, who attends to whom, and where keys and values are kept.

use std::rc::Rc;
use std::sync::Arc;

use slime_config::CpCommType;
use slime_torch::Group;
use tch::{Device, Kind, Tensor};

use crate::device_batch::DeviceBatch;
use crate::ops::ring_attention::Ring;
use crate::packed_lists::PackedLists;
use crate::routing::Routing;
use crate::spans::{Span, spans};
use crate::{ContextRanks, Error, KvCache, Result, Routes, TokenShares, Workspace};

/// A run of tokens in a packed batch that attends causally to itself and fully to its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First token in the batch.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// Tokens `(start, len)` of the batch that every token of the segment sees, such as a group's shared prompt.
    pub prefix: Option<(usize, usize)>,
    /// Position of the first token.
    pub position: usize,
}

impl Segment {
    /// A sequence of its own.
    pub fn alone(start: usize, len: usize) -> Self {
        Self { start, len, prefix: None, position: 0 }
    }

    /// A continuation of the tokens `prefix = (start, len)` of the batch, which begin at position 0.
    pub fn after(prefix: (usize, usize), start: usize, len: usize) -> Self {
        Self { start, len, prefix: Some(prefix), position: prefix.1 }
    }
}

/// The ranks that have the tokens of a batch between them.
#[derive(Debug)]
pub(crate) enum ContextGroup {
    /// Each gets the keys of all.
    Gather(Gather),
    /// Keys go round.
    Ring(Arc<Ring>),
}

/// What a gather of keys takes.
#[derive(Debug)]
pub(crate) struct Gather {
    pub group: Group,
    /// Tokens of each rank.
    pub counts: Vec<usize>,
    /// Where each token of the batch is behind a gather of all ranks' rows, `[T]` i64.
    pub places_t: Tensor,
}

/// Whole sequences side by side, under autograd or not.
#[derive(Debug)]
pub struct Packed {
    /// The attention calls, where there are no lists.
    pub(crate) spans: Vec<Span>,
    /// Where ranks have the tokens between them.
    pub(crate) cp: Option<ContextGroup>,
    /// In bf16 on a GPU, where all sequences are one call.
    pub(crate) lists: Option<PackedLists>,
    routing: Routing,
    positions_t: Tensor,
    num_tokens: usize,
    workspace: Rc<Workspace>,
    pub(crate) recomputes_ops: bool,
}

/// New tokens of running sequences whose keys and values are kept in blocks; without gradient.
#[derive(Debug)]
pub struct Paged<'a> {
    /// The blocks.
    pub(crate) kv: &'a mut KvCache,
    /// Blocks of each sequence, in order; sequences may share blocks they only read.
    pub(crate) block_tables: &'a [Vec<u32>],
    /// New tokens of each sequence.
    pub(crate) q_lens: Vec<usize>,
    /// Tokens of each sequence including the new ones.
    pub(crate) context_lens: Vec<usize>,
    /// The lists above on the cache's device, made once for all layers; none on the host.
    pub(crate) on_device: Option<DeviceBatch>,
    routing: Routing,
    positions_t: Tensor,
    num_tokens: usize,
    pub(crate) workspace: Rc<Workspace>,
}

/// The two ways of running the same layers.
#[derive(Debug)]
pub enum Context<'a> {
    /// Whole sequences.
    Packed(Packed),
    /// New tokens over cached keys and values.
    Paged(Paged<'a>),
}

impl<'a> Context<'a> {
    /// A packed batch; segments follow each other without gaps, `kind` is that of the model.
    ///
    /// # Errors
    /// The segments leave a gap or a prefix is outside the tokens before its segment.
    pub fn packed(segments: &[Segment], kind: Kind, device: Device) -> Result<Self> {
        Self::packed_over(segments, (kind, device), None)
    }

    /// The same where the ranks of `cp` have the tokens between them ([`TokenShares`]): positions and number of tokens are
    /// this rank's.
    ///
    /// # Errors
    /// As [`Self::packed`].
    pub fn packed_over(
        segments: &[Segment],
        (kind, device): (Kind, Device),
        cp: Option<&ContextRanks>,
    ) -> Result<Self> {
        let mut positions: Vec<i64> = Vec::new();
        for segment in segments {
            if segment.start != positions.len() {
                let (expected, got) = (positions.len(), segment.start);
                return Err(Error::Context { what: "start of a segment", expected, got });
            }
            if let Some((start, len)) = segment.prefix.filter(|(start, len)| start + len > segment.start) {
                let (expected, got) = (segment.start, start + len);
                return Err(Error::Context { what: "end of a prefix", expected, got });
            }
            positions.extend((segment.position..segment.position + segment.len).map(|p| p as i64));
        }
        let (rank, size) = cp.map_or((0, 1), |cp| (cp.group.rank(), cp.group.size()));
        let shares = TokenShares::new(segments, size);
        let own: Vec<i64> = shares.of(rank).iter().map(|token| positions[*token]).collect();
        let index = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
        let is_ring = cp.is_some_and(|cp| cp.comm_type == CpCommType::P2p);
        let is_one_call = cp.is_none() && device.is_cuda() && kind == Kind::BFloat16;
        let lists = is_one_call.then(|| PackedLists::new(segments, device)).transpose()?;
        let spans = if is_ring || is_one_call {
            Vec::new()
        } else {
            spans(segments, shares.pieces(rank), kind, device)?
        };
        let cp = cp.map(|ContextRanks { group, .. }| {
            let group = group.clone();
            if is_ring {
                return Ok(ContextGroup::Ring(Arc::new(Ring { group, segments: segments.to_vec(), shares })));
            }
            let gather = Gather { group, counts: shares.counts(), places_t: index(&shares.places())? };
            Ok::<_, Error>(ContextGroup::Gather(gather))
        });
        Ok(Self::Packed(Packed {
            spans,
            lists,
            cp: cp.transpose()?,
            routing: Routing::default(),
            positions_t: index(&own)?,
            num_tokens: own.len(),
            workspace: Rc::default(),
            recomputes_ops: false,
        }))
    }

    /// A paged batch: the tokens of sequence i are its last `q_lens[i]` of `context_lens[i]`, kept in `block_tables[i]`.
    ///
    /// # Errors
    /// The lists differ in length, or a block table is too short for its context.
    pub fn paged(
        kv: &'a mut KvCache,
        block_tables: &'a [Vec<u32>],
        q_lens: &[u32],
        context_lens: &[u32],
    ) -> Result<Self> {
        for (what, got) in [("block tables", block_tables.len()), ("context lengths", context_lens.len())] {
            if got != q_lens.len() {
                return Err(Error::Context { what, expected: q_lens.len(), got });
            }
        }
        let as_usize = |lens: &[u32]| lens.iter().map(|len| *len as usize).collect::<Vec<_>>();
        let (q_lens, context_lens) = (as_usize(q_lens), as_usize(context_lens));
        let mut positions: Vec<i64> = Vec::new();
        for ((table, &q_len), &context_len) in block_tables.iter().zip(&q_lens).zip(&context_lens) {
            let expected = context_len.div_ceil(kv.block_size());
            if table.len() < expected {
                return Err(Error::Context { what: "blocks of a sequence", expected, got: table.len() });
            }
            if let Some(&block) = table.iter().find(|block| **block as usize >= kv.num_blocks()) {
                let got = block as usize;
                return Err(Error::Context { what: "number of blocks", expected: kv.num_blocks(), got });
            }
            if q_len > context_len {
                return Err(Error::Context {
                    what: "new tokens of a sequence",
                    expected: context_len,
                    got: q_len,
                });
            }
            positions.extend((context_len - q_len..context_len).map(|p| p as i64));
        }
        let positions_t = Tensor::f_from_slice(&positions)?.f_to_device(kv.device())?;
        let num_tokens = positions.len();
        let on_device = match kv.device() {
            Device::Cpu => None,
            device => Some(DeviceBatch::new(block_tables, &q_lens, &context_lens, kv.block_size(), device)?),
        };
        let workspace = Rc::default();
        Ok(Self::Paged(Paged {
            kv,
            block_tables,
            q_lens,
            context_lens,
            on_device,
            routing: Routing::default(),
            positions_t,
            num_tokens,
            workspace,
        }))
    }

    /// One new token of each of `num_rows` sequences, whose lists are on the device already and are read there alone.
    pub(crate) fn decode(
        kv: &'a mut KvCache,
        num_rows: usize,
        on_device: DeviceBatch,
        workspace: Rc<Workspace>,
    ) -> Self {
        let positions_t = on_device.slots_t.shallow_clone();
        Self::Paged(Paged {
            kv,
            block_tables: &[],
            q_lens: vec![1; num_rows],
            context_lens: vec![1; num_rows],
            on_device: Some(on_device),
            routing: Routing::default(),
            positions_t,
            num_tokens: num_rows,
            workspace,
        })
    }

    /// From now on what the routers choose is kept for [`Self::take_routes`].
    #[must_use]
    pub fn recording_routes(mut self) -> Self {
        self.routing().kept = Some(Vec::new());
        self
    }

    /// From now on what lies between the products of a layer is dropped under autograd and computed again in backward.
    #[must_use]
    pub fn recomputing_ops(mut self) -> Self {
        if let Self::Packed(packed) = &mut self {
            packed.recomputes_ops = true;
        }
        self
    }

    /// Whether what lies between products is computed again.
    pub(crate) fn recomputes_ops(&self) -> bool {
        matches!(self, Self::Packed(packed) if packed.recomputes_ops)
    }

    /// Every token goes to the experts of `routes`, which are on the device of the model, except those that nobody recorded.
    ///
    /// # Errors
    /// The routes are of another number of tokens.
    pub fn replaying_routes(mut self, routes: Routes) -> Result<Self> {
        let (expected, got) = (self.num_tokens(), routes.num_tokens());
        if expected != got {
            return Err(Error::Context { what: "tokens with experts to replay", expected, got });
        }
        self.routing().given = Some(routes);
        Ok(self)
    }

    /// The experts of every token in the pass behind, if they were to be recorded and the model has experts.
    ///
    /// # Errors
    /// There is no room.
    pub fn take_routes(&mut self) -> Result<Option<Routes>> {
        self.routing().take()
    }

    pub(crate) fn routing(&mut self) -> &mut Routing {
        match self {
            Self::Packed(packed) => &mut packed.routing,
            Self::Paged(paged) => &mut paged.routing,
        }
    }

    /// Where operations put their results.
    pub(crate) fn workspace(&self) -> Rc<Workspace> {
        match self {
            Self::Packed(packed) => packed.workspace.clone(),
            Self::Paged(paged) => paged.workspace.clone(),
        }
    }

    /// Position of every token, `[t]` i64.
    pub fn positions(&self) -> &Tensor {
        match self {
            Self::Packed(packed) => &packed.positions_t,
            Self::Paged(paged) => &paged.positions_t,
        }
    }

    /// Number of tokens.
    pub fn num_tokens(&self) -> usize {
        match self {
            Self::Packed(packed) => packed.num_tokens,
            Self::Paged(paged) => paged.num_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_between_segments_is_refused() {
        let segments = [Segment::alone(0, 3), Segment::alone(4, 2)];
        let error = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap_err();
        assert_eq!(error.to_string(), "start of a segment: expected 3, got 4");
    }

    #[test]
    fn positions_continue_after_the_prefix() {
        let segments = [Segment::alone(0, 3), Segment::after((0, 3), 3, 2), Segment::after((0, 3), 5, 2)];
        let context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
        assert_eq!(Vec::<i64>::try_from(context.positions()).unwrap(), [0, 1, 2, 3, 4, 3, 4]);
    }
}
