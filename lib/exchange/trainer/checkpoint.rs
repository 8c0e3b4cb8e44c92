//! Checkpoints of the trainer: when one is due, which one to start from, and that it is complete once it is written.

use super::Trainer;
use crate::{Error, Lineage, Physical, Result, Store};
use slime_config::paths;

/// A checkpoint that is being written while training goes on.
#[derive(Debug, Clone)]
pub(super) struct Writing {
    place: Physical,
    /// Whether it is what `control/save` asked for.
    is_wished: bool,
    /// What its COMPLETE shall say, once all its files are there.
    mark: Option<Vec<u8>>,
}

impl Trainer {
    /// The files of the checkpoint that was begun are written and synced; `mark` is what its COMPLETE shall say, which this
    /// machine alone commits.
    pub fn on_checkpointed(&mut self, mark: impl Into<Vec<u8>>) {
        if let Some(writing) = &mut self.writing {
            writing.mark = Some(mark.into());
        }
    }

    /// The newest version is to be written now.
    pub(super) fn begin_checkpoint(&mut self) -> Physical {
        let place = self.place();
        self.writing = Some(Writing { place, is_wished: self.wants_save, mark: None });
        self.last_checkpoint = self.version;
        place
    }

    /// Commits the checkpoint whose files are there.
    pub(super) fn complete_checkpoint(&mut self, store: &mut dyn Store) -> Result<()> {
        if let Some(Writing { place, is_wished, mark: Some(mark) }) = &self.writing {
            store.commit(&paths::complete(*place), mark)?;
            if *is_wished {
                store.remove(paths::SAVE)?;
                self.wants_save = false;
            }
            self.writing = None;
        }
        Ok(())
    }

    pub(super) fn is_checkpoint_due(&self) -> bool {
        let passed = self.version - self.last_checkpoint.min(self.version);
        let is_last = self.version == self.config.num_steps;
        let interval = self.config.checkpoint_interval;
        let is_on_grid = interval > 0 && passed >= interval;
        passed > 0 && (is_on_grid || is_last || self.is_save_unanswered() || self.is_draining)
    }

    /// Whether what is published and not yet in a checkpoint shall be in one now.
    pub(super) fn is_checkpoint_wished(&self) -> bool {
        let is_new = self.version > self.last_checkpoint && self.is_published(self.version);
        is_new && (self.is_draining || self.is_save_unanswered())
    }

    /// Whether `control/save` asks for more than what is being written.
    fn is_save_unanswered(&self) -> bool {
        self.wants_save && self.writing.as_ref().is_none_or(|writing| !writing.is_wished)
    }
}

/// The checkpoint to start from: that of version `resume` of the line, or the newest; none for the import.
pub(super) fn start_from(
    lineage: &Lineage,
    store: &mut dyn Store,
    resume: Option<u64>,
) -> Result<Option<Physical>> {
    let checkpoints = lineage.checkpoints(store)?;
    match resume {
        None => Ok(checkpoints.last().copied()),
        Some(0) => Ok(None),
        Some(version) => {
            let found = checkpoints.iter().rev().find(|place| place.version == version).copied();
            let there = || checkpoints.iter().map(|place| place.version).collect();
            found.map(Some).ok_or_else(|| Error::NoCheckpoint { version, there: there() })
        }
    }
}

#[cfg(test)]
mod tests {
    use slime_record::Publication;

    use super::*;
    use crate::{FsStore, TrainerAction, TrainerConfig};

    const NUM_STEPS: u64 = 6;

    fn config() -> TrainerConfig {
        TrainerConfig {
            num_steps: NUM_STEPS,
            publish_interval: 1,
            max_staleness: 0,
            checkpoint_interval: 2,
            keep_checkpoints: 1,
            keep_weights_every: 0,
            resume: None,
            visibility_ms: 0,
            eval_interval: 0,
            eval_at_start: false,
            num_replicas: 0,
            beat_ms: 1,
        }
    }

