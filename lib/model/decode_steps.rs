//! Steps of one new token for each sequence on a GPU: recorded once for each size, then sent as a whole, with the drawing of
//! tokens; the host prepares the next step while one runs. Suffixes: n rows, d hidden size, v vocabulary, b blocks.
#![expect(unsafe_code, reason = "copies between the host and a GPU")]

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use slime_config::QkNormScope;
use slime_cuda::{Event, Graph, Pinned};
use slime_kernel::decode_inputs::{self, Inputs, Tokens};
use slime_kernel::paged_attention::{Items, partials};
use slime_kernel::sample::{self, Draw};
use slime_torch::Stream;
use tch::{Device, Kind, Tensor};

use crate::device_batch::DeviceBatch;
use crate::step_lists::Shape;
use crate::{Context, Error, KvCache, Model, Result, Workspace};

/// Steps that may be on their way: one runs, one waits behind it, and the lists of a third are being written.
const MOST_ON_THE_WAY: usize = 3;

/// How the token of a row is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowDraw {
    /// 1 / temperature, 0 for the most likely token.
    pub inverse_temperature: f32,
    /// Tokens that are kept, 0 for all.
    pub top_k: u32,
    /// Of the probability, what is kept.
    pub top_p: f32,
    /// Of the largest probability, what a kept one has at least.
    pub min_p: f32,
    /// What decides, in [0, 1).
    pub uniform: f64,
}

/// One sequence of a step.
#[derive(Debug, Clone, Copy)]
pub struct DecodeRow<'a> {
    /// Its last token, or `Err(row)` for what that row of the step before draws.
    pub token: std::result::Result<u32, u32>,
    /// The position of that token.
    pub position: u32,
    /// Its blocks.
    pub table: &'a [u32],
    /// How the next one is drawn.
    pub draw: RowDraw,
}

/// Memory, graphs and results of steps.
pub struct DecodeSteps {
    device: Device,
    stream: Stream,
    max_rows: usize,
    block_size: usize,
    /// The lists of a step as the host writes them, one after the other in turn, and on the GPU.
    staged: Vec<Pinned>,
    next: usize,
    lists: Tensor,
    sampled_n: Tensor,
    log_probs_n: Tensor,
    logits_nv: Tensor,
    inputs: Inputs,
    numbers_n: Tensor,
    workspace: Rc<Workspace>,
    /// With what their attention leaves between its splits.
    graphs: HashMap<Shape, (Graph, [Tensor; 2])>,
    drawn: Vec<(Pinned, Pinned, Event)>,
    /// Number of rows of each step whose results were not taken yet, and where they are.
    on_the_way: VecDeque<(usize, usize)>,
}

impl std::fmt::Debug for DecodeSteps {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("DecodeSteps")
            .field("max_rows", &self.max_rows)
            .field("num_graphs", &self.graphs.len())
            .field("on_the_way", &self.on_the_way)
            .finish_non_exhaustive()
    }
}

impl DecodeSteps {
    /// Whether every operation of a step of this model can leave its results in fixed memory: messages between ranks, experts, norms behind attention and
    /// MLP and rotations other than of whole heads in halves cannot.
    pub fn is_supported(model: &Model) -> bool {
        let (config, params) = (model.config(), model.params());
        let (kind, device) = (params.kind(), params.device());
        let [hidden, intermediate, dim] =
            [config.hidden_size, config.intermediate_size, config.head_dim].map(|width| width as i64);
        let is_plain = config.moe.is_none()
            && params.parallel().is_none()
            && !config.has_post_norms
            && !config.is_rope_interleaved
            && config.rotary_dim == config.head_dim
            && config.qk_norm != Some(QkNormScope::AllHeads);
        is_plain
            && slime_kernel::add_norm::is_supported(kind, hidden, device)
            && slime_kernel::silu_mul::is_supported(kind, intermediate, device)
            && slime_kernel::qk_norm_rope::is_supported(kind, dim, device)
            && slime_kernel::paged_attention::is_supported(kind, dim, device)
    }

