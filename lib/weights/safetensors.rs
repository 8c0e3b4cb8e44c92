//! The safetensors format: eight bytes of length, a JSON header, then the tensors without gaps or overlaps.
//!
//! Definition: <https://github.com/huggingface/safetensors#format>.

use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::unique_keys::UniqueKeys;
use crate::{Dtype, Error, Result, TensorSpec};

/// The largest header the format allows, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The header is padded with spaces so that the first tensor begins at a multiple of this, in bytes.
const ALIGNMENT: usize = 64;

/// What a tensor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// A tensor of a file and the bytes that hold it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: String,
    pub info: TensorInfo,
    pub range: Range<usize>,
}

/// Reads and checks the header of the mapped file `bytes`: the tensors in the order of their places.
pub(crate) fn read_header(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>> {
    let truncated = |what: &str, expected: u64| Error::Truncated {
        path: path.to_owned(),
        what: what.to_owned(),
        expected,
        got: bytes.len() as u64,
    };
    let prefix = bytes.first_chunk::<8>().ok_or_else(|| truncated("the length of the header", 8))?;
    let header_bytes = u64::from_le_bytes(*prefix);
    if header_bytes > MAX_HEADER_BYTES {
        let reason = format!("the header claims {header_bytes} bytes, more than safetensors allows");
        return Err(Error::corrupt(path, reason));
    }
    let start = 8 + header_bytes as usize;
    let header = bytes.get(8..start).ok_or_else(|| truncated("the header", start as u64))?;
    let UniqueKeys(header) = serde_json::from_slice(header)
        .map_err(|error| Error::corrupt(path, format!("the header is not JSON of tensors: {error}")))?;
    let mut tensors = Vec::with_capacity(header.len());
    for (name, entry) in &header {
        if name != "__metadata__" {
            let (info, range) = read_entry(entry, start)
                .map_err(|reason| Error::corrupt(path, format!("tensor {name}: {reason}")))?;
            tensors.push(Entry { name: name.clone(), info, range });
        }
    }
    tensors.sort_by_key(|entry| (entry.range.start, entry.range.end));
    let mut end = start;
    for Entry { name, range, .. } in &tensors {
        if range.start != end {
            let (kind, place) =
                if range.start < end { ("overlaps", "before") } else { ("leaves a gap to", "of") };
            let reason = format!(
                "tensor {name} {kind} the tensor before it: expected offset {}, got {} ({place} the data)",
                end - start,
                range.start - start
            );
            return Err(Error::corrupt(path, reason));
        }
        end = range.end;
    }
    match bytes.len() {
        len if len < end => Err(truncated("the header and all tensors", end as u64)),
        len if len > end => Err(Error::corrupt(path, format!("{} bytes follow the last tensor", len - end))),
        _ => Ok(tensors),
    }
}

fn read_entry(entry: &Value, data_start: usize) -> Result<(TensorInfo, Range<usize>), String> {
    let numbers = |key: &str| -> Result<Vec<usize>, String> {
        let list = entry[key].as_array().ok_or_else(|| format!("{key} is missing"))?;
        let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        list.iter().map(|v| number(v).ok_or_else(|| format!("{key}: expected a size, got {v}"))).collect()
    };
    let name = entry["dtype"].as_str().ok_or("dtype is missing")?;
    let dtype = Dtype::from_name(name).ok_or_else(|| format!("unknown dtype {name}"))?;
    let shape = numbers("shape")?;
    let num_bytes = num_bytes(&shape, dtype).ok_or("its size does not fit the address space")?;
    let [start, end] = numbers("data_offsets")?[..] else {
        return Err("data_offsets: expected two numbers".to_owned());
    };
    if end.checked_sub(start) != Some(num_bytes) {
        return Err(format!(
            "{dtype} {shape:?} needs {num_bytes} bytes, its data_offsets are {start}..{end}"
        ));
    }
    let place =
        |offset: usize| data_start.checked_add(offset).ok_or("its offset does not fit the address space");
    Ok((TensorInfo { dtype, shape }, place(start)?..place(end)?))
}

/// Bytes of a tensor, unless that overflows.
pub(crate) fn num_bytes(shape: &[usize], dtype: Dtype) -> Option<usize> {
    shape.iter().try_fold(dtype.num_bytes(), |product, dim| product.checked_mul(*dim))
}

/// What a safetensors file that holds `tensors` in this order, one behind the other, begins with.
pub fn header(tensors: &[TensorSpec]) -> Vec<u8> {
    write_header(&Map::new(), tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())))
}

/// The length prefix and the header of a file that holds `tensors` in this order.
pub(crate) fn write_header<'a>(
    metadata: &Map<String, Value>,
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize])>,
) -> Vec<u8> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), Value::Object(metadata.clone()));
    }
    let mut start = 0;
    for (name, dtype, shape) in tensors {
        let end = start + shape.iter().product::<usize>() * dtype.num_bytes();
        let entry = json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [start, end]});
        header.insert(name.to_owned(), entry);
        start = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize((8 + text.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn refusal(bytes: &[u8]) -> String {
        let error = read_header(Path::new("a.safetensors"), bytes).unwrap_err();
        assert_eq!(error.exit_code(), 65);
        error.to_string()
    }

    const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}}"#;

    #[test]
    fn written_header_is_read_back_aligned() {
        let shapes: [(&str, Dtype, &[usize]); 2] = [("a", Dtype::F32, &[2]), ("b", Dtype::BF16, &[1, 3])];
        let mut bytes = write_header(&Map::new(), shapes.into_iter());
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let start = bytes.len();
        bytes.resize(start + 14, 0);
        let tensors = read_header(Path::new("a"), &bytes).unwrap();
        let info = TensorInfo { dtype: Dtype::BF16, shape: vec![1, 3] };
        assert_eq!(tensors[1], Entry { name: "b".to_owned(), info, range: start + 8..start + 14 });
    }

    #[test]
    fn truncated_files_say_how_much_is_missing() {
        assert!(refusal(&[1, 2]).contains("truncated: expected 8 bytes"));
        assert!(refusal(&file(TWO, 14)[..60]).contains("truncated"));
        let short = file(TWO, 13);
        assert!(refusal(&short).ends_with(&format!(
            "expected {} bytes (the header and all tensors), got {}",
            short.len() + 1,
            short.len()
        )));
    }

    #[test]
    fn broken_headers_are_refused_with_the_tensor() {
        assert!(refusal(&file("{\"a\"", 0)).contains("not JSON"));
        let twice = TWO.replace("\"b\"", "\"a\"");
        assert!(refusal(&file(&twice, 14)).contains("the header is not JSON of tensors: a is named twice"));
        assert!(refusal(&file(&TWO.replace("BF16", "Q9"), 14)).contains("tensor b: unknown dtype Q9"));
        assert!(refusal(&file(&TWO.replace("[8,14]", "[6,12]"), 12)).contains("tensor b overlaps"));
        assert!(refusal(&file(&TWO.replace("[8,14]", "[9,15]"), 15)).contains("tensor b leaves a gap"));
        assert!(
            refusal(&file(&TWO.replace("[0,8]", "[0,4]"), 14)).contains("tensor a: F32 [2] needs 8 bytes")
        );
        assert!(refusal(&file(TWO, 15)).contains("1 bytes follow"));
        let huge = TWO.replace("[3]", "[18446744073709551615,9]");
        assert!(refusal(&file(&huge, 14)).contains("tensor b: its size does not fit"));
        assert!(refusal(&u64::MAX.to_le_bytes()).contains("more than safetensors allows"));
    }
}
