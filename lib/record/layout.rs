//! The Arrow columns of samples, and how samples are laid into them.

use crate::{Error, Provenance, Result, Sample};
use arrow_array::builder::{Float32Builder, ListBuilder, PrimitiveBuilder};
use arrow_array::types::ArrowPrimitiveType;
use arrow_array::types::{UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, Float32Array, ListArray, StringArray, StructArray, UInt32Array, UInt64Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema};
use std::sync::Arc;

/// The names of the sample columns, in file order.
pub const SAMPLE_FIELDS: [&str; 24] = [
    "step",
    "group",
    "index",
    "attempt",
    "episode",
    "part",
    "prompt_id",
    "source",
    "status",
    "finish_reason",
    "prompt",
    "tools",
    "response",
    "tokens",
    "prompt_len",
    "loss_mask",
    "rollout_log_probs",
    "kept_token_ids",
    "kept_lens",
    "routed_experts",
    "weight_versions",
    "label",
    "metadata",
    "weight",
];

fn item(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, false))
}

fn list(data_type: DataType) -> DataType {
    DataType::List(item(data_type))
}

fn version_run_fields() -> Fields {
    Fields::from(vec![
        Field::new("version", DataType::UInt64, false),
        Field::new("len", DataType::UInt32, false),
    ])
}

pub(crate) fn sample_fields() -> Vec<Field> {
    SAMPLE_FIELDS
        .into_iter()
        .map(|name| {
            let data_type = match name {
                "step" | "episode" => DataType::UInt64,
                "group" | "index" | "attempt" | "part" | "prompt_len" => DataType::UInt32,
                "tokens" | "kept_token_ids" | "kept_lens" => list(DataType::UInt32),
                "routed_experts" => list(DataType::UInt16),
                "loss_mask" => list(DataType::UInt8),
                "rollout_log_probs" => list(DataType::Float32),
                "weight_versions" => list(DataType::Struct(version_run_fields())),
                "weight" => DataType::Float32,
                _ => DataType::Utf8,
            };
            Field::new(name, data_type, matches!(name, "tools" | "label" | "metadata"))
        })
        .collect()
}

pub(crate) fn sample_schema(provenance: &Provenance) -> Schema {
    Schema::new_with_metadata(sample_fields(), provenance.to_metadata())
}

/// About how many bytes a sample takes in a file.
pub(crate) fn sample_bytes(sample: &Sample) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let strings = sample.prompt_id.len()
        + sample.source.len()
        + sample.prompt.len()
        + sample.response.len()
        + text(&sample.tools)
        + text(&sample.label)
        + text(&sample.metadata);
    let lists = sample.tokens.len() * 4
        + sample.loss_mask.len()
        + (sample.rollout_log_probs.len() + sample.kept_token_ids.len() + sample.kept_lens.len()) * 4
        + sample.routed_experts.len() * 2
        + sample.weight_versions.len() * 12;
    strings + lists + 128
}

/// Splits rows so that no batch takes more than `most` bytes, a single larger row excepted.
pub(crate) fn chunks<T>(rows: &[T], most: usize, bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut chunks, mut start, mut held) = (Vec::new(), 0, 0);
    for (i, row) in rows.iter().enumerate() {
        let row_bytes = bytes(row);
        if i > start && held + row_bytes > most {
            chunks.push(&rows[start..i]);
            (start, held) = (i, 0);
        }
        held += row_bytes;
    }
    if start < rows.len() {
        chunks.push(&rows[start..]);
    }
    chunks
}

