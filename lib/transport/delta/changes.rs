//! What changed in a tensor: gaps between the elements that differ, and by how much their bit patterns differ as numbers.
//!
//! After an optimizer step at a small learning rate few bf16 weights change, and nearly all of those by one unit in the last
//! place, so gaps and differences are small numbers, whose bytes zstd packs close to their entropy.

use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, get_frame_content_size};

/// The fastest usual level: higher ones save a few percent for several times the time.
const LEVEL: i32 = 1;
/// Bytes that are compared at once where nothing changed.
const BLOCK_BYTES: usize = 64;
/// The most bytes that a gap or a difference takes.
const MAX_NUMBER_BYTES: usize = 10;

/// Packs what changed between two states of a tensor whose elements have `width` bytes (1, 2, 4 or 8), and makes `old` what
/// `new` is; none where nothing did.
///
/// The frame of zstd, which carries a checksum, holds the number of bytes of all gaps (u64), the gaps (elements that are
/// equal before each change), then the differences (new minus old, wrapping, 0, -1, 1, -2, .. as 0, 1, 2, 3, ..), numbers in
/// groups of seven bits, the lowest first.
///
/// # Errors
/// The library refuses, for want of memory.
pub fn pack(old: &mut [u8], new: &[u8], width: usize) -> std::io::Result<Option<Vec<u8>>> {
    let (gaps, differences) = match width {
        1 => scan::<1>(old, new),
        2 => scan::<2>(old, new),
        4 => scan::<4>(old, new),
        _ => scan::<8>(old, new),
    };
    if differences.is_empty() {
        return Ok(None);
    }
    let mut content = (gaps.len() as u64).to_le_bytes().to_vec();
    content.extend_from_slice(&gaps);
    content.extend_from_slice(&differences);
    let mut compressor = Compressor::new(LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    compressor.compress(&content).map(Some)
}

fn scan<const W: usize>(old: &mut [u8], new: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut gaps, mut differences) = (Vec::new(), Vec::new());
    let mut equal = 0_u64;
    for (old, new) in old.chunks_mut(BLOCK_BYTES).zip(new.chunks(BLOCK_BYTES)) {
        if old == new {
            equal += (new.len() / W) as u64;
            continue;
        }
        for (old, new) in old.as_chunks_mut::<W>().0.iter_mut().zip(new.as_chunks::<W>().0) {
            if old == new {
                equal += 1;
                continue;
            }
            push(&mut gaps, equal);
            push(&mut differences, zigzag::<W>(number(new).wrapping_sub(number(old))));
            *old = *new;
            equal = 0;
        }
    }
    (gaps, differences)
}

/// Unpacked changes of one tensor, applied from its first byte to its last.
#[derive(Debug)]
pub struct Changes {
    content: Vec<u8>,
    /// Where the next gap and the next difference lie, and the end of the gaps.
    gap: usize,
    difference: usize,
    gaps_end: usize,
    width: usize,
    /// The next element that changes, if there is one more.
    next: Option<u64>,
    num_elements: u64,
}

impl Changes {
    /// Unpacks a frame of a tensor of `num_elements` elements of `width` bytes.
    ///
    /// # Errors
    /// What is broken about it.
    pub fn unpack(frame: &[u8], num_elements: usize, width: usize) -> Result<Self, String> {
        let most = 8 + 2 * MAX_NUMBER_BYTES as u64 * num_elements as u64;
        let size = get_frame_content_size(frame).ok().flatten().filter(|size| *size <= most);
        let size = size.ok_or("not a frame of changes")? as usize;
        let content = zstd::bulk::decompress(frame, size).map_err(|error| error.to_string())?;
        let gaps = content.first_chunk::<8>().ok_or("a frame without gaps")?;
        let gaps_end = usize::try_from(u64::from_le_bytes(*gaps)).ok().and_then(|len| len.checked_add(8));
        let gaps_end = gaps_end.filter(|end| *end <= content.len()).ok_or("gaps beyond the end")?;
        let num_elements = num_elements as u64;
        let mut changes =
            Self { content, gap: 8, difference: gaps_end, gaps_end, width, next: None, num_elements };
        changes.advance(0)?;
        Ok(changes)
    }

    /// Applies those of the elements from `first` on that lie in `bytes`.
    ///
    /// # Errors
    /// What is broken about them.
    pub fn apply(&mut self, first: usize, bytes: &mut [u8]) -> Result<(), String> {
        match self.width {
            1 => self.apply_as::<1>(first, bytes),
            2 => self.apply_as::<2>(first, bytes),
            4 => self.apply_as::<4>(first, bytes),
            _ => self.apply_as::<8>(first, bytes),
        }
    }

    fn apply_as<const W: usize>(&mut self, first: usize, bytes: &mut [u8]) -> Result<(), String> {
        let elements = bytes.as_chunks_mut::<W>().0;
        while let Some(next) = self.next {
            let Some(element) = elements.get_mut(next as usize - first) else { break };
            let difference = read(&self.content, &mut self.difference, self.content.len())?;
            let value = number(element).wrapping_add(unzigzag(difference));
            element.copy_from_slice(&value.to_le_bytes()[..W]);
            self.advance(next + 1)?;
        }
        Ok(())
    }

