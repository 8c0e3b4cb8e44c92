//! Columns: what is computed later about samples, one Arrow file per column and writer, keyed by the
//! sample's identity.

use crate::layout::{f32_lists, offsets_fit};
use crate::view::{Lists, numbers, optional, optional_strings, strings};
use crate::{Error, Provenance, Result, Sample, SampleId, ipc};
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) const NAME_KEY: &str = "slime.column";

/// The values of a column, one per row.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnValues {
    /// One number per sample: `reward`.
    F32(Vec<f32>),
    /// One number per response token: `ref_log_probs`, `teacher_log_probs`, `values`.
    F32List(Vec<Vec<f32>>),
    /// JSON text per sample.
    Json(Vec<String>),
}

impl ColumnValues {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F32List(values) => values.len(),
            Self::Json(values) => values.len(),
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::F32(_) => DataType::Float32,
            Self::F32List(_) => DataType::List(Arc::new(Field::new("item", DataType::Float32, false))),
            Self::Json(_) => DataType::Utf8,
        }
    }
}

/// A column about samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The samples it is about, in row order.
    pub ids: Vec<SampleId>,
    /// Hashes of their tokens ([`Sample::tokens_hash`]).
    pub tokens_hashes: Vec<u64>,
    /// The values.
    pub values: ColumnValues,
    /// What else the writer has to say about each row, as JSON text (a reward's parts).
    pub details: Vec<Option<String>>,
}

impl Column {
    /// A column about these samples, without details.
    pub fn new(name: impl Into<String>, samples: &[Sample], values: ColumnValues) -> Self {
        Self {
            name: name.into(),
            ids: samples.iter().map(Sample::id).collect(),
            tokens_hashes: samples.iter().map(Sample::tokens_hash).collect(),
            values,
            details: vec![None; samples.len()],
        }
    }

