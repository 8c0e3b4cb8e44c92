//! An engine over the weights of a configuration, as large as the device allows.

use std::path::Path;
use std::sync::Arc;

use slime_cli::Failure;
use slime_config::RunConfig;
use slime_engine::{Decode, Engine, EngineConfig, ModelRunner};

use crate::failure;
use crate::memory;
use crate::ranks;
use crate::sampler::Sampler;

/// Tokens of a forward pass on a CPU, where a pass soon takes as long as its tokens, and on a GPU.
const BATCH_TOKENS: usize = 1024;
const DEVICE_BATCH_TOKENS: usize = 8192;

impl Sampler {
    /// An engine that only scores.
    pub fn load_engine(config: &RunConfig, version: u64) -> Result<Engine<ModelRunner>, Failure> {
        Self::load_engine_with(config, version, Arc::new(|_: &[u32]| String::new()))
    }

    /// An engine that turns tokens into text.
    pub fn load_engine_with(
        config: &RunConfig,
        version: u64,
        decode: Arc<Decode>,
    ) -> Result<Engine<ModelRunner>, Failure> {
        let (kind, device) = ranks::place(config)?;
        tracing::info!("computing in {}", slime_torch::cuda::describe(kind, device));
        let runner = ranks::load(Path::new(&config.model.path), (kind, device))?;
        let runner = runner.with_kv_dtype(config.rollout.kv_cache_dtype);
        let max_num_seqs = config.rollout.max_in_flight as usize;
        let prompt_len = config.data.max_prompt_len.unwrap_or(config.longest_response());
        let seq_len = (prompt_len + config.longest_response()) as usize;
        let context_len = slime_engine::ForwardModel::context_len(&runner);
        let block_bytes = runner.block_bytes(memory::BLOCK_SIZE);
        let engine_config = EngineConfig {
            block_size: memory::BLOCK_SIZE,
            num_blocks: memory::num_blocks(device, block_bytes, max_num_seqs, seq_len, context_len)?,
            max_num_seqs,
            max_batch_tokens: if device.is_cuda() { DEVICE_BATCH_TOKENS } else { BATCH_TOKENS },
            context_len: None,
            num_draft_tokens: config.rollout.speculative_num_draft_tokens as usize,
            prefix_cache: config.rollout.prefix_cache,
        };
        Engine::new(runner, decode, &engine_config, version).map_err(failure!())
    }
}
