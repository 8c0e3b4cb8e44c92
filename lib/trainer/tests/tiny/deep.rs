//! Tiny models with more layers than their fixture has.

use std::path::{Path, PathBuf};

use serde_json::Value;
use slime_weights::{Dtype, TensorSpec, WeightDir, WeightWriter};

/// Writes the model `name` with `num_layers` layers to a folder below `dir`: its own first, then its later ones by turns,
/// every copy a little larger than the one before.
pub fn deeper(dir: &Path, name: &str, num_layers: usize) -> PathBuf {
    let target = dir.join(format!("{name}-{num_layers}"));
    if target.exists() {
        return target;
    }
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    let text = std::fs::read_to_string(fixture.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let own = config["num_hidden_layers"].as_u64().unwrap() as usize;
    config["num_hidden_layers"] = num_layers.into();
    let weights = WeightDir::open(&fixture).unwrap();
    let mut tensors = Vec::new();
    for tensor in weights.names() {
        match tensor.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
            None => tensors.push((tensor.to_owned(), tensor.to_owned(), 1.0)),
            // What stands behind the layers of the fixture is not of them.
            Some((at, _)) if at.parse::<usize>().unwrap() >= own => {}
            Some((at, suffix)) => {
                let at: usize = at.parse().unwrap();
                let is_copied = |layer: &usize| source(*layer, own) == at;
                for layer in (0..num_layers).filter(is_copied) {
                    let copy = format!("model.layers.{layer}.{suffix}");
                    tensors.push((copy, tensor.to_owned(), 1.0 + 0.01 * layer as f32));
                }
            }
        }
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let spec = |(name, source, _): &(String, String, f32)| TensorSpec {
        name: name.clone(),
        dtype: Dtype::F32,
        shape: weights.info(source).unwrap().shape.clone(),
    };
    let specs = tensors.iter().map(spec).collect();
    let mut writer = WeightWriter::create(&target, specs, usize::MAX).unwrap();
    for (name, source, factor) in &tensors {
        let values = weights.tensor(source).unwrap().to_f32().unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| (value * factor).to_le_bytes()).collect();
        writer.write(name, &bytes).unwrap();
    }
    writer.add_file("config.json", config.to_string().as_bytes()).unwrap();
    writer.finish().unwrap();
    target
}

/// The layer of the fixture that a layer is a copy of.
fn source(layer: usize, own: usize) -> usize {
    if layer < own { layer } else { 1 + (layer - 1) % (own - 1) }
}