    /// For up to `max_rows` sequences over the blocks of `kv`; everything of theirs is sent to `stream`.
    ///
    /// # Errors
    /// There is no room, or the model is on no GPU.
    pub fn new(model: &Model, kv: &KvCache, max_rows: usize, stream: Stream) -> Result<Self> {
        let device = kv.device();
        let Device::Cuda(number) = device else {
            return Err(Error::Context { what: "GPUs of a decode step", expected: 1, got: 0 });
        };
        let gpu = slime_cuda::Device::open(number)?;
        let config = model.config();
        let max_rows = Shape::rows_for(max_rows);
        let longest = config.max_position_embeddings.min(kv.num_blocks() * kv.block_size());
        let list_bytes = Shape::of(max_rows, longest, kv.block_size()).bytes();
        let (n, kind) = (max_rows as i64, model.params().kind());
        let empty = |size: &[i64], kind| Tensor::f_empty(size, (kind, device));
        let half = config.head_dim as i64 / 2;
        let result = || {
            let bytes = Pinned::new(&gpu, 4 * max_rows)?;
            Ok::<_, Error>((bytes, Pinned::new(&gpu, 4 * max_rows)?, Event::new(&gpu)?))
        };
        Ok(Self {
            device,
            stream,
            max_rows,
            block_size: kv.block_size(),
            staged: (0..MOST_ON_THE_WAY)
                .map(|_| Ok(Pinned::new(&gpu, list_bytes)?))
                .collect::<Result<_>>()?,
            next: 0,
            lists: empty(&[list_bytes as i64], Kind::Uint8)?,
            sampled_n: Tensor::f_zeros([n], (Kind::Int, device))?,
            log_probs_n: empty(&[n], Kind::Float)?,
            logits_nv: empty(&[n, config.vocab_size as i64], Kind::Float)?,
            inputs: Inputs {
                x_nd: empty(&[n, config.hidden_size as i64], kind)?,
                cos_nr: empty(&[n, half], Kind::Float)?,
                sin_nr: empty(&[n, half], Kind::Float)?,
                slots_n: empty(&[n], Kind::Int64)?,
                visible_n: empty(&[n], Kind::Int)?,
            },
            numbers_n: Tensor::f_arange(n, (Kind::Int, device))?,
            workspace: Rc::new(Workspace::fixed(model.layer_bytes(max_rows), device)?),
            graphs: HashMap::new(),
            drawn: (0..MOST_ON_THE_WAY).map(|_| result()).collect::<Result<_>>()?,
            on_the_way: VecDeque::new(),
        })
    }

    /// Most sequences of a step.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Steps whose results were not taken yet.
    pub fn num_on_the_way(&self) -> usize {
        self.on_the_way.len()
    }

