//! Runs `slime_model` for the engine: batches become tensors, wanted rows become logits in plain memory.

use std::path::{Path, PathBuf};

use slime_config::KvCacheDtype;
use slime_model::{Context, DecodeRow, DecodeSteps, KvCache, Model, RowDraw};
use slime_torch::Stream;
use tch::{Device, Kind, Tensor, no_grad};

use crate::ranks::Lead;
use crate::{Batch, Error, ForwardModel, Result, RunsAhead};

/// A model with its KV cache on one device.
#[derive(Debug)]
pub struct ModelRunner {
    model: Model,
    kv: Option<KvCache>,
    kv_dtype: KvCacheDtype,
    /// The experts of the last batch that wanted them.
    routes: Vec<u16>,
    /// Where a GPU's work goes, and its steps.
    stream: Option<Stream>,
    steps: Option<DecodeSteps>,
    /// Where a model is split, on rank 0: the word to the others.
    lead: Option<Lead>,
    dir: PathBuf,
    device: Device,
}

impl ModelRunner {
    /// Loads the weight directory `dir`.
    ///
    /// # Errors
    /// [`Error::Model`] with what the model says about the directory.
    pub fn load(dir: &Path, kind: Kind, device: Device) -> Result<Self> {
        let mut model = Model::load(dir, kind, device).map_err(|error| failed(dir, &error))?;
        model.pack().map_err(|error| failed(dir, &error))?;
        Self::new(model, dir)
    }

    /// A model that was made or loaded elsewhere; `dir` names it in errors.
    ///
    /// # Errors
    /// CUDA is not open.
    pub fn new(model: Model, dir: &Path) -> Result<Self> {
        let device = model.params().device();
        let stream = match device {
            Device::Cuda(number) => {
                let stream = Stream::new(number).map_err(slime_model::Error::from);
                Some(stream.map_err(|error| failed(dir, &error))?)
            }
            _ => None,
        };
        Ok(Self {
            model,
            kv: None,
            kv_dtype: KvCacheDtype::Auto,
            routes: Vec::new(),
            stream,
            steps: None,
            lead: None,
            dir: dir.to_owned(),
            device,
        })
    }

    /// Keys and values are kept in this type from the next [`ForwardModel::allocate`] on.
    #[must_use]
    pub fn with_kv_dtype(self, kv_dtype: KvCacheDtype) -> Self {
        Self { kv_dtype, ..self }
    }

    /// The same, where others compute with it what it does.
    pub(crate) fn led_by(self, lead: Lead) -> Self {
        Self { lead: Some(lead), ..self }
    }

    /// Overwrites the parameters in place with those of `dir`, once all of them are found to be of this model.
    ///
    /// # Errors
    /// [`Error::Model`] before anything is overwritten, [`Error::Torn`] when reading breaks off half-way: then the next load
    /// has to replace everything.
    pub fn reload(&mut self, dir: &Path) -> Result<()> {
        let refused = |error: slime_weights::Error| Error::Model {
            dir: dir.to_owned(),
            exit_code: error.exit_code(),
            message: error.to_string(),
        };
        let weights = slime_weights::WeightDir::open(dir).map_err(refused)?;
        slime_weights::check(self.model.config(), &weights).map_err(refused)?;
        self.lead.as_ref().map_or(Ok(()), |lead| lead.reload(dir))?;
        // Behind the steps that read the old ones.
        let entered = self.stream.map(|stream| stream.enter()).transpose();
        let _entered = entered.map_err(|error| failed(dir, &error.into()))?;
        let torn =
            |error: slime_model::Error| Error::Torn { dir: dir.to_owned(), message: error.to_string() };
        self.model.params_mut().update_from(&weights).map_err(torn)?;
        self.model.pack().map_err(torn)?;
        dir.clone_into(&mut self.dir);
        Ok(())
    }

    /// The weight directory the parameters come from.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes one KV block of `block_size` tokens takes.
    pub fn block_bytes(&self, block_size: usize) -> usize {
        KvCache::block_bytes(&self.model, block_size, self.kv_dtype)
    }

