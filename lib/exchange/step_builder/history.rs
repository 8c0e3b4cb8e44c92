//! What the committed steps say to later draws: which stages have begun, and how well prompts did.

use std::collections::BTreeMap;

use slime_config::paths;
use slime_record::{Manifest, Stages};

use super::StepBuilder;
use crate::segment::from_json;
use crate::{Error, Format, Result, Store};

/// How a prompt did in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Identity of the prompt.
    pub prompt_id: String,
    /// A position of the data stream where it stands.
    pub position: u64,
    /// Share of samples whose reward was 1.
    pub pass_rate: f64,
}

/// What the manifests until now say. A restarted builder reads it from them.
#[derive(Debug, Clone, Default)]
pub struct History {
    stages: Stages,
    max_staleness: u64,
    num_steps: u64,
    outcomes: BTreeMap<u64, Vec<Outcome>>,
}

impl History {
    /// A history that goes back `num_steps` steps, under the staleness bound of the run.
    pub(crate) fn new(num_steps: u64, max_staleness: u64) -> Self {
        Self { max_staleness, num_steps, ..Self::default() }
    }

    /// The stages that have begun.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// How the prompts did, in order, of the steps that every builder knows that draws for `step`: a step is open once
    /// its version less the staleness bound is there, and then the manifests of all steps before that are.
    pub fn before(&self, step: u64) -> impl Iterator<Item = &Outcome> {
        let end = step.saturating_sub(self.max_staleness);
        self.outcomes.range(end.saturating_sub(self.num_steps)..end).flat_map(|(_, outcomes)| outcomes)
    }

    /// The step that is read first for draws of `step`.
    fn first(&self, step: u64) -> u64 {
        step.saturating_sub(self.max_staleness).saturating_sub(self.num_steps)
    }

    /// Takes in what a manifest says.
    pub(crate) fn learn(&mut self, manifest: &Manifest) {
        self.stages.clone_from(&manifest.stages);
        self.remember(manifest);
        let first = self.first(manifest.step + 1);
        self.outcomes.retain(|step, _| *step >= first);
    }

    fn remember(&mut self, manifest: &Manifest) {
        if self.num_steps == 0 {
            return;
        }
        let trained = manifest.groups.iter().filter(|group| group.num_uses == 0).map(|group| Outcome {
            prompt_id: group.prompt_id.clone(),
            position: group.chosen.unwrap_or(group.cursor),
            pass_rate: group.scores.pass_rate,
        });
        let refused = manifest.refused.iter().map(|refusal| Outcome {
            prompt_id: refusal.prompt_id.clone(),
            position: refusal.chosen.unwrap_or(refusal.cursor),
            pass_rate: refusal.pass_rate,
        });
        self.outcomes.insert(manifest.step, trained.chain(refused).collect());
    }
}

impl<F: Format> StepBuilder<F> {
    /// Reads what the manifests before `step` say, as far as draws of its open steps go by it.
    pub(super) fn recall(&mut self, store: &mut dyn Store, step: u64) -> Result<()> {
        if self.config.history_steps == 0 {
            return Ok(());
        }
        #[cfg(test)]
        if self.owner.fault == crate::simulator::Fault::ForgetHistory {
            return Ok(());
        }
        let mut history = History::new(self.config.history_steps, self.config.max_staleness);
        for step in history.first(step + 1)..step {
            let path = paths::manifest(step);
            // A later one is there, so this one is as well and only hides.
            let Some(bytes) = store.read(&path)? else { return Err(Error::Stale { path }) };
            history.remember(&from_json(&path, &bytes)?);
        }
        self.history = history;
        Ok(())
    }
}
