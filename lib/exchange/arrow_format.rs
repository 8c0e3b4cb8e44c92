//! The product's file formats behind the machines: segments and columns as Arrow, their place in the run as metadata.

use std::io::Write;

use slime_record::{
    Column, ColumnValues, Provenance, Sample, SampleView, Status, VersionRun, decode_segment, write_segment,
};

use crate::{ColumnDigest, ColumnRow, Error, Format, Result, SampleDigest, SegmentDigest, SegmentHeader};

const SEGMENT_KEY: &str = "segment";

/// Arrow files, all stamped with one tool's provenance.
#[derive(Debug, Clone, Default)]
pub struct ArrowFormat {
    /// What is written into every file.
    pub provenance: Provenance,
}

impl Format for ArrowFormat {
    type Row = Sample;

    fn write(&self, header: &SegmentHeader, rows: &[Sample], out: &mut dyn Write) -> Result<()> {
        let mut provenance = self.provenance.clone();
        let SegmentHeader { step, epoch, replica, incarnation } = *header;
        for (key, value) in
            [("step", step), ("epoch", epoch), ("replica", u64::from(replica)), ("incarnation", incarnation)]
        {
            provenance.extra.insert(key.to_owned(), value.to_string());
        }
        write_segment(out, rows, &provenance).map_err(Error::outside)
    }

    fn row_bytes(&self, row: &Sample) -> usize {
        // Token, mask and log-prob of each response token; text is about as long again.
        row.tokens.len() * 4 + row.loss_mask.len() * 5 + row.prompt.len() + row.response.len()
    }

    fn digest(&self, bytes: &[u8]) -> Result<SegmentDigest> {
        let segment = decode_segment(bytes.to_vec()).map_err(Error::outside)?;
        let extra = &segment.provenance().extra;
        let number = |key: &str| {
            let text = extra.get(key).and_then(|text| text.parse::<u64>().ok());
            text.ok_or_else(|| Error::outside(format!("segment metadata {key}: expected a number, got none")))
        };
        let header = SegmentHeader {
            step: number("step")?,
            epoch: number("epoch")?,
            replica: number("replica")? as u32,
            incarnation: number("incarnation")?,
        };
        let rows = segment.views().map(|view| sample_digest(&view)).collect::<Result<Vec<_>>>()?;
        Ok(SegmentDigest { header, rows })
    }

    fn encode_column(&self, name: &str, column: &ColumnDigest) -> Result<Vec<u8>> {
        let mut provenance = self.provenance.clone();
        provenance.extra.insert(SEGMENT_KEY.to_owned(), column.segment.clone());
        let rows = &column.rows;
        let column = Column {
            name: name.to_owned(),
            ids: rows.iter().map(|row| row.id).collect(),
            tokens_hashes: rows.iter().map(|row| row.tokens_hash).collect(),
            values: ColumnValues::F32(rows.iter().map(|row| row.value).collect()),
            details: rows.iter().map(|row| row.details.clone()).collect(),
        };
        column.encode(&provenance).map_err(Error::outside)
    }

    fn column(&self, name: &str, bytes: &[u8]) -> Result<ColumnDigest> {
        let (column, provenance) = Column::decode(bytes.to_vec()).map_err(Error::outside)?;
        let (ColumnValues::F32(values), Some(segment)) =
            (column.values, provenance.extra.get(SEGMENT_KEY).filter(|_| column.name == name))
        else {
            return Err(Error::outside(format!("expected column {name} of numbers, got {}", column.name)));
        };
        let rows = column.ids.into_iter().zip(column.tokens_hashes).zip(values).zip(column.details);
        let row = |(((id, tokens_hash), value), details)| ColumnRow { id, tokens_hash, value, details };
        let rows = rows.map(row).collect();
        Ok(ColumnDigest { segment: segment.clone(), rows })
    }
}

/// What the machines need of a sample.
fn sample_digest(view: &SampleView<'_>) -> Result<SampleDigest> {
    let sample = view.to_sample().map_err(Error::outside)?;
    let mut mask = sample.loss_mask.iter();
    let trained = sample.weight_versions.iter().map(|run| VersionRun {
        version: run.version,
        len: mask.by_ref().take(run.len as usize).filter(|&&m| m != 0).count() as u32,
    });
    Ok(SampleDigest {
        id: sample.id(),
        trained: trained.filter(|run| run.len > 0).collect(),
        tokens_hash: sample.tokens_hash(),
        response_len: sample.response_len() as u32,
        failed: sample.status == Status::Failed,
        truncated: sample.status == Status::Truncated,
        prompt_id: sample.prompt_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            step: 4,
            group: 1,
            index: 2,
            prompt_id: "p".to_owned(),
            prompt: "\"hi\"".to_owned(),
            tokens: vec![1, 2, 3, 4, 5],
            prompt_len: 1,
            loss_mask: vec![1, 0, 0, 1],
            rollout_log_probs: vec![-1.0; 4],
            weight_versions: vec![VersionRun { version: 6, len: 3 }, VersionRun { version: 7, len: 1 }],
            status: Status::Completed,
            ..Sample::default()
        }
    }

    #[test]
    fn segment_reads_back_with_its_header_and_trained_tokens() {
        let format = ArrowFormat::default();
        let header = SegmentHeader { step: 4, epoch: 2, replica: 1, incarnation: 9 };
        let mut bytes = Vec::new();
        format.write(&header, &[sample()], &mut bytes).unwrap();
        let digest = format.digest(&bytes).unwrap();
        assert_eq!(digest.header, header);
        assert_eq!(digest.rows[0].id, sample().id());
        assert_eq!(
            digest.rows[0].trained,
            [VersionRun { version: 6, len: 1 }, VersionRun { version: 7, len: 1 }]
        );
        assert_eq!((digest.rows[0].response_len, digest.rows[0].failed), (4, false));
    }

    #[test]
    fn column_reads_back_with_its_segment_and_under_its_name_only() {
        let format = ArrowFormat::default();
        let details = Some("{\"number\":0.5}".to_owned());
        let rows = vec![ColumnRow { details, ..ColumnRow::about(&sample(), 0.5) }];
        let column = ColumnDigest { segment: "rollout/000004/replica-1/a.arrow".to_owned(), rows };
        let bytes = format.encode_column("reward", &column).unwrap();
        assert_eq!(format.column("reward", &bytes).unwrap(), column);
        let (readable, _) = Column::decode(bytes.clone()).unwrap();
        assert_eq!(readable.rows_of([&sample()]).unwrap(), [0], "readers of columns can join it");
        assert!(format.column("values", &bytes).is_err());
        assert!(format.digest(&bytes).is_err());
    }
}