    /// The hidden states `[rows, d]` whose logits are wanted; `late_t` are the tokens that the rows of `batch.late` have.
    fn hidden_states(&mut self, batch: &Batch, late_t: Option<&Tensor>) -> slime_model::Result<Tensor> {
        let index = |values: Vec<i64>| -> slime_model::Result<Tensor> {
            Ok(Tensor::f_from_slice(&values)?.f_to_device(self.device)?)
        };
        let mut tokens_t = index(batch.tokens.iter().map(|&token| i64::from(token)).collect())?;
        if let Some(late_t) = late_t {
            let rows_t = index(batch.late.iter().map(|&(row, _)| i64::from(row)).collect())?;
            let _ = tokens_t.f_index_copy_(0, &rows_t, late_t)?;
        }
        let kv = cache(&mut self.kv)?;
        let mut context = Context::paged(kv, &batch.block_tables, &batch.q_lens, &batch.context_lens)?;
        if batch.wants_routes {
            context = context.recording_routes();
        }
        let hidden_td = self.model.forward(&mut context, &tokens_t)?;
        if let Some(routes) = context.take_routes()? {
            self.routes = routes.ids()?;
        }
        if batch.logit_rows.len() == batch.tokens.len() {
            return Ok(hidden_td);
        }
        let rows_r = index(batch.logit_rows.iter().map(|&row| i64::from(row)).collect())?;
        Ok(hidden_td.f_index_select(0, &rows_r)?)
    }

    fn copy_blocks(&mut self, batch: &Batch) -> slime_model::Result<()> {
        if batch.copies.is_empty() {
            return Ok(());
        }
        let copies: Vec<(u32, u32)> = batch.copies.iter().map(|copy| (copy.from, copy.to)).collect();
        cache(&mut self.kv)?.copy_blocks(&copies)
    }

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> slime_model::Result<()> {
        let _entered = self.stream.map(|stream| stream.enter()).transpose()?;
        self.copy_blocks(batch)?;
        let hidden_rd = self.hidden_states(batch, None)?;
        logits.clear();
        if batch.logit_rows.is_empty() {
            return Ok(());
        }
        let logits_rv =
            self.model.whole_logits(&hidden_rd)?.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?;
        logits.resize(logits_rv.numel(), 0.0);
        logits_rv.f_contiguous()?.f_copy_data(logits, logits_rv.numel())?;
        Ok(())
    }

    fn launch_step(&mut self, batch: &Batch, draws: &[RowDraw]) -> slime_model::Result<()> {
        let _entered = self.stream.map(|stream| stream.enter()).transpose()?;
        self.copy_blocks(batch)?;
        let num_rows = batch.tokens.len();
        if batch.q_lens.len() == num_rows && batch.logit_rows.len() == num_rows {
            let mut tokens: Vec<Result<u32, u32>> = batch.tokens.iter().copied().map(Ok).collect();
            for &(row, before) in &batch.late {
                tokens[row as usize] = Err(before);
            }
            let rows: Vec<DecodeRow<'_>> = (0..num_rows)
                .map(|at| DecodeRow {
                    token: tokens[at],
                    position: batch.context_lens[at] - 1,
                    table: &batch.block_tables[at],
                    draw: draws[at],
                })
                .collect();
            let (Some(steps), Some(kv)) = (&mut self.steps, &mut self.kv) else { return Err(no_steps()) };
            return steps.launch(&self.model, kv, &rows);
        }
        let before: Vec<i64> = batch.late.iter().map(|&(_, before)| i64::from(before)).collect();
        let late_t = match &self.steps {
            Some(steps) if !before.is_empty() => Some(steps.newest(&before)?),
            _ => None,
        };
        let hidden_rd = self.hidden_states(batch, late_t.as_ref())?;
        let logits_rv = self.model.logits(&hidden_rd)?.f_contiguous()?;
        self.steps.as_mut().ok_or_else(no_steps)?.draw(&logits_rv, draws)
    }
}

/// The blocks, once there are any.
fn cache(kv: &mut Option<KvCache>) -> slime_model::Result<&mut KvCache> {
    kv.as_mut().ok_or(slime_model::Error::Context { what: "KV caches", expected: 1, got: 0 })
}

fn no_steps() -> slime_model::Error {
    slime_model::Error::Context { what: "GPUs that run ahead", expected: 1, got: 0 }
}

impl ForwardModel for ModelRunner {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn context_len(&self) -> usize {
        self.model.config().max_position_embeddings
    }

