//! The tensors of a split model put together on rank 0, one at a time, under their Hugging Face names.

use std::collections::HashMap;
use std::sync::Arc;

use slime_comm::Collectives;
use slime_config::{HfConfig, TensorBox};
use slime_torch::{bytes_mut, bytes_of};
use slime_weights::{StorageSpec, ViewSpec, is_of_stage, split};
use tch::{Device, Kind, Tensor};

use crate::adapters::merged;
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
    /// The storages of the whole model.
    pub whole: Vec<StorageSpec>,
}

impl Split {
    /// Adds storages, and returns what this rank holds of them.
    pub fn push(&mut self, specs: Vec<StorageSpec>) -> Vec<StorageSpec> {
        let own = specs.iter().filter_map(|spec| self.held(spec)).collect();
        self.whole.extend(specs);
        own
    }

    /// What this rank holds of a storage of the whole model, if anything.
    pub fn held(&self, spec: &StorageSpec) -> Option<StorageSpec> {
        let place = self.parallel.own_place();
        is_of_stage(spec, &self.config, place.stage).then(|| split(spec.clone(), &self.config, place))
    }
}

/// Which tensors are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// With adapters merged.
    Parameters,
    Adapters,
    /// Of what is trained, in f32 (f64 of f64 models).
    Gradients,
}

/// Tensors of all storages as they come: the whole tensors on rank 0, on other ranks their names. Every rank of the world
/// takes all of them, or none.
#[derive(Debug)]
pub struct WholeTensors<'a> {
    params: &'a ParamStore,
    which: Which,
    /// This rank's, by the names of storages and of their shapes.
    tensors: HashMap<&'a str, &'a Tensor>,
    /// Storage and view that come next.
    next: (usize, usize),
}

impl<'a> WholeTensors<'a> {
    /// The parameters.
    pub(crate) fn parameters(params: &'a ParamStore) -> Self {
        let tensors = params.iter().map(|(spec, tensor)| (spec.name.as_str(), tensor)).collect();
        Self { params, which: Which::Parameters, tensors, next: (0, 0) }
    }

    /// The adapters.
    pub(crate) fn adapters(params: &'a ParamStore) -> Self {
        Self { which: Which::Adapters, ..Self::parameters(params) }
    }

    /// Gradients by storage.
    pub(crate) fn gradients(params: &'a ParamStore, grads: &'a [(String, Tensor)]) -> Self {
        let tensors = grads.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        Self { params, which: Which::Gradients, tensors, next: (0, 0) }
    }

    /// What comes, in order.
    pub fn specs(&self) -> Vec<WholeSpec> {
        let of = |spec: &StorageSpec| {
            let kind = self.kind(spec)?;
            let whole =
                |view: &ViewSpec| WholeSpec { name: view.name.clone(), shape: view.shape.clone(), kind };
            Some(spec.views.iter().map(whole).collect::<Vec<_>>())
        };
        self.params.whole_specs().iter().filter_map(of).flatten().collect()
    }

    /// The element type of a storage; `None` where it is not among what comes.
    fn kind(&self, spec: &StorageSpec) -> Option<Kind> {
        let is_adapter = self.params.adapters.as_ref().is_some_and(|adapters| adapters.has(&spec.name));
        match self.which {
            Which::Parameters if is_adapter => None,
            Which::Adapters if !is_adapter => None,
            Which::Parameters | Which::Adapters => Some(self.params.kind_of(spec)),
            Which::Gradients if spec.is_frozen => None,
            Which::Gradients => {
                Some(if self.params.kind() == Kind::Double { Kind::Double } else { Kind::Float })
            }
        }
    }

    /// The tensor of `view` of the whole storage `spec`, with what its adapter adds.
    fn merged(&self, spec: &StorageSpec, view: &ViewSpec, kind: Kind) -> Result<Option<Tensor>> {
        let whole = self.whole(spec, view, kind)?;
        let adapters = self.params.adapters.as_ref().filter(|_| self.which == Which::Parameters);
        let Some((adapters, adapter)) = adapters.and_then(|all| Some((all, all.of(&view.name)?))) else {
            return Ok(whole);
        };
        let a = self.whole(&adapter.a, &adapter.a.views[0], kind)?;
        let b = self.whole(&adapter.b, &adapter.b.views[0], kind)?;
        match (whole, a, b) {
            (Some(whole), Some(a), Some(b)) => Ok(Some(merged(&whole, &a, &b, adapters.scale)?)),
            _ => Ok(None),
        }
    }

    /// The tensor of `view` of the whole storage `spec`.
    fn whole(&self, spec: &StorageSpec, view: &ViewSpec, kind: Kind) -> Result<Option<Tensor>> {
        let own = self.tensors.get(spec.name.as_str()).copied();
        match (self.params.split(), own) {
            (None, Some(own)) => Ok(Some(part(spec, view, own)?)),
            (None, None) => Err(Error::MissingStorage { name: spec.name.clone() }),
            (Some(split), own) => gathered(split, (spec, view, kind), own),
        }
    }
}

impl Iterator for WholeTensors<'_> {
    type Item = Result<(String, Option<Tensor>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (at, view) = self.next;
            let spec = self.params.whole_specs().get(at)?;
            let (Some(kind), Some(view)) = (self.kind(spec), spec.views.get(view)) else {
                self.next = (at + 1, 0);
                continue;
            };
            self.next.1 += 1;
            return Some(self.merged(spec, view, kind).map(|tensor| (view.name.clone(), tensor)));
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
fn gathered(
    of: &Split,
    (spec, view, kind): (&StorageSpec, &ViewSpec, Kind),
    own: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let Split { parallel, config, .. } = of;
    let world = parallel.world();
    let empty = |shape: &[usize]| {
        let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
        Tensor::f_empty(shape.as_slice(), (kind, Device::Cpu))
    };
    let mut out = if world.rank() == 0 { Some(empty(&view.shape)?) } else { None };
    let mut seen: Vec<TensorBox> = Vec::new();
    for rank in parallel.holders(spec, config) {
        let held = split(spec.clone(), config, parallel.place(rank));
        for own_view in held.views.iter().filter(|held| held.name == view.name) {
            if seen.contains(&own_view.part) {
                continue;
            }
            seen.push(own_view.part.clone());
            let mine = || {
                let own = own.ok_or_else(|| Error::MissingStorage { name: spec.name.clone() })?;
                Ok::<_, Error>(part(&held, own_view, own)?.f_to_device(Device::Cpu)?.f_contiguous()?)
            };
            match (&mut out, rank) {
                (Some(out), 0) => put(out, &view.shape, &own_view.part, &mine()?)?,
                (Some(out), rank) => {
                    let mut came = empty(&own_view.part.shape)?;
                    world.recv(bytes_mut(&mut came)?, rank, 0)?;
                    put(out, &view.shape, &own_view.part, &came)?;
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
