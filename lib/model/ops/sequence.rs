//! The tokens of a pass shared out over the tensor-parallel ranks: between the products of a layer each rank has its share
//! of the rows, for the products all of them. Suffixes: t tokens, s tokens of this rank, d width.

use std::ops::Range;

use slime_torch::Group;
use slime_torch::split_rows::{Readers, gather_rows, sum_and_scatter_rows};
use slime_weights::Share;
use tch::Tensor;

use crate::Result;

/// Who shares the tokens; alone a rank has all of them, and nothing here copies.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    group: Option<Group>,
}

impl Sequence {
    /// Tokens shared out over `group`; over one rank, not at all.
    pub fn new(group: &Group) -> Self {
        Self { group: (group.size() > 1).then(|| group.clone()) }
    }

    /// The ranks, where there are several.
    pub(crate) fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// This rank's share of `num` tokens or rows.
    pub fn range(&self, num: usize) -> Range<usize> {
        self.group.as_ref().map_or(0..num, |group| share(group).of(num))
    }

    /// The rows `[t, ..]` of all ranks from this one's `[s, ..]`. Every rank computes a part of what follows.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather(&self, x_sd: &Tensor, num: usize) -> Result<Tensor> {
        self.gather_for(x_sd, num, Readers::Part)
    }

    /// The same where every rank computes all of what follows.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_alike(&self, x_sd: &Tensor, num: usize) -> Result<Tensor> {
        self.gather_for(x_sd, num, Readers::Same)
    }

    fn gather_for(&self, x_sd: &Tensor, num: usize, readers: Readers) -> Result<Tensor> {
        match &self.group {
            None => Ok(x_sd.shallow_clone()),
            Some(group) => Ok(gather_rows(x_sd, group, counts(group, num), readers)?),
        }
    }

    /// This rank's rows `[s, ..]` of the sum of all ranks' parts `[t, ..]`.
    ///
    /// # Errors
    /// A failed collective.
    pub fn scatter(&self, part_td: Tensor) -> Result<Tensor> {
        match &self.group {
            None => Ok(part_td),
            Some(group) => {
                let counts = counts(group, part_td.size()[0] as usize);
                Ok(sum_and_scatter_rows(&part_td, group, counts)?)
            }
        }
    }

    /// This rank's rows of what every rank has alike.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn own(&self, x_td: &Tensor) -> Result<Tensor> {
        let own = self.range(x_td.size()[0] as usize);
        Ok(match &self.group {
            None => x_td.shallow_clone(),
            Some(_) => x_td.f_narrow(0, own.start as i64, own.len() as i64)?,
        })
    }
}

fn share(group: &Group) -> Share {
    Share { rank: group.rank(), size: group.size() }
}

fn counts(group: &Group, num: usize) -> Vec<usize> {
    let size = group.size();
    (0..size).map(|rank| Share { rank, size }.of(num).len()).collect()
}
