//! The adapters of a model among its parameters: drawn, looked up for a product, and merged into the matrix beside them.

use std::collections::{HashMap, HashSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::{HfConfig, Lora};
use slime_weights::{Adapter as AdapterSpec, StorageSpec, ViewSpec, adapters};
use tch::{Kind, Tensor};

use crate::ops::adapter::{Adapter, Outputs};
use crate::{ParamStore, Result, WholeTensors};

/// The adapters of the whole model.
#[derive(Debug)]
pub(crate) struct Adapters {
    /// What the product of `A` and `B` is taken times.
    pub scale: f64,
    all: Vec<AdapterSpec>,
    by_matrix: HashMap<String, usize>,
    storages: HashSet<String>,
}

impl Adapters {
    fn new(scale: f64, all: Vec<AdapterSpec>) -> Self {
        let by_matrix = all.iter().enumerate().map(|(at, adapter)| (adapter.matrix.clone(), at)).collect();
        let storages = all.iter().flat_map(|adapter| [&adapter.a, &adapter.b]).map(|spec| spec.name.clone());
        Self { scale, by_matrix, storages: storages.collect(), all }
    }

    /// That of a tensor of the model, if it has one.
    pub fn of(&self, matrix: &str) -> Option<&AdapterSpec> {
        self.by_matrix.get(matrix).and_then(|at| self.all.get(*at))
    }

    /// Whether a storage belongs to an adapter.
    pub fn has(&self, storage: &str) -> bool {
        self.storages.contains(storage)
    }
}

impl ParamStore {
    /// Whether adapters are trained in place of the parameters.
    pub fn has_adapters(&self) -> bool {
        self.adapters.is_some()
    }

    /// The adapters of the whole model. Collective over the world where the model is split.
    pub fn whole_adapters(&self) -> WholeTensors<'_> {
        WholeTensors::adapters(self)
    }

    /// Freezes everything and adds adapters: `A` uniform up to `1 / sqrt(in)` either way, drawn from `seed` and the number of
    /// the adapter, `B` zeros, as PEFT does (`kaiming_uniform_` with `a = sqrt(5)`).
    ///
    /// # Errors
    /// Targets that do not fit the model, or there is no room.
    pub(crate) fn add_adapters(&mut self, config: &HfConfig, lora: &Lora, seed: u64) -> Result<()> {
        let all = adapters(config, lora)?;
        self.freeze_all();
        for (number, adapter) in all.iter().enumerate() {
            for spec in self.own(vec![adapter.a.clone()]) {
                let whole = drawn_a(&adapter.a, seed, number as u64)?;
                let tensor = self.placed(&cut(&spec, &whole)?)?;
                self.push(spec, tensor);
            }
            for spec in self.own(vec![adapter.b.clone()]) {
                let tensor = Tensor::f_zeros(shape(&spec.shape), (self.kind(), self.device()))?;
                self.push(spec, tensor);
            }
        }
        self.adapters = Some(Adapters::new(lora.scale(), all));
        Ok(())
    }

    /// The adapters of the product with a storage; none of a model without.
    pub(crate) fn adapters_of(&self, storage: &str) -> Result<Vec<Adapter>> {
        let Some(adapters) = &self.adapters else { return Ok(Vec::new()) };
        let Some((spec, _)) = self.iter().find(|(spec, _)| spec.name == storage) else {
            return Ok(Vec::new());
        };
        let own = adapters.all.iter().filter(|adapter| adapter.storage == storage);
        own.filter_map(|adapter| Some((outputs(spec, &adapter.matrix, adapters.scale)?, adapter)))
            .map(|(outputs, AdapterSpec { a, b, .. })| {
                Ok(Adapter::new(outputs, self.get(&a.name)?, self.get(&b.name)?))
            })
            .collect()
    }

    fn placed(&self, values: &Tensor) -> Result<Tensor> {
        Ok(values.f_to_kind(self.kind())?.f_to_device(self.device())?)
    }
}

