//! The optimizer's state divided over ranks: the bits of an update that is not divided, and resumes on other numbers of
//! ranks.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::collections::BTreeMap;
use std::sync::Arc;

use slime_comm::Threads;
use slime_config::TensorPart;
use slime_torch::{AdamW, ParamState, adamw_step};
use slime_trainer::{Progress, Settings, Trainer};
use tch::{Kind, Tensor};
use tiny::{model, rollout, settings, trainer};

/// Two optimizer steps of a rollout, not clipped.
fn two_steps() -> Settings {
    let mut settings = Settings { num_steps_per_rollout: 2, ..settings() };
    settings.train.clip_grad = 0.0;
    settings.train.weight_decay = 0.1;
    settings
}

fn weights(trainer: &Trainer) -> Vec<Vec<f32>> {
    trainer.policy().params().iter().map(|(_, tensor)| values(tensor)).collect()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float).flatten(0, -1)).unwrap()
}

/// The weights after updates with whole gradients, by a state of the whole model.
fn undivided(kind: Kind, steps: &[Vec<(String, Tensor)>]) -> Vec<Vec<f32>> {
    let (model, train) = (model("llama", kind), two_steps().train);
    let params: Vec<Tensor> = model.params().iter().map(|(_, tensor)| tensor.copy()).collect();
    let masters: Vec<Tensor> = params.iter().map(|param| param.to_kind(Kind::Float).copy()).collect();
    let firsts: Vec<Tensor> = masters.iter().map(Tensor::zeros_like).collect();
    let seconds: Vec<Tensor> = masters.iter().map(Tensor::zeros_like).collect();
    let (beta1, beta2) = (train.adam_beta1, train.adam_beta2);
    let adamw = AdamW { lr: train.lr, beta1, beta2, eps: train.adam_eps, weight_decay: train.weight_decay };
    for (at, grads) in steps.iter().enumerate() {
        let states: Vec<ParamState> = (0..params.len())
            .map(|i| ParamState {
                param: &params[i],
                grad: &grads[i].1,
                master: &masters[i],
                first: &firsts[i],
                second: &seconds[i],
            })
            .collect();
        adamw_step(&states, &adamw, at as u64 + 1, 1.0).unwrap();
    }
    params.iter().map(values).collect()
}

#[test]
fn divided_updates_have_the_bits_of_undivided_ones() {
    let scored = rollout(5, 4);
    for kind in [Kind::Float, Kind::BFloat16] {
        for size in [1, 2, 3] {
            let ranks = Threads::spawn(size, |comm| {
                let mut trainer = trainer(kind, Arc::new(comm), two_steps());
                let mut seen = Vec::new();
                let look = |_: &_, grads: &slime_trainer::Gradients| {
                    seen.push(grads.whole()?);
                    Ok(())
                };
                trainer.train_rollout_with(&scored, look).unwrap();
                let num_held: usize = trainer.buffers().iter().map(slime_trainer::Buffer::len).sum();
                (weights(&trainer), seen, num_held)
            })
            .unwrap();
            let num_parameters = model("llama", kind).params().num_parameters();
            assert_eq!(ranks.iter().map(|rank| rank.2).sum::<usize>(), 3 * num_parameters);
            let (mean, most) = (3 * num_parameters / size, ranks.iter().map(|rank| rank.2).max().unwrap());
            assert!(most <= mean + 3 * 1024, "{most} of {mean} elements");
            let expected = undivided(kind, &ranks[0].1);
            for (rank, (weights, ..)) in ranks.iter().enumerate() {
                assert!(*weights == expected, "{kind:?}: rank {rank} of {size}");
            }
        }
    }
}

/// A tensor's elements by place, those of all ranks.
type State = BTreeMap<String, Vec<f32>>;

/// What `trainer` holds of the state, put where it belongs.
fn save(trainer: &Trainer, state: &mut State) {
    for buffer in trainer.buffers() {
        let mut values = trainer.read_buffer(&buffer.name).unwrap().into_iter();
        for TensorPart { tensor, shape, range, .. } in buffer.parts {
            let whole = state.entry(tensor).or_insert_with(|| vec![f32::NAN; shape.iter().product()]);
            for place in range {
                assert!(whole[place].is_nan(), "held twice");
                whole[place] = values.next().unwrap();
            }
        }
    }
}

fn load(trainer: &mut Trainer, state: &State, progress: Progress) {
    for buffer in trainer.buffers() {
        let part = |part: &TensorPart| state[&part.tensor][part.range.clone()].to_vec();
        let values: Vec<f32> = buffer.parts.iter().flat_map(part).collect();
        trainer.write_buffer(&buffer.name, &values).unwrap();
    }
    trainer.resume(progress).unwrap();
}

#[test]
fn state_of_any_number_of_ranks_resumes_on_any_other() {
    let scored = rollout(5, 4);
    for kind in [Kind::Float, Kind::BFloat16] {
        let whole = |ranks: Vec<(State, Vec<Vec<f32>>, Progress)>| {
            let mut all = State::new();
            for (state, ..) in &ranks {
                for (name, values) in state {
                    let known = all.entry(name.clone()).or_insert_with(|| values.clone());
                    let pairs = known.iter_mut().zip(values).filter(|(_, value)| !value.is_nan());
                    pairs.for_each(|(known, value)| *known = *value);
                }
            }
            let (_, weights, progress) = ranks.into_iter().next().unwrap();
            (all, weights, progress)
        };
        for from in [1, 2, 3] {
            let saved = Threads::spawn(from, |comm| {
                let mut trainer = trainer(kind, Arc::new(comm), two_steps());
                trainer.train_rollout(&scored).unwrap();
                let mut state = State::new();
                save(&trainer, &mut state);
                (state, weights(&trainer), trainer.progress())
            });
            let (state, expected, progress) = whole(saved.unwrap());
            assert!(state.values().flatten().all(|value| value.is_finite()));
            for to in [1, 2, 3] {
                let resumed = Threads::spawn(to, |comm| {
                    let mut trainer = trainer(kind, Arc::new(comm), two_steps());
                    load(&mut trainer, &state, progress);
                    let mut again = State::new();
                    save(&trainer, &mut again);
                    assert!(weights(&trainer) == expected, "{kind:?}: {from} to {to}");
                    (again, weights(&trainer), trainer.progress())
                });
                let (again, _, of_resumed) = whole(resumed.unwrap());
                assert_eq!(of_resumed, progress);
                assert!(again == state, "{kind:?}: {from} to {to}");
            }
        }
    }
}
