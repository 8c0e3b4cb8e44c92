//! A GGUF file as a Hugging Face model: names and row order of its tensors, `config.json`, `generation_config.json`.
//!
//! The renaming and the row order are the inverse of llama.cpp's `convert_hf_to_gguf.py`.

use std::ops::Range;

use serde_json::{Map, Value, json};
use slime_config::{Family, HfConfig};

use crate::gguf::GgufValue;
use crate::{Dtype, Error, Gguf, Result, StorageSpec, storages};

/// Where a Hugging Face tensor comes from in a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufSource {
    /// The Hugging Face name.
    pub hf_name: String,
    /// The shape of the tensor.
    pub shape: Vec<usize>,
    gguf_name: String,
    /// Number of heads whose rotary halves are interleaved in the file, 0 for rows in order.
    interleaved_heads: usize,
}

impl Gguf {
    /// The `config.json` that `transformers` would want for this file, with weights of type `dtype`.
    ///
    /// # Errors
    /// The architecture is not supported, or a key that it needs is missing.
    pub fn config_json(&self, dtype: Dtype) -> Result<Value> {
        let (family, architecture) = self.family()?;
        let arch = family.model_type();
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let hidden_size = self.need(&key("embedding_length"))?;
        let num_heads = self.need(&key("attention.head_count"))?;
        let head_dim = self.unsigned(&key("attention.key_length")).unwrap_or(hidden_size / num_heads.max(1));
        let embed = self.tensors().get("token_embd.weight").and_then(|t| t.shape.first().copied());
        let float = |suffix: &str| match self.get(&key(suffix)) {
            Some(GgufValue::Float(value)) => Some(*value),
            _ => None,
        };
        let eps = float("attention.layer_norm_rms_epsilon");
        let eps = eps.ok_or_else(|| self.no_key(&key("attention.layer_norm_rms_epsilon")))?;
        let mut config = Map::new();
        let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
        set("architectures", json!([architecture]));
        set("model_type", arch.into());
        set("attention_bias", (family == Family::Qwen2).into());
        set("attention_dropout", 0.0.into());
        set("bos_token_id", self.unsigned("tokenizer.ggml.bos_token_id").into());
        set("eos_token_id", self.unsigned("tokenizer.ggml.eos_token_id").into());
        set("head_dim", head_dim.into());
        set("hidden_act", "silu".into());
        set("hidden_size", hidden_size.into());
        set("initializer_range", 0.02.into());
        set("intermediate_size", self.need(&key("feed_forward_length"))?.into());
        set("max_position_embeddings", self.need(&key("context_length"))?.into());
        set("num_attention_heads", num_heads.into());
        set("num_hidden_layers", self.need(&key("block_count"))?.into());
        let num_kv_heads = self.unsigned(&key("attention.head_count_kv")).unwrap_or(num_heads);
        set("num_key_value_heads", num_kv_heads.into());
        set("rms_norm_eps", eps.into());
        set("rope_scaling", self.rope_scaling(arch, float("rope.scaling.factor"))?);
        set("rope_theta", float("rope.freq_base").unwrap_or(10_000.0).into());
        set("tie_word_embeddings", (!self.tensors().contains_key("output.weight")).into());
        set("torch_dtype", dtype.torch_name().into());
        set("use_cache", true.into());
        set("vocab_size", embed.ok_or_else(|| self.no_tensor("token_embd.weight"))?.into());
        Ok(Value::Object(config))
    }

    /// The `generation_config.json`: the ids that begin, end and pad a response.
    pub fn generation_config_json(&self) -> Value {
        let id = |name: &str| self.unsigned(&format!("tokenizer.ggml.{name}_token_id"));
        let mut eos: Vec<u64> = [id("eos"), id("eot")].into_iter().flatten().collect();
        eos.dedup();
        let eos = if let [one] = eos[..] { one.into() } else { json!(eos) };
        json!({"bos_token_id": id("bos"), "eos_token_id": eos, "pad_token_id": id("padding")})
    }

    /// Every tensor of the model with its source in this file, in the order of the forward pass.
    ///
    /// # Errors
    /// The file lacks a tensor, has another shape for it, or has one that the model does not know.
    pub fn sources(&self, config: &HfConfig) -> Result<Vec<GgufSource>> {
        let specs = storages(config);
        let sources: Vec<_> = specs.iter().flat_map(|spec| sources_of(spec, config)).collect();
        for source in &sources {
            let tensor = self.tensors().get(&source.gguf_name);
            let got = &tensor.ok_or_else(|| self.no_tensor(&source.gguf_name))?.shape;
            if *got != source.shape {
                return Err(Error::Shape {
                    path: self.path().to_owned(),
                    tensor: source.gguf_name.clone(),
                    expected: source.shape.clone(),
                    got: got.clone(),
                });
            }
        }
        match self.tensors().keys().find(|name| sources.iter().all(|s| s.gguf_name != **name)) {
            Some(name) => Err(Error::Unsupported {
                path: self.path().to_owned(),
                what: format!("tensor {name} in a {} model", config.model_type),
                hint: "dense Llama, Qwen2 and Qwen3 without stretched rotary frequencies are read".to_owned(),
            }),
            None => Ok(sources),
        }
    }

