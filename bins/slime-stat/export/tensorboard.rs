//! Scalars as an event file of `TensorBoard`: records with masked CRC-32C (`TFRecord`) of `Event` messages.

use std::io::Write;
use std::path::Path;

use prost::Message;
use slime_cli::{Failure, Output};

use super::rows::Rows;
use crate::read_run::Run;

/// One fixed name, so that an export again replaces the one before; `TensorBoard` looks for `tfevents`.
const NAME: &str = "events.out.tfevents.0000000000.slime";

/// `tensorboard.Event`, as far as scalars need it.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// `tensorboard.Summary`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// `tensorboard.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    /// Not packed away when it is 0, as the default value of a plain field would be.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// Writes the event file into a folder.
///
/// # Errors
/// It cannot be written.
pub fn write(run: &Run, place: &str) -> Result<(), Failure> {
    super::folder(Path::new(place))?;
    let path = Path::new(place).join(NAME);
    let name = path.to_string_lossy();
    let mut output = Output::create(&name)?;
    let mut put = |event: &Event| {
        output.write_all(&framed(&event.encode_to_vec())).map_err(|error| Failure::io(&name, &error))
    };
    let version = Some("brain.Event:2".to_owned());
    put(&Event { file_version: version, ..Event::default() })?;
    for event in events(run) {
        put(&event)?;
    }
    output.finish()
}

fn events(run: &Run) -> Vec<Event> {
    let (steps, evals) = (Rows::of_steps(&run.metrics), Rows::of_evals(&run.metrics));
    let scalars = |names: Vec<String>, values: &[Option<f64>]| -> Vec<Scalar> {
        let scalar =
            |(tag, value): (String, &Option<f64>)| Some(Scalar { tag, simple_value: Some((*value)? as f32) });
        names.into_iter().zip(values).filter_map(scalar).collect()
    };
    let event = |at: u64, time: Option<f64>, value| Event {
        wall_time: time.unwrap_or(0.0),
        step: at as i64,
        file_version: None,
        summary: Some(Summary { value }),
    };
    let of_steps =
        steps.entries.iter().map(|row| event(row.at, row.time, scalars(steps.names.clone(), &row.values)));
    let of_evals = evals.entries.iter().map(|row| {
        let set = row.set.as_deref().unwrap_or_default();
        let names = evals.names.iter().map(|name| eval_tag(set, name)).collect();
        event(row.at, row.time, scalars(names, &row.values))
    });
    of_steps.chain(of_evals).collect()
}

/// `eval/<set>` is the mean reward; its other numbers stand below it.
pub(super) fn eval_tag(set: &str, name: &str) -> String {
    if name == crate::names::REWARD_MEAN { format!("eval/{set}") } else { format!("eval/{set}/{name}") }
}

/// A `TFRecord`: length, its checksum, the bytes, their checksum.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u64).to_le_bytes();
    [len.as_slice(), &masked(&len), bytes, &masked(bytes)].concat()
}

/// The checksum as the format masks it, so that checksums of checksums differ.
fn masked(bytes: &[u8]) -> [u8; 4] {
    const MASK: u32 = 0xa282_ead8;
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_framed_as_the_format_says() {
        // The first record of every event file that TensorBoard itself writes, at time 0.
        let event = Event { file_version: Some("brain.Event:2".to_owned()), ..Event::default() };
        let bytes = framed(&event.encode_to_vec());
        assert_eq!(&bytes[..8], &15u64.to_le_bytes());
        assert_eq!(&bytes[12..14], &[0x1a, 13]);
        assert_eq!(bytes.len(), 8 + 4 + 15 + 4);
        // Of the crate's own test vector: the CRC-32C of "123456789" is e3069283.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
    }

    #[test]
    fn evaluations_are_named_by_their_set() {
        assert_eq!(eval_tag("held_out", "reward_mean"), "eval/held_out");
        assert_eq!(eval_tag("held_out", "response_len_mean"), "eval/held_out/response_len_mean");
    }
}
