//! Chooses the world a process belongs to.

use std::sync::Arc;

use crate::{Communicator, Mpi, Placement, Result, Single};

/// The world the launcher made: [`Single`] for one rank, which needs no MPI on the machine, else [`Mpi`].
/// Call it once, early. End a successful rank with `finish`, a failed one with `abort`.
pub fn world() -> Result<Arc<dyn Communicator>> {
    let placement = Placement::detect()?;
    if placement.size == 1 {
        return Ok(Arc::new(Single));
    }
    Ok(Arc::new(Mpi::init(&placement)?))
}
