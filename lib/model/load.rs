//! Models from weight directories: whole, or the part of a rank; with what stands beside the layers.

use std::path::Path;
use std::sync::Arc;

use slime_config::{HfConfig, Lora};
use slime_weights::WeightDir;
use tch::{Device, Kind};

use crate::{Model, Parallel, ParamStore, Result};

/// What a model has beside its layers and its head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Extra<'a> {
    /// Nothing.
    None,
    /// A head that gives each hidden state one number; what the directory does not hold of it is drawn from `seed`.
    ValueHead {
        /// The seed.
        seed: u64,
    },
    /// The layer that predicts the token after the next one.
    Mtp,
    /// Adapters, which alone are trained.
    Adapters {
        /// Beside which matrices, and of what rank.
        lora: &'a Lora,
        /// What they are drawn from.
        seed: u64,
    },
}

impl Model {
    /// Loads `config.json` and the safetensors of `dir`, casting parameters to `kind` on `device`.
    ///
    /// # Errors
    /// The directory is not a model of a known family, or libtorch has no room.
    pub fn load(dir: impl AsRef<Path>, kind: Kind, device: Device) -> Result<Self> {
        Self::load_part(dir, (kind, device), Extra::None, None)
    }

    /// The same of the part that this rank of `parallel` holds, with what `extra` says. Collective in so far as its passes
    /// are: all ranks of `parallel` make them together.
    ///
    /// # Errors
    /// As [`Self::load`], and a model of which it is not known how to compute what `extra` says.
    pub fn load_part(
        dir: impl AsRef<Path>,
        (kind, device): (Kind, Device),
        extra: Extra<'_>,
        parallel: Option<Arc<Parallel>>,
    ) -> Result<Self> {
        let (config, weights) = (HfConfig::load(&dir)?, WeightDir::open(&dir)?);
        let mut params = ParamStore::load_part(&weights, &config, (kind, device), parallel)?;
        match extra {
            Extra::None => {}
            Extra::ValueHead { seed } => params.add_value_head(&weights, &config, seed)?,
            Extra::Mtp => params.add_mtp(&weights, &config)?,
            Extra::Adapters { lora, seed } => params.add_adapters(&config, lora, seed)?,
        }
        Self::new(config, params)
    }

    /// The same with a head that gives each hidden state one number; a head that `dir` does not hold is drawn from `seed`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with_value_head(
        dir: impl AsRef<Path>,
        kind: Kind,
        device: Device,
        seed: u64,
    ) -> Result<Self> {
        Self::load_part(dir, (kind, device), Extra::ValueHead { seed }, None)
    }

    /// The same with the layer that predicts the token after the next one.
    ///
    /// # Errors
    /// As [`Self::load`], and a model of which it is not known how to compute such a layer.
    pub fn load_with_mtp(dir: impl AsRef<Path>, kind: Kind, device: Device) -> Result<Self> {
        Self::load_part(dir, (kind, device), Extra::Mtp, None)
    }
}
