//! The ranks that a model is split over, as one of them sees them.

use std::fmt;
use std::sync::Arc;

use slime_comm::{Axis, Communicator, Mesh};
use slime_config::{CpCommType, HfConfig, Pipeline, PipelineStage};
use slime_torch::Group;
use slime_weights::{Place, Share, StorageSpec, is_of_stage};
use tch::Device;

use crate::Result;

/// Ranks that have the tokens of a batch between them.
#[derive(Debug, Clone)]
pub struct ContextRanks {
    /// The ranks.
    pub group: Group,
    /// How they bring queries and keys together.
    pub comm_type: CpCommType,
}

/// The mesh with this rank's groups along the axes that a model is split over.
#[derive(Clone)]
pub struct Parallel {
    world: Arc<dyn Communicator>,
    mesh: Mesh,
    pipeline: Pipeline,
    /// Ranks that share heads, widths, vocabulary and tokens.
    pub(crate) tp: Group,
    /// Ranks that have the tokens between them.
    cp: ContextRanks,
    /// Ranks that have the experts between them.
    pub(crate) ep: Group,
    /// Ranks that share the width of an expert.
    pub(crate) etp: Group,
    /// Ranks that have the layers between them.
    pp: Group,
}

impl fmt::Debug for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {:?}", self.world.rank(), self.mesh)
    }
}

impl Parallel {
    /// Collective over `world`: this rank's groups of `mesh`, for tensors on `device`; stages have equal numbers of layers.
    ///
    /// # Errors
    /// A mesh of another number of ranks, or ranks that cannot meet.
    pub fn new(world: &Arc<dyn Communicator>, mesh: Mesh, device: Device) -> Result<Self> {
        let group = |axis| Ok::<_, crate::Error>(Group::new(mesh.split(&**world, axis)?, device)?);
        let (tp, ep, etp) = (group(Axis::Tp)?, group(Axis::Ep)?, group(Axis::Etp)?);
        // What stages hand on goes through the host.
        let (cp, pp) = (group(Axis::Cp)?, Group::new(mesh.split(&**world, Axis::Pp)?, Device::Cpu)?);
        let cp = ContextRanks { group: cp, comm_type: CpCommType::default() };
        let pipeline = Pipeline::even(mesh.axis_size(Axis::Pp));
        Ok(Self { world: world.clone(), mesh, pipeline, tp, cp, ep, etp, pp })
    }

    /// The same with the layers dealt out to the stages like this.
    #[must_use]
    pub fn with_pipeline(self, pipeline: Pipeline) -> Self {
        Self { pipeline, ..self }
    }

    /// The same with queries and keys brought together like this by context-parallel ranks.
    #[must_use]
    pub fn with_cp_comm_type(mut self, comm_type: CpCommType) -> Self {
        self.cp.comm_type = comm_type;
        self
    }

    /// All ranks.
    pub fn world(&self) -> &Arc<dyn Communicator> {
        &self.world
    }

    /// Which ranks form a group along which axis.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// The ranks that have the tokens between them, where there are several.
    pub fn cp(&self) -> Option<&ContextRanks> {
        Some(&self.cp).filter(|cp| cp.group.size() > 1)
    }

    /// The ranks that have the layers between them, in the order of the stages.
    pub fn pp(&self) -> &Group {
        &self.pp
    }

    /// The stage of a rank of the world.
    pub fn stage(&self, rank: usize) -> PipelineStage {
        PipelineStage { rank: self.mesh.coordinate(Axis::Pp, rank), pipeline: self.pipeline }
    }

    /// What of the model a rank of the world holds.
    pub fn place(&self, rank: usize) -> Place {
        let share = |axis| Share { rank: self.mesh.coordinate(axis, rank), size: self.mesh.axis_size(axis) };
        Place { tp: share(Axis::Tp), ep: share(Axis::Ep), etp: share(Axis::Etp), stage: self.stage(rank) }
    }

    /// What of the model this rank holds.
    pub fn own_place(&self) -> Place {
        self.place(self.world.rank())
    }

    /// The ranks that hold a storage of the whole model between them: the first of the first stage that has it.
    pub(crate) fn holders(&self, spec: &StorageSpec, config: &HfConfig) -> std::ops::Range<usize> {
        let size = |axis| self.mesh.axis_size(axis);
        let of_stage = self.mesh.size() / self.pipeline.num_stages;
        let is_there = |rank: &usize| is_of_stage(spec, config, self.stage(*rank));
        let first = (0..self.mesh.size()).step_by(of_stage).find(is_there).unwrap_or(0);
        first..first + size(Axis::Tp).max(size(Axis::Ep) * size(Axis::Etp))
    }
}
