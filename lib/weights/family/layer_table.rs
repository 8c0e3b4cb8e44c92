//! The storages that layers of several families are made of; a family's file says which of them it has.

use slime_config::{HfConfig, Moe, QkNormScope};

use crate::StorageSpec;

/// The storages of one layer, in the making.
pub(super) struct LayerTable<'a> {
    pub config: &'a HfConfig,
    pub layer: usize,
    /// What stands before the names of storages and of tensors.
    prefixes: [String; 2],
    specs: &'a mut Vec<StorageSpec>,
}

/// How a family calls the tensors of its experts.
pub(super) struct ExpertNames {
    /// What they stand in, such as `mlp`.
    pub block: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    /// The correction bias of the router, below the block.
    pub bias: &'static str,
}

/// The names of Qwen3 and GLM.
pub(super) const USUAL_EXPERTS: ExpertNames = ExpertNames {
    block: "mlp",
    gate: "gate_proj",
    up: "up_proj",
    down: "down_proj",
    bias: "gate.e_score_correction_bias",
};

impl<'a> LayerTable<'a> {
    pub fn new(specs: &'a mut Vec<StorageSpec>, config: &'a HfConfig, layer: usize) -> Self {
        let prefixes = [format!("layers.{layer}."), format!("model.layers.{layer}.")];
        Self { config, layer, prefixes, specs }
    }

    /// The same of a layer that stands under other names.
    pub fn below(specs: &'a mut Vec<StorageSpec>, config: &'a HfConfig, name: &str, hf: &str) -> Self {
        let prefixes = [name, hf].map(|prefix| format!("{prefix}."));
        Self { config, layer: config.num_hidden_layers, prefixes, specs }
    }

    fn name(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.prefixes[0])
    }

    fn hf(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.prefixes[1])
    }

    pub fn single(&mut self, name: &str, hf: &str, shape: &[usize]) {
        self.specs.push(StorageSpec::single(self.name(name), self.hf(hf), shape));
    }

    /// A norm over the hidden size.
    pub fn norm(&mut self, name: &str, hf: &str) {
        self.single(name, hf, &[self.config.hidden_size]);
    }

    /// `input_norm`, `qkv` (rows q, k, v), `qkv_bias`, `q_norm` and `k_norm` as the configuration has them, `o_proj`.
    pub fn attention(&mut self) {
        let config = self.config;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let (q_rows, kv_rows) =
            (config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim);
        let qkv = |of: &Self, kind: &str| {
            [("q", q_rows), ("k", kv_rows), ("v", kv_rows)]
                .map(|(part, rows)| (of.hf(&format!("self_attn.{part}_proj.{kind}")), rows))
        };
        self.norm("input_norm", "input_layernorm.weight");
        let spec = StorageSpec::stacked(self.name("qkv"), &qkv(self, "weight"), &[hidden]);
        self.specs.push(spec);
        if config.attention_bias {
            let spec = StorageSpec::stacked(self.name("qkv_bias"), &qkv(self, "bias"), &[]);
            self.specs.push(spec);
        }
        if let Some(scope) = config.qk_norm {
            let (q, k) = match scope {
                QkNormScope::Head => (head_dim, head_dim),
                QkNormScope::AllHeads => (q_rows, kv_rows),
            };
            self.single("q_norm", "self_attn.q_norm.weight", &[q]);
            self.single("k_norm", "self_attn.k_norm.weight", &[k]);
        }
        self.single("o_proj", "self_attn.o_proj.weight", &[hidden, q_rows]);
    }

    /// `gate_up` (rows gate, up) and `down` of a gated MLP below `block`; `prefix` stands before their names.
    pub fn gated_mlp(&mut self, prefix: &str, block: &str, width: usize) {
        let hidden = self.config.hidden_size;
        let gate_up = ["gate", "up"].map(|part| (self.hf(&format!("{block}.{part}_proj.weight")), width));
        let spec = StorageSpec::stacked(self.name(&format!("{prefix}gate_up")), &gate_up, &[hidden]);
        self.specs.push(spec);
        self.single(&format!("{prefix}down"), &format!("{block}.down_proj.weight"), &[hidden, width]);
    }

    /// The MLP of a dense layer.
    pub fn mlp(&mut self) {
        self.gated_mlp("", "mlp", self.config.intermediate_size);
    }

    /// The MLP of a dense layer whose file holds gate and up as one tensor.
    pub fn fused_mlp(&mut self) {
        let (hidden, width) = (self.config.hidden_size, self.config.intermediate_size);
        self.single("gate_up", "mlp.gate_up_proj.weight", &[2 * width, hidden]);
        self.single("down", "mlp.down_proj.weight", &[hidden, width]);
    }

    /// `router`, `router_bias` where `has_bias`, `experts_gate_up` (for each expert rows gate, up) and `experts_down`.
    pub fn experts(&mut self, moe: &Moe, names: &ExpertNames, has_bias: bool) {
        let ExpertNames { block, gate, up, down, bias } = names;
        let (hidden, width, num) = (self.config.hidden_size, moe.intermediate_size, moe.num_experts);
        self.single("router", &format!("{block}.gate.weight"), &[num, hidden]);
        if has_bias {
            let hf = self.hf(&format!("{block}.{bias}"));
            let is_f32 = super::is_f32(&hf);
            let spec = StorageSpec::single(self.name("router_bias"), hf, &[num]);
            self.specs.push(StorageSpec { is_frozen: true, is_f32, ..spec });
        }
        let expert = |e: usize, part: &str| self.hf(&format!("{block}.experts.{e}.{part}.weight"));
        let gate_up: Vec<_> =
            (0..num).flat_map(|e| [(expert(e, gate), width), (expert(e, up), width)]).collect();
        let downs: Vec<_> = (0..num).map(|e| (expert(e, down), hidden)).collect();
        let gate_up = StorageSpec::stacked(self.name("experts_gate_up"), &gate_up, &[hidden])
            .fused_as(self.hf("mlp.experts.gate_up_proj"), &[num, 2 * width, hidden]);
        let downs = StorageSpec::stacked(self.name("experts_down"), &downs, &[width])
            .fused_as(self.hf("mlp.experts.down_proj"), &[num, hidden, width]);
        self.specs.extend([gate_up, downs].map(|spec| StorageSpec { is_expert: true, ..spec }));
    }
}
