//! Writes matrices in quantised form, with the `quantization_config` that tells others about it.

use serde_json::{Map, Value, json};
use slime_config::{EngineWeights, WeightForm};

use super::fp8::{self, Size};
use super::int4::{self, Fit, Int4, neighbours};
use super::packing::{Order, transposed};
use crate::{Dtype, Result, TensorSpec, dtype};

/// The blocks of [`QuantisedForm::Fp8Block`].
const BLOCK: Size = [128, 128];
/// Rows that share a word where int4 is packed along them.
const INT4_ROWS: usize = 8;

/// A form in which matrices are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantisedForm {
    /// fp8 with a scale for each block of 128 x 128, as DeepSeek-V3 and Qwen3-FP8.
    Fp8Block,
    /// fp8 with one scale for the matrix, as compressed-tensors.
    Fp8Tensor,
    /// int4 as `AutoAWQ`.
    Int4Awq,
    /// int4 as `AutoGPTQ`.
    Int4Gptq,
    /// int4 as `pack-quantized` of compressed-tensors.
    Int4Ct,
}

/// What becomes of the matrices of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantiser {
    /// The form.
    pub form: QuantisedForm,
    /// Columns of a group (int4).
    pub group_size: usize,
    /// Groups are symmetric around 0 (int4; those of AWQ never are).
    pub is_symmetric: bool,
    /// Attention, dense MLPs and shared experts are left as they are.
    pub only_experts: bool,
}

impl From<&EngineWeights> for Quantiser {
    fn from(weights: &EngineWeights) -> Self {
        let form = match weights.form {
            WeightForm::Fp8Block => QuantisedForm::Fp8Block,
            WeightForm::Fp8Tensor => QuantisedForm::Fp8Tensor,
            WeightForm::Int4Ct => QuantisedForm::Int4Ct,
        };
        let (group_size, only_experts) = (weights.group_size as usize, weights.only_experts);
        Self { form, group_size, is_symmetric: true, only_experts }
    }
}

impl Quantiser {
    /// Whether the tensor `name` is quantised: a matrix of attention, of an MLP or of an expert. Embeddings, the output head,
    /// norms, routers and layers that join hidden states with tokens are left as they are, and of int4 also a matrix that
    /// groups or words do not divide.
    pub fn applies(&self, name: &str, shape: &[usize]) -> bool {
        let is_inside = [".self_attn.", ".mlp.", ".block_sparse_moe."].iter().any(|part| name.contains(part));
        let is_linear =
            is_inside && name.ends_with(".weight") && !name.ends_with("gate.weight") && shape.len() == 2;
        let is_asked = !self.only_experts || name.contains(".experts.");
        is_linear && is_asked && !shape.contains(&0) && self.divides(shape)
    }

