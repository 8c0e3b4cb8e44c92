//! The parameters of a model: one tensor per storage, seen from outside under Hugging Face names.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::HfConfig;
use slime_weights::{Place, StorageSpec, WeightDir};
use tch::{Device, Kind, Tensor};

use crate::adapters::Adapters;
use crate::ops::sequence::Sequence;
use crate::staging::{Staging, read_as};
use crate::whole_tensors::{Split, part};
use crate::{Error, Parallel, Result, WholeTensors};

/// Standard deviation of a new value head's weight (Megatron's and slime's `init_method_std`).
const HEAD_STD: f32 = 0.02;

/// One tensor per storage of the family's table; of a split model, of this rank's part of it.
#[derive(Debug)]
pub struct ParamStore {
    specs: Vec<StorageSpec>,
    split: Option<Split>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    /// Which of the storages are adapters.
    pub(crate) adapters: Option<Adapters>,
    kind: Kind,
    device: Device,
}

impl ParamStore {
    /// Reads every storage of `config` from `weights`, cast to `kind`, onto `device`.
    ///
    /// # Errors
    /// A tensor is absent or has another shape, or libtorch has no room for it.
    pub fn load(weights: &WeightDir, config: &HfConfig, kind: Kind, device: Device) -> Result<Self> {
        Self::load_part(weights, config, (kind, device), None)
    }