    /// For each sample its row.
    ///
    /// # Errors
    /// [`Error::Join`] when a sample has no row, two rows, or one about other tokens.
    pub fn rows_of<'a>(&self, samples: impl IntoIterator<Item = &'a Sample>) -> Result<Vec<usize>> {
        let join = |reason| Error::Join { column: self.name.clone(), reason };
        let mut rows = HashMap::with_capacity(self.ids.len());
        for (row, id) in self.ids.iter().enumerate() {
            if let Some(before) = rows.insert(id, row) {
                return Err(join(format!("rows {before} and {row} are both about sample {id}")));
            }
        }
        let find = |sample: &Sample| {
            let id = sample.id();
            let &row = rows.get(&id).ok_or_else(|| join(format!("no row about sample {id}")))?;
            if self.tokens_hashes.get(row) != Some(&sample.tokens_hash()) {
                return Err(join(format!("the row about sample {id} was computed for other tokens")));
            }
            Ok(row)
        };
        samples.into_iter().map(find).collect()
    }

    /// The bytes of a column file.
    ///
    /// # Errors
    /// [`Error::Join`] when there are not as many values as samples.
    pub fn encode(&self, provenance: &Provenance) -> Result<Vec<u8>> {
        for (what, len) in [
            ("values", self.values.len()),
            ("token hashes", self.tokens_hashes.len()),
            ("details", self.details.len()),
        ] {
            if len != self.ids.len() {
                let reason = format!("{what}: expected {}, got {len}", self.ids.len());
                return Err(Error::Join { column: self.name.clone(), reason });
            }
        }
        let schema = Arc::new(self.schema(provenance));
        let batch = RecordBatch::try_new(Arc::clone(&schema), self.arrays()?).map_err(Error::Write);
        ipc::write_file(&schema, [batch], 16 << 10)
    }

    fn schema(&self, provenance: &Provenance) -> Schema {
        let u32 = |name| Field::new(name, DataType::UInt32, false);
        let fields = vec![
            Field::new("step", DataType::UInt64, false),
            u32("group"),
            u32("index"),
            u32("attempt"),
            u32("part"),
            Field::new("tokens_hash", DataType::UInt64, false),
            Field::new(&self.name, self.values.data_type(), false),
            Field::new("details", DataType::Utf8, true),
        ];
        let mut metadata = provenance.to_metadata();
        metadata.extend([(NAME_KEY, self.name.as_str())]);
        Schema::new_with_metadata(fields, metadata)
    }

    fn arrays(&self) -> Result<Vec<ArrayRef>> {
        let u32s = |f: fn(&SampleId) -> u32| -> ArrayRef {
            Arc::new(UInt32Array::from_iter_values(self.ids.iter().map(f)))
        };
        let values: ArrayRef = match &self.values {
            ColumnValues::F32(values) => Arc::new(Float32Array::from(values.clone())),
            ColumnValues::F32List(values) => f32_lists("values", values.iter().map(Vec::as_slice))?,
            ColumnValues::Json(values) => {
                offsets_fit("values", values.iter().map(String::len))?;
                Arc::new(StringArray::from_iter_values(values))
            }
        };
        offsets_fit("details", self.details.iter().flatten().map(String::len))?;
        Ok(vec![
            Arc::new(UInt64Array::from_iter_values(self.ids.iter().map(|id| id.step))),
            u32s(|id| id.group),
            u32s(|id| id.index),
            u32s(|id| id.attempt),
            u32s(|id| id.part),
            Arc::new(UInt64Array::from(self.tokens_hashes.clone())),
            values,
            Arc::new(self.details.iter().map(Option::as_deref).collect::<StringArray>()),
        ])
    }

    /// Reads a column file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the bytes are broken, [`Error::Schema`] when they hold no column.
    pub fn decode(file: impl Into<Buffer>) -> Result<(Self, Provenance)> {
        let (schema, batches) = ipc::read_file(&file.into())?;
        let provenance = Provenance::from_metadata(schema.metadata());
        let wrong = |column: &str, expected: &str, got: String| Error::Schema {
            column: column.to_owned(),
            expected: expected.to_owned(),
            got,
        };
        let name = schema.metadata().get(NAME_KEY).cloned();
        let name = name.ok_or_else(|| wrong("?", "its name in the metadata", "none".to_owned()))?;
        let field = schema.field_with_name(&name);
        let field = field.map_err(|_| wrong(&name, "the column", "a file without it".to_owned()))?;
        let values = match field.data_type() {
            DataType::Float32 => ColumnValues::F32(Vec::new()),
            DataType::List(item) if item.data_type() == &DataType::Float32 => {
                ColumnValues::F32List(Vec::new())
            }
            DataType::Utf8 => ColumnValues::Json(Vec::new()),
            other => return Err(wrong(&name, "Float32, List(Float32) or Utf8", other.to_string())),
        };
        let (ids, tokens_hashes, details) = (Vec::new(), Vec::new(), Vec::new());
        let mut column = Self { name, ids, tokens_hashes, values, details };
        batches.iter().try_for_each(|batch| column.append(batch))?;
        Ok((column, provenance))
    }

    fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        let steps = numbers::<UInt64Type>(batch, "step")?;
        let [groups, indices, attempts, parts] =
            ["group", "index", "attempt", "part"].map(|name| numbers::<UInt32Type>(batch, name));
        let (groups, indices, attempts, parts) = (groups?, indices?, attempts?, parts?);
        let rows = 0..batch.num_rows();
        self.ids.extend(rows.clone().map(|i| SampleId {
            step: steps.value(i),
            group: groups.value(i),
            index: indices.value(i),
            attempt: attempts.value(i),
            part: parts.value(i),
        }));
        self.tokens_hashes.extend_from_slice(numbers::<UInt64Type>(batch, "tokens_hash")?.values());
        match &mut self.values {
            ColumnValues::F32(values) => {
                values.extend_from_slice(numbers::<Float32Type>(batch, &self.name)?.values());
            }
            ColumnValues::F32List(values) => {
                let lists = Lists::<Float32Type>::new(batch, &self.name)?;
                values.extend(rows.clone().map(|i| lists.row(i).to_vec()));
            }
            ColumnValues::Json(values) => {
                let texts = strings(batch, &self.name)?;
                values.extend(rows.clone().map(|i| texts.value(i).to_owned()));
            }
        }
        let details = optional_strings(batch, "details")?;
        self.details.extend(rows.map(|i| optional(&details, i).map(str::to_owned)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_samples;

    #[test]
    fn columns_of_every_type_come_back_as_they_were_written() {
        let samples = random_samples(31, 9);
        let lists = samples.iter().map(|s| s.rollout_log_probs.clone()).collect();
        for (name, values) in [
            ("reward", ColumnValues::F32((0..9).map(|i| i as f32 / 3.0).collect())),
            ("ref_log_probs", ColumnValues::F32List(lists)),
            ("judge", ColumnValues::Json((0..9).map(|i| format!("[{i}]")).collect())),
        ] {
            let mut column = Column::new(name, &samples, values);
            column.details[4] = Some(r#"{"exact":1.0}"#.to_owned());
            let provenance = Provenance { seed: 9, ..Provenance::default() };
            let bytes = column.encode(&provenance).unwrap();
            assert_eq!(Column::decode(bytes).unwrap(), (column, provenance));
        }
    }

    #[test]
    fn rows_are_found_by_identity_whatever_their_order() {
        let samples = random_samples(32, 5);
        let mut reversed = samples.clone();
        reversed.reverse();
        let column = Column::new("reward", &reversed, ColumnValues::F32(vec![0.0; 5]));
        assert_eq!(column.rows_of(&samples).unwrap(), [4, 3, 2, 1, 0]);
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let samples = random_samples(33, 3);
        let column = Column::new("reward", &samples[..2], ColumnValues::F32(vec![0.0; 2]));
        assert!(column.rows_of(&samples).unwrap_err().to_string().contains("no row about sample"));
        let mut other = samples[..2].to_vec();
        other[1].tokens.insert(0, 5);
        assert!(column.rows_of(&other).unwrap_err().to_string().contains("other tokens"));
        let twice = [samples[0].clone(), samples[0].clone()];
        let column = Column::new("reward", &twice, ColumnValues::F32(vec![0.0; 2]));
        assert!(column.rows_of(&twice).unwrap_err().to_string().contains("rows 0 and 1"));
        let short = Column::new("reward", &samples, ColumnValues::F32(vec![0.0]));
        let message = short.encode(&Provenance::default()).unwrap_err().to_string();
        assert_eq!(message, "column \"reward\": values: expected 3, got 1");
    }

    #[test]
    fn a_segment_is_no_column() {
        let bytes = crate::encode_segment(&random_samples(34, 1), &Provenance::default()).unwrap();
        assert!(matches!(Column::decode(bytes), Err(Error::Schema { .. })));
    }
}
