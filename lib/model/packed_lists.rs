//! What attention of a packed batch reads on a GPU: which rows belong to which sequence, sent there once for all layers.

use slime_torch::Chunks;
use tch::{Device, Kind, Tensor};

use crate::{Error, Result, Segment};

/// Rows of a sequence from which on cuDNN takes sequences of equal lengths.
const EVEN_LEN: usize = 128;
/// Tensors of the lists, without and with shared keys.
const NUM_TENSORS: [usize; 2] = [3, 6];

/// The lists of a batch, in memory of the device that every holder shares.
#[derive(Debug)]
pub(crate) struct PackedLists {
    /// Rows of queries and of the keys that they see.
    pub chunks: Chunks,
    /// The number of every token, `[t]` i64.
    pub numbers_t: Tensor,
    /// Where sequences see tokens of others.
    pub shared: Option<SharedKeys>,
}

/// The keys of all sequences one after the other, `s` of them, where a token is a key of several sequences.
#[derive(Debug)]
pub(crate) struct SharedKeys {
    /// The token of every key, `[s]` i64.
    pub token_s: Tensor,
    /// First of the keys of every token in `key_s`, and the end, `[t + 1]` i64.
    pub offsets: Tensor,
    /// The keys of each token, `[s]` i64.
    pub key_s: Tensor,
}

/// The numbers of the lists, without tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListsShape {
    max_q: usize,
    max_k: usize,
    even_len: Option<usize>,
    is_shared: bool,
}

impl PackedLists {
    /// The lists of `segments`, which follow each other without gaps.
    ///
    /// # Errors
    /// There is no room.
    pub fn new(segments: &[Segment], device: Device) -> Result<Self> {
        let (mut cu_q, mut cu_k) = (vec![0i32], vec![0i32]);
        let (mut max_q, mut max_k, mut num_tokens, mut keys) = (0, 0, 0, Vec::new());
        for segment in segments {
            let prefix = segment.prefix.map_or(0..0, |(start, len)| start..start + len);
            keys.extend(prefix.chain(segment.start..segment.start + segment.len).map(|token| token as i64));
            num_tokens += segment.len;
            let num_keys = segment.len + segment.prefix.map_or(0, |(_, len)| len);
            (max_q, max_k) = (max_q.max(segment.len), max_k.max(num_keys));
            cu_q.push(num_tokens as i32);
            cu_k.push(keys.len() as i32);
        }
        let is_shared = keys.len() > num_tokens;
        let is_even = segments.iter().all(|segment| segment.len == max_q);
        let even_len = Some(max_q).filter(|len| !is_shared && is_even && *len >= EVEN_LEN);
        let int = |values: &[i32]| Tensor::f_from_slice(values)?.f_to_device(device);
        let long = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
        let shared = if is_shared {
            let (offsets, key_s) = by_token(&keys, num_tokens);
            Some(SharedKeys { token_s: long(&keys)?, offsets: long(&offsets)?, key_s: long(&key_s)? })
        } else {
            None
        };
        let chunks = Chunks { cu_q: int(&cu_q)?, cu_k: int(&cu_k)?, max_q, max_k, even_len };
        let numbers_t = Tensor::f_arange(num_tokens as i64, (Kind::Int64, device))?;
        Ok(Self { chunks, numbers_t, shared })
    }

    /// The numbers, and the tensors that [`Self::from_parts`] takes.
    pub fn parts(&self) -> (ListsShape, Vec<Tensor>) {
        let Chunks { max_q, max_k, even_len, .. } = self.chunks;
        let mut tensors = vec![&self.chunks.cu_q, &self.chunks.cu_k, &self.numbers_t];
        tensors
            .extend(self.shared.iter().flat_map(|shared| [&shared.token_s, &shared.offsets, &shared.key_s]));
        let shape = ListsShape { max_q, max_k, even_len, is_shared: self.shared.is_some() };
        (shape, tensors.into_iter().map(Tensor::shallow_clone).collect())
    }

    /// The lists of these parts, and the tensors behind them.
    ///
    /// # Errors
    /// There are too few tensors.
    pub fn from_parts(shape: ListsShape, tensors: &[Tensor]) -> Result<(Self, &[Tensor])> {
        let expected = NUM_TENSORS[usize::from(shape.is_shared)];
        let missing = || Error::Context { what: "lists of a packed batch", expected, got: tensors.len() };
        let (own, rest) = tensors.split_at_checked(expected).ok_or_else(missing)?;
        let mut own = own.iter().map(Tensor::shallow_clone);
        let mut next = || own.next().ok_or_else(missing);
        let ListsShape { max_q, max_k, even_len, is_shared } = shape;
        let chunks = Chunks { cu_q: next()?, cu_k: next()?, max_q, max_k, even_len };
        let numbers_t = next()?;
        let shared = if is_shared {
            Some(SharedKeys { token_s: next()?, offsets: next()?, key_s: next()? })
        } else {
            None
        };
        Ok((Self { chunks, numbers_t, shared }, rest))
    }
}

/// The places of every token among `keys`, in order: offsets of the tokens, and the places.
fn by_token(keys: &[i64], num_tokens: usize) -> (Vec<i64>, Vec<i64>) {
    let mut offsets = vec![0i64; num_tokens + 1];
    for &token in keys {
        offsets[token as usize + 1] += 1;
    }
    for at in 0..num_tokens {
        offsets[at + 1] += offsets[at];
    }
    let (mut next, mut places) = (offsets.clone(), vec![0i64; keys.len()]);
    for (place, &token) in keys.iter().enumerate() {
        places[next[token as usize] as usize] = place as i64;
        next[token as usize] += 1;
    }
    (offsets, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.to_kind(Kind::Int64)).unwrap()
    }

    #[test]
    fn keys_of_a_shared_prompt_are_those_of_all_who_see_it() {
        let segments = [Segment::alone(0, 2), Segment::after((0, 2), 2, 1), Segment::after((0, 2), 3, 2)];
        let lists = PackedLists::new(&segments, Device::Cpu).unwrap();
        assert_eq!(list(&lists.chunks.cu_q), [0, 2, 3, 5]);
        assert_eq!(list(&lists.chunks.cu_k), [0, 2, 5, 9]);
        assert_eq!((lists.chunks.max_q, lists.chunks.max_k, lists.chunks.even_len), (2, 4, None));
        let shared = lists.shared.as_ref().unwrap();
        assert_eq!(list(&shared.token_s), [0, 1, 0, 1, 2, 0, 1, 3, 4]);
        assert_eq!(list(&shared.offsets), [0, 3, 6, 7, 8, 9]);
        assert_eq!(list(&shared.key_s), [0, 2, 5, 1, 3, 6, 4, 7, 8]);
        let (shape, mut tensors) = lists.parts();
        tensors.push(Tensor::from_slice(&[7i64]));
        let (again, rest) = PackedLists::from_parts(shape, &tensors).unwrap();
        assert_eq!(list(&again.shared.unwrap().key_s), list(&shared.key_s));
        assert_eq!(list(&rest[0]), [7]);
        assert!(PackedLists::from_parts(shape, &tensors[..5]).is_err());
    }

    #[test]
    fn sequences_of_equal_lengths_are_even() {
        let of = |lens: [usize; 2]| {
            let segments = [Segment::alone(0, lens[0]), Segment::alone(lens[0], lens[1])];
            PackedLists::new(&segments, Device::Cpu).unwrap().chunks.even_len
        };
        assert_eq!([of([256, 256]), of([256, 255]), of([3, 3])], [Some(256), None, None]);
    }
}