    /// A run whose steps are all committed, without samples.
    fn run() -> (tempfile::TempDir, FsStore) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FsStore::open(dir.path()).unwrap();
        for step in 0..NUM_STEPS {
            let manifest = serde_json::json!({
                "step": step, "builder": 1, "epoch": 1, "min_version": step, "groups": [], "carried": [], "refused": [],
                "outstanding": [], "returned": [], "next_group": {}, "cursor": 0,
                "account": {"response": 0, "trained": 0, "masked": 0, "refused": 0, "expired": 0, "surplus": 0, "carried": 0},
            });
            store.commit(&paths::manifest(step), manifest.to_string().as_bytes()).unwrap();
        }
        (dir, store)
    }

    /// Does what `trainer` wants until `look` returns something; an action that it does not know of stays undone.
    fn drive<T>(
        trainer: &mut Trainer,
        store: &mut FsStore,
        mut look: impl FnMut(&mut Trainer, &TrainerAction) -> Option<T>,
    ) -> Option<T> {
        // Enough for all work of a run; what waits for something else gives no action.
        for _ in 0..100 {
            for action in trainer.poll(store).unwrap() {
                if let Some(found) = look(trainer, &action) {
                    return Some(found);
                }
                match action {
                    TrainerAction::Load { .. } => trainer.on_loaded(),
                    TrainerAction::SaveWeights { place, .. } => {
                        store.seal(&format!("{}/model", paths::weights(place)), b"w").unwrap();
                        trainer.on_saved(Publication {
                            version: place.version,
                            epoch: place.epoch,
                            transport: "disk".into(),
                            path: Some(paths::weights(place)),
                            ..Publication::default()
                        });
                    }
                    TrainerAction::Train { .. } => trainer.on_trained(),
                    TrainerAction::SaveCheckpoint { .. } | TrainerAction::Done { .. } => {}
                }
            }
        }
        None
    }

    fn write_at_once(trainer: &mut Trainer, action: &TrainerAction) -> Option<bool> {
        match action {
            TrainerAction::SaveCheckpoint { .. } => {
                trainer.on_checkpointed("mark");
                None
            }
            TrainerAction::Done { is_complete } => Some(*is_complete),
            _ => None,
        }
    }

    #[test]
    fn training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits_for_it() {
        let (dir, mut store) = run();
        let mut trainer = Trainer::start(&mut store, config()).unwrap();
        let mut begun = Vec::new();
        let outcome = drive(&mut trainer, &mut store, |_, action| {
            if let TrainerAction::SaveCheckpoint { place, .. } = action {
                begun.push(place.version);
            }
            None::<()>
        });
        assert_eq!(
            (outcome, trainer.version(), begun),
            (None, 4, vec![2]),
            "version 4 has to be written next"
        );
        assert!(!dir.path().join("checkpoint/000002.e001/COMPLETE").exists());
        trainer.on_checkpointed("mark");
        assert_eq!(drive(&mut trainer, &mut store, write_at_once), Some(true));
        for version in [2, 4, 6] {
            let complete = dir.path().join(format!("checkpoint/{version:06}.e001/COMPLETE"));
            // Only the newest is kept by the end.
            assert!(complete.exists() || version < 6, "{version}");
        }
    }

    #[test]
    fn a_drained_trainer_ends_after_its_checkpoint_is_complete() {
        let (dir, mut store) = run();
        let mut trainer = Trainer::start(&mut store, config()).unwrap();
        let is_third = |trainer: &mut Trainer, action: &TrainerAction| {
            matches!(action, TrainerAction::Train { .. } if trainer.version() == 2).then_some(())
        };
        drive(&mut trainer, &mut store, |trainer, action| {
            write_at_once(trainer, action);
            is_third(trainer, action)
        });
        trainer.on_trained();
        trainer.drain();
        let ended = drive(&mut trainer, &mut store, |_, action| {
            matches!(action, TrainerAction::Done { .. }).then_some(())
        });
        assert_eq!(ended, None, "the checkpoint of version 3 is still being written");
        trainer.on_checkpointed("mark");
        assert_eq!(drive(&mut trainer, &mut store, write_at_once), Some(false));
        assert!(dir.path().join("checkpoint/000003.e001/COMPLETE").exists());
    }

    #[test]
    fn a_wish_is_answered_by_one_checkpoint_and_its_file_goes() {
        let (dir, mut store) = run();
        let mut trainer =
            Trainer::start(&mut store, TrainerConfig { checkpoint_interval: 0, ..config() }).unwrap();
        let save = dir.path().join(paths::SAVE);
        std::fs::create_dir_all(save.parent().unwrap()).unwrap();
        let mut begun = Vec::new();
        drive(&mut trainer, &mut store, |trainer, action| {
            match action {
                TrainerAction::SaveCheckpoint { place, .. } => begun.push(place.version),
                TrainerAction::Train { .. } if trainer.version() == 1 => std::fs::write(&save, "").unwrap(),
                _ => {}
            }
            None::<()>
        });
        assert_eq!((begun.as_slice(), trainer.version()), (&[2][..], NUM_STEPS));
        assert!(save.exists());
        trainer.on_checkpointed("mark");
        assert_eq!(drive(&mut trainer, &mut store, write_at_once), Some(true));
        assert!(!save.exists());
    }

    #[test]
    fn old_weights_go_but_for_those_of_every_third_version() {
        let (dir, mut store) = run();
        let mut trainer =
            Trainer::start(&mut store, TrainerConfig { keep_weights_every: 3, ..config() }).unwrap();
        assert_eq!(drive(&mut trainer, &mut store, write_at_once), Some(true));
        let left: Vec<u64> = (0..=NUM_STEPS)
            .filter(|version| {
                dir.path().join(paths::weights(Physical { version: *version, epoch: 1 })).exists()
            })
            .collect();
        assert!(
            left.contains(&3) && left.contains(&NUM_STEPS) && !left.contains(&1) && !left.contains(&2),
            "{left:?}"
        );
    }

    #[test]
    fn a_start_takes_the_checkpoint_that_is_asked_for_and_tells_which_there_are() {
        let (_dir, mut store) = run();
        let keeping = TrainerConfig { keep_checkpoints: 9, ..config() };
        let mut first = Trainer::start(&mut store, keeping.clone()).unwrap();
        assert_eq!(drive(&mut first, &mut store, write_at_once), Some(true));
        let of = |resume| TrainerConfig { resume, ..keeping.clone() };
        assert_eq!(Trainer::start(&mut store, of(None)).unwrap().version(), 6);
        let error = Trainer::start(&mut store, of(Some(3))).unwrap_err();
        assert_eq!(error.exit_code(), 66);
        assert!(
            error.to_string().contains("version 3") && error.to_string().contains("[2, 4, 6]"),
            "{error}"
        );
        let mut resumed = Trainer::start(&mut store, of(Some(2))).unwrap();
        let loaded = drive(&mut resumed, &mut store, |_, action| match action {
            TrainerAction::Load { checkpoint } => *checkpoint,
            _ => None,
        });
        assert_eq!((resumed.version(), loaded), (2, Some(Physical { version: 2, epoch: 1 })));
        // What came later is not on the line any more.
        assert_eq!(Trainer::start(&mut store, of(None)).unwrap().version(), 2);
        assert_eq!(Trainer::start(&mut store, of(Some(0))).unwrap().version(), 0);
    }
}
