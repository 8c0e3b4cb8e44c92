//! Which versions are to be evaluated, and which are.

use std::collections::BTreeSet;

use crate::{Lineage, Physical, Result, Store};
use slime_config::paths;

/// What one reader knows of the evaluations; those that are done stay so.
#[derive(Debug, Clone)]
pub(crate) struct Evaluations {
    /// Versions divisible by this are evaluated, and the last one; 0: none.
    interval: u64,
    num_steps: u64,
    /// Whether version 0 is evaluated.
    at_start: bool,
    done: BTreeSet<Physical>,
}

impl Evaluations {
    pub fn new(interval: u64, num_steps: u64, at_start: bool) -> Self {
        Self { interval, num_steps, at_start, done: BTreeSet::new() }
    }

    /// The oldest published version of the line that is to be evaluated and is not, where it was published last.
    pub fn due(&mut self, store: &mut dyn Store, lineage: &Lineage) -> Result<Option<Physical>> {
        if self.interval == 0 {
            return Ok(None);
        }
        if self.first_due(lineage).is_some() {
            for name in store.list(paths::EVALUATIONS)? {
                if let Some(place) = paths::parse_physical(&name)
                    && lineage.is_on_line(place)
                    && !self.done.contains(&place)
                    && store.exists(&paths::evaluation_done(place))?
                {
                    self.done.insert(place);
                }
            }
        }
        Ok(self.first_due(lineage))
    }

    fn first_due(&self, lineage: &Lineage) -> Option<Physical> {
        let is_due = |version: u64| match version {
            0 => self.at_start,
            version => version.is_multiple_of(self.interval) || version == self.num_steps,
        };
        let is_done =
            |version| self.done.iter().any(|done| done.version == version && lineage.is_on_line(*done));
        let due = lineage
            .published()
            .find(|place| is_due(place.version) && lineage.is_on_line(*place) && !is_done(place.version))?;
        lineage.locate(due.version)
    }
}
