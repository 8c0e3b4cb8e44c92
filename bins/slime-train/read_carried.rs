//! Reads what the policy does not compute but its weights hold: layers that predict further tokens, unless they are trained.

use std::collections::HashSet;
use std::path::Path;

use slime_cli::Failure;
use slime_model::Model;
use slime_weights::{TensorSpec, WeightDir, is_carried};

use crate::failure;

/// The tensors that go from the weights a model started from into those it becomes, byte by byte.
pub struct Carried {
    weights: WeightDir,
    pub specs: Vec<TensorSpec>,
}

impl Carried {
    /// Those of `model`, which was read from `origin`.
    pub fn of(model: &Model, origin: &Path) -> Result<Self, Failure> {
        let weights = WeightDir::open(origin).map_err(failure!())?;
        let computed: HashSet<&str> =
            model.params().iter().flat_map(|(spec, _)| &spec.views).map(|view| view.name.as_str()).collect();
        let is_untouched = |name: &&str| is_carried(model.config(), name) && !computed.contains(name);
        let names = weights.names().filter(is_untouched);
        let specs = names
            .map(|name| {
                let info = weights.info(name).map_err(failure!())?;
                Ok(TensorSpec { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone() })
            })
            .collect::<Result<_, Failure>>()?;
        Ok(Self { weights, specs })
    }

    /// Hands each tensor's name and bytes to `write`.
    pub fn write(&self, mut write: impl FnMut(&str, &[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        for spec in &self.specs {
            let tensor = self.weights.tensor(&spec.name).map_err(failure!())?;
            write(&spec.name, &tensor.bytes)?;
        }
        Ok(())
    }
}
