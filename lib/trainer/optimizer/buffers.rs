//! The state of an optimizer as buffers of f32, for checkpoints.

use std::ops::Range;

use slime_config::TensorPart;
use slime_model::ParamStore;
use slime_weights::StorageSpec;
use tch::{Device, Kind, Tensor};

use super::state::{State, flat, gather, own_range, part, parts};
use super::{Optimizer, share};
use crate::gradient_groups::GradientGroups;
use crate::{Error, Result};

/// The kinds of buffers: `master/<storage>`, `exp_avg/<storage>`, `exp_avg_sq/<storage>`.
const KINDS: [&str; 3] = ["master", "exp_avg", "exp_avg_sq"];

/// What a rank holds of the state of one storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Such as `exp_avg/layers.3.qkv`.
    pub name: String,
    /// What its elements are, in order: of tensors such as `exp_avg/model.layers.3.self_attn.q_proj.weight`.
    pub parts: Vec<TensorPart>,
    /// Whether this rank is the first of those that hold a part, and so the one that saves it.
    pub is_saved: Vec<bool>,
}

impl Buffer {
    /// What the elements `range` of a storage are.
    fn of(spec: &StorageSpec, range: &Range<usize>, names: [&str; 2], groups: &GradientGroups) -> Self {
        let parts = parts(spec, range, names[1]);
        let is_saved = parts.iter().map(|(_, view)| groups.is_first(spec, view)).collect();
        let parts = parts.into_iter().map(|(part, _)| part).collect();
        Self { name: format!("{}{}", names[0], spec.name), parts, is_saved }
    }

    /// The parts that this rank saves, with their elements among `values`, those of all parts: f32 as bytes.
    pub fn saved(&self, values: &[u8]) -> (Vec<TensorPart>, Vec<u8>) {
        let (mut parts, mut saved, mut rest) = (Vec::new(), Vec::new(), values);
        for (part, is_saved) in self.parts.iter().zip(&self.is_saved) {
            let (of_part, after) = rest.split_at((part.len() * size_of::<f32>()).min(rest.len()));
            rest = after;
            if *is_saved {
                parts.push(part.clone());
                saved.extend_from_slice(of_part);
            }
        }
        (parts, saved)
    }

    /// Elements of f32.
    pub fn len(&self) -> usize {
        self.parts.iter().map(TensorPart::len).sum()
    }

    /// Whether the rank holds nothing of the storage.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same, with `prefix` before all names.
    pub(crate) fn below(mut self, prefix: &str) -> Self {
        self.name.insert_str(0, prefix);
        self.parts.iter_mut().for_each(|part| part.tensor.insert_str(0, prefix));
        self
    }
}

impl Optimizer {
    /// This rank's state in a fixed order; what it has no element of is left out.
    pub fn buffers(&self) -> Vec<Buffer> {
        let of_state = |state: &State| {
            let range = own_range(&state.counts, self.groups.of(&state.spec).rank());
            KINDS.map(|kind| {
                let prefix = format!("{kind}/");
                Buffer::of(&state.spec, &range, [&prefix, &prefix], &self.groups)
            })
        };
        self.states.iter().flat_map(of_state).filter(|buffer| !buffer.is_empty()).collect()
    }

    /// The elements of one buffer.
    ///
    /// # Errors
    /// No such buffer.
    pub fn read_buffer(&self, name: &str) -> Result<Vec<f32>> {
        read(&self.find(name)?)
    }

    /// One buffer where it lies, in its own type.
    pub(crate) fn buffer(&self, name: &str) -> Result<Tensor> {
        self.find(name)
    }

    /// Overwrites one buffer; weights follow with [`Self::resume`].
    ///
    /// # Errors
    /// No such buffer, or another number of elements.
    pub fn write_buffer(&mut self, name: &str, values: &[f32]) -> Result<()> {
        write(&self.find(name)?, name, values)
    }

