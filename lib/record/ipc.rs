//! Arrow IPC files in memory: written aligned, uncompressed and sealed with a checksum; read without
//! copying, every range checked before it is touched. Knows nothing of samples.

use crate::{Error, Result};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::{try_fb_to_schema, try_schema_from_ipc_buffer};
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_ipc::{Block, Footer, MetadataVersion};
use arrow_schema::{ArrowError, Schema};
use std::io::Write;
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Buffers begin at multiples of a cache line and of the widest vector register.
const ALIGNMENT: usize = 64;
/// The first bytes of an Arrow file; the last six are the same without the padding.
pub(crate) const MAGIC: &[u8; 8] = b"ARROW1\0\0";
const TRAILER_BYTES: usize = 10;
/// Footer keys of the seal: how many leading bytes it covers, and their XXH3.
const SEAL_BYTES: &str = "slime.seal_bytes";
const SEAL_HASH: &str = "slime.seal_xxh3";

pub(crate) fn write_options() -> Result<IpcWriteOptions> {
    IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5).map_err(Error::Write)
}

/// The bytes of a sealed Arrow file.
pub(crate) fn write_file(
    schema: &Schema,
    batches: impl IntoIterator<Item = Result<RecordBatch>>,
    capacity: usize,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(capacity);
    write_file_to(&mut bytes, schema, batches)?;
    Ok(bytes)
}

/// Writes a sealed Arrow file, batch by batch.
pub(crate) fn write_file_to(
    out: impl Write,
    schema: &Schema,
    batches: impl IntoIterator<Item = Result<RecordBatch>>,
) -> Result<()> {
    let out = Hashed { out, num_bytes: 0, hash: Xxh3::new() };
    let mut writer = FileWriter::try_new_with_options(out, schema, write_options()?).map_err(Error::Write)?;
    for batch in batches {
        writer.write(&batch?).map_err(Error::Write)?;
    }
    let (bytes, hash) = (writer.get_ref().num_bytes, writer.get_ref().hash.digest());
    writer.write_metadata(SEAL_BYTES, bytes.to_string());
    writer.write_metadata(SEAL_HASH, format!("{hash:016x}"));
    writer.into_inner().map_err(Error::Write)?;
    Ok(())
}

