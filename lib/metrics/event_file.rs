//! `TensorBoard`'s event files: records of protobuf messages, each framed with its length and two checksums.
//!
//! Sources: `tensorflow/core/util/event.proto`, `summary.proto` and `lib/io/record_writer.cc`.

use std::path::{Path, PathBuf};

use prost::Message;

use crate::append::append;
use crate::row::unix_time;
use crate::{Result, Row};

/// The first event of every file says this.
pub const FILE_VERSION: &str = "brain.Event:2";
/// What `record_writer.cc` adds to a rotated checksum.
const MASK_DELTA: u32 = 0xa282_ead8;

/// `tensorflow.Event`; of its `what` only these two.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// The step.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// The first event alone.
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    /// All others.
    #[prost(message, optional, tag = "5")]
    pub summary: Option<Summary>,
}

/// `tensorflow.Summary`
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// Its numbers.
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Scalar>,
}

/// `tensorflow.Summary.Value` with a `simple_value`.
#[derive(Clone, PartialEq, Message)]
pub struct Scalar {
    /// The name.
    #[prost(string, tag = "1")]
    pub tag: String,
    /// The number.
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
}

/// An event file that grows with each row.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    is_begun: bool,
}

impl EventFile {
    /// A new file in `folder`, which is made with the first row; its name tells this process from all others.
    pub fn new(folder: impl AsRef<Path>) -> Self {
        let (now, host, pid) = (unix_time() as u64, slime_cli::watchdog::host(), std::process::id());
        let name = format!("events.out.tfevents.{now:010}.{host}.{pid}.0");
        Self { path: folder.as_ref().join(name), is_begun: false }
    }

    /// Adds the numbers of a row at its step, those of an evaluation as `eval/<set>`; a row without a step is at its
    /// second.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write(&mut self, row: &Row) -> Result<()> {
        let mut bytes = Vec::new();
        if !self.is_begun {
            let first = Event {
                wall_time: row.time(),
                file_version: Some(FILE_VERSION.to_owned()),
                ..Event::default()
            };
            frame(&first.encode_to_vec(), &mut bytes);
        }
        let scalar = |(name, value): (&str, f64)| Scalar {
            tag: tag(row.set_name(), name),
            simple_value: Some(value as f32),
        };
        let event = Event {
            wall_time: row.time(),
            step: row.step().unwrap_or(row.time() as u64) as i64,
            file_version: None,
            summary: Some(Summary { value: row.numbers().map(scalar).collect() }),
        };
        frame(&event.encode_to_vec(), &mut bytes);
        append(&self.path, &bytes)?;
        self.is_begun = true;
        Ok(())
    }
}

/// The mean reward of a set is `eval/<set>`, its shares `eval/<set>-truncated_ratio` and `eval/<set>-pass@k` (slime's
/// names), its other numbers stand below it.
pub fn tag(set: Option<&str>, name: &str) -> String {
    match (set, name) {
        (None, name) => name.to_owned(),
        (Some(set), "reward_mean") => format!("eval/{set}"),
        (Some(set), name) if name == "truncated_ratio" || name.starts_with("pass@") => {
            format!("eval/{set}-{name}")
        }
        (Some(set), name) => format!("eval/{set}/{name}"),
    }
}

/// Length, its checksum, the record, its checksum; all little-endian.
pub fn frame(record: &[u8], out: &mut Vec<u8>) {
    let len = (record.len() as u64).to_le_bytes();
    out.extend(len);
    out.extend(masked(crc32c::crc32c(&len)).to_le_bytes());
    out.extend(record);
    out.extend(masked(crc32c::crc32c(record)).to_le_bytes());
}

fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(MASK_DELTA)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a file, every checksum compared.
    fn read(mut bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let (head, record, tail) = (&bytes[..8], &bytes[12..12 + len], 12 + len..16 + len);
            assert_eq!(bytes[8..12], masked(crc32c::crc32c(head)).to_le_bytes());
            assert_eq!(bytes[tail.clone()], masked(crc32c::crc32c(record)).to_le_bytes());
            events.push(Event::decode(record).unwrap());
            bytes = &bytes[tail.end..];
        }
        events
    }

    #[test]
    fn checksum_of_the_framing_is_that_of_the_format() {
        // The header that every event file begins with: its version record has 24 bytes.
        let mut bytes = Vec::new();
        frame(&[0; 24], &mut bytes);
        assert_eq!(bytes[..12], [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn events_read_back_with_step_and_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::new(folder.path());
        let mut row = Row::of_step(5, "train");
        row.set("train/loss", 0.25);
        file.write(&row).unwrap();
        let mut row = Row::of_evaluation(4, "held_out", "rollout");
        row.set("reward_mean", 0.5);
        row.set("pass@1", 0.75);
        row.set("response_len_mean", 12.0);
        file.write(&row).unwrap();
        let bytes = std::fs::read(&file.path).unwrap();
        let events = read(&bytes);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        let scalars = |event: &Event| -> Vec<(String, f32)> {
            let values = event.summary.clone().unwrap().value;
            values.into_iter().map(|scalar| (scalar.tag, scalar.simple_value.unwrap())).collect()
        };
        assert_eq!((events[1].step, scalars(&events[1])), (5, vec![("train/loss".to_owned(), 0.25)]));
        let tags: Vec<String> = scalars(&events[2]).into_iter().map(|(tag, _)| tag).collect();
        assert_eq!(tags, ["eval/held_out", "eval/held_out-pass@1", "eval/held_out/response_len_mean"]);
    }
}
