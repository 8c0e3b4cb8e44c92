//! The mesh of named axes: which ranks form a tensor, context, data or pipeline group, and how experts fold into it.

use std::sync::Arc;

use crate::{Communicator, Error, Result};

/// A named axis, or a fold of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Tensor parallel, fastest.
    Tp,
    /// Context parallel.
    Cp,
    /// Data parallel.
    Dp,
    /// Pipeline parallel, slowest.
    Pp,
    /// Data and context together: ranks that hold the same dense parameters; gradients and `ZeRO` shards.
    DpCp,
    /// Tensor parallel within an expert, fastest of the expert fold.
    Etp,
    /// Expert parallel.
    Ep,
    /// Ranks that hold the same experts.
    Edp,
}

/// Sizes of the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Tensor parallel size.
    pub tp: usize,
    /// Context parallel size.
    pub cp: usize,
    /// Data parallel size.
    pub dp: usize,
    /// Pipeline parallel size.
    pub pp: usize,
    /// Expert tensor parallel size.
    pub etp: usize,
    /// Expert parallel size.
    pub ep: usize,
}

impl Default for Layout {
    fn default() -> Self {
        Self { tp: 1, cp: 1, dp: 1, pp: 1, etp: 1, ep: 1 }
    }
}

/// A checked layout of `size()` ranks. Rank = ((pp * DP + dp) * CP + cp) * TP + tp; within a pipeline stage the same
/// ranks are also (edp * EP + ep) * ETP + etp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    layout: Layout,
}

impl Mesh {
    /// Checks `layout` against a world of `size` ranks.
    pub fn new(layout: Layout, size: usize) -> Result<Self> {
        let Layout { tp, cp, dp, pp, etp, ep } = layout;
        let wrong = |reason: String| Err(Error::Layout { reason });
        if [tp, cp, dp, pp, etp, ep].contains(&0) {
            return wrong("an axis has size 0, expected at least 1".into());
        }
        if tp * cp * dp * pp != size {
            let product = tp * cp * dp * pp;
            return wrong(format!("tp {tp} x cp {cp} x dp {dp} x pp {pp} = {product} ranks, got {size}"));
        }
        if (tp * cp * dp) % (etp * ep) != 0 {
            let stage = tp * cp * dp;
            return wrong(format!(
                "etp {etp} x ep {ep} does not divide the {stage} ranks of a pipeline stage"
            ));
        }
        Ok(Self { layout })
    }

    /// Ranks in the mesh.
    pub fn size(&self) -> usize {
        let Layout { tp, cp, dp, pp, .. } = self.layout;
        tp * cp * dp * pp
    }

    /// Ranks along `axis`.
    pub fn axis_size(&self, axis: Axis) -> usize {
        let (extent, _) = self.extent(axis);
        extent
    }

    /// Place of `rank` along `axis`, from 0.
    pub fn coordinate(&self, axis: Axis, rank: usize) -> usize {
        let (extent, stride) = self.extent(axis);
        rank / stride % extent
    }

    /// The ranks that differ from `rank` along `axis` only, in order, `rank` among them.
    pub fn group(&self, axis: Axis, rank: usize) -> Vec<usize> {
        let (extent, stride) = self.extent(axis);
        let first = rank - rank / stride % extent * stride;
        (0..extent).map(|i| first + i * stride).collect()
    }

    /// Collective over the world: the communicator of this rank's group along `axis`.
    pub fn split(&self, world: &dyn Communicator, axis: Axis) -> Result<Arc<dyn Communicator>> {
        if world.size() != self.size() {
            let reason = format!("the mesh has {} ranks, the world {}", self.size(), world.size());
            return Err(Error::Layout { reason });
        }
        let group = self.group(axis, world.rank());
        world.split(group[0] as u32, self.coordinate(axis, world.rank()) as u32)
    }

    /// Size and distance between neighbours; neighbouring axes fold into one because the rank order nests them.
    fn extent(&self, axis: Axis) -> (usize, usize) {
        let Layout { tp, cp, dp, pp, etp, ep } = self.layout;
        match axis {
            Axis::Tp => (tp, 1),
            Axis::Cp => (cp, tp),
            Axis::Dp => (dp, tp * cp),
            Axis::Pp => (pp, tp * cp * dp),
            Axis::DpCp => (cp * dp, tp),
            Axis::Etp => (etp, 1),
            Axis::Ep => (ep, etp),
            Axis::Edp => (tp * cp * dp / (etp * ep), etp * ep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collectives, Op, Threads};

    const LAYOUT: Layout = Layout { tp: 2, cp: 1, dp: 2, pp: 2, etp: 1, ep: 4 };

    #[test]
    fn tp_is_fastest_and_pp_slowest() {
        let mesh = Mesh::new(LAYOUT, 8).unwrap();
        assert_eq!(mesh.group(Axis::Tp, 5), [4, 5]);
        assert_eq!(mesh.group(Axis::Dp, 5), [5, 7]);
        assert_eq!(mesh.group(Axis::Pp, 5), [1, 5]);
        assert_eq!(mesh.group(Axis::Ep, 5), [4, 5, 6, 7]);
        assert_eq!(mesh.group(Axis::Edp, 5), [5]);
    }

    #[test]
    fn every_axis_partitions_the_world() {
        let layout = Layout { tp: 2, cp: 3, dp: 2, pp: 2, etp: 2, ep: 3 };
        let mesh = Mesh::new(layout, 24).unwrap();
        for axis in [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp, Axis::DpCp, Axis::Etp, Axis::Ep, Axis::Edp] {
            for rank in 0..24 {
                let group = mesh.group(axis, rank);
                assert_eq!(group[mesh.coordinate(axis, rank)], rank);
                assert!(group.iter().all(|&peer| mesh.group(axis, peer) == group));
            }
        }
    }

    #[test]
    fn split_groups_reduce_among_themselves_only() {
        let mesh = Mesh::new(LAYOUT, 8).unwrap();
        let sums = Threads::spawn(8, |world| {
            [Axis::Tp, Axis::Dp, Axis::Pp, Axis::Ep].map(|axis| {
                let group = mesh.split(&world, axis).unwrap();
                let mut value = [world.rank() as u64];
                group.all_reduce(&mut value, Op::Sum).unwrap();
                value[0] as usize
            })
        })
        .unwrap();
        for (rank, got) in sums.iter().enumerate() {
            let want =
                [Axis::Tp, Axis::Dp, Axis::Pp, Axis::Ep].map(|axis| mesh.group(axis, rank).iter().sum());
            assert_eq!(*got, want);
        }
    }

    #[test]
    fn a_layout_that_does_not_fit_says_the_product() {
        let error = Mesh::new(LAYOUT, 6).unwrap_err().to_string();
        assert_eq!(error, "layout: tp 2 x cp 1 x dp 2 x pp 2 = 8 ranks, got 6");
        assert!(Mesh::new(Layout { ep: 3, tp: 2, ..Layout::default() }, 2).is_err());
    }
}
