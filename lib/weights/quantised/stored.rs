//! Which stored tensors make up a weight, and the weight as bf16.

use std::collections::BTreeMap;
use std::path::Path;

use super::Method;
use super::fp8::{self, Size};
use super::int4::{Int4, neighbours};
use super::packing::{Order, transposed};
use crate::{Dtype, Error, Result, TensorInfo, dtype};

/// A matrix that several stored tensors make up.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QuantisedWeight {
    /// What stands before the dots of its parts' names.
    module: String,
    /// Rows and columns of the matrix.
    pub shape: Size,
    layout: Layout,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    Fp8 { scale: &'static str, block: Size },
    Awq,
    Gptq { zero_offset: u8, has_index: bool },
    Packed { has_zeros: bool, has_index: bool },
}

/// A stored tensor that is part of a weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub dtype: Dtype,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

/// The parts whose names tell that a weight is quantised, and what belongs to them without being needed: scales of
/// activations, which are computed anew.
const UNNEEDED: [&str; 3] = ["input_scale", "output_scale", "input_global_scale"];

/// The quantised weights among `tensors`, by the names of the matrices; `path` is for messages. Their parts are taken out.
///
/// # Errors
/// A part is absent, or has another type or shape than its siblings say.
pub(crate) fn find<'a>(
    method: Method,
    tensors: impl Iterator<Item = (&'a str, &'a TensorInfo)>,
    path: &Path,
) -> Result<(BTreeMap<String, QuantisedWeight>, Vec<String>)> {
    let infos: BTreeMap<&str, &TensorInfo> = tensors.collect();
    let (mut weights, mut used) = (BTreeMap::new(), Vec::new());
    for (name, info) in &infos {
        let Some((module, suffix)) = name.rsplit_once('.') else { continue };
        let parts = Parts { infos: &infos, module, path };
        let found = match (method, suffix) {
            (Method::Fp8 { block } | Method::CompressedTensors { block }, "weight")
                if info.dtype == Dtype::F8E4M3 =>
            {
                parts.fp8(info, block)?
            }
            (Method::CompressedTensors { .. }, "weight_packed") => parts.packed(info)?,
            (Method::Awq, "qweight") => parts.awq(info)?,
            (Method::Gptq { zero_offset }, "qweight") => parts.gptq(info, zero_offset)?,
            _ => continue,
        };
        let names = found.part_names().chain(UNNEEDED).map(|part| format!("{module}.{part}"));
        used.extend(names.filter(|name| infos.contains_key(name.as_str())));
        weights.insert(format!("{module}.weight"), found);
    }
    Ok((weights, used))
}

/// The tensors of one layer.
struct Parts<'a> {
    infos: &'a BTreeMap<&'a str, &'a TensorInfo>,
    module: &'a str,
    path: &'a Path,
}