    /// The modules of `tensors`, names and shapes, whose matrices are left as they are, embeddings apart; `None` where all are.
    pub fn kept_modules<'a>(
        &self,
        tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
    ) -> Option<Vec<String>> {
        let (mut kept, mut has_quantised) = (Vec::new(), false);
        for (name, shape) in tensors {
            if self.applies(name, shape) {
                has_quantised = true;
                continue;
            }
            let module = name.strip_suffix(".weight").filter(|module| !module.ends_with("embed_tokens"));
            kept.extend(module.filter(|_| shape.len() == 2).map(str::to_owned));
        }
        if !kept.iter().any(|module| module == "lm_head") {
            // A tied head is a module without a tensor.
            kept.push("lm_head".to_owned());
        }
        has_quantised.then_some(kept)
    }

    fn divides(&self, shape: &[usize]) -> bool {
        let is_even = shape[1].is_multiple_of(self.group_size) && shape[1].is_multiple_of(8);
        match self.form {
            QuantisedForm::Fp8Block | QuantisedForm::Fp8Tensor => true,
            QuantisedForm::Int4Awq | QuantisedForm::Int4Gptq => is_even && shape[0].is_multiple_of(8),
            QuantisedForm::Int4Ct => is_even,
        }
    }

    /// Rows and columns that share a scale or a word, so that parts of a matrix which are whole multiples of them can be
    /// quantised by themselves. The one scale of a whole matrix counts as known beforehand.
    pub fn grid(&self) -> [usize; 2] {
        match self.form {
            QuantisedForm::Fp8Block => BLOCK,
            QuantisedForm::Fp8Tensor => [1, 1],
            QuantisedForm::Int4Awq | QuantisedForm::Int4Gptq | QuantisedForm::Int4Ct => {
                [INT4_ROWS, self.group_size]
            }
        }
    }

    /// The tensors that the matrix `name` becomes, in the order in which [`Quantiser::quantise`] gives them.
    pub fn specs(&self, name: &str, shape: &[usize]) -> Vec<TensorSpec> {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let (rows, columns) = (shape[0], shape[1]);
        let num_groups = columns / self.group_size;
        let spec = |part: &str, dtype: Dtype, shape: &[usize]| TensorSpec {
            name: format!("{module}.{part}"),
            dtype,
            shape: shape.to_vec(),
        };
        match self.form {
            QuantisedForm::Fp8Block => vec![
                spec("weight", Dtype::F8E4M3, shape),
                spec("weight_scale_inv", Dtype::F32, &fp8::num_blocks([rows, columns], BLOCK)),
            ],
            QuantisedForm::Fp8Tensor => {
                vec![spec("weight", Dtype::F8E4M3, shape), spec("weight_scale", Dtype::F32, &[1])]
            }
            QuantisedForm::Int4Awq => vec![
                spec("qweight", Dtype::I32, &Order::AWQ.words([columns, rows])),
                spec("qzeros", Dtype::I32, &Order::AWQ.words([num_groups, rows])),
                spec("scales", Dtype::F16, &[num_groups, rows]),
            ],
            QuantisedForm::Int4Gptq => vec![
                spec("qweight", Dtype::I32, &Order::ROWS.words([columns, rows])),
                spec("qzeros", Dtype::I32, &Order::COLUMNS.words([num_groups, rows])),
                spec("scales", Dtype::F16, &[num_groups, rows]),
                spec("g_idx", Dtype::I32, &[columns]),
            ],
            QuantisedForm::Int4Ct => {
                let mut specs = vec![
                    spec("weight_packed", Dtype::I32, &Order::COLUMNS.words([rows, columns])),
                    spec("weight_scale", Dtype::BF16, &[rows, num_groups]),
                ];
                if !self.is_symmetric {
                    specs.push(spec("weight_zero_point", Dtype::I32, &Order::ROWS.words([rows, num_groups])));
                }
                specs.push(spec("weight_shape", Dtype::I64, &[2]));
                specs
            }
        }
    }

    /// The bytes of those tensors for the row-major `values` of a matrix.
    ///
    /// # Errors
    /// Never for a matrix that this form applies to.
    pub fn quantise(&self, values: &[f32], shape: &[usize]) -> Result<Vec<Vec<u8>>> {
        let shape = [shape[0], shape[1]];
        let floats = |values: &[f32], dtype: Dtype| dtype::encode_f32("scale", values, dtype);
        let scale_dtype = if self.form == QuantisedForm::Int4Ct { Dtype::BF16 } else { Dtype::F16 };
        let is_symmetric = self.is_symmetric && self.form != QuantisedForm::Int4Awq;
        let fit = Fit { group_size: self.group_size, is_symmetric, scale_dtype };
        Ok(match self.form {
            QuantisedForm::Fp8Block | QuantisedForm::Fp8Tensor => {
                let block = if self.form == QuantisedForm::Fp8Block { BLOCK } else { shape };
                let (codes, scales) = fp8::quantise(values, shape, block);
                vec![codes, floats(&scales, Dtype::F32)?]
            }
            QuantisedForm::Int4Awq => {
                let columns = Columns::of(&int4::quantise(values, shape, fit));
                let words = |codes: &[u8], rows: usize| Order::AWQ.pack(codes, [rows, shape[0]]);
                let zeros = words(&columns.zeros, columns.num_groups);
                vec![words(&columns.codes, shape[1]), zeros, floats(&columns.scales, Dtype::F16)?]
            }
            QuantisedForm::Int4Gptq => {
                let columns = Columns::of(&int4::quantise(values, shape, fit));
                let less: Vec<u8> = columns.zeros.iter().map(|zero| zero.wrapping_sub(1) & 0xf).collect();
                let index = neighbours(shape[1], self.group_size);
                vec![
                    Order::ROWS.pack(&columns.codes, [shape[1], shape[0]]),
                    Order::COLUMNS.pack(&less, [columns.num_groups, shape[0]]),
                    floats(&columns.scales, Dtype::F16)?,
                    index.iter().flat_map(|group| (*group as i32).to_le_bytes()).collect(),
                ]
            }
            QuantisedForm::Int4Ct => {
                let int4 = int4::quantise(values, shape, fit);
                let mut parts =
                    vec![Order::COLUMNS.pack(&int4.codes, shape), floats(&int4.scales, Dtype::BF16)?];
                if !is_symmetric {
                    parts.push(Order::ROWS.pack(&int4.zeros, [shape[0], int4.num_groups]));
                }
                parts.push(shape.iter().flat_map(|size| (*size as i64).to_le_bytes()).collect());
                parts
            }
        })
    }

    /// The `quantization_config` for `config.json`, as transformers, vLLM and `SGLang` read it; `kept` are the layers, by the
    /// names of their modules, whose matrices are not quantised.
    pub fn config(&self, kept: &[String]) -> Value {
        let group = |weights: Value, activations: Value| json!({"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": null}});
        let compressed = |format: &str, groups: Value| {
            json!({
                "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
                "config_groups": groups, "ignore": kept, "kv_cache_scheme": null,
            })
        };
        match self.form {
            QuantisedForm::Fp8Block => json!({
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": BLOCK, "modules_to_not_convert": kept,
            }),
            QuantisedForm::Fp8Tensor => {
                let weights = json!({"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false});
                let activations = json!({"num_bits": 8, "type": "float", "strategy": "token", "symmetric": true, "dynamic": true});
                compressed("float-quantized", group(weights, activations))
            }
            QuantisedForm::Int4Awq => json!({
                "quant_method": "awq", "bits": 4, "group_size": self.group_size, "version": "gemm",
                "zero_point": true, "modules_to_not_convert": kept,
            }),
            QuantisedForm::Int4Gptq => {
                let rule = |module: &String| (format!("-:^{}$", module.replace('.', "\\.")), json!({}));
                let dynamic: Map<String, Value> = kept.iter().map(rule).collect();
                json!({
                    "quant_method": "gptq", "bits": 4, "group_size": self.group_size, "sym": self.is_symmetric,
                    "desc_act": false, "lm_head": false, "checkpoint_format": "gptq", "dynamic": dynamic,
                })
            }
            QuantisedForm::Int4Ct => {
                let weights = json!({
                    "num_bits": 4, "type": "int", "strategy": "group", "group_size": self.group_size,
                    "symmetric": self.is_symmetric, "dynamic": false, "actorder": null,
                });
                compressed("pack-quantized", group(weights, Value::Null))
            }
        }
    }
}

/// A matrix of codes with its columns as rows.
struct Columns {
    codes: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<u8>,
    num_groups: usize,
}

impl Columns {
    fn of(int4: &Int4) -> Self {
        let of_groups = [int4.shape[0], int4.num_groups];
        Self {
            codes: transposed(&int4.codes, int4.shape),
            scales: transposed(&int4.scales, of_groups),
            zeros: transposed(&int4.zeros, of_groups),
            num_groups: int4.num_groups,
        }
    }
}
