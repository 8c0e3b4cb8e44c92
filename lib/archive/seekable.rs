//! The zstd seekable format: standard frames, and behind them a skippable frame with a table of their sizes, so any zstd
//! unpacks the whole and a reader that knows the table unpacks a part.
//!
//! Definition: `contrib/seekable_format/zstd_seekable_compression_format.md` of zstd, version 0.1.0, without checksums
//! in the table (the frames have their own).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use crate::manifest::Frame;
use crate::stream::pack_bytes;

/// Marks the skippable frame that holds the table.
const SKIPPABLE: u32 = 0x184d_2a5e;
/// Ends the table.
const SEEKABLE: u32 = 0x8f92_eab1;
/// Bytes behind the entries: number of frames, descriptor, magic number.
const FOOTER_BYTES: usize = 9;
/// What one frame holds at most: reading a part unpacks this much.
pub(crate) const FRAME_BYTES: usize = 4 << 20;

/// Writes frames one after another.
pub(crate) struct Writer<W> {
    out: W,
    offset: u64,
    frames: Vec<Frame>,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Self { out, offset: 0, frames: Vec::new() }
    }

    /// Packs all of `input` into frames of its own; `see` sees what was read.
    pub fn add(&mut self, mut input: impl Read, mut see: impl FnMut(&[u8])) -> io::Result<Vec<Frame>> {
        let first = self.frames.len();
        let mut part = Vec::new();
        loop {
            part.clear();
            (&mut input).take(FRAME_BYTES as u64).read_to_end(&mut part)?;
            if part.is_empty() {
                return Ok(self.frames[first..].to_vec());
            }
            see(&part);
            let packed = pack_bytes(&part)?;
            self.out.write_all(&packed)?;
            let (packed_bytes, num_bytes) = (packed.len() as u32, part.len() as u32);
            self.frames.push(Frame { offset: self.offset, packed_bytes, num_bytes });
            self.offset += u64::from(packed_bytes);
        }
    }

    /// Writes the table; gives what was written to and its size.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        let mut table = Vec::with_capacity(8 + self.frames.len() * 8 + FOOTER_BYTES);
        table.extend(SKIPPABLE.to_le_bytes());
        table.extend(((self.frames.len() * 8 + FOOTER_BYTES) as u32).to_le_bytes());
        for frame in &self.frames {
            table.extend(frame.packed_bytes.to_le_bytes());
            table.extend(frame.num_bytes.to_le_bytes());
        }
        table.extend((self.frames.len() as u32).to_le_bytes());
        table.push(0);
        table.extend(SEEKABLE.to_le_bytes());
        self.out.write_all(&table)?;
        Ok((self.out, self.offset + table.len() as u64))
    }
}

/// The frames by the table at the end of `file`; an error says what is wrong with it.
pub(crate) fn read_table(file: &File) -> io::Result<Vec<Frame>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("no seek table: {what}"));
    let len = file.metadata()?.len();
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut footer, len.saturating_sub(FOOTER_BYTES as u64))?;
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    if word(&footer[5..]) != SEEKABLE {
        return Err(wrong("the file does not end with its magic number"));
    }
    let num_frames = word(&footer) as usize;
    // Bit 7 of the descriptor says that entries have checksums, which is nothing of ours.
    let entry_bytes = if footer[4] & 0x80 == 0 { 8 } else { 12 };
    let table_bytes = num_frames * entry_bytes + FOOTER_BYTES;
    let start = len.checked_sub(table_bytes as u64 + 8).ok_or_else(|| wrong("it is longer than the file"))?;
    let mut table = vec![0; table_bytes + 8];
    file.read_exact_at(&mut table, start)?;
    if word(&table) != SKIPPABLE || word(&table[4..]) as usize != table_bytes {
        return Err(wrong("it is not in a skippable frame of its size"));
    }
    let mut offset = 0;
    let mut frames = Vec::with_capacity(num_frames);
    for entry in table[8..8 + num_frames * entry_bytes].chunks_exact(entry_bytes) {
        let (packed_bytes, num_bytes) = (word(entry), word(&entry[4..]));
        frames.push(Frame { offset, packed_bytes, num_bytes });
        offset += u64::from(packed_bytes);
    }
    if offset == start { Ok(frames) } else { Err(wrong("the frames do not fill the file")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{unpack_bytes, unpack_stream};

    #[test]
    fn whole_and_parts_unpack_and_the_table_tells_the_frames() {
        let (a, b): (Vec<u8>, Vec<u8>) =
            ((0..FRAME_BYTES + 7).map(|i| (i / 3) as u8).collect(), b"short".to_vec());
        let mut writer = Writer::new(Vec::new());
        let mut seen = 0;
        let of_a = writer.add(&a[..], |part| seen += part.len()).unwrap();
        let empty = writer.add(io::empty(), |_| ()).unwrap();
        let of_b = writer.add(&b[..], |_| ()).unwrap();
        assert_eq!((of_a.len(), empty.len(), of_b.len(), seen), (2, 0, 1, a.len()));
        let (bytes, len) = writer.finish().unwrap();
        assert_eq!(len, bytes.len() as u64);
        let mut whole = Vec::new();
        unpack_stream(&bytes[..], &mut whole).unwrap();
        assert_eq!(whole, [a, b.clone()].concat());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        assert_eq!(read_table(&file).unwrap(), [of_a, of_b.clone()].concat());
        let part = &bytes[of_b[0].offset as usize..][..of_b[0].packed_bytes as usize];
        assert_eq!(unpack_bytes(part, b.len()).unwrap(), b);
        file.set_len(len - 1).unwrap();
        assert!(read_table(&file).unwrap_err().to_string().contains("magic number"));
    }
}
