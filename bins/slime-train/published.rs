//! What engines get of the policy: its tensors as they are, or matrices quantised on the way (`[rollout.weights]`), to the bytes of
//! `slime-convert`.

use std::collections::HashMap;

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_weights::{Quantiser, TensorSpec, decode_f32};

use crate::failure;

/// The tensors of a version.
pub struct Published {
    plain: Vec<TensorSpec>,
    quantiser: Option<Quantiser>,
    /// `quantization_config` of what is quantised.
    config: Option<Value>,
    /// Of `plain`, by name.
    places: HashMap<String, usize>,
}

impl Published {
    /// Of a policy with the tensors `plain`.
    ///
    /// # Errors
    /// There is a quantiser, and no matrix for it.
    pub fn new(plain: Vec<TensorSpec>, quantiser: Option<Quantiser>) -> Result<Self, Failure> {
        let shapes = plain.iter().map(|spec| (spec.name.as_str(), spec.shape.as_slice()));
        let config = match &quantiser {
            None => None,
            Some(quantiser) => {
                let kept = quantiser.kept_modules(shapes).ok_or_else(|| {
                    let size = quantiser.group_size;
                    Failure::new(78, format!("[rollout.weights] leaves every matrix of the model as it is, with groups of {size}"))
                        .with_hint("a smaller rollout.weights.group_size, or only_experts = false")
                })?;
                Some(quantiser.config(&kept))
            }
        };
        let places = plain.iter().enumerate().map(|(at, spec)| (spec.name.clone(), at)).collect();
        Ok(Self { plain, quantiser, config, places })
    }

    /// What a tensor becomes, if it is quantised.
    fn quantiser_of(&self, spec: &TensorSpec) -> Option<Quantiser> {
        self.quantiser.filter(|quantiser| quantiser.applies(&spec.name, &spec.shape))
    }

    /// The tensors as they are written, in order.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let of = |spec: &TensorSpec| match self.quantiser_of(spec) {
            Some(quantiser) => quantiser.specs(&spec.name, &spec.shape),
            None => vec![spec.clone()],
        };
        self.plain.iter().flat_map(of).collect()
    }

    /// Hands a tensor over as it is written.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn each_part(
        &self,
        name: &str,
        bytes: &[u8],
        mut write: impl FnMut(&str, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let spec = self.places.get(name).and_then(|at| self.plain.get(*at));
        let Some((spec, quantiser)) = spec.and_then(|spec| Some((spec, self.quantiser_of(spec)?))) else {
            return write(name, bytes);
        };
        let values = decode_f32(name, bytes, spec.dtype).map_err(failure!())?;
        let parts = quantiser.quantise(&values, &spec.shape).map_err(failure!())?;
        let names = quantiser.specs(name, &spec.shape).into_iter().map(|spec| spec.name);
        names.zip(parts).try_for_each(|(name, bytes)| write(&name, &bytes))
    }

    /// The files beside them, with `quantization_config` where there is one.
    ///
    /// # Errors
    /// `config.json` is no JSON.
    pub fn side_files(&self, mut files: Vec<(String, Vec<u8>)>) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let Some(quantisation) = &self.config else { return Ok(files) };
        for (_, bytes) in files.iter_mut().filter(|(name, _)| name == "config.json") {
            let broken = |error| Failure::data(format!("config.json: not JSON: {error}"));
            let mut config: Map<String, Value> = serde_json::from_slice(bytes).map_err(broken)?;
            config.insert("quantization_config".to_owned(), quantisation.clone());
            *bytes = serde_json::to_vec_pretty(&config).map_err(broken)?;
        }
        Ok(files)
    }
}
