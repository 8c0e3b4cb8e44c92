//! Low-rank adapters as storages: which matrices of a model have them, what they are called, and how ranks share them.
//!
//! The names are those of PEFT below the name of the model: `<matrix>.lora_A.weight` and `<matrix>.lora_B.weight`. Each is a
//! storage of its own, cut as the matrix beside it is: where ranks have rows of the matrix they have those of `B` and all of
//! `A`, where they have columns they have those of `A` and all of `B`.

use std::collections::{BTreeMap, BTreeSet};

use slime_config::{HfConfig, Lora, Result};

use crate::split::{Place, after, heads_of, kv_copies, kv_heads};
use crate::{StorageSpec, storages};

/// Storages of which every matrix can have an adapter.
const ADAPTED: [&str; 6] = ["qkv", "o_proj", "gate_up", "down", "shared_gate_up", "shared_down"];

/// The adapter of one matrix of the whole model.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// The storage that holds the matrix.
    pub storage: String,
    /// The Hugging Face name of the matrix.
    pub matrix: String,
    /// `[rank, in]`.
    pub a: StorageSpec,
    /// `[out, rank]`.
    pub b: StorageSpec,
}

impl Adapter {
    fn new(storage: &str, matrix: &str, [rows, columns]: [usize; 2], rank: usize) -> Self {
        let module = matrix.strip_suffix(".weight").unwrap_or(matrix);
        let name = module.strip_prefix("model.").unwrap_or(module);
        let single = |side: &str, hf: &str, shape: [usize; 2]| {
            StorageSpec::single(format!("{name}.{side}"), format!("{module}.{hf}.weight"), &shape)
        };
        Self {
            storage: storage.to_owned(),
            matrix: matrix.to_owned(),
            a: single("lora_a", "lora_A", [rank, columns]),
            b: single("lora_b", "lora_B", [rows, rank]),
        }
    }
}

/// The adapters of a model, in the order of the forward pass.
///
/// # Errors
/// Patterns that match nothing or what has no adapter.
pub fn adapters(config: &HfConfig, lora: &Lora) -> Result<Vec<Adapter>> {
    let whole = storages(config);
    let can = |spec: &StorageSpec| {
        let suffix = spec.name.rsplit('.').next().unwrap_or_default();
        spec.layer().is_some() && ADAPTED.contains(&suffix)
    };
    let views = || whole.iter().flat_map(|spec| spec.views.iter().map(move |view| (spec, view)));
    let names: Vec<(&str, bool)> = views().map(|(spec, view)| (view.name.as_str(), can(spec))).collect();
    let is_adapted = lora.adapted(&names)?;
    let adapted = views().zip(is_adapted).filter(|(_, is_adapted)| *is_adapted);
    Ok(adapted
        .map(|((spec, view), _)| {
            let columns = spec.row_len();
            let shape = [view.part.num_elements() / columns, columns];
            Adapter::new(&spec.name, &view.name, shape, lora.rank as usize)
        })
        .collect())
}

/// What PEFT calls target modules: the last word of a module where all modules that end in it are adapted, else the module.
pub fn target_modules(config: &HfConfig, adapters: &[Adapter]) -> BTreeSet<String> {
    fn module(matrix: &str) -> &str {
        matrix.strip_suffix(".weight").unwrap_or(matrix)
    }
    fn word(matrix: &str) -> &str {
        module(matrix).rsplit('.').next().unwrap_or_default()
    }
    let mut num_left: BTreeMap<&str, usize> = BTreeMap::new();
    let whole = storages(config);
    for view in whole.iter().flat_map(|spec| &spec.views) {
        *num_left.entry(word(&view.name)).or_default() += 1;
    }
    for adapter in adapters {
        if let Some(num) = num_left.get_mut(word(&adapter.matrix)) {
            *num -= 1;
        }
    }
    let target = |adapter: &Adapter| {
        let is_all = num_left.get(word(&adapter.matrix)) == Some(&0);
        if is_all { word(&adapter.matrix) } else { module(&adapter.matrix) }.to_owned()
    };
    adapters.iter().map(target).collect()
}