    /// The same of the part that this rank of `parallel` holds.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_part(
        weights: &WeightDir,
        config: &HfConfig,
        (kind, device): (Kind, Device),
        parallel: Option<Arc<Parallel>>,
    ) -> Result<Self> {
        let split = parallel.map(|parallel| Split { parallel, config: config.clone(), whole: Vec::new() });
        let mut params = Self::empty(kind, device, split);
        for spec in params.own(slime_weights::storages(config)) {
            let tensor = read_storage(&spec, weights, kind)?.f_to_device(device)?;
            params.push(spec, tensor);
        }
        Ok(params)
    }

    fn empty(kind: Kind, device: Device, split: Option<Split>) -> Self {
        Self {
            specs: Vec::new(),
            split,
            tensors: Vec::new(),
            by_name: HashMap::new(),
            adapters: None,
            kind,
            device,
        }
    }

    /// What this rank holds of storages that are added.
    pub(crate) fn own(&mut self, specs: Vec<StorageSpec>) -> Vec<StorageSpec> {
        match &mut self.split {
            Some(split) => split.push(specs),
            None => specs,
        }
    }

    pub(crate) fn push(&mut self, spec: StorageSpec, tensor: Tensor) {
        self.by_name.insert(spec.name.clone(), self.specs.len());
        self.specs.push(spec);
        self.tensors.push(tensor);
    }

    /// Storages of `config` drawn from `seed`, for measurements: matrices are normal deviates of 0.02, vectors (norms and
    /// biases) are 1.
    ///
    /// # Errors
    /// libtorch has no room.
    pub fn drawn_from(seed: i64, config: &HfConfig, kind: Kind, device: Device) -> Result<Self> {
        tch::manual_seed(seed);
        let draw = |spec: &StorageSpec| -> Result<Tensor> {
            let shape: Vec<i64> = spec.shape.iter().map(|n| *n as i64).collect();
            if shape.len() == 1 {
                return Ok(Tensor::f_ones(&shape, (kind, device))?);
            }
            Ok(Tensor::f_randn(&shape, (kind, device))?.f_mul_scalar_(f64::from(HEAD_STD))?)
        };
        let mut params = Self::empty(kind, device, None);
        for spec in slime_weights::storages(config) {
            let tensor = draw(&spec)?;
            params.push(spec, tensor);
        }
        Ok(params)
    }

    /// Adds the head of one number per hidden state. What `weights` does not hold begins as a normal deviate of 0.02
    /// (the weight, drawn from `seed`) and 0 (the bias), as slime's critic does.
    ///
    /// # Errors
    /// A tensor has another shape, or libtorch has no room for it.
    pub fn add_value_head(&mut self, weights: &WeightDir, config: &HfConfig, seed: u64) -> Result<()> {
        for spec in self.own(slime_weights::value_head(config).to_vec()) {
            let is_there = spec.views.iter().all(|view| weights.info(&view.name).is_ok());
            let tensor =
                if is_there { read_storage(&spec, weights, self.kind)? } else { self.drawn(&spec, seed)? };
            let tensor = tensor.f_to_device(self.device)?;
            self.push(spec, tensor);
        }
        Ok(())
    }

    /// Adds the layer that predicts the token after the next one.
    ///
    /// # Errors
    /// It is not known how to compute such a layer of this model, a tensor is absent or has another shape, or there is no
    /// room.
    pub fn add_mtp(&mut self, weights: &WeightDir, config: &HfConfig) -> Result<()> {
        let specs = slime_weights::mtp(config).ok_or_else(|| Error::Argument {
            what: "layer that predicts further tokens",
            expected: "a mimo model with num_nextn_predict_layers = 1".to_owned(),
            got: format!("{} with {}", config.model_type, config.num_mtp_layers),
        })?;
        let mut own = self.own(specs);
        if let (false, None) = (own.is_empty(), self.find("embed")) {
            // The layer reads the next token's embedding, which is the first stage's.
            let whole = slime_weights::storages(config).into_iter().filter(|spec| spec.name == "embed");
            own.extend(whole.map(|spec| slime_weights::split(spec, config, self.place())));
        }
        for spec in own {
            let tensor = read_storage(&spec, weights, self.kind)?.f_to_device(self.device)?;
            self.push(spec, tensor);
        }
        Ok(())
    }

    fn drawn(&self, spec: &StorageSpec, seed: u64) -> Result<Tensor> {
        let shape: Vec<i64> = spec.shape.iter().map(|n| *n as i64).collect();
        if spec.shape.len() == 1 {
            return Ok(Tensor::f_zeros(&shape, (self.kind, Device::Cpu))?);
        }
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let values: Vec<f32> = (0..spec.num_elements()).map(|_| HEAD_STD * normal(&mut generator)).collect();
        Ok(Tensor::f_from_slice(&values)?.f_view(shape.as_slice())?.f_to_kind(self.kind)?)
    }

    /// The element type of all parameters but those that are kept in f32.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The element type of one storage.
    pub(crate) fn kind_of(&self, spec: &StorageSpec) -> Kind {
        kind_of(spec, self.kind)
    }

    /// The ranks that the model is split over, if it is.
    pub fn parallel(&self) -> Option<&Parallel> {
        self.split.as_ref().map(|split| &*split.parallel)
    }

    pub(crate) fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// This rank's part of the model.
    pub fn place(&self) -> Place {
        self.parallel().map_or_else(Place::default, Parallel::own_place)
    }

    /// How many tensor-parallel neighbours hold a part of what is trained alike, over the whole model: every rank of every
    /// stage has the same numbers.
    pub fn copy_counts(&self) -> BTreeSet<usize> {
        let place = self.place();
        let own = |spec: &StorageSpec| match &self.split {
            Some(split) => slime_weights::split(spec.clone(), &split.config, place).views,
            None => spec.views.clone(),
        };
        let trained = self.whole_specs().iter().filter(|spec| !spec.is_frozen);
        trained.flat_map(own).map(|view| view.copies).collect()
    }

    /// Whether the last stage of a pipeline holds the embedding too: as its head, or for the layer that predicts further
    /// tokens.
    pub fn is_embedding_copied(&self) -> bool {
        let whole = self.whole_specs();
        let has = |name: &str| whole.iter().any(|spec| spec.name == name);
        !has("head") || has("mtp.input_proj")
    }

    /// How tokens are shared out.
    pub(crate) fn sequence(&self) -> Sequence {
        self.parallel().map_or_else(Sequence::default, |parallel| Sequence::new(&parallel.tp))
    }

    /// The storages of the whole model.
    pub(crate) fn whole_specs(&self) -> &[StorageSpec] {
        self.split.as_ref().map_or(&self.specs, |split| &split.whole)
    }

    /// Where the parameters are.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The storage called `name`; the tensor shares memory and gradient with the store.
    ///
    /// # Errors
    /// This model has no such storage.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.find(name).ok_or_else(|| Error::MissingStorage { name: name.to_owned() })
    }

    /// The storage called `name`, if this model has it.
    pub fn find(&self, name: &str) -> Option<Tensor> {
        self.by_name.get(name).and_then(|at| self.tensors.get(*at)).map(Tensor::shallow_clone)
    }

    /// Every storage with its table entry, in the order of the forward pass.
    pub fn iter(&self) -> impl Iterator<Item = (&StorageSpec, &Tensor)> {
        self.specs.iter().zip(&self.tensors)
    }

    /// Every storage that is trained.
    pub fn trained(&self) -> impl Iterator<Item = (&StorageSpec, &Tensor)> {
        self.iter().filter(|(spec, _)| !spec.is_frozen)
    }

    /// Freezes what `patterns` name ([`slime_config::frozen`]), beside what is never trained anyway; of a split model every
    /// rank the same storages.
    ///
    /// # Errors
    /// A pattern that matches nothing or parts a storage, or nothing is left to train.
    pub fn freeze(&mut self, patterns: &[String]) -> Result<()> {
        let names = |spec: &'_ StorageSpec| spec.views.iter().map(|view| view.name.clone()).collect();
        let storages: Vec<Vec<String>> = self.whole_specs().iter().map(names).collect();
        let is_frozen = slime_config::frozen(patterns, &storages)?;
        let whole = self.split.as_mut().map_or(&mut self.specs, |split| &mut split.whole);
        whole.iter_mut().zip(is_frozen).for_each(|(spec, is_frozen)| spec.is_frozen |= is_frozen);
        let frozen: HashSet<String> =
            whole.iter().filter(|spec| spec.is_frozen).map(|spec| spec.name.clone()).collect();
        let num = whole.len();
        self.specs.iter_mut().for_each(|spec| spec.is_frozen |= frozen.contains(&spec.name));
        if frozen.len() == num {
            let message = "train.freeze: every parameter is frozen: nothing is left to train".to_owned();
            return Err(slime_config::Error::Conflict(message).into());
        }
        Ok(())
    }

    /// Freezes everything that is there.
    pub(crate) fn freeze_all(&mut self) {
        let whole = self.split.iter_mut().flat_map(|split| &mut split.whole);
        self.specs.iter_mut().chain(whole).for_each(|spec| spec.is_frozen = true);
    }

    /// Number of parameters on this rank.
    pub fn num_parameters(&self) -> usize {
        self.specs.iter().map(StorageSpec::num_elements).sum()
    }

    /// Turns the recording of gradients on or off for every parameter that is trained.
    pub fn set_requires_grad(&self, requires_grad: bool) {
        for (_, tensor) in self.trained() {
            let _ = tensor.set_requires_grad(requires_grad);
        }
    }

    /// Forgets the gradients.
    pub fn zero_grad(&mut self) {
        for tensor in &mut self.tensors {
            tensor.zero_grad();
        }
    }

    /// The tensors of the whole model, with adapters merged into the matrices beside them. Collective over the world where the model is split.
    pub fn whole_tensors(&self) -> WholeTensors<'_> {
        WholeTensors::parameters(self)
    }

    /// The gradients of the whole model's trained tensors, from those of this rank's storages.
    pub fn whole_gradients<'a>(&'a self, grads: &'a [(String, Tensor)]) -> WholeTensors<'a> {
        WholeTensors::gradients(self, grads)
    }

    /// The parameters under their Hugging Face names, as views of the storages; of a split model this rank's parts.
    ///
    /// # Errors
    /// libtorch refuses a view.
    pub fn views(&self) -> Result<Vec<(String, Tensor)>> {
        self.iter().flat_map(|(spec, tensor)| hf_views(spec, tensor)).collect()
    }

    /// The gradients under their Hugging Face names; a parameter without a gradient is left out.
    ///
    /// # Errors
    /// libtorch refuses a view.
    pub fn grad_views(&self) -> Result<Vec<(String, Tensor)>> {
        let mut views = Vec::new();
        for (spec, tensor) in self.iter() {
            let grad = tensor.f_grad()?;
            if grad.defined() {
                views.extend(hf_views(spec, &grad).into_iter().collect::<Result<Vec<_>>>()?);
            }
        }
        Ok(views)
    }

    /// Overwrites every parameter in place with the tensors of `weights`; addresses stay as they are.
    ///
    /// # Errors
    /// A tensor is absent or has another shape; parameters read before it are already overwritten.
    pub fn update_from(&mut self, weights: &WeightDir) -> Result<()> {
        let largest = self.specs.iter().map(StorageSpec::num_elements).max().unwrap_or(0);
        let mut staging = Staging::new(largest, self.kind, self.device)?;
        tch::no_grad(|| {
            let mut storages = self.specs.iter().zip(&mut self.tensors);
            storages.try_for_each(|(spec, tensor)| staging.read(spec, weights, tensor))
        })
    }

    /// Overwrites every parameter in place with the storages of `other`, which has the same table.
    ///
    /// # Errors
    /// The stores belong to different models.
    pub fn copy_from(&mut self, other: &Self) -> Result<()> {
        tch::no_grad(|| {
            for (spec, tensor) in self.specs.iter().zip(&mut self.tensors) {
                let source = other.get(&spec.name)?;
                if source.size() != tensor.size() {
                    return Err(Error::Shape {
                        path: spec.name.clone().into(),
                        tensor: spec.name.clone(),
                        expected: tensor.size(),
                        got: source.size(),
                    });
                }
                tensor.f_copy_(&source)?;
            }
            Ok(())
        })
    }
}

/// A standard normal deviate (Box and Muller).
fn normal(generator: &mut ChaCha8Rng) -> f32 {
    let (a, b): (f64, f64) = (generator.random(), generator.random());
    ((-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
}

fn hf_views(spec: &StorageSpec, tensor: &Tensor) -> Vec<Result<(String, Tensor)>> {
    spec.views.iter().map(|view| Ok((view.name.clone(), part(spec, view, tensor)?))).collect()
}

fn read_storage(spec: &StorageSpec, weights: &WeightDir, kind: Kind) -> Result<Tensor> {
    let kind = kind_of(spec, kind);
    let (dtype, read_kind) = read_as(kind)?;
    let shape: Vec<i64> = spec.shape.iter().map(|n| *n as i64).collect();
    Ok(Tensor::f_from_data_size(&spec.read(weights, dtype)?, &shape, read_kind)?.f_to_kind(kind)?)
}

/// The element type of a storage in a model of `kind`.
fn kind_of(spec: &StorageSpec, kind: Kind) -> Kind {
    if spec.is_f32 && kind != Kind::Double { Kind::Float } else { kind }
}
