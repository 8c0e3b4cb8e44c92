//! What an Arrow file holds, column by column, whoever wrote it: for people who look at files.

use arrow_array::Array;
use arrow_buffer::Buffer;

use crate::{Provenance, Result, ipc};

/// One column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type, as Arrow spells it.
    pub dtype: String,
    /// Whether it may hold nulls.
    pub is_nullable: bool,
    /// Bytes of its values, without padding.
    pub num_bytes: u64,
}

/// A whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The name of the column the file is about, for files of [`crate::Column`].
    pub column: Option<String>,
    /// Where it comes from.
    pub provenance: Provenance,
    /// How many rows.
    pub num_rows: u64,
    /// In how many batches.
    pub num_batches: u64,
    /// The columns, in file order.
    pub columns: Vec<ColumnInfo>,
}

/// Describes the bytes of an Arrow file.
///
/// # Errors
/// [`crate::Error::Corrupt`] when the bytes are cut short, altered or not Arrow.
pub fn describe(file: impl Into<Buffer>) -> Result<Description> {
    let (schema, batches) = ipc::read_file(&file.into())?;
    let bytes = |i: usize| -> u64 {
        // An array that cannot tell is one of a type without bytes.
        let of = |array: &dyn Array| array.to_data().get_slice_memory_size().unwrap_or(0) as u64;
        batches.iter().map(|batch| of(batch.column(i).as_ref())).sum()
    };
    let columns = schema.fields().iter().enumerate().map(|(i, field)| ColumnInfo {
        name: field.name().clone(),
        dtype: field.data_type().to_string(),
        is_nullable: field.is_nullable(),
        num_bytes: bytes(i),
    });
    Ok(Description {
        column: schema.metadata().get(crate::column::NAME_KEY).cloned(),
        provenance: Provenance::from_metadata(schema.metadata()),
        num_rows: batches.iter().map(|batch| batch.num_rows() as u64).sum(),
        num_batches: batches.len() as u64,
        columns: columns.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_samples;
    use crate::{Column, ColumnValues, SAMPLE_FIELDS, encode_segment};

    #[test]
    fn segments_and_columns_are_told_apart_and_measured() {
        let samples = random_samples(51, 4);
        let provenance = Provenance { seed: 3, ..Provenance::default() };
        let segment = describe(encode_segment(&samples, &provenance).unwrap()).unwrap();
        assert_eq!((segment.column, segment.num_rows, segment.provenance.seed), (None, 4, 3));
        assert!(segment.columns.iter().map(|column| column.name.as_str()).eq(SAMPLE_FIELDS));
        let tokens = segment.columns.iter().find(|column| column.name == "tokens").unwrap();
        let num_tokens: usize = samples.iter().map(|sample| sample.tokens.len()).sum();
        // Values of 4 bytes, and an offset of 4 bytes for each row and one more.
        assert_eq!(tokens.num_bytes, (num_tokens * 4 + 5 * 4) as u64);
        let column = Column::new("reward", &samples, ColumnValues::F32(vec![1.0; 4]));
        let column = describe(column.encode(&provenance).unwrap()).unwrap();
        assert_eq!(column.column.as_deref(), Some("reward"));
        let reward = column.columns.iter().find(|column| column.name == "reward").unwrap();
        assert_eq!((reward.dtype.as_str(), reward.num_bytes), ("Float32", 16));
        assert!(describe(b"ARROW1".to_vec()).is_err());
    }
}