/// What of the storage of an adapter, whose name ends in `lora_a` or `lora_b`, the rank at `place` holds.
pub(crate) fn split_adapter(spec: StorageSpec, config: &HfConfig, Place { tp, .. }: Place) -> StorageSpec {
    let mut words = spec.name.rsplit('.');
    let (side, matrix) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let rows = spec.shape[0];
    match (matrix, side) {
        ("q_proj", "lora_b") => spec.keep_rows(&[heads_of(config, tp.of(config.num_attention_heads))]),
        ("k_proj" | "v_proj", "lora_b") => {
            let copies = kv_copies(config, tp.size);
            spec.keep_rows(&[heads_of(config, kv_heads(config, tp))]).with_copies(&[copies])
        }
        ("gate_proj" | "up_proj", "lora_b") => spec.keep_rows(&[tp.of(rows)]),
        ("gate_up_proj", "lora_b") => {
            let width = tp.of(rows / 2);
            spec.keep_rows(&[width.clone(), after(rows / 2, &width)])
        }
        ("o_proj", "lora_a") => spec.keep_columns(&heads_of(config, tp.of(config.num_attention_heads))),
        ("down_proj", "lora_a") => {
            let width = tp.of(spec.row_len());
            spec.keep_columns(&width)
        }
        _ => {
            let copies = vec![tp.size; spec.views.len()];
            spec.with_copies(&copies)
        }
    }
}

#[cfg(test)]
mod tests {
    use slime_config::TensorBox;

    use super::*;
    use crate::{Share, split};

    const MOE: &str = r#"{"model_type":"glm4_moe","hidden_size":8,"intermediate_size":13,"num_hidden_layers":2,
        "num_attention_heads":8,"num_key_value_heads":2,"head_dim":4,"vocab_size":11,"n_routed_experts":4,"num_experts_per_tok":2,
        "moe_intermediate_size":5,"n_shared_experts":2,"first_k_dense_replace":1,"use_qk_norm":true}"#;
    const FUSED: &str = r#"{"model_type":"glm4","hidden_size":8,"intermediate_size":13,"num_hidden_layers":1,
        "num_attention_heads":4,"num_key_value_heads":2,"head_dim":4,"vocab_size":11}"#;

    fn of(text: &str) -> (HfConfig, Vec<Adapter>) {
        let config = HfConfig::parse(text, std::path::Path::new("config.json")).unwrap();
        let adapters = adapters(&config, &Lora { rank: 3, ..Lora::default() }).unwrap();
        (config, adapters)
    }

    #[test]
    fn every_matrix_but_those_of_routers_and_experts_has_one() {
        let (config, adapters) = of(MOE);
        assert_eq!(adapters.len(), 14);
        let modules = target_modules(&config, &adapters);
        // Words of experts too are spelled out.
        let words = ["k_proj", "o_proj", "q_proj", "v_proj"].map(str::to_owned);
        let mlps = ["0.mlp", "1.mlp.shared_experts"].iter().flat_map(|block| {
            ["down_proj", "gate_proj", "up_proj"].map(|word| format!("model.layers.{block}.{word}"))
        });
        assert_eq!(modules, words.into_iter().chain(mlps).collect());
        let Adapter { storage, matrix, a, b } = &adapters[1];
        assert_eq!(
            (storage.as_str(), matrix.as_str()),
            ("layers.0.qkv", "model.layers.0.self_attn.k_proj.weight")
        );
        assert_eq!(
            (a.name.as_str(), a.shape.as_slice()),
            ("layers.0.self_attn.k_proj.lora_a", [3, 8].as_slice())
        );
        assert_eq!(b.views[0].name, "model.layers.0.self_attn.k_proj.lora_B.weight");
        assert_eq!(b.shape, [8, 3]);
    }

    #[test]
    fn ranks_hold_the_rows_and_columns_of_the_matrix_beside_it() {
        for (text, tp) in [(MOE, 1), (MOE, 2), (MOE, 4), (FUSED, 2)] {
            let (config, adapters) = of(text);
            let whole = storages(&config);
            for (rank, adapter) in
                (0..tp).flat_map(|rank| adapters.iter().map(move |adapter| (rank, adapter)))
            {
                let place = Place { tp: Share { rank, size: tp }, ..Place::default() };
                let [a, b] = [&adapter.a, &adapter.b].map(|spec| split(spec.clone(), &config, place));
                let base = whole.iter().find(|spec| spec.name == adapter.storage).unwrap().clone();
                let base = split(base, &config, place);
                let boxes = |spec: &StorageSpec, name: &str| -> Vec<TensorBox> {
                    spec.views.iter().filter(|view| view.name == name).map(|view| view.part.clone()).collect()
                };
                let of_base = boxes(&base, &adapter.matrix);
                let (of_a, of_b) = (boxes(&a, &a.views[0].name), boxes(&b, &b.views[0].name));
                assert_eq!(of_a[0].start[1], of_base[0].start[1], "{}", a.name);
                assert_eq!(of_a[0].shape[1], of_base[0].shape[1], "{}", a.name);
                let rows = |boxes: &[TensorBox]| -> Vec<(usize, usize)> {
                    boxes.iter().map(|part| (part.start[0], part.shape[0])).collect()
                };
                assert_eq!(rows(&of_b), rows(&of_base), "{}", b.name);
            }
        }
    }
}
