//! An engine over several ranks: rank 0 has the requests, the schedule and the drawing of tokens; what its models compute, the others
//! compute with it, on its word.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use slime_comm::{Collectives, Communicator, Layout, Mesh};
use slime_config::KvCacheDtype;
use slime_model::{Extra, Model, Parallel};
use tch::{Device, Kind};

use crate::{Batch, BlockCopy, Error, ForwardModel, ModelRunner, Result};

/// What rank 0 tells the others.
#[derive(Debug, PartialEq)]
enum Word {
    /// A model is loaded from a weight directory.
    Load(PathBuf),
    /// Its parameters become those of another one.
    Reload(PathBuf),
    /// Its cache gets so many blocks, of so many tokens, for so many sequences; of fp8 or not.
    Allocate([usize; 3], KvCacheDtype),
    /// A pass.
    Forward(Batch),
    /// A model is given up.
    Drop,
    /// There is nothing more to do.
    End,
}

/// The word for a pass.
const FORWARD: u64 = 3;

impl Word {
    fn kind(&self) -> u64 {
        match self {
            Self::Load(_) => 0,
            Self::Reload(_) => 1,
            Self::Allocate(..) => 2,
            Self::Forward(_) => FORWARD,
            Self::Drop => 4,
            Self::End => 5,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Load(dir) | Self::Reload(dir) => dir.as_os_str().as_encoded_bytes().to_vec(),
            Self::Allocate(sizes, dtype) => {
                let is_fp8 = usize::from(*dtype == KvCacheDtype::Fp8E4m3);
                sizes.iter().chain([&is_fp8]).flat_map(|size| (*size as u64).to_ne_bytes()).collect()
            }
            Self::Forward(batch) => bytes_of(batch),
            Self::Drop | Self::End => Vec::new(),
        }
    }

    fn from_bytes(kind: u64, bytes: &[u8]) -> Option<Self> {
        let dir = || Some(PathBuf::from(std::str::from_utf8(bytes).ok()?));
        Some(match kind {
            0 => Self::Load(dir()?),
            1 => Self::Reload(dir()?),
            2 => {
                let sizes = bytes.as_chunks::<8>().0.iter().map(|size| u64::from_ne_bytes(*size) as usize);
                let [blocks, size, seqs, is_fp8] = sizes.collect::<Vec<_>>().try_into().ok()?;
                let dtype = if is_fp8 == 1 { KvCacheDtype::Fp8E4m3 } else { KvCacheDtype::Auto };
                Self::Allocate([blocks, size, seqs], dtype)
            }
            FORWARD => {
                let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
                Self::Forward(batch_of(&words.collect::<Vec<_>>())?)
            }
            4 => Self::Drop,
            5 => Self::End,
            _ => return None,
        })
    }
}

