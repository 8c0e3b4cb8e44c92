//! Keys and values of running sequences in blocks: plain memory on the host, tensors on a device.

use slime_config::KvCacheDtype;
use slime_kernel::kv_fp8;
use slime_weights::kv_heads;
use tch::{Device, Tensor};

use crate::{Error, Model, Result};

/// Keys or values of one layer on the host in f32: keys `[block, head, head_dim, slot]`, so the scores of a block's slots
/// are one vector; values `[block, head, slot, head_dim]`, so they add up in vectors.
pub(crate) type HostBlocks = Vec<f32>;

/// Keys and values of one layer.
#[derive(Debug)]
pub(crate) enum LayerKv {
    /// On the host.
    Host {
        /// Keys.
        k: HostBlocks,
        /// Values.
        v: HostBlocks,
    },
    /// On a device, `[num_blocks * block_size, num_kv_heads, head_dim]`; codes of `kv_fp8` where they are in e4m3.
    Device {
        /// Keys.
        k: Tensor,
        /// Values.
        v: Tensor,
    },
}

/// The shape of a block: slots, heads and their width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockShape {
    pub block_size: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
}

impl BlockShape {
    /// Elements of one block of one layer's keys.
    pub fn block_len(self) -> usize {
        self.block_size * self.num_kv_heads * self.head_dim
    }

    /// First element of head `head` of `block`.
    pub fn head_start(self, block: u32, head: usize) -> usize {
        block as usize * self.block_len() + head * self.block_size * self.head_dim
    }
}

/// Blocks of keys and values of every layer.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerKv>,
    /// All of it where it is on a device, `[layers, 2, num_blocks * block_size, num_kv_heads, head_dim]`.
    on_device: Option<Tensor>,
    shape: BlockShape,
    num_blocks: usize,
    device: Device,
    dtype: KvCacheDtype,
}

impl KvCache {
    /// `num_blocks` blocks of `block_size` tokens for the key-value heads that this rank has of `model`; on a device in its type or in
    /// e4m3, on the host in f32, with what e4m3 leaves of a number.
    ///
    /// # Errors
    /// There is no room.
    pub fn new(model: &Model, num_blocks: usize, block_size: usize, dtype: KvCacheDtype) -> Result<Self> {
        let (config, params) = (model.config(), model.params());
        let device = params.device();
        check_gpu(device, dtype)?;
        let kind = if dtype == KvCacheDtype::Fp8E4m3 { kv_fp8::CODES } else { params.kind() };
        let (num_kv_heads, head_dim) = (num_kv_heads(model), config.head_dim);
        let shape = BlockShape { block_size, num_kv_heads, head_dim };
        let num_layers = config.num_hidden_layers;
        if device == Device::Cpu {
            let len = num_blocks * shape.block_len();
            let layer = || LayerKv::Host { k: vec![0.0; len], v: vec![0.0; len] };
            let layers = (0..num_layers).map(|_| layer()).collect();
            return Ok(Self { layers, on_device: None, shape, num_blocks, device, dtype });
        }
        let num_slots = (num_blocks * block_size) as i64;
        let size = [num_layers as i64, 2, num_slots, num_kv_heads as i64, head_dim as i64];
        let all = Tensor::f_zeros(size, (kind, device))?;
        let layers = (0..num_layers as i64)
            .map(|at| {
                let layer = all.f_select(0, at)?;
                Ok(LayerKv::Device { k: layer.f_select(0, 0)?, v: layer.f_select(0, 1)? })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { layers, on_device: Some(all), shape, num_blocks, device, dtype })
    }

    /// Bytes that one block takes over all layers on this rank.
    pub fn block_bytes(model: &Model, block_size: usize, dtype: KvCacheDtype) -> usize {
        let (config, params) = (model.config(), model.params());
        let element = match (params.device(), dtype) {
            (Device::Cpu, _) => 4,
            (_, KvCacheDtype::Fp8E4m3) => 1,
            (_, KvCacheDtype::Auto) => params.kind().elt_size_in_bytes(),
        };
        2 * config.num_hidden_layers * num_kv_heads(model) * config.head_dim * block_size * element
    }

    /// Whether keys and values are in e4m3.
    pub(crate) fn is_fp8(&self) -> bool {
        self.dtype == KvCacheDtype::Fp8E4m3
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.shape.block_size
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Where the blocks are.
    pub fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn shape(&self) -> BlockShape {
        self.shape
    }

    pub(crate) fn layer_mut(&mut self, at: usize) -> Result<&mut LayerKv> {
        let expected = self.layers.len();
        self.layers.get_mut(at).ok_or(Error::Context { what: "layers of the cache", expected, got: at })
    }

    /// Copies blocks `(from, to)` in every layer, in this order, so a shared last block can be continued by one sequence.
    ///
    /// # Errors
    /// A block does not exist.
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) -> Result<()> {
        let mut blocks = copies.iter().flat_map(|(from, to)| [*from, *to]);
        if let Some(block) = blocks.find(|block| *block as usize >= self.num_blocks) {
            let (expected, got) = (self.num_blocks, block as usize);
            return Err(Error::Context { what: "number of blocks", expected, got });
        }
        if self.on_device.is_some() {
            return self.copy_on_device(copies);
        }
        let len = self.shape.block_len();
        for layer in &mut self.layers {
            let LayerKv::Host { k, v } = layer else { continue };
            for &(from, to) in copies {
                let source = from as usize * len..(from as usize + 1) * len;
                k.copy_within(source.clone(), to as usize * len);
                v.copy_within(source, to as usize * len);
            }
        }
        Ok(())
    }

    /// All copies at once, but for those that read what another one writes.
    fn copy_on_device(&mut self, copies: &[(u32, u32)]) -> Result<()> {
        let Some(all) = &self.on_device else { return Ok(()) };
        let (size, num_blocks) = (all.size(), self.num_blocks as i64);
        let mut blocks = all.f_view([size[0] * size[1], num_blocks, -1])?;
        let mut rest = copies;
        while !rest.is_empty() {
            let is_read_late = |at: &usize| rest[..*at].iter().any(|(_, to)| *to == rest[*at].0);
            let len = (1..rest.len()).find(is_read_late).unwrap_or(rest.len());
            let (now, later) = rest.split_at(len);
            let index = |ids: Vec<i64>| Tensor::f_from_slice(&ids)?.f_to_device(self.device);
            let from = index(now.iter().map(|(from, _)| i64::from(*from)).collect())?;
            let to = index(now.iter().map(|(_, to)| i64::from(*to)).collect())?;
            let _ = blocks.f_index_copy_(1, &to, &blocks.f_index_select(1, &from)?)?;
            rest = later;
        }
        Ok(())
    }
}

/// Key-value heads of a rank.
fn num_kv_heads(model: &Model) -> usize {
    kv_heads(model.config(), model.params().place().tp).len()
}

/// That a GPU writes e4m3.
fn check_gpu(device: Device, dtype: KvCacheDtype) -> Result<()> {
    let Device::Cuda(number) = device else { return Ok(()) };
    let arch = slime_cuda::Device::open(number)?.arch()?;
    let version = arch.trim_start_matches("sm_").parse::<u32>().unwrap_or(0);
    if dtype == KvCacheDtype::Auto || version >= 89 {
        return Ok(());
    }
    let text = format!("rollout.kv_cache_dtype \"fp8_e4m3\": expected a GPU of sm_89 or later, got {arch}");
    Err(slime_config::Error::Conflict(text).into())
}
