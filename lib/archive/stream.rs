//! zstd without an index: whole buffers, and streams from end to end.

use std::io::{self, Read, Write};

use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

/// Between the default and the slowest: files that are packed once and read seldom.
const LEVEL: i32 = 9;

/// One standard frame with its size and a checksum.
///
/// # Errors
/// The library refuses, for want of memory.
pub fn pack_bytes(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = Compressor::new(LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    compressor.compress(bytes)
}

/// Unpacks all frames of a stream; gives the number of bytes written.
///
/// # Errors
/// Broken or cut input; whatever `output` says.
pub fn unpack_stream(input: impl Read, output: &mut impl Write) -> io::Result<u64> {
    io::copy(&mut zstd::stream::Decoder::new(input)?, output)
}

/// Unpacks frames whose content is known to be `num_bytes` long.
pub(crate) fn unpack_bytes(frame: &[u8], num_bytes: usize) -> io::Result<Vec<u8>> {
    zstd::bulk::decompress(frame, num_bytes)
}