    /// The elements `range` of a Hugging Face tensor, its rows in the order of `transformers`. Of a matrix only the rows are
    /// read that have them.
    ///
    /// # Errors
    /// There is no such tensor, or its bytes cannot be read (any more).
    pub fn read(&self, source: &GgufSource, range: Range<usize>) -> Result<Vec<f32>> {
        let row_len: usize = source.shape.iter().skip(1).product();
        let rows = range.start / row_len.max(1)..range.end.div_ceil(row_len.max(1));
        let mut values = match (source.shape.len(), source.interleaved_heads) {
            (0 | 1, 0) => return Ok(self.to_f32(&source.gguf_name)?[range].to_vec()),
            (0 | 1, _) => {
                let all = self.to_f32(&source.gguf_name)?;
                return Ok(range.map(|row| all[source.row_in_file(row)]).collect());
            }
            (_, 0) => self.rows_to_f32(&source.gguf_name, rows.clone())?,
            _ => {
                let mut values = Vec::with_capacity(rows.len() * row_len);
                for row in rows.clone() {
                    let row = source.row_in_file(row);
                    values.extend(self.rows_to_f32(&source.gguf_name, row..row + 1)?);
                }
                values
            }
        };
        let before = range.start - rows.start * row_len;
        values.truncate(before + range.len());
        values.drain(..before);
        Ok(values)
    }

    /// The family, with what `transformers` calls its model.
    fn family(&self) -> Result<(Family, &'static str)> {
        match self.text("general.architecture") {
            Some("llama") => Ok((Family::Llama, "LlamaForCausalLM")),
            Some("qwen2") => Ok((Family::Qwen2, "Qwen2ForCausalLM")),
            Some("qwen3") => Ok((Family::Qwen3, "Qwen3ForCausalLM")),
            other => Err(Error::Unsupported {
                path: self.path().to_owned(),
                what: format!("architecture {}", other.unwrap_or("(none)")),
                hint: "llama, qwen2 and qwen3 are read".to_owned(),
            }),
        }
    }

    fn rope_scaling(&self, arch: &str, factor: Option<f64>) -> Result<Value> {
        match (self.text(&format!("{arch}.rope.scaling.type")), factor) {
            (None | Some("none"), _) => Ok(Value::Null),
            (Some("linear"), Some(factor)) => Ok(json!({"rope_type": "linear", "factor": factor})),
            (Some(other), _) => Err(Error::Unsupported {
                path: self.path().to_owned(),
                what: format!("rotary scaling {other}"),
                hint: "none and linear (with a factor) are read".to_owned(),
            }),
        }
    }

    fn need(&self, key: &str) -> Result<u64> {
        self.unsigned(key).ok_or_else(|| self.no_key(key))
    }

    pub(crate) fn no_key(&self, key: &str) -> Error {
        Error::corrupt(self.path(), format!("key {key} is missing"))
    }

    fn no_tensor(&self, tensor: &str) -> Error {
        Error::NoTensor { path: self.path().to_owned(), tensor: tensor.to_owned() }
    }
}

fn sources_of(spec: &StorageSpec, config: &HfConfig) -> Vec<GgufSource> {
    let source = |hf_name: &String, shape: &Vec<usize>| GgufSource {
        gguf_name: gguf_name(hf_name),
        interleaved_heads: match config.family {
            Family::Llama if hf_name.contains(".q_proj.") => config.num_attention_heads,
            Family::Llama if hf_name.contains(".k_proj.") => config.num_key_value_heads,
            _ => 0,
        },
        hf_name: hf_name.clone(),
        shape: shape.clone(),
    };
    spec.views.iter().map(|view| source(&view.name, &view.shape)).collect()
}

/// The GGUF name of a Hugging Face tensor.
fn gguf_name(hf_name: &str) -> String {
    const PARTS: [(&str, &str); 14] = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    let name = PARTS.iter().fold(hf_name.to_owned(), |name, (hf, gguf)| name.replace(hf, gguf));
    name.replace("input_layernorm", "attn_norm")
}

impl GgufSource {
    /// Which row of the file is a row of the tensor. In `llama` files llama.cpp has row `i` of half `j` of a head of q and k as its
    /// row `2 i + j`.
    fn row_in_file(&self, row: usize) -> usize {
        if self.interleaved_heads == 0 {
            return row;
        }
        let of_head = self.shape[0] / self.interleaved_heads;
        let (head, half) = (row / of_head, of_head / 2);
        let (j, i) = (row % of_head / half, row % half);
        head * of_head + 2 * i + j
    }

    /// Elements of the tensor.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_each_head_are_separated() {
        // Two heads of four rows, one value per row, numbered as transformers has them and ordered as llama.cpp writes.
        let file = [0, 2, 1, 3, 4, 6, 5, 7];
        let names = |interleaved_heads| GgufSource {
            hf_name: String::new(),
            shape: vec![8, 1],
            gguf_name: String::new(),
            interleaved_heads,
        };
        let order = |source: GgufSource| (0..8).map(|row| file[source.row_in_file(row)]).collect::<Vec<_>>();
        assert_eq!(order(names(2)), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(names(0)), file);
    }

    #[test]
    fn names_are_those_of_llama_cpp() {
        assert_eq!(gguf_name("model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
        assert_eq!(gguf_name("model.layers.0.post_attention_layernorm.weight"), "blk.0.ffn_norm.weight");
        assert_eq!(gguf_name("lm_head.weight"), "output.weight");
    }
}
