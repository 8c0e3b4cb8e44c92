//! Masters and moments in the memory of the host: the bits of those beside the weights, on any number of ranks.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::sync::Arc;

use slime_comm::{Communicator, Single, Threads};
use slime_trainer::{Buffer, Settings, StepMetrics, Trainer};
use tch::{Kind, Tensor};
use tiny::{rollout, settings, trainer};

fn two_steps(is_offloaded: bool) -> Settings {
    let mut settings = settings();
    settings.num_steps_per_rollout = 2;
    settings.train.weight_decay = 0.1;
    settings.train.optimizer_offload = is_offloaded;
    settings
}

fn weights(trainer: &Trainer) -> Vec<Tensor> {
    trainer.policy().params().iter().map(|(_, tensor)| tensor.detach().copy()).collect()
}

fn state(trainer: &Trainer) -> Vec<(String, Vec<f32>)> {
    let read = |Buffer { name, .. }| (name.clone(), trainer.read_buffer(&name).unwrap());
    trainer.buffers().into_iter().map(read).collect()
}

type Run = (Vec<StepMetrics>, Vec<Tensor>, Vec<(String, Vec<f32>)>);

fn run(kind: Kind, comm: Arc<dyn Communicator>, is_offloaded: bool) -> Run {
    let mut trainer = trainer(kind, comm, two_steps(is_offloaded));
    let steps = trainer.train_rollout(&rollout(4, 4)).unwrap();
    (steps, weights(&trainer), state(&trainer))
}

fn assert_same((steps, weights, state): &Run, expected: &Run, what: &str) {
    assert_eq!(steps, &expected.0, "{what}");
    assert!(weights.iter().zip(&expected.1).all(|(a, b)| a.equal(b)), "{what}");
    assert_eq!(state, &expected.2, "{what}");
}

#[test]
fn updates_on_the_host_have_the_same_bits() {
    for kind in [Kind::Float, Kind::BFloat16, Kind::Double] {
        let one = |is_offloaded| run(kind, Arc::new(Single), is_offloaded);
        assert_same(&one(true), &one(false), &format!("{kind:?} on one rank"));
        let two = |is_offloaded| Threads::spawn(2, |comm| run(kind, Arc::new(comm), is_offloaded)).unwrap();
        for (rank, (got, expected)) in two(true).iter().zip(&two(false)).enumerate() {
            assert_same(got, expected, &format!("{kind:?} on rank {rank} of 2"));
        }
    }
}

#[test]
fn a_run_goes_on_with_its_state_elsewhere() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let mut whole = trainer(kind, Arc::new(Single), two_steps(false));
        whole.train_rollout(&rollout(4, 4)).unwrap();
        let mut moved = trainer(kind, Arc::new(Single), two_steps(true));
        for (name, values) in state(&whole) {
            moved.write_buffer(&name, &values).unwrap();
        }
        moved.resume(whole.progress()).unwrap();
        assert!(weights(&moved).iter().zip(weights(&whole)).all(|(a, b)| a.equal(&b)));
        let expected = whole.train_rollout(&rollout(4, 4)).unwrap();
        assert_eq!(moved.train_rollout(&rollout(4, 4)).unwrap(), expected);
        assert_eq!(state(&moved), state(&whole));
    }
}