    fn allocate(&mut self, num_blocks: usize, block_size: usize, max_num_seqs: usize) -> Result<()> {
        self.lead
            .as_ref()
            .map_or(Ok(()), |lead| lead.allocate([num_blocks, block_size, max_num_seqs], self.kv_dtype))?;
        (self.steps, self.kv) = (None, None);
        let allocated = KvCache::new(&self.model, num_blocks, block_size, self.kv_dtype);
        let kv = self.kv.insert(allocated.map_err(|error| failed(&self.dir, &error))?);
        if let Some(stream) = self.stream.filter(|_| DecodeSteps::is_supported(&self.model)) {
            let steps = DecodeSteps::new(&self.model, kv, max_num_seqs, stream);
            self.steps = Some(steps.map_err(|error| failed(&self.dir, &error))?);
        }
        if let Device::Cuda(number) = self.device {
            // What was made so far was made on another stream.
            tch::Cuda::synchronize(number as i64);
        }
        Ok(())
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<()> {
        self.lead.as_ref().map_or(Ok(()), |lead| lead.forward(batch))?;
        no_grad(|| self.run(batch, logits)).map_err(|error| failed(&self.dir, &error))
    }

    fn routed_experts(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.routes)
    }

    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        if self.steps.is_some() { Some(self) } else { None }
    }
}

impl RunsAhead for ModelRunner {
    fn launch(&mut self, batch: &Batch, draws: &[RowDraw]) -> Result<()> {
        no_grad(|| self.launch_step(batch, draws)).map_err(|error| failed(&self.dir, &error))
    }

    fn collect(&mut self) -> Result<Vec<Option<(u32, f32)>>> {
        let steps = self.steps.as_mut().ok_or_else(no_steps);
        let drawn = steps.and_then(DecodeSteps::collect).map_err(|error| failed(&self.dir, &error))?;
        Ok(drawn.into_iter().map(|(token, log_prob)| Some((u32::try_from(token).ok()?, log_prob))).collect())
    }
}