    /// Finds the next change, of which `from` is the first element it may be.
    fn advance(&mut self, from: u64) -> Result<(), String> {
        if self.gap == self.gaps_end {
            self.next = None;
            return Ok(());
        }
        let gap = read(&self.content, &mut self.gap, self.gaps_end)?;
        let next = from.checked_add(gap).filter(|next| *next < self.num_elements);
        self.next = Some(next.ok_or("a change beyond the last element")?);
        Ok(())
    }

    /// All are applied.
    ///
    /// # Errors
    /// Some are left.
    pub fn finish(self) -> Result<(), String> {
        let is_over = self.next.is_none() && self.difference == self.content.len();
        if is_over { Ok(()) } else { Err("changes behind the last element".to_owned()) }
    }
}

/// The bits of an element as an unsigned number.
fn number<const W: usize>(bytes: &[u8; W]) -> u64 {
    let mut all = [0; 8];
    all[..W].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// A difference of numbers of `W` bytes, small where it is small in either direction.
fn zigzag<const W: usize>(difference: u64) -> u64 {
    let shift = 64 - 8 * W as u32;
    let signed = ((difference << shift) as i64) >> shift;
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read(bytes: &[u8], at: &mut usize, end: usize) -> Result<u64, String> {
    let mut number = 0;
    for group in 0..MAX_NUMBER_BYTES {
        let byte = *bytes[..end].get(*at).ok_or("a number without an end")?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << (7 * group as u32);
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number of too many bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn applied(frame: &[u8], old: &[u8], width: usize, chunk_bytes: usize) -> Result<Vec<u8>, String> {
        let mut bytes = old.to_vec();
        let mut changes = Changes::unpack(frame, old.len() / width, width)?;
        for (index, chunk) in bytes.chunks_mut(chunk_bytes).enumerate() {
            changes.apply(index * chunk_bytes / width, chunk)?;
        }
        changes.finish()?;
        Ok(bytes)
    }

    #[test]
    fn any_two_states_give_the_second_again_bit_by_bit() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for width in [1, 2, 4, 8] {
            for share in [0.0, 0.001, 0.1, 1.0] {
                for len in [1, 31, 32, 33, 1000] {
                    let old: Vec<u8> = (0..len * width).map(|_| rng.random()).collect();
                    let mut new = old.clone();
                    for byte in &mut new {
                        if rng.random_bool(share) {
                            *byte = rng.random();
                        }
                    }
                    let mut base = old.clone();
                    let frame = pack(&mut base, &new, width).unwrap();
                    assert_eq!(base, new, "the base follows");
                    assert_eq!(frame.is_none(), old == new);
                    for chunk_bytes in [width, 64, len * width] {
                        let Some(frame) = &frame else { continue };
                        assert_eq!(applied(frame, &old, width, chunk_bytes).unwrap(), new);
                    }
                }
            }
        }
    }

    #[test]
    fn steps_by_one_unit_take_about_a_byte_each() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let old: Vec<u8> = (0..2_000_000).map(|_| rng.random()).collect();
        let mut new = old.clone();
        let mut num_changes = 0;
        for element in new.as_chunks_mut::<2>().0 {
            if rng.random_bool(0.01) {
                let step = if rng.random() { 1_u16 } else { u16::MAX };
                *element = u16::from_le_bytes(*element).wrapping_add(step).to_le_bytes();
                num_changes += 1;
            }
        }
        let frame = pack(&mut old.clone(), &new, 2).unwrap().unwrap();
        // A gap has log2(100 e) = 8.1 bits of entropy, its direction one more.
        let bits = 8.0 * frame.len() as f64 / f64::from(num_changes);
        assert!((9.0..11.0).contains(&bits), "{bits}");
    }

    #[test]
    fn broken_frames_are_refused_and_never_write_beyond_the_tensor() {
        let old = vec![7_u8; 4000];
        let mut new = old.clone();
        for index in (0..4000).step_by(97) {
            new[index] ^= 0x55;
        }
        let frame = pack(&mut old.clone(), &new, 2).unwrap().unwrap();
        assert!(applied(&frame, &old[..2000], 2, 64).unwrap_err().contains("beyond the last element"));
        let mut num_refused = 0;
        for index in 0..frame.len() {
            let mut broken = frame.clone();
            broken[index] ^= 1;
            // What still unpacks (a bit of a header that nobody reads) is held against checksums by whoever applies it.
            num_refused += usize::from(applied(&broken, &old, 2, 64).is_err_and(|error| !error.is_empty()));
        }
        assert!(num_refused * 10 > frame.len() * 9, "{num_refused} of {}", frame.len());
        assert!(applied(&frame[..frame.len() - 1], &old, 2, 64).is_err());
        assert!(applied(b"", &old, 2, 64).is_err());
    }
}