/// Takes the hash of what was written so far while it is in the caches.
struct Hashed<W> {
    out: W,
    num_bytes: usize,
    hash: Xxh3,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, new: &[u8]) -> std::io::Result<usize> {
        self.out.write_all(new)?;
        self.num_bytes += new.len();
        self.hash.update(new);
        Ok(new.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// The schema and batches of an Arrow file; columns are views of `file`.
pub(crate) fn read_file(file: &Buffer) -> Result<(Schema, Vec<RecordBatch>)> {
    let footer_start = footer_start(file)?;
    let footer = arrow_ipc::root_as_footer(&file[footer_start..file.len() - TRAILER_BYTES])
        .map_err(|error| corrupt(format!("unreadable footer: {error}")))?;
    let sealed = check_seal(file, &footer)?;
    let schema = if sealed.is_some() {
        // The seal covers the schema at the head, which is padded like everything; the footer's copy
        // could have been altered.
        try_schema_from_ipc_buffer(file.get(ALIGNMENT..).unwrap_or_default()).map_err(unreadable)?
    } else {
        let schema = footer.schema().ok_or_else(|| corrupt("the footer has no schema"))?;
        try_fb_to_schema(schema).map_err(unreadable)?
    };
    let mut decoder = FileDecoder::new(Arc::new(schema.clone()), footer.version());
    for block in footer.dictionaries().into_iter().flatten() {
        let bytes = block_bytes(file, block, footer_start)?;
        decoder.read_dictionary(block, &bytes).map_err(unreadable)?;
    }
    let mut batches = Vec::new();
    let mut batch_bytes = 0;
    for block in footer.recordBatches().into_iter().flatten() {
        let bytes = block_bytes(file, block, footer_start)?;
        batch_bytes += bytes.len();
        batches.extend(decoder.read_record_batch(block, &bytes).map_err(unreadable)?);
    }
    if sealed.is_some_and(|sealed| head_bytes(file) + batch_bytes != sealed) {
        return Err(corrupt("the footer does not list all batches"));
    }
    Ok((schema, batches))
}

pub(crate) fn corrupt(reason: impl Into<String>) -> Error {
    Error::Corrupt { reason: reason.into() }
}

#[expect(clippy::needless_pass_by_value, reason = "called by map_err")]
pub(crate) fn unreadable(error: ArrowError) -> Error {
    corrupt(error.to_string())
}

fn footer_start(file: &[u8]) -> Result<usize> {
    if file.is_empty() {
        return Err(corrupt("the file is empty"));
    }
    if !file.starts_with(&MAGIC[..6]) {
        return Err(corrupt("not an Arrow file: it does not begin with ARROW1"));
    }
    let end = file.len().checked_sub(TRAILER_BYTES).filter(|&end| end >= MAGIC.len());
    let Some((end, trailer)) =
        end.and_then(|end| Some((end, file.get(end..)?.first_chunk::<TRAILER_BYTES>()?)))
    else {
        return Err(corrupt(format!("cut short after {} bytes", file.len())));
    };
    let cut = |_| corrupt(format!("cut short: the file of {} bytes has no footer", file.len()));
    let len = arrow_ipc::reader::read_footer_length(*trailer).map_err(cut)?;
    end.checked_sub(len)
        .filter(|&start| start >= MAGIC.len())
        .ok_or_else(|| corrupt(format!("footer of {len} bytes in a file of {}", file.len())))
}

/// Where the batches of a sealed file begin: after the schema's message, with its marker and length.
fn head_bytes(file: &[u8]) -> usize {
    let len = file.get(ALIGNMENT + 4..).and_then(|rest| rest.first_chunk::<4>());
    ALIGNMENT + 8 + len.map_or(0, |len| u32::from_le_bytes(*len) as usize)
}

/// How many bytes the seal covers, when the file carries one and it holds; foreign files have none.
fn check_seal(file: &[u8], footer: &Footer<'_>) -> Result<Option<usize>> {
    let value = |wanted: &str| {
        let mut pairs = footer.custom_metadata().into_iter().flatten();
        pairs.find(|pair| pair.key() == Some(wanted)).and_then(|pair| pair.value())
    };
    let (Some(bytes), Some(hash)) = (value(SEAL_BYTES), value(SEAL_HASH)) else {
        return Ok(None);
    };
    let covered = bytes.parse().ok().and_then(|bytes: usize| file.get(..bytes));
    let covered =
        covered.ok_or_else(|| corrupt(format!("the seal covers {bytes} of {} bytes", file.len())))?;
    let got = format!("{:016x}", xxh3_64(covered));
    if got != hash {
        return Err(corrupt(format!("checksum of {bytes} bytes: expected {hash}, got {got}")));
    }
    Ok(Some(covered.len()))
}

/// The bytes of one message, after its own ranges were compared with the file's.
fn block_bytes(file: &Buffer, block: &Block, end: usize) -> Result<Buffer> {
    let outside = || corrupt(format!("a batch lies outside the file: {block:?}"));
    let offset = usize::try_from(block.offset()).map_err(|_| outside())?;
    let header = usize::try_from(block.metaDataLength()).map_err(|_| outside())?;
    let body = usize::try_from(block.bodyLength()).map_err(|_| outside())?;
    let len = header.checked_add(body).ok_or_else(outside)?;
    if header < 8 || offset.checked_add(len).is_none_or(|last| last > end) {
        return Err(outside());
    }
    let bytes = file.slice_with_length(offset, len);
    let head = bytes.get(..header).ok_or_else(outside)?;
    check_message(if head.starts_with(&[0xff; 4]) { &head[8..] } else { &head[4..] }, body)?;
    Ok(bytes)
}

/// The reader slices buffers without asking whether they lie inside the body.
fn check_message(head: &[u8], body: usize) -> Result<()> {
    let message = arrow_ipc::root_as_message(head)
        .map_err(|error| corrupt(format!("unreadable header of a batch: {error}")))?;
    let batch = message
        .header_as_record_batch()
        .or_else(|| message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()))
        .ok_or_else(|| corrupt("a batch without a header"))?;
    let inside = batch.buffers().into_iter().flatten().all(|buffer| {
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        range.and_then(|(offset, len)| offset.checked_add(len)).is_some_and(|last| last <= body)
    });
    let counts = batch.nodes().into_iter().flatten().all(|node| {
        (0..=i64::from(i32::MAX)).contains(&node.length()) && (0..=node.length()).contains(&node.null_count())
    });
    if inside && counts { Ok(()) } else { Err(corrupt("a column lies outside its batch")) }
}