/// What a pass of a model reads of a batch.
fn bytes_of(batch: &Batch) -> Vec<u8> {
    let mut words = vec![u32::from(batch.wants_routes)];
    let mut push = |list: &[u32]| {
        words.push(list.len() as u32);
        words.extend_from_slice(list);
    };
    for list in [&batch.tokens, &batch.q_lens, &batch.context_lens, &batch.logit_rows] {
        push(list);
    }
    let copies: Vec<u32> = batch.copies.iter().flat_map(|copy| [copy.from, copy.to]).collect();
    push(&copies);
    batch.block_tables.iter().for_each(|table| push(table));
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn batch_of(words: &[u32]) -> Option<Batch> {
    let (wants_routes, mut rest) = words.split_first()?;
    let mut next = || {
        let (len, after) = rest.split_first()?;
        let (list, after) = after.split_at_checked(*len as usize)?;
        rest = after;
        Some(list.to_vec())
    };
    let (tokens, q_lens, context_lens, logit_rows) = (next()?, next()?, next()?, next()?);
    let copies =
        next()?.as_chunks::<2>().0.iter().map(|[from, to]| BlockCopy { from: *from, to: *to }).collect();
    let block_tables = q_lens.iter().map(|_| next()).collect::<Option<_>>()?;
    let wants_routes = *wants_routes == 1;
    Some(Batch {
        tokens,
        q_lens,
        context_lens,
        block_tables,
        logit_rows,
        copies,
        wants_routes,
        ..Batch::default()
    })
}

/// The ranks of an engine.
pub struct Ranks {
    world: Arc<dyn Communicator>,
    layout: Layout,
    num_models: AtomicU32,
}

impl Ranks {
    /// All of `world`, which models are shared out over by `layout`: its `tp`, `ep` and `etp`.
    pub fn new(world: Arc<dyn Communicator>, layout: Layout) -> Self {
        Self { world, layout, num_models: AtomicU32::new(0) }
    }

    /// Loads the weight directory `dir` on all ranks; on rank 0, while the others [`Self::follow`].
    ///
    /// # Errors
    /// As [`ModelRunner::load`], and ranks that cannot meet.
    pub fn load(&self, dir: &Path, kind: Kind, device: Device) -> Result<ModelRunner> {
        let (world, model) = (self.world.clone(), self.num_models.fetch_add(1, Ordering::Relaxed));
        let lead = Lead { world, model };
        lead.tell(&Word::Load(dir.to_owned()))?;
        Ok(self.load_own(dir, kind, device)?.led_by(lead))
    }

    /// Tells the others that there is nothing more to do; on rank 0.
    ///
    /// # Errors
    /// A rank is gone.
    pub fn end(&self) -> Result<()> {
        Lead { world: self.world.clone(), model: u32::MAX }.tell(&Word::End)
    }

    /// Computes what rank 0 says until the end; on the other ranks.
    ///
    /// # Errors
    /// What rank 0 would have been told of this rank's part of the models; a rank is gone.
    pub fn follow(&self, kind: Kind, device: Device) -> Result<()> {
        let mut models = BTreeMap::new();
        let mut logits = Vec::new();
        loop {
            let (number, word) = self.hear()?;
            let word = match word {
                Word::Load(dir) => {
                    models.insert(number, self.load_own(&dir, kind, device)?);
                    continue;
                }
                Word::End => return Ok(()),
                Word::Drop => {
                    models.remove(&number);
                    continue;
                }
                word => word,
            };
            let mut model: ModelRunner = models.remove(&number).ok_or(Error::Lost { what: "a model" })?;
            match word {
                Word::Allocate([num_blocks, block_size, max_num_seqs], dtype) => {
                    model = model.with_kv_dtype(dtype);
                    model.allocate(num_blocks, block_size, max_num_seqs)?;
                }
                Word::Reload(dir) => model.reload(&dir)?,
                Word::Forward(batch) => {
                    model.forward(&batch, &mut logits)?;
                    model.routed_experts();
                }
                Word::Load(_) | Word::Drop | Word::End => {}
            }
            models.insert(number, model);
        }
    }

    /// This rank's part of a model.
    fn load_own(&self, dir: &Path, kind: Kind, device: Device) -> Result<ModelRunner> {
        let of_model = |error: slime_model::Error| Error::Model {
            dir: dir.to_owned(),
            message: error.to_string(),
            exit_code: error.exit_code(),
        };
        let mesh = Mesh::new(self.layout, self.world.size())?;
        let parallel = Arc::new(Parallel::new(&self.world, mesh, device).map_err(of_model)?);
        let mut model =
            Model::load_part(dir, (kind, device), Extra::None, Some(parallel)).map_err(of_model)?;
        model.pack().map_err(of_model)?;
        ModelRunner::new(model, dir)
    }

    fn hear(&self) -> Result<(u32, Word)> {
        let mut head = [0_u64; 3];
        self.world.broadcast(&mut head, 0)?;
        let [kind, number, len] = head;
        let mut bytes = vec![0_u8; len as usize];
        self.world.broadcast(&mut bytes, 0)?;
        let word = Word::from_bytes(kind, &bytes).ok_or(Error::Lost { what: "a word of rank 0" })?;
        Ok((number as u32, word))
    }
}

/// Rank 0's side of one model.
pub(crate) struct Lead {
    world: Arc<dyn Communicator>,
    model: u32,
}

impl std::fmt::Debug for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "model {} of {} ranks", self.model, self.world.size())
    }
}

impl Lead {
    fn tell(&self, word: &Word) -> Result<()> {
        self.send(word.kind(), word.bytes())
    }

    fn send(&self, kind: u64, mut bytes: Vec<u8>) -> Result<()> {
        let mut head = [kind, u64::from(self.model), bytes.len() as u64];
        self.world.broadcast(&mut head, 0)?;
        Ok(self.world.broadcast(&mut bytes, 0)?)
    }

    /// Before the same on this rank.
    pub fn allocate(&self, sizes: [usize; 3], dtype: KvCacheDtype) -> Result<()> {
        self.tell(&Word::Allocate(sizes, dtype))
    }

    /// Before the same on this rank.
    pub fn reload(&self, dir: &Path) -> Result<()> {
        self.tell(&Word::Reload(dir.to_owned()))
    }

    /// Before the same on this rank.
    pub fn forward(&self, batch: &Batch) -> Result<()> {
        self.send(FORWARD, bytes_of(batch))
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.model != u32::MAX {
            // A rank that is gone has ended the engine already.
            let _ = self.tell(&Word::Drop);
        }
    }
}
