//! Keys and values of running sequences in blocks: plain memory on the host, tensors on a device.

use slime_config::HfConfig;
use tch::{Device, Kind, Tensor};

use crate::{Error, Result};

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
    /// On a device, `[num_blocks * block_size, num_kv_heads, head_dim]`.
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
    shape: BlockShape,
    num_blocks: usize,
    device: Device,
}

impl KvCache {
    /// `num_blocks` blocks of `block_size` tokens; in f32 on the host, in `kind` on a device.
    ///
    /// # Errors
    /// There is no room.
    pub fn new(
        config: &HfConfig,
        num_blocks: usize,
        block_size: usize,
        kind: Kind,
        device: Device,
    ) -> Result<Self> {
        let (num_kv_heads, head_dim) = (config.num_key_value_heads, config.head_dim);
        let shape = BlockShape { block_size, num_kv_heads, head_dim };
        let layers = (0..config.num_hidden_layers)
            .map(|_| {
                if device == Device::Cpu {
                    let len = num_blocks * shape.block_len();
                    return Ok(LayerKv::Host { k: vec![0.0; len], v: vec![0.0; len] });
                }
                let size = [(num_blocks * block_size) as i64, num_kv_heads as i64, head_dim as i64];
                let zeros = || Tensor::f_zeros(size, (kind, device));
                Ok(LayerKv::Device { k: zeros()?, v: zeros()? })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { layers, shape, num_blocks, device })
    }

    /// Bytes that one block takes over all layers.
    pub fn block_bytes(config: &HfConfig, block_size: usize, kind: Kind, device: Device) -> usize {
        let element = if device == Device::Cpu { 4 } else { kind.elt_size_in_bytes() };
        2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * block_size * element
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

    /// Copies block `from` over block `to` in every layer, so a shared last block can be continued by one sequence.
    ///
    /// # Errors
    /// A block does not exist.
    pub fn copy_block(&mut self, from: u32, to: u32) -> Result<()> {
        for block in [from, to] {
            if block as usize >= self.num_blocks {
                let (expected, got) = (self.num_blocks, block as usize);
                return Err(Error::Context { what: "number of blocks", expected, got });
            }
        }
        let (len, rows) = (self.shape.block_len(), self.shape.block_size as i64);
        for layer in &mut self.layers {
            match layer {
                LayerKv::Host { k, v } => {
                    let source = from as usize * len..(from as usize + 1) * len;
                    k.copy_within(source.clone(), to as usize * len);
                    v.copy_within(source, to as usize * len);
                }
                LayerKv::Device { k, v } => {
                    for blocks in [k, v] {
                        let source = blocks.f_narrow(0, i64::from(from) * rows, rows)?;
                        blocks.f_narrow(0, i64::from(to) * rows, rows)?.f_copy_(&source)?;
                    }
                }
            }
        }
        Ok(())
    }
}