/// Which rows of a rank's storage belong to `matrix`; they lie side by side.
fn outputs(spec: &StorageSpec, matrix: &str, scale: f64) -> Option<Outputs> {
    let views: Vec<&ViewSpec> = spec.views.iter().filter(|view| view.name == matrix).collect();
    let start = views.first()?.offset_rows as i64;
    let len = views.iter().map(|view| spec.num_rows(view)).sum::<usize>() as i64;
    Some(Outputs { start, len, scale })
}

/// The whole `A` of the adapter `number`, f32 on the CPU.
fn drawn_a(spec: &StorageSpec, seed: u64, number: u64) -> Result<Tensor> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(number);
    let bound = 1.0 / (spec.row_len() as f64).sqrt();
    let mut draw = || (bound * (2.0 * generator.random::<f64>() - 1.0)) as f32;
    let values: Vec<f32> = (0..spec.num_elements()).map(|_| draw()).collect();
    Ok(Tensor::f_from_slice(&values)?.f_view(shape(&spec.shape).as_slice())?)
}

/// What a rank holds of a whole matrix.
fn cut(spec: &StorageSpec, whole: &Tensor) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(spec.views.len());
    for view in &spec.views {
        let mut part = whole.shallow_clone();
        for (dim, (start, len)) in view.part.start.iter().zip(&view.part.shape).enumerate() {
            part = part.f_narrow(dim as i64, *start as i64, *len as i64)?;
        }
        parts.push(part);
    }
    Ok(Tensor::f_cat(&parts, 0)?.f_contiguous()?)
}

fn shape(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|n| *n as i64).collect()
}

/// `W + s B A`, computed in f32 (f64 of f64) and rounded once; on the CPU where any of them is there.
///
/// # Errors
/// The shapes do not fit.
pub(crate) fn merged(matrix: &Tensor, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
    let (kind, device) = (matrix.kind(), matrix.device());
    let wide = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    let widen = |x: &Tensor| x.f_to_device(device)?.f_to_kind(wide);
    let delta = widen(b)?.f_matmul(&widen(a)?)?.f_mul_scalar(scale)?;
    Ok(widen(matrix)?.f_add(&delta)?.f_to_kind(kind)?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn drawn_numbers_follow_from_the_seed_and_fill_their_range() {
        let spec = StorageSpec::single("a", "a", &[64, 256]);
        let one = drawn_a(&spec, 7, 3).unwrap();
        assert!(one.equal(&drawn_a(&spec, 7, 3).unwrap()));
        assert!(!one.equal(&drawn_a(&spec, 7, 4).unwrap()) && !one.equal(&drawn_a(&spec, 8, 3).unwrap()));
        let most = one.abs().max().double_value(&[]);
        assert!(most <= 1.0 / 16.0 && most > 0.99 / 16.0, "{most}");
        // Of a uniform distribution: bound / sqrt(3).
        let std = one.std(false).double_value(&[]);
        assert!((std * 16.0 * 3.0_f64.sqrt() - 1.0).abs() < 0.02, "{std}");
    }

    #[test]
    fn merged_matrix_is_rounded_once() {
        let of = |values: &[f32], size: [i64; 2]| {
            Tensor::from_slice(values).view(size).to_kind(Kind::BFloat16).to_device(Device::Cpu)
        };
        // 1 + 1/512 + 1/512: each addend alone is lost in bf16 (7 bits behind the point), their sum is half of its last place
        // and more.
        let (a, b) = (of(&[1.0, 1.0], [2, 1]), of(&[0.001_953_125, 0.002_929_687_5], [1, 2]));
        let merged = merged(&of(&[1.0], [1, 1]), &a, &b, 1.0).unwrap();
        assert_eq!(merged.kind(), Kind::BFloat16);
        assert!((merged.double_value(&[0, 0]) - 1.007_812_5).abs() < 1e-9, "{merged}");
    }
}
