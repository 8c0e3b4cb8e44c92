//! The parameters of a model: one tensor per storage, seen from outside under Hugging Face names.

use std::collections::HashMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::HfConfig;
use slime_weights::{Dtype, StorageSpec, ViewSpec, WeightDir};
use tch::{Device, Kind, Tensor};

use crate::{Error, Result};

/// Standard deviation of a new value head's weight (Megatron's and slime's `init_method_std`).
const HEAD_STD: f32 = 0.02;

/// One tensor per storage of the family's table.
#[derive(Debug)]
pub struct ParamStore {
    specs: Vec<StorageSpec>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    kind: Kind,
    device: Device,
}

impl ParamStore {
    /// Reads every storage of `config` from `weights`, cast to `kind`, onto `device`.
    ///
    /// # Errors
    /// A tensor is absent or has another shape, or libtorch has no room for it.
    pub fn load(weights: &WeightDir, config: &HfConfig, kind: Kind, device: Device) -> Result<Self> {
        let specs = slime_weights::storages(config);
        let tensors = specs
            .iter()
            .map(|spec| Ok(read_storage(spec, weights, kind)?.f_to_device(device)?))
            .collect::<Result<Vec<_>>>()?;
        let by_name = specs.iter().enumerate().map(|(at, spec)| (spec.name.clone(), at)).collect();
        Ok(Self { specs, tensors, by_name, kind, device })
    }

    /// Storages of `config` drawn from `seed`, for measurements: matrices are normal deviates of 0.02, vectors (norms and
    /// biases) are 1.
    ///
    /// # Errors
    /// libtorch has no room.
    pub fn drawn_from(seed: i64, config: &HfConfig, kind: Kind, device: Device) -> Result<Self> {
        tch::manual_seed(seed);
        let specs = slime_weights::storages(config);
        let draw = |spec: &StorageSpec| {
            let shape: Vec<i64> = spec.shape.iter().map(|n| *n as i64).collect();
            if shape.len() == 1 {
                return Ok(Tensor::f_ones(&shape, (kind, device))?);
            }
            Ok(Tensor::f_randn(&shape, (kind, device))?.f_mul_scalar_(f64::from(HEAD_STD))?)
        };
        let tensors = specs.iter().map(draw).collect::<Result<Vec<_>>>()?;
        let by_name = specs.iter().enumerate().map(|(at, spec)| (spec.name.clone(), at)).collect();
        Ok(Self { specs, tensors, by_name, kind, device })
    }

    /// Adds the head of one number per hidden state. What `weights` does not hold begins as a normal deviate of 0.02
    /// (the weight, drawn from `seed`) and 0 (the bias), as slime's critic does.
    ///
    /// # Errors
    /// A tensor has another shape, or libtorch has no room for it.
    pub fn add_value_head(&mut self, weights: &WeightDir, config: &HfConfig, seed: u64) -> Result<()> {
        for spec in slime_weights::value_head(config) {
            let is_there = spec.views.iter().all(|view| weights.info(&view.name).is_ok());
            let tensor =
                if is_there { read_storage(&spec, weights, self.kind)? } else { self.drawn(&spec, seed)? };
            self.by_name.insert(spec.name.clone(), self.specs.len());
            self.specs.push(spec);
            self.tensors.push(tensor.f_to_device(self.device)?);
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
        for spec in specs {
            let tensor = read_storage(&spec, weights, self.kind)?.f_to_device(self.device)?;
            self.by_name.insert(spec.name.clone(), self.specs.len());
            self.specs.push(spec);
            self.tensors.push(tensor);
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

    /// Freezes what `patterns` name ([`slime_config::frozen`]), beside what is never trained anyway.
    ///
    /// # Errors
    /// A pattern that matches nothing or parts a storage, or nothing is left to train.
    pub fn freeze(&mut self, patterns: &[String]) -> Result<()> {
        let names = |spec: &'_ StorageSpec| spec.views.iter().map(|view| view.name.clone()).collect();
        let storages: Vec<Vec<String>> = self.specs.iter().map(names).collect();
        for (spec, is_frozen) in self.specs.iter_mut().zip(slime_config::frozen(patterns, &storages)?) {
            spec.is_frozen |= is_frozen;
        }
        if self.trained().next().is_none() {
            let message = "train.freeze: every parameter is frozen: nothing is left to train".to_owned();
            return Err(slime_config::Error::Conflict(message).into());
        }
        Ok(())
    }

    /// Number of parameters.
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

    /// The parameters under their Hugging Face names, as views of the storages.
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
        let kind = self.kind;
        tch::no_grad(|| {
            for (spec, tensor) in self.specs.iter().zip(&mut self.tensors) {
                tensor.f_copy_(&read_storage(spec, weights, kind)?)?;
            }
            Ok(())
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
    let view = |view: &ViewSpec| {
        let rows = view.shape.first().copied().unwrap_or(1) as i64;
        Ok((view.name.clone(), tensor.f_narrow(0, view.offset_rows as i64, rows)?.f_detach()?))
    };
    spec.views.iter().map(view).collect()
}

fn read_storage(spec: &StorageSpec, weights: &WeightDir, kind: Kind) -> Result<Tensor> {
    let kind = if spec.is_f32 && kind != Kind::Double { Kind::Float } else { kind };
    let (dtype, read_kind) = match kind {
        // f64 serves tests of layouts and gradients: the values are those of f32.
        Kind::Float | Kind::Double => (Dtype::F32, Kind::Float),
        Kind::BFloat16 => (Dtype::BF16, kind),
        Kind::Half => (Dtype::F16, kind),
        other => return Err(Error::Dtype(other)),
    };
    let shape: Vec<i64> = spec.shape.iter().map(|n| *n as i64).collect();
    Ok(Tensor::f_from_data_size(&spec.read(weights, dtype)?, &shape, read_kind)?.f_to_kind(kind)?)
}