impl Parts<'_> {
    fn get(&self, part: &str) -> Option<&TensorInfo> {
        self.infos.get(format!("{}.{part}", self.module).as_str()).copied()
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.module)
    }

    fn need(&self, part: &str) -> Result<&TensorInfo> {
        let missing = || Error::NoTensor { path: self.path.to_owned(), tensor: self.name(part) };
        self.get(part).ok_or_else(missing)
    }

    /// A part, when it is there, of one of `dtypes` and of `shape`.
    fn check(&self, part: &str, dtypes: &[Dtype], shape: &[usize]) -> Result<bool> {
        let Some(info) = self.get(part) else { return Ok(false) };
        if !dtypes.contains(&info.dtype) {
            let expected = dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join(" or ");
            return Err(Error::Dtype { tensor: self.name(part), expected, got: info.dtype.to_string() });
        }
        if info.shape != shape {
            return Err(self.wrong_shape(part, shape, &info.shape));
        }
        Ok(true)
    }

    fn wrong_shape(&self, part: &str, expected: &[usize], got: &[usize]) -> Error {
        let (path, tensor) = (self.path.to_owned(), self.name(part));
        Error::Shape { path, tensor, expected: expected.to_vec(), got: got.to_vec() }
    }

    fn matrix(&self, part: &str, info: &TensorInfo) -> Result<Size> {
        let corrupt = || {
            Error::corrupt(
                self.path,
                format!(
                    "tensor {}: expected a matrix with rows and columns, got shape {:?}",
                    self.name(part),
                    info.shape
                ),
            )
        };
        <[usize; 2]>::try_from(info.shape.as_slice())
            .ok()
            .filter(|shape| shape.iter().all(|n| *n > 0))
            .ok_or_else(corrupt)
    }

    fn weight(&self, shape: Size, layout: Layout) -> QuantisedWeight {
        QuantisedWeight { module: self.module.to_owned(), shape, layout }
    }

    fn fp8(&self, info: &TensorInfo, block: Size) -> Result<QuantisedWeight> {
        let shape = self.matrix("weight", info)?;
        let scale = ["weight_scale_inv", "weight_scale"].into_iter().find(|part| self.get(part).is_some());
        let Some(scale) = scale else {
            self.need("weight_scale_inv")?;
            return Err(Error::corrupt(self.path, format!("tensor {} has no scale", self.name("weight"))));
        };
        let of_scale = &self.need(scale)?.shape;
        let block = match of_scale.as_slice() {
            [] | [1] => shape,
            [rows] | [rows, 1] if *rows == shape[0] => [1, shape[1]],
            _ => block,
        };
        let expected = match of_scale.as_slice() {
            [] | [1] => of_scale.clone(),
            [_] if block == [1, shape[1]] => vec![shape[0]],
            _ => fp8::num_blocks(shape, block).to_vec(),
        };
        self.check(scale, &[Dtype::F32, Dtype::BF16, Dtype::F16], &expected)?;
        Ok(self.weight(shape, Layout::Fp8 { scale, block }))
    }

    /// The groups of a row of `columns`, which `scales` has `num_groups` of.
    fn groups(&self, part: &str, columns: usize, num_groups: usize) -> Result<()> {
        if num_groups > 0 && columns.is_multiple_of(num_groups) {
            return Ok(());
        }
        let reason =
            format!("tensor {}: {columns} columns are not {num_groups} equal groups", self.name(part));
        Err(Error::corrupt(self.path, reason))
    }

    fn awq(&self, info: &TensorInfo) -> Result<QuantisedWeight> {
        let [columns, words] = self.matrix("qweight", info)?;
        let num_groups = self.matrix("scales", self.need("scales")?)?[0];
        let rows = words * 8;
        self.check("qweight", &[Dtype::I32], &[columns, words])?;
        self.check("scales", &[Dtype::F16, Dtype::BF16], &[num_groups, rows])?;
        self.need("qzeros")?;
        self.check("qzeros", &[Dtype::I32], &[num_groups, words])?;
        self.groups("scales", columns, num_groups)?;
        Ok(self.weight([rows, columns], Layout::Awq))
    }

    fn gptq(&self, info: &TensorInfo, zero_offset: u8) -> Result<QuantisedWeight> {
        let [words, rows] = self.matrix("qweight", info)?;
        let num_groups = self.matrix("scales", self.need("scales")?)?[0];
        let columns = words * 8;
        self.check("qweight", &[Dtype::I32], &[words, rows])?;
        self.check("scales", &[Dtype::F16, Dtype::BF16], &[num_groups, rows])?;
        self.need("qzeros")?;
        self.check("qzeros", &[Dtype::I32], &[num_groups, rows.div_ceil(8)])?;
        let has_index = self.check("g_idx", &[Dtype::I32], &[columns])?;
        if !has_index {
            self.groups("scales", columns, num_groups)?;
        }
        Ok(self.weight([rows, columns], Layout::Gptq { zero_offset, has_index }))
    }

    fn packed(&self, info: &TensorInfo) -> Result<QuantisedWeight> {
        let [rows, words] = self.matrix("weight_packed", info)?;
        let num_groups = self.matrix("weight_scale", self.need("weight_scale")?)?[1];
        let columns = words * 8;
        self.check("weight_packed", &[Dtype::I32], &[rows, words])?;
        self.check("weight_scale", &[Dtype::BF16, Dtype::F16, Dtype::F32], &[rows, num_groups])?;
        let has_zeros = self.check("weight_zero_point", &[Dtype::I32], &[rows.div_ceil(8), num_groups])?;
        let has_index = self.check("weight_g_idx", &[Dtype::I32], &[columns])?;
        if !has_index {
            self.groups("weight_scale", columns, num_groups)?;
        }
        self.check("weight_shape", &[Dtype::I64, Dtype::I32], &[2])?;
        Ok(self.weight([rows, columns], Layout::Packed { has_zeros, has_index }))
    }
}