/// The columns of some samples, in the order of [`SAMPLE_FIELDS`].
pub(crate) fn sample_columns(samples: &[&Sample]) -> Result<Vec<ArrayRef>> {
    let u64s = |f: fn(&Sample) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(samples.iter().map(|s| f(s))))
    };
    let u32s = |f: fn(&Sample) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(samples.iter().map(|s| f(s))))
    };
    let strings = |column: &'static str, f: fn(&Sample) -> &str| -> Result<ArrayRef> {
        offsets_fit(column, samples.iter().map(|s| f(s).len()))?;
        Ok(Arc::new(StringArray::from_iter_values(samples.iter().map(|s| f(s)))))
    };
    let options = |column: &'static str, f: fn(&Sample) -> Option<&str>| -> Result<ArrayRef> {
        offsets_fit(column, samples.iter().map(|s| f(s).map_or(0, str::len)))?;
        Ok(Arc::new(samples.iter().map(|s| f(s)).collect::<StringArray>()))
    };
    let ids = |column: &'static str, f: fn(&Sample) -> &[u32]| {
        lists::<UInt32Type>(column, DataType::UInt32, samples.iter().map(|s| f(s)))
    };
    Ok(vec![
        u64s(|s| s.step),
        u32s(|s| s.group),
        u32s(|s| s.index),
        u32s(|s| s.attempt),
        u64s(|s| s.episode),
        u32s(|s| s.part),
        strings("prompt_id", |s| &s.prompt_id)?,
        strings("source", |s| &s.source)?,
        strings("status", |s| s.status.as_str())?,
        strings("finish_reason", |s| &s.finish_reason)?,
        strings("prompt", |s| &s.prompt)?,
        options("tools", |s| s.tools.as_deref())?,
        strings("response", |s| &s.response)?,
        ids("tokens", |s| &s.tokens)?,
        u32s(|s| s.prompt_len),
        lists::<UInt8Type>("loss_mask", DataType::UInt8, samples.iter().map(|s| s.loss_mask.as_slice()))?,
        f32_lists("rollout_log_probs", samples.iter().map(|s| s.rollout_log_probs.as_slice()))?,
        ids("kept_token_ids", |s| &s.kept_token_ids)?,
        ids("kept_lens", |s| &s.kept_lens)?,
        lists::<UInt16Type>(
            "routed_experts",
            DataType::UInt16,
            samples.iter().map(|s| s.routed_experts.as_slice()),
        )?,
        version_runs(samples)?,
        options("label", |s| s.label.as_deref())?,
        options("metadata", |s| s.metadata.as_deref())?,
        Arc::new(Float32Array::from_iter_values(samples.iter().map(|s| s.weight))),
    ])
}

/// A list column of f32.
pub(crate) fn f32_lists<'a>(
    column: &'static str,
    rows: impl Iterator<Item = &'a [f32]> + Clone,
) -> Result<ArrayRef> {
    offsets_fit(column, rows.clone().map(<[f32]>::len))?;
    let values = Float32Builder::with_capacity(rows.clone().map(<[f32]>::len).sum());
    let mut builder = ListBuilder::new(values).with_field(item(DataType::Float32));
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}

fn lists<'a, T: ArrowPrimitiveType>(
    column: &'static str,
    data_type: DataType,
    rows: impl Iterator<Item = &'a [T::Native]> + Clone,
) -> Result<ArrayRef> {
    offsets_fit(column, rows.clone().map(<[T::Native]>::len))?;
    let values = PrimitiveBuilder::<T>::with_capacity(rows.clone().map(<[T::Native]>::len).sum());
    let mut builder = ListBuilder::new(values).with_field(item(data_type));
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}

fn version_runs(samples: &[&Sample]) -> Result<ArrayRef> {
    offsets_fit("weight_versions", samples.iter().map(|s| s.weight_versions.len()))?;
    let runs = || samples.iter().flat_map(|s| &s.weight_versions);
    let versions: ArrayRef = Arc::new(UInt64Array::from_iter_values(runs().map(|run| run.version)));
    let lens: ArrayRef = Arc::new(UInt32Array::from_iter_values(runs().map(|run| run.len)));
    let values = StructArray::new(version_run_fields(), vec![versions, lens], None);
    let offsets = OffsetBuffer::from_lengths(samples.iter().map(|s| s.weight_versions.len()));
    let field = item(DataType::Struct(version_run_fields()));
    Ok(Arc::new(ListArray::new(field, offsets, Arc::new(values), None)))
}

/// Arrow's offsets are 32 bits wide and its builders panic beyond.
pub(crate) fn offsets_fit(column: &'static str, lens: impl Iterator<Item = usize>) -> Result<()> {
    let most = i32::MAX as usize;
    let got: usize = lens.sum();
    if got > most { Err(Error::TooLarge { column, got, most }) } else { Ok(()) }
}
