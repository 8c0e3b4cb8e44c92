//! Makes a version a new weight directory, whichever way it was sent, every chunk of it verified.

use std::path::Path;

use slime_cli::{Failure, exit};
use slime_transport::copy;

use crate::failure;
use crate::read_publications::{open_ways, place_of, read_publications};

/// Copies the newest version of the run that is there, or `version`, to the new directory `dst`.
pub fn push(run: &Path, dst: &Path, version: Option<u64>) -> Result<(), Failure> {
    let publications = read_publications(run, version)?;
    let (mut store, mut ways) = open_ways(run)?;
    for publication in publications.iter().rev().filter(|publication| publication.same_as.is_none()) {
        let received = ways.receive_published(&mut store, publication).map_err(failure)?;
        if let Some(received) = received {
            copy(&received.dir, publication, dst).map_err(failure)?;
            tracing::info!("pushed {} to {}", place_of(publication), dst.display());
            return Ok(());
        }
    }
    Err(Failure::new(exit::NO_INPUT, format!("{}: the weights of no such version are there", run.display())))
}