impl QuantisedWeight {
    fn part_names(&self) -> impl Iterator<Item = &'static str> {
        let names: &[&str] = match self.layout {
            Layout::Fp8 { scale: "weight_scale", .. } => &["weight", "weight_scale"],
            Layout::Fp8 { .. } => &["weight", "weight_scale_inv"],
            Layout::Awq | Layout::Gptq { .. } => &["qweight", "qzeros", "scales", "g_idx"],
            Layout::Packed { .. } => {
                &["weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"]
            }
        };
        names.iter().copied()
    }

    /// The matrix as bf16 bytes; `part` gives the stored tensor of a name.
    ///
    /// # Errors
    /// A part cannot be read, a scale is no finite number, or a column is of no group.
    pub fn read<'a>(&self, part: impl Fn(&str) -> Result<Part<'a>>) -> Result<Vec<u8>> {
        let get = |suffix: &str| part(&format!("{}.{suffix}", self.module));
        let scales = |suffix: &str| -> Result<Vec<f32>> {
            let (name, part) = (format!("{}.{suffix}", self.module), get(suffix)?);
            let values = dtype::decode_f32(&name, part.bytes, part.dtype)?;
            let is_wrong = |value: &f32| !value.is_finite();
            match values.iter().position(is_wrong) {
                Some(at) => Err(self.wrong(suffix, "finite scales", format!("{} at {at}", values[at]))),
                None => Ok(values),
            }
        };
        let [rows, columns] = self.shape;
        match self.layout {
            Layout::Fp8 { scale, block } => {
                Ok(fp8::dequantise(get("weight")?.bytes, &scales(scale)?, self.shape, block))
            }
            Layout::Awq => {
                let num_groups = get("scales")?.shape[0];
                let zeros = Order::AWQ.unpack(get("qzeros")?.bytes, [num_groups, rows]);
                let codes = Order::AWQ.unpack(get("qweight")?.bytes, [columns, rows]);
                Ok(self.of_columns(
                    &codes,
                    &scales("scales")?,
                    &zeros,
                    neighbours(columns, columns / num_groups),
                ))
            }
            Layout::Gptq { zero_offset, has_index } => {
                let num_groups = get("scales")?.shape[0];
                let mut zeros = Order::COLUMNS.unpack(get("qzeros")?.bytes, [num_groups, rows]);
                for zero in &mut zeros {
                    *zero = (*zero + zero_offset) & 0xf;
                }
                let codes = Order::ROWS.unpack(get("qweight")?.bytes, [columns, rows]);
                let groups = self.groups(has_index.then(|| get("g_idx")).transpose()?, num_groups)?;
                Ok(self.of_columns(&codes, &scales("scales")?, &zeros, groups))
            }
            Layout::Packed { has_zeros, has_index } => {
                let num_groups = get("weight_scale")?.shape[1];
                let codes = Order::COLUMNS.unpack(get("weight_packed")?.bytes, self.shape);
                let zeros = if has_zeros {
                    Order::ROWS.unpack(get("weight_zero_point")?.bytes, [rows, num_groups])
                } else {
                    vec![super::int4::MIDDLE; rows * num_groups]
                };
                let groups = self.groups(has_index.then(|| get("weight_g_idx")).transpose()?, num_groups)?;
                let (shape, scales) = (self.shape, scales("weight_scale")?);
                Ok(Int4 { shape, codes, scales, zeros, groups, num_groups }.dequantise())
            }
        }
    }

    /// Of codes, scales and zeros whose rows are the columns of the matrix.
    fn of_columns(&self, codes: &[u8], scales: &[f32], zeros: &[u8], groups: Vec<usize>) -> Vec<u8> {
        let [rows, columns] = self.shape;
        let num_groups = scales.len() / rows;
        let of_groups = [num_groups, rows];
        let codes = transposed(codes, [columns, rows]);
        let (scales, zeros) = (transposed(scales, of_groups), transposed(zeros, of_groups));
        Int4 { shape: self.shape, codes, scales, zeros, groups, num_groups }.dequantise()
    }

    /// The group of every column: as the index says, or neighbours.
    fn groups(&self, index: Option<Part<'_>>, num_groups: usize) -> Result<Vec<usize>> {
        let columns = self.shape[1];
        let Some(part) = index else { return Ok(neighbours(columns, columns / num_groups)) };
        let group = |word: &[u8; 4]| {
            usize::try_from(i32::from_le_bytes(*word)).ok().filter(|group| *group < num_groups)
        };
        let groups: Option<Vec<usize>> = part.bytes.as_chunks::<4>().0.iter().map(group).collect();
        groups.ok_or_else(|| self.wrong("g_idx", &format!("groups below {num_groups}"), "others".to_owned()))
    }

    fn wrong(&self, part: &str, expected: &str, got: String) -> Error {
        Error::Dtype { tensor: format!("{}.{part}", self.module), expected: expected.to_owned(), got }
    }
}
