//! One value from rank 0 to every rank, as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use slime_cli::Failure;
use slime_comm::{Collectives, Communicator};

use crate::failure;

/// Rank 0's `mine` on every rank; what the others pass is dropped.
///
/// # Errors
/// A failed collective.
pub fn share<T: Serialize + DeserializeOwned>(mine: T, comm: &dyn Communicator) -> Result<T, Failure> {
    if comm.size() == 1 {
        return Ok(mine);
    }
    let broken = |error: serde_json::Error| Failure::new(70, format!("a message between ranks: {error}"));
    let mut bytes = if comm.rank() == 0 { serde_json::to_vec(&mine).map_err(broken)? } else { Vec::new() };
    let mut len = [bytes.len() as u64];
    comm.broadcast(&mut len, 0).map_err(failure!())?;
    bytes.resize(len[0] as usize, 0);
    comm.broadcast(&mut bytes, 0).map_err(failure!())?;
    serde_json::from_slice(&bytes).map_err(broken)
}
