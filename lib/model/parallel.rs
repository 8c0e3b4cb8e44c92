//! The ranks that a model is split over, as one of them sees them.

use std::fmt;
use std::sync::Arc;

use slime_comm::{Axis, Communicator, Mesh};
use slime_torch::Group;
use slime_weights::{Place, Share};
use tch::Device;

use crate::Result;

/// The mesh with this rank's groups along the axes that a model is split over.
#[derive(Clone)]
pub struct Parallel {
    world: Arc<dyn Communicator>,
    mesh: Mesh,
    /// Ranks that share heads, widths, vocabulary and tokens.
    pub(crate) tp: Group,
    /// Ranks that have the experts between them.
    pub(crate) ep: Group,
    /// Ranks that share the width of an expert.
    pub(crate) etp: Group,
}

impl fmt::Debug for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {:?}", self.world.rank(), self.mesh)
    }
}

impl Parallel {
    /// Collective over `world`: this rank's groups of `mesh`, for tensors on `device`.
    ///
    /// # Errors
    /// A mesh of another number of ranks, or ranks that cannot meet.
    pub fn new(world: &Arc<dyn Communicator>, mesh: Mesh, device: Device) -> Result<Self> {
        let group = |axis| Ok::<_, crate::Error>(Group::new(mesh.split(&**world, axis)?, device)?);
        let (tp, ep, etp) = (group(Axis::Tp)?, group(Axis::Ep)?, group(Axis::Etp)?);
        Ok(Self { world: world.clone(), mesh, tp, ep, etp })
    }

    /// All ranks.
    pub fn world(&self) -> &Arc<dyn Communicator> {
        &self.world
    }

    /// Which ranks form a group along which axis.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// What of the model a rank of the world holds.
    pub fn place(&self, rank: usize) -> Place {
        let share = |axis| Share { rank: self.mesh.coordinate(axis, rank), size: self.mesh.axis_size(axis) };
        Place { tp: share(Axis::Tp), ep: share(Axis::Ep), etp: share(Axis::Etp) }
    }

    /// What of the model this rank holds.
    pub fn own_place(&self) -> Place {
        self.place(self.world.rank())
    }

    /// The first ranks, which hold the whole model between them.
    pub fn holders(&self) -> std::ops::Range<usize> {
        let size = |axis| self.mesh.axis_size(axis);
        0..size(Axis::Tp).max(size(Axis::Ep) * size(Axis::Etp))
    }
}