    /// Sends a step of one new token for each of `rows`; the stream has to be this thread's current one.
    ///
    /// # Errors
    /// More rows than there is room for, or the driver refuses.
    pub fn launch(&mut self, model: &Model, kv: &mut KvCache, rows: &[DecodeRow<'_>]) -> Result<()> {
        let longest = rows.iter().map(|row| row.position as usize + 1).max().unwrap_or(0);
        let shape = Shape::of(rows.len(), longest, self.block_size);
        self.check(rows.len(), shape)?;
        shape.write(self.staged[self.next].bytes_mut(), rows);
        self.send(shape)?;
        if !self.graphs.contains_key(&shape) {
            // The first time everything is loaded and made room for, into results that nobody reads.
            let partials = self.partials(model, shape)?;
            let unread = [self.sampled_n.f_empty_like()?, self.log_probs_n.f_empty_like()?];
            self.step(model, kv, shape, (&unread, &partials))?;
            let results = [self.sampled_n.shallow_clone(), self.log_probs_n.shallow_clone()];
            let record = || self.step(model, kv, shape, (&results, &partials));
            let graph = Graph::record(self.stream.handle(), record)?;
            self.graphs.insert(shape, (graph, partials));
        }
        if let Some((graph, _)) = self.graphs.get_mut(&shape) {
            // SAFETY: every address of the graph is of memory that this object, the model or the cache holds.
            unsafe { graph.launch(self.stream.handle())? };
        }
        self.finish(rows.len())
    }

    /// Draws the tokens of a forward pass that was no step of this: `logits_nv` in f32, one row for each draw.
    ///
    /// # Errors
    /// More rows than there is room for, or the driver refuses.
    pub fn draw(&mut self, logits_nv: &Tensor, draws: &[RowDraw]) -> Result<()> {
        let num_rows = draws.len();
        let shape = Shape::of(num_rows, 0, self.block_size);
        self.check(num_rows, shape)?;
        shape.write_draws(self.staged[self.next].bytes_mut(), draws);
        self.send(shape)?;
        let few = |tensor: &Tensor| tensor.f_narrow(0, 0, num_rows as i64);
        let views = shape.views(&self.lists)?;
        let draw = Draw { params_n4: &few(&views.params_n4)?, uniforms_n: &few(&views.uniforms_n)? };
        sample::serve(logits_nv, draw, &few(&self.sampled_n)?, &few(&self.log_probs_n)?)?;
        self.finish(num_rows)
    }

    /// What the rows `rows` of the newest step draw, i64 on the GPU.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn newest(&self, rows: &[i64]) -> Result<Tensor> {
        let rows = Tensor::f_from_slice(rows)?.f_to_device(self.device)?;
        Ok(self.sampled_n.f_index_select(0, &rows)?.f_to_kind(Kind::Int64)?)
    }

    /// Tokens (-1 where the logits were no numbers) and log-probs of the oldest step on its way, when it has ended; none
    /// where no step is on its way.
    ///
    /// # Errors
    /// What the GPU did failed.
    pub fn collect(&mut self) -> Result<Vec<(i32, f32)>> {
        let Some((num_rows, at)) = self.on_the_way.pop_front() else { return Ok(Vec::new()) };
        let (tokens, log_probs, event) = &self.drawn[at];
        event.wait()?;
        let words = |pinned: &Pinned| {
            let (words, _) = pinned.bytes().as_chunks::<4>();
            words.iter().take(num_rows).copied().collect::<Vec<_>>()
        };
        let pairs = words(tokens).into_iter().zip(words(log_probs));
        Ok(pairs.map(|(token, log_prob)| (i32::from_le_bytes(token), f32::from_le_bytes(log_prob))).collect())
    }

    fn check(&self, num_rows: usize, shape: Shape) -> Result<()> {
        if num_rows > self.max_rows {
            return Err(Error::Context { what: "rows of a step", expected: self.max_rows, got: num_rows });
        }
        if self.on_the_way.len() >= MOST_ON_THE_WAY - 1 {
            let (expected, got) = (MOST_ON_THE_WAY - 1, self.on_the_way.len() + 1);
            return Err(Error::Context { what: "steps on their way", expected, got });
        }
        let (expected, got) = (self.lists.numel(), shape.bytes());
        if got > expected {
            return Err(Error::Context { what: "bytes of a step's lists", expected, got });
        }
        Ok(())
    }

    fn send(&mut self, shape: Shape) -> Result<()> {
        let (target, num_bytes) = (self.lists.data_ptr() as u64, shape.bytes());
        // SAFETY: the lists hold as many bytes, and these are written again only after the step that reads them was collected.
        unsafe { self.staged[self.next].copy_to(target, num_bytes, self.stream.handle())? };
        self.next = (self.next + 1) % MOST_ON_THE_WAY;
        Ok(())
    }

