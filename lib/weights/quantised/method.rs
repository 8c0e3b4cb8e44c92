//! The `quantization_config` of a `config.json`: how the tensors beside it are to be read.

use std::path::Path;

use serde_json::Value;

use super::fp8::Size;
use crate::{Error, Result};

/// The blocks of fp8 where a configuration names none.
const USUAL_BLOCK: Size = [128, 128];
/// What other configurations are told.
const KNOWN: &str = "fp8, compressed-tensors (float-quantized, pack-quantized), awq (gemm) and gptq, of 4 bits where they are whole numbers";

/// How the quantised tensors of a directory are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `fp8` and the floats of compressed-tensors; scales of blocks are of this size.
    Fp8 {
        /// Rows and columns of a block.
        block: Size,
    },
    /// `compressed-tensors`: fp8 as above, or codes of four bits.
    CompressedTensors {
        /// Rows and columns of a block.
        block: Size,
    },
    /// `awq`.
    Awq,
    /// `gptq`; the zeros in the file are smaller by this (1, in the newer format 0).
    Gptq {
        /// What is added to them, modulo 16.
        zero_offset: u8,
    },
}

impl Method {
    /// That of the directory `dir`: none where its `config.json` is absent, unreadable (which is for the reader of the model's
    /// sizes to tell) or says nothing.
    ///
    /// # Errors
    /// It says something that is not known here.
    pub fn of_dir(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("config.json");
        let config = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let config = config.as_ref().and_then(|config| config.get("quantization_config"));
        config.filter(|config| !config.is_null()).map(|config| Self::of(config, &path)).transpose()
    }

    fn of(config: &Value, path: &Path) -> Result<Self> {
        let unknown = |what: String| Error::Unsupported {
            path: path.to_owned(),
            what: format!("quantization_config: {what}"),
            hint: format!("known are {KNOWN}"),
        };
        let method = config["quant_method"].as_str().unwrap_or("none");
        match method {
            "fp8" => {
                if let Some(format) = config["fmt"].as_str().filter(|format| *format != "e4m3") {
                    return Err(unknown(format!("fmt {format:?}")));
                }
                Ok(Self::Fp8 { block: block_of(&config["weight_block_size"]) })
            }
            "compressed-tensors" => {
                let groups = config["config_groups"].as_object();
                let weights = || groups.into_iter().flatten().map(|(_, group)| &group["weights"]);
                for weights in weights() {
                    match (weights["type"].as_str().unwrap_or("int"), weights["num_bits"].as_u64()) {
                        ("float", Some(8)) | ("int", Some(4)) => (),
                        (kind, bits) => return Err(unknown(format!("{kind} of {} bits", bits.unwrap_or(0)))),
                    }
                }
                let blocks =
                    weights().map(|weights| &weights["block_structure"]).find(|block| block.is_array());
                Ok(Self::CompressedTensors { block: blocks.map_or(USUAL_BLOCK, block_of) })
            }
            "awq" | "gptq" => {
                let bits = config["bits"].as_u64().or_else(|| config["w_bit"].as_u64());
                if bits != Some(4) {
                    return Err(unknown(format!("{method} of {} bits", bits.unwrap_or(0))));
                }
                let version = config["version"].as_str().unwrap_or("gemm");
                if method == "gptq" {
                    let is_newer = config["checkpoint_format"] == "gptq_v2";
                    return Ok(Self::Gptq { zero_offset: u8::from(!is_newer) });
                }
                if version.eq_ignore_ascii_case("gemm") {
                    Ok(Self::Awq)
                } else {
                    Err(unknown(format!("awq version {version:?}")))
                }
            }
            other => Err(unknown(format!("quant_method {other:?}"))),
        }
    }
}

/// Two positive numbers, else the usual ones.
fn block_of(value: &Value) -> Size {
    let at = |i: usize| value[i].as_u64().filter(|size| *size > 0).map(|size| size as usize);
    at(0).zip(at(1)).map_or(USUAL_BLOCK, |(rows, columns)| [rows, columns])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn method(config: &Value) -> Result<Method, String> {
        Method::of(config, Path::new("config.json")).map_err(|error| error.to_string())
    }

    #[test]
    fn methods_of_the_hub_are_known() {
        let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [64, 32]});
        assert_eq!(method(&fp8), Ok(Method::Fp8 { block: [64, 32] }));
        assert_eq!(method(&json!({"quant_method": "awq", "bits": 4, "version": "gemm"})), Ok(Method::Awq));
        let newer = json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"});
        assert_eq!(method(&newer), Ok(Method::Gptq { zero_offset: 0 }));
        let weights = json!({"type": "float", "num_bits": 8});
        let compressed =
            json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}});
        assert_eq!(method(&compressed), Ok(Method::CompressedTensors { block: [128, 128] }));
    }

    #[test]
    fn others_are_named() {
        for (config, word) in [
            (json!({"quant_method": "bitsandbytes"}), "quant_method \"bitsandbytes\""),
            (json!({"quant_method": "gptq", "bits": 8}), "gptq of 8 bits"),
            (json!({"quant_method": "awq", "bits": 4, "version": "gemv"}), "awq version \"gemv\""),
            (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fmt \"e5m2\""),
            (
                json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 8}}}}),
                "int of 8 bits",
            ),
        ] {
            let message = method(&config).unwrap_err();
            assert!(message.contains(word) && message.contains("hint: known are fp8"), "{message}");
        }
    }
}
