//! Adapters as PEFT keeps them: `adapter_model.safetensors` beside `adapter_config.json`.
//!
//! The format is that of `PeftModel.save_pretrained` (huggingface/peft): tensors are called `base_model.model.<module>.lora_A.weight`
//! and `...lora_B.weight`, the configuration is that of `LoraConfig`; what it does not say has its default there.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use slime_config::Lora;

use crate::{Result, TensorSpec, WeightWriter, header};

/// What PEFT puts before the names of the model's modules.
const PREFIX: &str = "base_model.model.";

/// An adapter that is written.
#[derive(Debug, Clone)]
pub struct PeftAdapter<'a> {
    /// The weights it was trained beside: a path, or a name of the hub.
    pub base: &'a str,
    /// Rank and alpha.
    pub lora: &'a Lora,
    /// What [`crate::target_modules`] says.
    pub target_modules: BTreeSet<String>,
    /// Its tensors, under names such as `model.layers.0.self_attn.q_proj.lora_A.weight`, with their little-endian elements.
    pub tensors: Vec<(TensorSpec, Vec<u8>)>,
}

impl PeftAdapter<'_> {
    /// Makes the directory `dir`, which must be new.
    ///
    /// # Errors
    /// It holds something already, or the disk refuses.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let writer = WeightWriter::create(dir, Vec::new(), usize::MAX)?;
        writer.add_file("adapter_model.safetensors", &self.safetensors())?;
        writer.add_file("adapter_config.json", format!("{:#}\n", self.config()).as_bytes())?;
        writer.finish().map(|_| ())
    }

    fn safetensors(&self) -> Vec<u8> {
        let named = |(spec, _): &(TensorSpec, Vec<u8>)| TensorSpec {
            name: format!("{PREFIX}{}", spec.name),
            ..spec.clone()
        };
        let specs: Vec<TensorSpec> = self.tensors.iter().map(named).collect();
        let mut bytes = header(&specs);
        self.tensors.iter().for_each(|(_, elements)| bytes.extend_from_slice(elements));
        bytes
    }

    fn config(&self) -> Value {
        let Lora { rank, alpha, .. } = self.lora;
        // A whole number as PEFT writes it.
        let alpha = if alpha.fract() == 0.0 { json!(*alpha as u64) } else { json!(alpha) };
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base,
            "inference_mode": true,
            "r": rank,
            "lora_alpha": alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": false,
            "modules_to_save": null,
            "use_rslora": false,
            "use_dora": false,
            "target_modules": self.target_modules,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, WeightDir};

    #[test]
    fn directory_is_what_peft_reads() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("adapter");
        let name = "model.layers.0.self_attn.q_proj.lora_A.weight".to_owned();
        let spec = TensorSpec { name, dtype: Dtype::F32, shape: vec![1, 2] };
        let lora = Lora { rank: 1, alpha: 0.5, targets: Vec::new() };
        let bytes = [1.5_f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let target_modules = BTreeSet::from(["q_proj".to_owned()]);
        let adapter =
            PeftAdapter { base: "weights/a", lora: &lora, target_modules, tensors: vec![(spec, bytes)] };
        adapter.write(&place).unwrap();
        let weights = WeightDir::open(place.join("adapter_model.safetensors")).unwrap();
        let name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
        assert_eq!(weights.names().collect::<Vec<_>>(), [name]);
        assert_eq!(weights.info(name).unwrap().shape, [1, 2]);
        let config: Value =
            serde_json::from_slice(&std::fs::read(place.join("adapter_config.json")).unwrap()).unwrap();
        assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(1), &json!(0.5)));
        assert_eq!((&config["peft_type"], &config["target_modules"]), (&json!("LORA"), &json!(["q_proj"])));
        assert!(adapter.write(&place).is_err());
    }
}
