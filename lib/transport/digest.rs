//! The checksums of a version: one per 16 MiB chunk of each tensor, and one hash that identifies all of them.

use slime_record::{Publication, TensorChecksum};
use slime_weights::checksum;

/// Bytes of a tensor that one checksum covers.
pub const CHUNK_BYTES: usize = 16 << 20;

/// What identifies the weights of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// Checksums of the tensors, sorted by name.
    pub tensors: Vec<TensorChecksum>,
    /// XXH3 over the names and checksums of all tensors in that order.
    pub hash: u64,
}

impl Digest {
    /// The digest of tensors with these checksums, in any order.
    pub fn new(mut tensors: Vec<TensorChecksum>) -> Self {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut bytes = Vec::new();
        for tensor in &tensors {
            bytes.extend_from_slice(tensor.name.as_bytes());
            bytes.push(0);
            for chunk in &tensor.chunks {
                bytes.extend_from_slice(&chunk.to_le_bytes());
            }
        }
        let hash = checksum(&bytes);
        Self { tensors, hash }
    }

    /// The publication of a version whose weights lie on disk at `path` below the run directory.
    pub fn publication(self, version: u64, epoch: u64, path: impl Into<String>) -> Publication {
        Publication {
            version,
            epoch,
            transport: "disk".to_owned(),
            path: Some(path.into()),
            hash: self.hash,
            tensors: self.tensors,
            ..Publication::default()
        }
    }
}

/// The checksums of one tensor.
pub(crate) fn tensor_checksum(name: &str, bytes: &[u8]) -> TensorChecksum {
    TensorChecksum { name: name.to_owned(), chunks: bytes.chunks(CHUNK_BYTES).map(checksum).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_names_and_bytes_but_not_on_order() {
        let (a, b) = (tensor_checksum("a", &[1, 2]), tensor_checksum("b", &[3]));
        let hash = Digest::new(vec![a.clone(), b.clone()]).hash;
        assert_eq!(Digest::new(vec![b.clone(), a.clone()]).hash, hash);
        assert_ne!(Digest::new(vec![a.clone(), tensor_checksum("c", &[3])]).hash, hash);
        assert_ne!(Digest::new(vec![a, tensor_checksum("b", &[4])]).hash, hash);
    }

    #[test]
    fn every_chunk_has_its_checksum() {
        let bytes = vec![7; CHUNK_BYTES + 1];
        let chunks = tensor_checksum("a", &bytes).chunks;
        assert_eq!(chunks, [checksum(&bytes[..CHUNK_BYTES]), checksum(&[7])]);
    }
}
