//! What the step builder asks of a replica, and how the replica follows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slime_config::paths::{self, BUILDER, Physical};

use super::{Replica, ReplicaAction};
use crate::segment::{from_json, to_json};
use crate::steps::open_steps;
use crate::{Format, Result, Store};

/// What the builder asks of a replica about one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Generate it. `place`: with exactly these weights; none: with the newest of the line.
    New {
        /// Step it was drawn for.
        step: u64,
        /// Number inside the step.
        group: u32,
        /// Attempt.
        attempt: u32,
        /// Position in the data stream.
        cursor: u64,
        /// Position whose prompt it has, where a curriculum chose another than its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chosen: Option<u64>,
        /// The prompt, as the builder's policy drew it.
        prompt: serde_json::Value,
        /// The weights.
        place: Option<Physical>,
        /// A file with its unfinished samples, to be continued.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parts: Option<String>,
    },
    /// Forget it.
    Cancel {
        /// Step it was drawn for.
        step: u64,
        /// Number inside the step.
        group: u32,
        /// Attempts up to this one.
        attempt: u32,
    },
    /// A segment cannot be read: what was in it counts as never generated.
    Broken {
        /// Its path.
        segment: String,
    },
}

/// One assignment file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Replaces everything asked before: a builder or a replica started.
    pub is_reset: bool,
    /// What is asked, in order.
    pub ops: Vec<Op>,
}

#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub attempt: u32,
    pub prompt: serde_json::Value,
    pub place: Option<Physical>,
    pub parts: Option<String>,
}

/// Assignment files by builder and number: step and path.
type Files = BTreeMap<(u64, u64), (u64, String)>;

/// The bytes of an assignment file.
pub(crate) fn encode_assignment(is_reset: bool, ops: Vec<Op>) -> Vec<u8> {
    to_json(&Assignment { is_reset, ops })
}

impl<F: Format> Replica<F> {
    /// Reads the newest builder's assignment files, dense in their numbers, from its newest reset on. A builder asks in
    /// the folder of the front; what shows up late in one behind it is found when a number is missing, and rarely
    /// (`is_rare`) in any case.
    pub(super) fn follow(&mut self, store: &mut dyn Store, is_rare: bool) -> Result<()> {
        let mut files = Files::new();
        let mut front = self.front.clone();
        let seen = front.advance(store)?;
        let first_seen = self.front.step;
        for (step, names) in seen {
            self.add_own(&mut files, step, names);
        }
        self.find_reset(store, &files)?;
        let next = (self.builder, self.next_assignment);
        let is_ahead = files.keys().next_back().is_some_and(|newest| *newest >= next);
        let misses_one = is_ahead && !files.contains_key(&next);
        if is_rare || misses_one {
            let builders = store.list(&paths::owner(BUILDER))?;
            let newest_builder = builders.iter().filter_map(|name| paths::parse_number(name)).max();
            // A builder that starts may not have seen all manifests.
            let is_known = newest_builder == Some(self.builder) && !misses_one;
            let behind = if is_known { (self.low_step..first_seen).collect() } else { open_steps(store)? };
            for step in behind.into_iter().filter(|step| *step < first_seen) {
                let names = store.list(&paths::step(step))?;
                self.add_own(&mut files, step, names);
            }
            self.find_reset(store, &files)?;
        }
        self.obey_next(store, &files)?;
        if is_rare {
            // What was asked in a folder that was left behind the last time has shown up by now.
            self.low_step = self.low_step.max(self.rare_step);
            self.rare_step = first_seen;
        }
        self.front = front;
        Ok(())
    }

    fn add_own(&self, files: &mut Files, step: u64, names: Vec<String>) {
        for name in names {
            if let Some(found) = paths::parse_assignment(&name)
                && found.index == self.config.index
            {
                let path = format!("{}/{name}", paths::step(step));
                files.insert((found.incarnation, found.seq), (step, path));
            }
        }
    }

    /// Goes over to a newer builder, once it has said from where on.
    fn find_reset(&mut self, store: &mut dyn Store, files: &Files) -> Result<()> {
        let Some(&(newest, _)) = files.keys().next_back() else { return Ok(()) };
        if newest <= self.builder {
            return Ok(());
        }
        for (&(builder, seq), (_, path)) in files.range((newest, 0)..).rev() {
            let Some(bytes) = store.read(path)? else { continue };
            if from_json::<Assignment>(path, &bytes)?.is_reset {
                (self.builder, self.next_assignment) = (builder, seq);
                break;
            }
        }
        Ok(())
    }

    fn obey_next(&mut self, store: &mut dyn Store, files: &Files) -> Result<()> {
        while let Some((step, path)) = files.get(&(self.builder, self.next_assignment)) {
            let Some(bytes) = store.read(path)? else { break };
            let assignment: Assignment = from_json(path, &bytes)?;
            if assignment.is_reset {
                self.asked.clear();
            }
            for op in assignment.ops {
                self.obey(op);
            }
            self.next_assignment += 1;
            self.low_step = *step;
        }
        Ok(())
    }

    fn obey(&mut self, op: Op) {
        match op {
            Op::New { step, group, attempt, prompt, place, parts, .. } => {
                let is_sealed = self.sealed.contains_key(&((step, group), attempt));
                let is_older = self.asked.get(&(step, group)).is_some_and(|asked| asked.attempt > attempt);
                if !is_sealed && !is_older {
                    self.actions.push(ReplicaAction::Prepare {
                        step,
                        group,
                        attempt,
                        prompt: prompt.clone(),
                    });
                    self.asked.insert((step, group), Asked { attempt, prompt, place, parts });
                }
            }
            Op::Cancel { step, group, attempt } => {
                if self.asked.get(&(step, group)).is_some_and(|asked| asked.attempt <= attempt) {
                    self.asked.remove(&(step, group));
                }
            }
            Op::Broken { segment } => self.sealed.retain(|_, path| path.as_ref() != Some(&segment)),
        }
    }
}
