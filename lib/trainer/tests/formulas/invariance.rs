//! The same loss and gradients however a rollout is split, ordered, padded, shared or spread over ranks.

use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_model::Parallel;
use slime_trainer::{Scored, Settings, Trainer};
use tch::{Device, Tensor};

use crate::rollout::{has_pairs, rollout, settings, split_trainer, trainer};

/// Losses of every optimizer step, and the gradients of the first.
type Outcome = (Vec<f64>, Vec<Tensor>);

fn run(settings: Settings, scored: &[Scored], comm: Arc<dyn Communicator>) -> Outcome {
    outcome(trainer(settings, comm), scored)
}

fn outcome(mut trainer: Trainer, scored: &[Scored]) -> Outcome {
    let mut first = Vec::new();
    let steps = trainer
        .train_rollout_with(scored, |_, reduced| {
            if first.is_empty() {
                first = reduced.whole()?;
            }
            Ok(())
        })
        .unwrap();
    // A policy that is not updated has none.
    let whole = (!first.is_empty()).then(|| trainer.policy().params().whole_gradients(&first));
    let grads = whole.into_iter().flatten().filter_map(|whole| whole.unwrap().1).collect();
    let of_critic = steps.iter().filter_map(|step| step.extra.get("train/critic-value_loss").copied());
    let losses: Vec<f64> = of_critic.chain(steps.iter().map(|step| step.loss)).collect();
    (losses, grads)
}

/// The same over the ranks of a layout, whole gradients put together on the first.
fn run_split(name: &str, scored: &[Scored], layout: Layout) -> Outcome {
    let size = layout.tp * layout.pp * layout.cp * layout.dp;
    let mesh = Mesh::new(layout, size).unwrap();
    let ranks = Threads::spawn(size, |comm| {
        let comm: Arc<dyn Communicator> = Arc::new(comm);
        let parallel = Arc::new(Parallel::new(&comm, mesh, Device::Cpu).unwrap());
        outcome(split_trainer(settings(name), comm, Some(&parallel)), scored)
    });
    ranks.unwrap().swap_remove(0)
}

/// The largest relative difference of losses and first gradients.
fn distance(a: &Outcome, b: &Outcome) -> f64 {
    assert_eq!((a.0.len(), a.1.len()), (b.0.len(), b.1.len()));
    let losses = a.0.iter().zip(&b.0).map(|(a, b)| (a - b).abs() / b.abs().max(0.1)).fold(0.0, f64::max);
    let largest =
        |tensors: &[Tensor]| tensors.iter().map(|x| x.abs().max().double_value(&[])).fold(0.0, f64::max);
    let apart: Vec<Tensor> = a.1.iter().zip(&b.1).map(|(a, b)| a - b).collect();
    losses.max(largest(&apart) / largest(&b.1))
}

/// The largest difference over all the ways in which a rollout may be laid out, relative.
pub fn check(name: &str) -> f64 {
    let scored = if has_pairs(name) { rollout(6, 2) } else { rollout(4, 4) };
    let base = run(settings(name), &scored, Arc::new(Single));
    assert!(
        base.0.iter().all(|loss| loss.is_finite())
            && base.1.iter().any(|g| g.abs().max().double_value(&[]) > 0.0)
    );
    let mut largest = 0.0_f64;
    let mut compare = |what: &str, other: &Outcome| {
        let apart = distance(other, &base);
        assert!(apart < 1e-4, "{name}, {what}: {apart:e}");
        largest = largest.max(apart);
    };
    for max_tokens in [1, 12, 4096] {
        // A budget of 1 shares no prompt.
        let mut small = settings(name);
        small.train.max_tokens_per_gpu = max_tokens;
        compare("micro-batches", &run(small, &scored, Arc::new(Single)));
    }
    let reversed: Vec<Scored> = scored.iter().rev().cloned().collect();
    compare("order", &run(settings(name), &reversed, Arc::new(Single)));
    if name != "reward_model" {
        // The last token is what a reward model reads.
        compare("padding", &run(settings(name), &padded(&scored), Arc::new(Single)));
    }
    for size in [2, 3] {
        let ranks = Threads::spawn(size, |comm| run(settings(name), &scored, Arc::new(comm))).unwrap();
        for rank in &ranks {
            compare("ranks", rank);
        }
    }
    for layout in [
        Layout { tp: 2, ..Layout::default() },
        Layout { tp: 2, pp: 2, ..Layout::default() },
        Layout { cp: 2, ..Layout::default() },
        Layout { tp: 2, pp: 2, cp: 2, ..Layout::default() },
        Layout { tp: 4, dp: 2, ..Layout::default() },
    ] {
        compare("split models", &run_split(name, &scored, layout));
    }
    largest
}

/// Masked tokens behind every response.
fn padded(scored: &[Scored]) -> Vec<Scored> {
    let pad = |scored: &Scored| {
        let mut padded = scored.clone();
        for _ in 0..3 {
            padded.sample.tokens.push(5);
            padded.sample.loss_mask.push(0);
            padded.sample.rollout_log_probs.push(f32::NAN);
            padded.teacher_log_probs.push(f32::NAN);
        }
        padded
    };
    scored.iter().map(pad).collect()
}
