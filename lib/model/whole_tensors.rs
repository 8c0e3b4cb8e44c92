//! The tensors of a split model put together on rank 0, one at a time, under their Hugging Face names.

use std::collections::HashMap;
use std::sync::Arc;

use slime_comm::Collectives;
use slime_config::{HfConfig, TensorBox};
use slime_torch::{bytes_mut, bytes_of};
use slime_weights::{StorageSpec, ViewSpec, split};
use tch::{Device, Kind, Tensor};

use crate::{Error, Parallel, ParamStore, Result};

/// Name, shape and element type of a Hugging Face tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeSpec {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The element type.
    pub kind: Kind,
}

/// How a model is split, and the table of the whole.
#[derive(Debug)]
pub(crate) struct Split {
    pub parallel: Arc<Parallel>,
    pub config: HfConfig,
    /// The storages of the whole model, in the order of the rank's own.
    pub whole: Vec<StorageSpec>,
}

impl Split {
    /// Adds storages, and returns what this rank holds of them.
    pub fn push(&mut self, specs: Vec<StorageSpec>) -> Vec<StorageSpec> {
        let place = self.parallel.own_place();
        let own = specs.iter().map(|spec| split(spec.clone(), &self.config, place)).collect();
        self.whole.extend(specs);
        own
    }
}

/// Tensors of all storages as they come: the whole tensors on rank 0, on other ranks their names. Every rank of the world
/// takes all of them, or none.
#[derive(Debug)]
pub struct WholeTensors<'a> {
    params: &'a ParamStore,
    tensors: HashMap<&'a str, &'a Tensor>,
    /// Storage and view that come next.
    next: (usize, usize),
}

impl<'a> WholeTensors<'a> {
    /// `tensors` are by the names of storages and of their shapes: parameters, or gradients. Storages that are not among
    /// them are left out, by every rank the same.
    pub fn new(params: &'a ParamStore, tensors: &'a [(String, Tensor)]) -> Self {
        let tensors = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        Self { params, tensors, next: (0, 0) }
    }

    /// What comes, in order.
    pub(crate) fn specs(&self) -> Vec<WholeSpec> {
        let of = |spec: &StorageSpec| {
            let kind = self.tensors.get(spec.name.as_str())?.kind();
            let whole =
                |view: &ViewSpec| WholeSpec { name: view.name.clone(), shape: view.shape.clone(), kind };
            Some(spec.views.iter().map(whole).collect::<Vec<_>>())
        };
        self.params.whole_specs().iter().filter_map(of).flatten().collect()
    }

    /// The tensor of `view` of the whole storage number `at`.
    fn whole(&self, at: usize, view: &ViewSpec, tensor: &Tensor) -> Result<Option<Tensor>> {
        match self.params.split() {
            None => Ok(Some(part(&self.params.specs()[at], view, tensor)?)),
            Some(split) => gathered(split, at, view, tensor),
        }
    }
}

impl Iterator for WholeTensors<'_> {
    type Item = Result<(String, Option<Tensor>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (at, view) = self.next;
            let spec = self.params.whole_specs().get(at)?;
            let tensor = self.tensors.get(spec.name.as_str()).copied();
            let (Some(tensor), Some(view)) = (tensor, spec.views.get(view)) else {
                self.next = (at + 1, 0);
                continue;
            };
            self.next.1 += 1;
            return Some(self.whole(at, view, tensor).map(|tensor| (view.name.clone(), tensor)));
        }
    }
}

/// The rows of a storage that a view covers, in the shape of its part.
pub(crate) fn part(spec: &StorageSpec, view: &ViewSpec, tensor: &Tensor) -> Result<Tensor> {
    let rows = tensor.f_narrow(0, view.offset_rows as i64, spec.num_rows(view) as i64)?.f_detach()?;
    let shape: Vec<i64> = view.part.shape.iter().map(|n| *n as i64).collect();
    Ok(if rows.size() == shape { rows } else { rows.f_view(shape.as_slice())? })
}

/// Rank 0 gets the parts of the first ranks that hold the whole; a part that several of them hold, from the first.
fn gathered(of: &Split, at: usize, view: &ViewSpec, tensor: &Tensor) -> Result<Option<Tensor>> {
    let Split { parallel, config, whole } = of;
    let (world, spec) = (parallel.world(), &whole[at]);
    let shape: Vec<i64> = view.shape.iter().map(|n| *n as i64).collect();
    let mut out = match world.rank() {
        0 => Some(Tensor::f_empty(shape.as_slice(), (tensor.kind(), Device::Cpu))?),
        _ => None,
    };
    let mut seen: Vec<TensorBox> = Vec::new();
    for rank in parallel.holders() {
        let held = split(spec.clone(), config, parallel.place(rank));
        for own in held.views.iter().filter(|own| own.name == view.name) {
            if seen.contains(&own.part) {
                continue;
            }
            seen.push(own.part.clone());
            let mine =
                || part(&held, own, tensor)?.f_to_device(Device::Cpu)?.f_contiguous().map_err(Error::from);
            match (&mut out, rank) {
                (Some(out), 0) => put(out, &view.shape, &own.part, &mine()?)?,
                (Some(out), rank) => {
                    let shape: Vec<i64> = own.part.shape.iter().map(|n| *n as i64).collect();
                    let mut came = Tensor::f_empty(shape.as_slice(), (tensor.kind(), Device::Cpu))?;
                    world.recv(bytes_mut(&mut came)?, rank, 0)?;
                    put(out, &view.shape, &own.part, &came)?;
                }
                (None, rank) if rank == world.rank() => world.send(bytes_of(&mine()?)?, 0, 0)?,
                (None, _) => {}
            }
        }
    }
    Ok(out)
}

/// Copies a part into its place of the whole.
fn put(whole: &mut Tensor, shape: &[usize], at: &TensorBox, part: &Tensor) -> Result<()> {
    let width = part.kind().elt_size_in_bytes();
    let (from, to) = (bytes_of(part)?, bytes_mut(whole)?);
    for run in at.runs(&TensorBox::whole(shape)) {
        to[run.to * width..(run.to + run.len) * width]
            .copy_from_slice(&from[run.from * width..(run.from + run.len) * width]);
    }
    Ok(())
}
