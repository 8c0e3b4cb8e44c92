//! The vocabulary over several ranks: each holds some rows of the head's weight, and the sums of a softmax meet.

use slime_comm::Op;
use slime_torch::Group;
use tch::Tensor;

use super::refused;
use crate::Result;

/// The part of the vocabulary that this rank holds. All ranks of the group make the same calls with the same rows.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The id of the first row of this rank's weight.
    pub start: i64,
    /// Ids of all ranks together.
    pub vocab: i64,
    /// The ranks that hold the vocabulary between them.
    pub group: Group,
    /// Whether backward adds the gradient of the hidden states over the ranks; otherwise each rank gets its own part of it
    /// and the caller adds them, best together with what else it has to add.
    pub sums_hidden_grad: bool,
}

/// The ids of a weight: a shard's, or all.
#[derive(Debug, Clone)]
pub(super) struct Ids {
    /// The first.
    pub start: i64,
    /// How many this rank holds.
    pub len: i64,
    /// How many there are.
    pub vocab: i64,
    shard: Option<Shard>,
}

impl Ids {
    /// Those of a weight with `len` rows.
    pub fn new(len: i64, shard: Option<&Shard>) -> Result<Self> {
        let Some(shard) = shard else { return Ok(Self { start: 0, len, vocab: len, shard: None }) };
        if shard.start < 0 || shard.start + len > shard.vocab {
            let got = format!("{} to {}", shard.start, shard.start + len);
            return Err(refused("rows of a shard of the head", format!("within 0 to {}", shard.vocab), got));
        }
        Ok(Self { start: shard.start, len, vocab: shard.vocab, shard: Some(shard.clone()) })
    }

    /// Ids of a rank on average, rounded up: the same on all ranks.
    pub fn mean_len(&self) -> i64 {
        let size = self.shard.as_ref().map_or(1, |shard| shard.group.size() as i64);
        (self.vocab + size - 1) / size
    }

    /// Whether other ranks hold a part.
    pub fn is_sharded(&self) -> bool {
        self.shard.as_ref().is_some_and(|shard| shard.group.size() > 1)
    }

    /// Every rank's tensor becomes the reduction of all ranks'.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: Op) -> Result<()> {
        match &self.shard {
            Some(shard) => Ok(shard.group.all_reduce(tensor, op)?),
            None => Ok(()),
        }
    }

    /// Adds the gradient of the hidden states over the ranks where the shard wants that.
    pub fn sum_hidden_grad(&self, grad_hidden_rd: &mut Tensor) -> Result<()> {
        match &self.shard {
            Some(shard) if shard.sums_hidden_grad => self.all_reduce(grad_hidden_rd, Op::Sum),
            _ => Ok(()),
        }
    }
}