fn failed(dir: &Path, error: &slime_model::Error) -> Error {
    Error::Model { dir: dir.to_owned(), message: error.to_string(), exit_code: error.exit_code() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slime_model::{Segment, Shaping};

    use super::*;
    use crate::{Completion, Engine, EngineConfig, KvOnSwap, Request, SampleSeed, SamplingParams};

    const FAMILIES: [&str; 10] = [
        "llama",
        "llama_tied",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "glm4",
        "glm4_moe",
        "glm45_air",
        "minimax_m2",
        "mimo",
    ];

    fn dir(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name)
    }

    fn engine(name: &str, num_blocks: usize, max_num_seqs: usize) -> Engine<ModelRunner> {
        let runner = ModelRunner::load(&dir(name), Kind::Float, Device::Cpu).unwrap();
        let config = EngineConfig {
            block_size: 4,
            num_blocks,
            max_num_seqs,
            max_batch_tokens: 24,
            prefix_cache: true,
            ..EngineConfig::default()
        };
        Engine::new(runner, Arc::new(|_: &[u32]| String::new()), &config, 0).unwrap()
    }

    fn request(id: u64, temperature: f64) -> Request {
        Request {
            id,
            tokens: (0..5 + 3 * id as u32).map(|i| (i * 7 + id as u32) % 60).collect(),
            params: SamplingParams {
                temperature,
                n: 3,
                max_new_tokens: 12,
                seed: SampleSeed { seed: 1, step: 0, group: id as u32, index: 0 },
                ..Default::default()
            },
        }
    }

    fn run(engine: &mut Engine<ModelRunner>) -> Vec<Completion> {
        let mut done = Vec::new();
        while !engine.is_idle() {
            done.extend(engine.step().unwrap());
        }
        done.sort_by_key(|c| (c.id, c.index));
        done
    }

    /// Log-probs of every next token from one packed pass over the whole sequence.
    fn packed_log_probs(name: &str, tokens: &[u32], temperature: f64) -> Vec<f32> {
        let model = Model::load(dir(name), Kind::Float, Device::Cpu).unwrap();
        let ids: Vec<i64> = tokens.iter().map(|&t| i64::from(t)).collect();
        let segments = [Segment::alone(0, ids.len())];
        let mut context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
        let hidden_td = model.forward(&mut context, &Tensor::from_slice(&ids)).unwrap();
        let last = ids.len() as i64 - 1;
        let targets_r = Tensor::from_slice(&ids[1..]);
        let log_probs = model
            .head_log_probs(&hidden_td.narrow(0, 0, last), &targets_r, &Shaping::at(temperature))
            .unwrap()
            .0;
        Vec::try_from(log_probs).unwrap()
    }

    fn assert_close(got: &[f32], expected: &[f32], what: &str) {
        assert_eq!(got.len(), expected.len());
        for (i, (a, b)) in got.iter().zip(expected).enumerate() {
            assert!((a - b).abs() < 2e-5, "{what}: token {i}: got {a}, expected {b}");
        }
    }

    #[test]
    fn recorded_log_probs_are_those_of_a_packed_pass_for_every_family() {
        for name in FAMILIES {
            let mut engine = engine(name, 64, 8);
            engine.submit(request(2, 0.9)).unwrap();
            engine.submit(request(3, 0.9)).unwrap();
            for completion in run(&mut engine) {
                let mut tokens = request(completion.id, 0.9).tokens;
                let prompt_len = tokens.len();
                tokens.extend(&completion.tokens);
                let expected = packed_log_probs(name, &tokens, 0.9);
                assert_close(&completion.log_probs, &expected[prompt_len - 1..], name);
                assert_close(&engine.score(0, &tokens, 0.9).unwrap(), &expected, name);
            }
        }
    }

    fn fp8_engine(name: &str, num_blocks: usize, max_num_seqs: usize) -> Engine<ModelRunner> {
        let runner = ModelRunner::load(&dir(name), Kind::Float, Device::Cpu).unwrap();
        let runner = runner.with_kv_dtype(KvCacheDtype::Fp8E4m3);
        let config = EngineConfig {
            block_size: 4,
            num_blocks,
            max_num_seqs,
            max_batch_tokens: 24,
            ..EngineConfig::default()
        };
        Engine::new(runner, Arc::new(|_: &[u32]| String::new()), &config, 0).unwrap()
    }

    #[test]
    fn keys_and_values_in_e4m3_are_near_and_give_the_same_tokens_in_every_batch() {
        for name in ["llama_tied", "qwen3", "glm4_moe"] {
            let (mut crowd, mut tight) = (fp8_engine(name, 64, 16), fp8_engine(name, 12, 3));
            for id in 0..4 {
                crowd.submit(request(id, 1.0)).unwrap();
                tight.submit(request(id, 1.0)).unwrap();
            }
            let (crowd, tight) = (run(&mut crowd), run(&mut tight));
            let mut most = 0.0_f32;
            for (a, b) in crowd.iter().zip(&tight) {
                assert_eq!(a.tokens, b.tokens, "{name}");
                assert_close(&b.log_probs, &a.log_probs, name);
                let mut tokens = request(a.id, 1.0).tokens;
                let prompt_len = tokens.len();
                tokens.extend(&a.tokens);
                let exact = packed_log_probs(name, &tokens, 1.0);
                let apart = a.log_probs.iter().zip(&exact[prompt_len - 1..]).map(|(a, b)| (a - b).abs());
                most = apart.fold(most, f32::max);
            }
            assert!(most > 1e-4 && most < 0.2, "{name}: log-probs differ by {most}");
        }
    }

    #[test]
    fn tokens_are_the_same_alone_in_a_crowd_and_after_preemption() {
        for name in ["llama_tied", "qwen3", "glm4_moe"] {
            let mut crowd = engine(name, 64, 16);
            let mut tight = engine(name, 12, 3);
            let mut alone = Vec::new();
            for id in 0..4 {
                crowd.submit(request(id, 1.0)).unwrap();
                tight.submit(request(id, 1.0)).unwrap();
                let mut single = engine(name, 64, 1);
                single.submit(request(id, 1.0)).unwrap();
                alone.extend(run(&mut single));
            }
            let (crowd, tight_done) = (run(&mut crowd), run(&mut tight));
            for ((a, b), c) in alone.iter().zip(&crowd).zip(&tight_done) {
                assert_eq!((&a.tokens, &a.tokens), (&b.tokens, &c.tokens), "{name}");
                assert_close(&b.log_probs, &a.log_probs, name);
                assert_close(&c.log_probs, &a.log_probs, name);
            }
        }
    }

    /// The experts of every token but the last in one packed pass.
    fn packed_routes(name: &str, tokens: &[u32]) -> Vec<u16> {
        let model = Model::load(dir(name), Kind::Float, Device::Cpu).unwrap();
        let ids: Vec<i64> = tokens[..tokens.len() - 1].iter().map(|&t| i64::from(t)).collect();
        let segments = [Segment::alone(0, ids.len())];
        let context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
        let mut context = context.recording_routes();
        let _ = model.forward(&mut context, &Tensor::from_slice(&ids)).unwrap();
        context.take_routes().unwrap().unwrap().ids().unwrap()
    }

    #[test]
    fn completions_say_which_experts_their_tokens_went_to_in_a_crowd_and_after_preemption() {
        for name in ["qwen3_moe", "glm4_moe"] {
            for (num_blocks, max_num_seqs) in [(64, 16), (12, 3)] {
                let mut engine = engine(name, num_blocks, max_num_seqs);
                for id in 0..4 {
                    let mut request = request(id, 1.0);
                    request.params.keeps_routes = id != 2;
                    engine.submit(request).unwrap();
                }
                for completion in run(&mut engine) {
                    let prompt = request(completion.id, 1.0).tokens;
                    let tokens = [prompt, completion.tokens.clone()].concat();
                    let expected = if completion.id == 2 { Vec::new() } else { packed_routes(name, &tokens) };
                    assert_eq!(completion.routed_experts, expected, "{name} {}", completion.id);
                }
            }
        }
        let mut dense = engine("llama", 64, 16);
        let mut request = request(0, 1.0);
        request.params.keeps_routes = true;
        dense.submit(request).unwrap();
        assert!(run(&mut dense).iter().all(|completion| completion.routed_experts.is_empty()));
    }

    #[test]
    fn weights_of_another_model_are_refused_before_anything_is_overwritten() {
        let mut runner = ModelRunner::load(&dir("llama"), Kind::Float, Device::Cpu).unwrap();
        let before: Vec<Tensor> = runner.model.params().iter().map(|(_, tensor)| tensor.copy()).collect();
        let folder = tempfile::tempdir().unwrap();
        for other in ["llama_tied", "qwen3", "glm4"] {
            let error = runner.reload(&dir(other)).unwrap_err();
            assert!(matches!(error, Error::Model { exit_code: 65, .. }), "{other}: {error}");
        }
        assert_eq!(runner.reload(folder.path()).unwrap_err().exit_code(), 66);
        let after = runner.model.params().iter();
        assert!(after.zip(&before).all(|((_, after), before)| after.equal(before)));
    }

    #[test]
    fn reloaded_weights_generate_as_freshly_loaded_ones() {
        let mut engine = engine("llama", 64, 8);
        engine.submit(request(1, 0.0)).unwrap();
        let before = run(&mut engine);
        engine.swap_weights(1, KvOnSwap::Recompute, |runner| runner.reload(&dir("llama"))).unwrap();
        engine.submit(request(1, 0.0)).unwrap();
        let after = run(&mut engine);
        assert_eq!(before[0].tokens, after[0].tokens);
        assert_eq!(after[0].weight_versions[0].version, 1);
    }

    #[test]
    fn reloaded_weights_are_the_ones_that_generate() {
        let mut runner = ModelRunner::load(&dir("llama"), Kind::Float, Device::Cpu).unwrap();
        runner.allocate(4, 8, 1).unwrap();
        let mut batch = Batch::default();
        batch.push((&[3, 1, 4], &[]), 0, 3, &[0], 8);
        batch.want_last(1);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        runner.forward(&batch, &mut before).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(dir("llama").join(file), folder.path().join(file)).unwrap();
        }
        let weights = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&weights).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        // Every weight at half its size: an exponent less by one.
        for weight in bytes[header..].chunks_exact_mut(4) {
            let half = f32::from_le_bytes([weight[0], weight[1], weight[2], weight[3]]) / 2.0;
            weight.copy_from_slice(&half.to_le_bytes());
        }
        std::fs::write(&weights, bytes).unwrap();
        runner.reload(folder.path()).unwrap();
        runner.forward(&batch, &mut after).unwrap();
        let fresh = Model::load(folder.path(), Kind::Float, Device::Cpu).unwrap();
        let segments = [slime_model::Segment::alone(0, 3)];
        let mut context = Context::packed(&segments, Kind::Float, Device::Cpu).unwrap();
        let hidden_td = fresh.forward(&mut context, &Tensor::from_slice(&[3i64, 1, 4])).unwrap();
        let expected =
            Vec::<f32>::try_from(fresh.logits(&hidden_td.narrow(0, 2, 1)).unwrap().view([-1])).unwrap();
        assert_close(&after, &expected, "reloaded");
        assert!(before.iter().zip(&after).any(|(a, b)| (a - b).abs() > 1e-3));
    }

    #[test]
    fn missing_directory_is_named_with_its_exit_code() {
        let error = ModelRunner::load(Path::new("/nonexistent"), Kind::Float, Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("/nonexistent"), "{error}");
        assert_eq!(error.exit_code(), 66);
    }
}
