//! The parameters of a model as entries that know how they are divided.

use std::path::Path;

use serde_json::Value;
use slime_config::{HfConfig, QkNormScope};

use super::latent;
use crate::{Result, storages};

/// What parameters are for, which says how ranks divide them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Rows of the vocabulary, divided by `tp`; on the first stage.
    Embedding,
    /// The same on the last stage.
    Head,
    /// Matrices that `tp` divides by heads.
    Attention,
    /// The key and value part of them, of which a head is the least that a rank holds.
    KeyValue,
    /// Matrices that `tp` divides by their width.
    Mlp,
    /// Divided by `ep`, whole experts.
    Experts,
    /// The same on every rank of a stage: norms, routers, latent projections.
    Whole,
    /// The norm before the head, whole on the last stage.
    FinalNorm,
}

impl Kind {
    /// What it is called among people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Head => "output head",
            Self::Attention | Self::KeyValue => "attention",
            Self::Mlp => "MLPs and shared experts",
            Self::Experts => "routed experts",
            Self::Whole | Self::FinalNorm => "norms, routers, latent projections",
        }
    }
}

/// Parameters of one kind in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// None for embedding, final norm and head.
    pub layer: Option<usize>,
    pub num_elements: u64,
}

/// A model as far as a plan has to know it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTable {
    pub model_type: String,
    pub num_layers: usize,
    pub num_heads: usize,
    /// Of latent attention, which every rank holds whole, 0.
    pub num_key_value_heads: usize,
    pub vocab_size: usize,
    pub num_experts: usize,
    pub top_k: usize,
    pub entries: Vec<Entry>,
    pub num_mtp_parameters: u64,
    pub kv_elements_per_token: u64,
}

impl ModelTable {
    /// The table of the model that a `config.json` describes.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let latent = serde_json::from_str::<Value>(text).ok().filter(latent::is_one);
        match latent {
            Some(config) => latent::table(&config, path),
            None => Ok(Self::of(&HfConfig::parse(text, path)?)),
        }
    }

    /// That of a family whose table of tensors is known.
    fn of(config: &HfConfig) -> Self {
        let mut entries = Vec::new();
        let norms_have_heads = config.qk_norm == Some(QkNormScope::AllHeads);
        for storage in storages(config) {
            let (layer, part) =
                match storage.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
                    Some((layer, part)) => (layer.parse().ok(), part),
                    None => (None, storage.name.as_str()),
                };
            let num_elements = storage.num_elements() as u64;
            let mut push = |kind: Kind, num_elements: u64| entries.push(Entry { kind, layer, num_elements });
            match part {
                "embed" => push(Kind::Embedding, num_elements),
                "head" => push(Kind::Head, num_elements),
                "final_norm" => push(Kind::FinalNorm, num_elements),
                "qkv" | "qkv_bias" => {
                    let q =
                        storage.views.first().map_or(0, |view| view.shape.iter().product::<usize>()) as u64;
                    push(Kind::Attention, q);
                    push(Kind::KeyValue, num_elements - q);
                }
                "o_proj" => push(Kind::Attention, num_elements),
                "q_norm" if norms_have_heads => push(Kind::Attention, num_elements),
                "k_norm" if norms_have_heads => push(Kind::KeyValue, num_elements),
                "gate_up" | "down" | "shared_gate_up" | "shared_down" => push(Kind::Mlp, num_elements),
                "experts_gate_up" | "experts_down" => push(Kind::Experts, num_elements),
                _ => push(Kind::Whole, num_elements),
            }
        }
        let moe = config.moe.as_ref();
        let kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim;
        let mut table = Self {
            model_type: config.model_type.clone(),
            num_layers: config.num_hidden_layers,
            num_heads: config.num_attention_heads,
            num_key_value_heads: config.num_key_value_heads,
            vocab_size: config.vocab_size,
            num_experts: moe.map_or(0, |moe| moe.num_experts),
            top_k: moe.map_or(0, |moe| moe.top_k),
            entries,
            num_mtp_parameters: 0,
            kv_elements_per_token: kv as u64,
        };
        table.num_mtp_parameters = match crate::mtp(config) {
            Some(specs) => specs.iter().map(|spec| spec.num_elements() as u64).sum(),
            None => table.mtp_like_last_layer(config.num_mtp_layers, config.hidden_size, true),
        };
        table
    }

    /// Layers that predict further tokens as DeepSeek-V3 has them: the last layer again, a projection of state and token, three
    /// norms, and in some checkpoints copies of embedding and head.
    pub fn mtp_like_last_layer(&self, num_layers: usize, hidden_size: usize, has_copies: bool) -> u64 {
        let last = self.num_layers.checked_sub(1);
        let of_layer: u64 =
            self.entries.iter().filter(|entry| entry.layer == last).map(|entry| entry.num_elements).sum();
        let hidden = hidden_size as u64;
        let copies = if has_copies { 2 * self.vocab_size as u64 * hidden } else { 0 };
        num_layers as u64 * (of_layer + 2 * hidden * hidden + 3 * hidden + copies)
    }

    /// The parameters of an entry that one token meets.
    pub fn activated(&self, entry: &Entry) -> u64 {
        match entry.kind {
            Kind::Experts => entry.num_elements / self.num_experts.max(1) as u64 * self.top_k as u64,
            _ => entry.num_elements,
        }
    }
}
