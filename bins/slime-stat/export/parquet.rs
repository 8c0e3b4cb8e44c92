//! Rows as one Parquet file: a column for each number, absent values as nulls.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use slime_cli::Failure;

use super::rows::Rows;

/// The whole file.
///
/// # Errors
/// A defect: these rows are always writable.
pub fn bytes(rows: &Rows) -> std::result::Result<Vec<u8>, Failure> {
    encode(rows).map_err(|error| Failure::from_error(slime_cli::exit::BUG, &error))
}

fn encode(rows: &Rows) -> Result<Vec<u8>> {
    let has_set = rows.entries.iter().any(|row| row.set.is_some());
    let created_by = concat!("slime-stat version ", env!("CARGO_PKG_VERSION"));
    let properties = WriterProperties::builder().set_created_by(created_by.to_owned()).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema(rows, has_set)?, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    let mut at = 0;
    while let Some(mut column) = group.next_column()? {
        // Behind the key, and the set where there is one, comes the time, then the numbers.
        let number = at as isize - if has_set { 3 } else { 2 };
        match column.untyped() {
            ColumnWriter::Int64ColumnWriter(writer) => {
                let keys: Vec<i64> = rows.entries.iter().map(|row| row.at as i64).collect();
                writer.write_batch(&keys, None, None)?;
            }
            ColumnWriter::ByteArrayColumnWriter(writer) => {
                let sets = rows.entries.iter().map(|row| row.set.as_deref().unwrap_or_default());
                let sets: Vec<ByteArray> = sets.map(ByteArray::from).collect();
                writer.write_batch(&sets, None, None)?;
            }
            ColumnWriter::DoubleColumnWriter(writer) => {
                let value = |row: &super::rows::Entry| {
                    if number < 0 { row.time } else { row.values[number as usize] }
                };
                let values: Vec<f64> = rows.entries.iter().filter_map(value).collect();
                let is_there: Vec<i16> =
                    rows.entries.iter().map(|row| i16::from(value(row).is_some())).collect();
                writer.write_batch(&values, Some(&is_there), None)?;
            }
            _ => {
                return Err(ParquetError::General(
                    "a column of a kind that the schema does not have".to_owned(),
                ));
            }
        }
        column.close()?;
        at += 1;
    }
    group.close()?;
    writer.into_inner()
}

fn schema(rows: &Rows, has_set: bool) -> Result<TypePtr> {
    let field = |name: &str, physical, repetition, logical| {
        Type::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .build()
            .map(Arc::new)
    };
    let number = |name: &str| field(name, Physical::DOUBLE, Repetition::OPTIONAL, None);
    let mut fields = vec![field(rows.key, Physical::INT64, Repetition::REQUIRED, None)?];
    if has_set {
        fields.push(field("set", Physical::BYTE_ARRAY, Repetition::REQUIRED, Some(LogicalType::String))?);
    }
    fields.push(number("time")?);
    for name in &rows.names {
        fields.push(number(name)?);
    }
    Type::group_type_builder("rows").with_fields(fields).build().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::super::rows::Entry;
    use super::*;
    use parquet::file::reader::SerializedFileReader;

    #[test]
    fn rows_come_back_with_their_nulls() {
        let entry = |at, values| Entry { at, set: Some("held_out".to_owned()), time: None, values };
        let rows = Rows {
            key: "version",
            names: vec!["reward_mean".to_owned(), "x/y".to_owned()],
            entries: vec![entry(0, vec![Some(0.5), None]), entry(7, vec![None, Some(2.0)])],
        };
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes(&rows).unwrap()).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let lines: Vec<String> = reader.into_iter().map(|row| row.unwrap().to_string()).collect();
        assert_eq!(
            lines,
            [
                "{version: 0, set: \"held_out\", time: null, reward_mean: 0.5, x/y: null}",
                "{version: 7, set: \"held_out\", time: null, reward_mean: null, x/y: 2.0}"
            ]
        );
    }
}