    /// Continues after `step` updates from the buffers that were written: weights become those of the masters, on all
    /// ranks. Collective.
    ///
    /// # Errors
    /// A failed collective.
    pub fn resume(&mut self, step: u64) -> Result<()> {
        self.step = step;
        tch::no_grad(|| {
            for state in &mut self.states {
                state.weight_n.f_copy_(&state.master_n)?;
            }
            Ok::<_, Error>(())
        })?;
        self.gather_weights()
    }

    fn find(&self, name: &str) -> Result<Tensor> {
        let (kind, storage) = name.split_once('/').ok_or_else(|| missing(name))?;
        let state = self.states.iter().find(|state| state.spec.name == storage);
        let state = state.ok_or_else(|| missing(name))?;
        match kind {
            "master" => Ok(state.master_n.shallow_clone()),
            "exp_avg" => Ok(state.first_n.shallow_clone()),
            "exp_avg_sq" => Ok(state.second_n.shallow_clone()),
            _ => Err(missing(name)),
        }
    }
}

/// Weights that all ranks hold whole and of which each saves its share.
pub(crate) struct Replica<'a> {
    params: &'a ParamStore,
    groups: &'a GradientGroups,
    shares: Vec<Vec<usize>>,
}

impl<'a> Replica<'a> {
    pub fn new(params: &'a ParamStore, groups: &'a GradientGroups) -> Self {
        let shares = share::counts(params.iter(), groups);
        Self { params, groups, shares }
    }

    /// As [`Optimizer::buffers`], named after the storages.
    pub fn buffers(&self) -> Vec<Buffer> {
        let storages = self.params.iter().zip(&self.shares);
        let buffer = |((spec, _), counts): ((&StorageSpec, _), &Vec<usize>)| {
            let range: Range<usize> = own_range(counts, self.groups.of(spec).rank());
            Buffer::of(spec, &range, ["", ""], self.groups)
        };
        storages.map(buffer).filter(|buffer| !buffer.is_empty()).collect()
    }

    /// As [`Optimizer::buffer`].
    pub fn buffer(&self, name: &str) -> Result<Tensor> {
        self.find(name)
    }

    /// As [`Optimizer::write_buffer`]; the other ranks' shares follow with [`Self::gather`].
    pub fn write_buffer(&self, name: &str, values: &[f32]) -> Result<()> {
        write(&self.find(name)?, name, values)
    }

    /// Every rank gets what the others have written. Collective.
    pub fn gather(&self) -> Result<()> {
        let whole = |((spec, param), counts): ((&StorageSpec, &Tensor), &Vec<usize>)| {
            gather(&flat(param)?, counts, self.groups.of(spec))
        };
        tch::no_grad(|| self.params.iter().zip(&self.shares).try_for_each(whole))
    }

    fn find(&self, name: &str) -> Result<Tensor> {
        let mut storages = self.params.iter().zip(&self.shares);
        let found = storages.find(|((spec, _), _)| spec.name == name);
        let ((spec, param), counts) = found.ok_or_else(|| missing(name))?;
        part(&flat(param)?, counts, self.groups.of(spec).rank())
    }
}

pub(crate) fn read(share_n: &Tensor) -> Result<Vec<f32>> {
    Ok(Vec::try_from(share_n.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?)?)
}

fn write(share_n: &Tensor, name: &str, values: &[f32]) -> Result<()> {
    if share_n.numel() != values.len() {
        let (expected, got) = (format!("{} elements", share_n.numel()), values.len().to_string());
        return Err(Error::State { name: name.to_owned(), expected, got });
    }
    tch::no_grad(|| Ok(share_n.shallow_clone().f_copy_(&Tensor::f_from_slice(values)?)?))
}

pub(crate) fn missing(name: &str) -> Error {
    Error::State {
        name: name.to_owned(),
        expected: "a buffer of this trainer".to_owned(),
        got: "an unknown name".to_owned(),
    }
}
