//! Makes a version a new weight directory, whichever way it was sent, every chunk of it verified.

use std::path::Path;

use slime_cli::{Failure, exit};
use slime_transport::copy;

use crate::failure;
use crate::read_publications::{open_ways, place_of, read_publications};

/// Copies the newest version of the run, or `version`, to the new directory `dst`.
pub fn push(run: &Path, dst: &Path, version: Option<u64>) -> Result<(), Failure> {
    let publications = read_publications(run, version)?;
    let (mut store, mut ways) = open_ways(run)?;
    let none = |what: &str| Failure::new(exit::NO_INPUT, format!("{}: {what}", run.display()));
    let newest = publications.iter().rev().find(|publication| publication.same_as.is_none());
    let publication = newest.ok_or_else(|| none("no such version has weights of its own"))?;
    let received = ways.receive_published(&mut store, publication).map_err(failure)?;
    let place = place_of(publication);
    let received = received.ok_or_else(|| none(&format!("the weights of version {place} are not there")))?;
    copy(&received.dir, publication, dst).map_err(failure)?;
    tracing::info!("pushed {place} to {}", dst.display());
    Ok(())
}
