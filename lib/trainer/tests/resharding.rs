//! The state of a trainer on one layout resumes on another: the same bits of weights and optimizer state.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Threads};
use slime_config::TensorPart;
use slime_model::{Extra, Model, Parallel};
use slime_trainer::{Progress, StateReader, Trainer};
use tch::{Device, Kind};
use tiny::{rollout, settings};

/// The elements of whole tensors, NaN where no rank saved any.
type State = BTreeMap<String, Vec<f32>>;

/// Axes of a layout: tp, pp, dp, ep, etp.
type Axes = [usize; 5];

fn size([tp, pp, dp, ..]: Axes) -> usize {
    tp * pp * dp
}

/// A trainer of the model over the ranks of a layout.
fn trainer(name: &str, kind: Kind, comm: Arc<dyn Communicator>, axes: Axes) -> Trainer {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    let [tp, pp, dp, ep, etp] = axes;
    let mesh = Mesh::new(Layout { tp, pp, dp, ep, etp, ..Layout::default() }, size(axes)).unwrap();
    let parallel = Arc::new(Parallel::new(&comm, mesh, Device::Cpu).unwrap());
    let model = Model::load_part(dir, (kind, Device::Cpu), Extra::None, Some(parallel)).unwrap();
    Trainer::new(model, comm, settings()).unwrap()
}

/// What this rank saves, in its place.
fn saved(trainer: &Trainer) -> State {
    let (mut state, mut reader) = (State::new(), StateReader::new(trainer));
    for buffer in trainer.buffers() {
        let (parts, bytes) = reader.saved(&buffer).unwrap();
        let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let mut start = 0;
        for part in parts {
            let place = TensorPart::whole(part.tensor.as_str(), &part.shape);
            let whole = state.entry(part.tensor.clone()).or_insert_with(|| vec![f32::NAN; place.len()]);
            for run in part.runs(&place) {
                let from = start + run.from;
                whole[run.to..run.to + run.len].copy_from_slice(&values[from..from + run.len]);
            }
            start += part.len();
        }
    }
    state
}

/// All ranks' parts; none is saved twice, and nothing is missing.
fn whole(ranks: impl Iterator<Item = State>) -> State {
    let mut all = State::new();
    for (name, values) in ranks.flatten() {
        let known = all.entry(name.clone()).or_insert_with(|| vec![f32::NAN; values.len()]);
        for (known, value) in known.iter_mut().zip(values).filter(|(_, value)| !value.is_nan()) {
            assert!(known.is_nan(), "{name} is saved twice");
            *known = value;
        }
    }
    assert!(all.iter().all(|(_, values)| values.iter().all(|value| !value.is_nan())), "all is saved");
    all
}

fn load(trainer: &mut Trainer, state: &State, progress: Progress) {
    for buffer in trainer.buffers() {
        let mut values = Vec::new();
        for part in &buffer.parts {
            let start = values.len();
            values.resize(start + part.len(), f32::NAN);
            for run in part.runs(&TensorPart::whole(part.tensor.as_str(), &part.shape)) {
                let from = &state[&part.tensor][run.to..run.to + run.len];
                values[start + run.from..start + run.from + run.len].copy_from_slice(from);
            }
        }
        trainer.write_buffer(&buffer.name, &values).unwrap();
    }
    trainer.resume(progress).unwrap();
}

/// The weights of the whole model, on the first rank.
fn weights(trainer: &Trainer) -> State {
    let params = trainer.policy().params();
    let whole = params.whole_tensors().map(Result::unwrap);
    let values = |tensor: tch::Tensor| Vec::try_from(tensor.to_kind(Kind::Float).reshape([-1])).unwrap();
    whole.filter_map(|(name, tensor)| Some((name, values(tensor?)))).collect()
}

#[test]
fn state_of_any_layout_resumes_on_any_other() {
    let scored = rollout(4, 3);
    let dense = [[1, 1, 1, 1, 1], [2, 1, 1, 1, 1], [4, 1, 2, 1, 1], [1, 1, 3, 1, 1], [2, 2, 2, 1, 1]];
    let sparse = [[1, 1, 1, 1, 1], [2, 1, 2, 2, 2], [1, 1, 4, 4, 1], [4, 1, 1, 2, 1], [1, 3, 2, 2, 1]];
    // The embedding of a tied model is on two stages.
    let tied = [[1, 2, 1, 1, 1], [2, 1, 1, 1, 1], [2, 2, 2, 1, 1], [1, 1, 1, 1, 1], [1, 2, 3, 1, 1]];
    for (name, layouts) in [("qwen3", dense), ("glm4_moe", sparse), ("llama_tied", tied)] {
        for kind in [Kind::Float, Kind::BFloat16] {
            for (at, from) in layouts.iter().enumerate() {
                let to = layouts[(at + 1) % layouts.len()];
                let ranks = Threads::spawn(size(*from), |comm| {
                    let mut trainer = trainer(name, kind, Arc::new(comm), *from);
                    trainer.train_rollout(&scored).unwrap();
                    (saved(&trainer), weights(&trainer), trainer.progress())
                });
                let mut ranks = ranks.unwrap();
                let (expected, progress) = (std::mem::take(&mut ranks[0].1), ranks[0].2);
                let state = whole(ranks.into_iter().map(|rank| rank.0));
                let resumed = Threads::spawn(size(to), |comm| {
                    let mut trainer = trainer(name, kind, Arc::new(comm), to);
                    load(&mut trainer, &state, progress);
                    (saved(&trainer), weights(&trainer), trainer.progress())
                });
                let mut resumed = resumed.unwrap();
                assert_eq!(resumed[0].2, progress);
                let got = std::mem::take(&mut resumed[0].1);
                for (tensor, values) in &expected {
                    // The correction bias is never trained, so it is no part of the state.
                    assert!(got[tensor] == *values, "{name}, {kind:?}: {tensor} from {from:?} to {to:?}");
                }
                assert!(whole(resumed.into_iter().map(|rank| rank.0)) == state, "{name}: {from:?} to {to:?}");
            }
        }
    }
}