    /// Brings the results of what was just sent to the host.
    fn finish(&mut self, num_rows: usize) -> Result<()> {
        let at = (self.next + MOST_ON_THE_WAY - 1) % MOST_ON_THE_WAY;
        let (tokens, log_probs, event) = &mut self.drawn[at];
        let stream = self.stream.handle();
        let address = |tensor: &Tensor| tensor.data_ptr() as u64;
        // SAFETY: both have room for every row; they are read only after the event.
        unsafe {
            tokens.copy_from(address(&self.sampled_n), 4 * num_rows, stream)?;
            log_probs.copy_from(address(&self.log_probs_n), 4 * num_rows, stream)?;
        }
        event.record(stream)?;
        self.on_the_way.push_back((num_rows, at));
        Ok(())
    }

    /// Everything of a step that runs on the GPU.
    fn step(
        &self,
        model: &Model,
        kv: &mut KvCache,
        shape: Shape,
        (results, partials): (&[Tensor; 2], &[Tensor; 2]),
    ) -> Result<()> {
        tch::no_grad(|| {
            let num_rows = shape.rows as i64;
            let few = |tensor: &Tensor| tensor.f_narrow(0, 0, num_rows);
            let views = shape.views(&self.lists)?;
            let all = &self.inputs;
            let inputs = Inputs {
                x_nd: few(&all.x_nd)?,
                cos_nr: few(&all.cos_nr)?,
                sin_nr: few(&all.sin_nr)?,
                slots_n: few(&all.slots_n)?,
                visible_n: few(&all.visible_n)?,
            };
            let tokens = Tokens {
                tokens_n: &views.tokens_n,
                positions_n: &views.positions_n,
                sampled: &self.sampled_n,
                tables_nb: &views.tables_nb,
                block_size: self.block_size,
            };
            decode_inputs::serve(tokens, model.embed()?, model.rope().inv_freq(), &inputs)?;
            self.workspace.reset();
            let rows_n = few(&self.numbers_n)?;
            let decode = Items {
                seqs_n: rows_n.shallow_clone(),
                rows_n,
                visible_n: inputs.visible_n,
                tables_sb: views.tables_nb,
                max_visible: shape.blocks * self.block_size,
                block_size: self.block_size,
                partials: Some(partials.each_ref().map(Tensor::shallow_clone)),
            };
            let on_device = DeviceBatch { slots_t: inputs.slots_n, decode, prefill: None };
            let mut context = Context::decode(kv, shape.rows, on_device, self.workspace.clone());
            let angles = (inputs.cos_nr, inputs.sin_nr);
            let hidden_nd = model.forward_layers(&mut context, inputs.x_nd, &angles)?;
            let logits_nv = few(&self.logits_nv)?;
            model.logits_into(&hidden_nd, &logits_nv)?;
            let draw = Draw { params_n4: &views.params_n4, uniforms_n: &views.uniforms_n };
            Ok(sample::serve(&logits_nv, draw, &few(&results[0])?, &few(&results[1])?)?)
        })
    }

    /// Memory for the splits of attention: the logits, which come after it, as far as there is room.
    fn partials(&self, model: &Model, shape: Shape) -> Result<[Tensor; 2]> {
        let config = model.config();
        let (heads, dim) = (config.num_attention_heads as i64, config.head_dim as i64);
        let (num_rows, max_visible) = (shape.rows as i64, shape.blocks * self.block_size);
        let of = |device| partials(num_rows, heads, dim, max_visible, device);
        let [sums, weights] = of(Device::Cpu)?.each_ref().map(|tensor| tensor.numel() as i64);
        let room = self.logits_nv.f_view([-1])?;
        if sums + weights > room.size1()? {
            return Ok(of(self.device)?);
        }
        Ok([
            room.f_narrow(0, 0, sums)?.f_view([sums / dim, dim])?,
            room.f_narrow(0, sums, weights)?.f_view([weights / 2, 2])?,
        ])
    }
}
