//! Every form of the head against its definition, its definition against differences and slime's own numbers.

use std::sync::Arc;

use slime_comm::Threads;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::Result;

/// Numbers between -2 and 2 that look random. Not libtorch's generator, which tests that run beside these share.
fn numbers(size: &[i64], seed: f64) -> Tensor {
    let count: i64 = size.iter().product();
    let at: Tensor = Tensor::arange(count, (Kind::Double, Device::Cpu)) * 12.9898 + seed;
    let wave: Tensor = at.sin() * 43_758.545_3;
    ((wave.frac().abs() - 0.5) * 4.0).view(size)
}

const ROWS: i64 = 7;
/// More than two chunks.
const VOCAB: i64 = 150;
const DIM: i64 = 3;

fn targets() -> Tensor {
    (Tensor::arange(ROWS, (Kind::Int64, Device::Cpu)) * 41 + 63).remainder(VOCAB)
}

/// Hidden states and weight, as leaves.
fn leaves(kind: Kind) -> [Tensor; 2] {
    [(&[ROWS, DIM], 1.0), (&[VOCAB, DIM], 2.0)]
        .map(|(size, seed)| numbers(size, seed).to_kind(kind).set_requires_grad(true))
}

/// Rows that keep some, all, one, or nothing but the target; with ids of every chunk, and one twice.
fn kept() -> KeptIds {
    let ids = vec![0, 63, 64, 149, 64, 5, 7, 128, 3, 130, 131, 10];
    let is_recorded = vec![true, false, true, true, true, true, true];
    KeptIds::new(vec![0, 5, 7, 8, 8, 9, 11, 12], ids, is_recorded).unwrap()
}

fn penalties() -> Penalties {
    let seen = |id, count, is_in_prompt| Seen { id, count, is_in_prompt };
    let list = vec![
        seen(104, 2, true),
        seen(64, 1, false),
        seen(3, 0, true),
        seen(149, 4, false),
        seen(7, 0, false),
        seen(130, 1, true),
    ];
    let mut penalties = Penalties::new(vec![0, 1, 3, 3, 5, 5, 6, 6], list).unwrap();
    (penalties.repetition, penalties.frequency, penalties.presence) = (1.3, 0.2, 0.4);
    penalties
}

/// Every kind of shaping.
fn each_shaping(mut check: impl FnMut(&str, &Shaping<'_>)) {
    let (kept, penalties) = (kept(), penalties());
    let plain = Shaping::at(0.7);
    check("plain", &Shaping::at(1.0));
    check("temperature", &plain);
    check("kept", &Shaping { kept: Some(&kept), ..plain });
    check("penalties", &Shaping { penalties: Some(&penalties), ..plain });
    check("all", &Shaping { kept: Some(&kept), penalties: Some(&penalties), temperature: 1.4 });
}

/// Factors of log-probs and entropy in the loss of these tests.
fn factors(with_entropy: bool) -> [Tensor; 2] {
    [
        numbers(&[ROWS], 3.0),
        if with_entropy { numbers(&[ROWS], 4.0) } else { Tensor::zeros([ROWS], (Kind::Double, Device::Cpu)) },
    ]
}

fn loss(log_probs: &Tensor, entropy: &Tensor, with_entropy: bool) -> Tensor {
    let [of_log_probs, of_entropy] = factors(with_entropy).map(|x| x.to_kind(log_probs.kind()));
    let loss = (log_probs * of_log_probs).sum(None);
    if with_entropy { loss + (entropy * of_entropy).sum(None) } else { loss }
}

/// Outputs and gradients of an op under [`loss`].
fn run(
    op: impl Fn(&Tensor, &Tensor) -> Result<(Tensor, Tensor)>,
    [hidden, weight]: [Tensor; 2],
    with_entropy: bool,
) -> [Tensor; 4] {
    let (log_probs, entropy) = op(&hidden, &weight).unwrap();
    loss(&log_probs, &entropy, with_entropy).backward();
    [log_probs.detach(), entropy.detach(), hidden.grad(), weight.grad()]
}

/// Outputs and gradients of the fused form under the same loss.
fn run_fused(
    [hidden, weight]: [Tensor; 2],
    targets: &Tensor,
    shaping: &Shaping<'_>,
    shard: Option<&Shard>,
) -> [Tensor; 4] {
    let [of_log_probs, of_entropy] = factors(true).map(|x| x.to_kind(wide(hidden.kind())));
    let mut slopes = |rows: Rows<'_>| {
        let len = rows.log_probs_r.size()[0];
        let [of_log_probs, of_entropy] = [&of_log_probs, &of_entropy].map(|x| x.narrow(0, rows.start, len));
        let loss = (rows.log_probs_r * &of_log_probs + rows.entropy_r * &of_entropy).sum(None);
        Ok::<_, Error>(Slopes { loss, log_probs_r: of_log_probs, entropy_r: Some(of_entropy) })
    };
    let fused = fused(&hidden, &weight, targets, (shaping, shard), &mut slopes).unwrap();
    let expected = loss(&fused.log_probs_r, &fused.entropy_r, true);
    assert!((&fused.loss - expected).abs().double_value(&[]) < 1e-4);
    // A factor behind the loss reaches the gradients.
    (&fused.loss * 2.0).backward();
    // What is frozen has none.
    let half = |grad: Tensor| if grad.defined() { grad / 2.0 } else { grad };
    [fused.log_probs_r, fused.entropy_r, half(hidden.grad()), half(weight.grad())]
}

fn assert_near(got: &[Tensor], expected: &[Tensor], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.size(), expected.size(), "{what}, {i}");
        let scale = expected.abs().max().double_value(&[]).max(1.0);
        let error = (got.to_kind(Kind::Double) - expected).abs().max().double_value(&[]) / scale;
        assert!(error < tolerance, "{what}, {i}: off by {error:e}");
    }
}

#[test]
fn chunked_and_fused_forms_equal_the_reference_for_every_shaping() {
    let targets = targets();
    each_shaping(|name, shaping| {
        for with_entropy in [false, true] {
            let want = run(|h, w| reference(h, w, &targets, shaping), leaves(Kind::Double), with_entropy);
            let got = run(|h, w| train(h, w, &targets, shaping), leaves(Kind::Double), with_entropy);
            assert_near(&got, &want, 1e-12, name);
        }
        let want = run(|h, w| reference(h, w, &targets, shaping), leaves(Kind::Double), true);
        assert_near(&run_fused(leaves(Kind::Double), &targets, shaping, None), &want, 1e-12, name);
        for (kind, tolerance) in [(Kind::Float, 2e-5), (Kind::BFloat16, 0.1)] {
            let got = run(|h, w| train(h, w, &targets, shaping), leaves(kind), true);
            assert_near(&got, &want, tolerance, name);
            assert_near(&run_fused(leaves(kind), &targets, shaping, None), &want, tolerance, name);
        }
    });
}

/// Asserts that the gradients of `loss` are what small steps of every element show.
fn assert_differences(loss: impl Fn(&Tensor, &Tensor) -> Tensor, what: &str) {
    const STEP: f64 = 1e-5;
    let [hidden, weight] = leaves(Kind::Double);
    loss(&hidden, &weight).backward();
    for (at, leaf) in [&hidden, &weight].into_iter().enumerate() {
        let grad = leaf.grad();
        for i in 0..leaf.numel() as i64 {
            let moved = |step: f64| {
                let leaves = [&hidden, &weight].map(Tensor::detach_copy);
                let _ = leaves[at].view([-1]).get(i).g_add_scalar_(step);
                tch::no_grad(|| loss(&leaves[0], &leaves[1]).double_value(&[]))
            };
            let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let got = grad.view([-1]).double_value(&[i]);
            assert!((got - slope).abs() < 1e-7 * slope.abs().max(1.0), "{what}: {got} for {slope}");
        }
    }
}

#[test]
fn gradients_are_the_differences_of_the_numbers() {
    let targets = targets();
    each_shaping(|name, shaping| {
        assert_differences(
            |h, w| {
                let (log_probs, entropy) = train(h, w, &targets, shaping).unwrap();
                loss(&log_probs, &entropy, true)
            },
            name,
        );
    });
    let (other_hidden, other_weight) = (numbers(&[ROWS, 5], 7.0), numbers(&[VOCAB, 5], 8.0));
    let other = kl::Head { hidden_rd: &other_hidden, weight_vd: &other_weight };
    assert_differences(
        |hidden_rd, weight_vd| {
            let kl = kl::train(kl::Head { hidden_rd, weight_vd }, other, 0.8, None).unwrap();
            (kl * &factors(true)[0]).sum(None)
        },
        "divergence",
    );
}

/// Splits of the vocabulary over ranks, some uneven.
const SPLITS: [&[i64]; 4] = [&[150], &[75, 75], &[149, 1], &[20, 100, 30]];

/// Runs `body` on a rank for every part of a split, with its shard and its rows of the weight.
fn group(comm: impl slime_comm::Communicator + 'static) -> slime_torch::Group {
    slime_torch::Group::new(Arc::new(comm), Device::Cpu).unwrap()
}

fn on_shards<R: Send>(split: &[i64], body: impl Fn(&Shard, [Tensor; 2]) -> R + Sync) -> Vec<R> {
    Threads::spawn(split.len(), |comm| {
        let rank = slime_comm::Communicator::rank(&comm);
        let start: i64 = split[..rank].iter().sum();
        let shard = Shard { start, vocab: VOCAB, group: group(comm), sums_hidden_grad: true };
        let [hidden, weight] = leaves(Kind::Double);
        let weight = weight.detach().narrow(0, start, split[rank]).copy().set_requires_grad(true);
        body(&shard, [hidden, weight])
    })
    .unwrap()
}

/// The same outputs and hidden gradient on all ranks; the weight's gradient in parts.
fn assert_shards(ranks: &[Vec<Tensor>], want: &[Tensor], what: &str) {
    let last = want.len() - 1;
    for rank in ranks {
        assert_near(&rank[..last], &want[..last], 1e-12, what);
    }
    let parts: Vec<&Tensor> = ranks.iter().map(|rank| &rank[last]).collect();
    assert_near(&[Tensor::cat(&parts, 0)], &want[last..], 1e-12, what);
}

#[test]
fn shards_of_the_vocabulary_give_the_numbers_and_gradients_of_the_whole() {
    each_shaping(|name, shaping| {
        let want = run(|h, w| reference(h, w, &targets(), shaping), leaves(Kind::Double), true);
        for split in SPLITS {
            let ranks = on_shards(split, |shard, leaves| {
                Vec::from(run(|h, w| train_sharded(h, w, &targets(), shaping, shard), leaves, true))
            });
            assert_shards(&ranks, &want, name);
            let ranks = on_shards(split, |shard, leaves| {
                Vec::from(run_fused(leaves, &targets(), shaping, Some(shard)))
            });
            assert_shards(&ranks, &want, name);
        }
    });
}

#[test]
fn hidden_gradients_of_shards_add_up_where_the_caller_adds_them() {
    let shaping = Shaping::at(0.9);
    let want = run(|h, w| reference(h, w, &targets(), &shaping), leaves(Kind::Double), true);
    let parts = on_shards(&[100, 50], |shard, leaves| {
        let shard = Shard { sums_hidden_grad: false, ..shard.clone() };
        let [_, _, hidden, _] = run(|h, w| train_sharded(h, w, &targets(), &shaping, &shard), leaves, true);
        hidden
    });
    assert_near(&[parts.iter().sum()], &want[2..3], 1e-12, "sum of the parts");
}

#[test]
fn divergence_is_that_of_the_definition_whole_and_on_shards() {
    let other = || [numbers(&[ROWS, 5], 7.0), numbers(&[VOCAB, 5], 8.0)];
    let run = |[hidden, weight]: [Tensor; 2], op: &dyn Fn(kl::Head<'_>) -> Result<Tensor>| {
        let kl = op(kl::Head { hidden_rd: &hidden, weight_vd: &weight }).unwrap();
        (&kl * &factors(true)[0]).sum(None).backward();
        vec![kl.detach(), hidden.grad(), weight.grad()]
    };
    let [hidden, weight] = other();
    let whole = kl::Head { hidden_rd: &hidden, weight_vd: &weight };
    let want = run(leaves(Kind::Double), &|head| kl::reference(head, whole, 0.8));
    assert!(want[0].min().double_value(&[]) > 0.1, "the heads differ");
    assert_near(&run(leaves(Kind::Double), &|head| kl::train(head, whole, 0.8, None)), &want, 1e-12, "whole");
    for split in SPLITS {
        let ranks = on_shards(split, |shard, leaves| {
            let len = leaves[1].size()[0];
            let [hidden, weight] = other();
            let part = kl::Head { hidden_rd: &hidden, weight_vd: &weight.narrow(0, shard.start, len) };
            run(leaves, &|head| kl::train(head, part, 0.8, Some(shard)))
        });
        assert_shards(&ranks, &want, "shards");
    }
    let [hidden, weight] = leaves(Kind::Float);
    let same = kl::Head { hidden_rd: &hidden, weight_vd: &weight };
    assert!(kl::train(same, same, 1.0, None).unwrap().abs().max().double_value(&[]) == 0.0);
}

#[test]
fn log_probs_entropy_and_gradient_are_slimes() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../../trainer/golden/slime_algorithms.json")).unwrap();
    let all = golden["cases"].as_array().unwrap();
    let cases: Vec<_> = all.iter().filter(|case| case["function"] == "log_probs_and_entropy").collect();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let tensor = |value: &serde_json::Value| {
            let rows: Vec<f32> = match value[0].as_array() {
                Some(_) => serde_json::from_value::<Vec<Vec<f32>>>(value.clone()).unwrap().concat(),
                None => serde_json::from_value(value.clone()).unwrap(),
            };
            Tensor::from_slice(&rows)
        };
        let targets: Vec<i64> = serde_json::from_value(case["input"]["targets"].clone()).unwrap();
        let logits = tensor(&case["input"]["logits"]).view((targets.len() as i64, -1));
        let weight = Tensor::eye(logits.size()[1], (Kind::Float, Device::Cpu));
        for op in [train, reference] {
            let hidden = logits.copy().set_requires_grad(true);
            let targets = Tensor::from_slice(&targets);
            let (log_probs, entropy) = op(&hidden, &weight, &targets, &Shaping::at(1.0)).unwrap();
            (log_probs.sum(None) + entropy.sum(None) * 0.3).backward();
            let got = [log_probs.detach(), entropy.detach(), hidden.grad().view([-1])];
            let names = ["log_probs", "entropy", "grad_logits_of_sum_logp_plus_0p3_sum_entropy"];
            let want = names.map(|name| tensor(&case["output"][name]).to_kind(Kind::Double));
            assert_near(&got, &want, 1e-5, "golden");
        }
    }
}

#[test]
fn kept_ids_and_penalties_are_what_their_definitions_say_by_hand() {
    let hidden = Tensor::from_slice(&[1.0f64]).view((1, 1));
    let weight = Tensor::from_slice(&[1.0f64, -2.0, 0.5, 3.0]).view((4, 1));
    let target = Tensor::from_slice(&[1i64]);
    let log_prob = |shaping: &Shaping<'_>| {
        let (log_probs, entropy) = train(&hidden, &weight, &target, shaping).unwrap();
        (log_probs.double_value(&[0]), entropy.double_value(&[0]))
    };
    let (plain, entropy) = log_prob(&Shaping::at(1.0));
    let log_sum = |logits: &[f64]| logits.iter().map(|x| x.exp()).sum::<f64>().ln();
    assert!((plain - (-2.0 - log_sum(&[1.0, -2.0, 0.5, 3.0]))).abs() < 1e-14);
    let kept = KeptIds::new(vec![0, 1], vec![2], vec![true]).unwrap();
    let shaped = log_prob(&Shaping { kept: Some(&kept), ..Shaping::at(1.0) });
    assert!((shaped.0 - (-2.0 - log_sum(&[-2.0, 0.5]))).abs() < 1e-14);
    assert_eq!(shaped.1.to_bits(), entropy.to_bits(), "the entropy is that of all ids");
    let nothing = KeptIds::new(vec![0, 0], vec![], vec![true]).unwrap();
    assert!(log_prob(&Shaping { kept: Some(&nothing), ..Shaping::at(1.0) }).0.abs() < 1e-15);
    let seen =
        vec![Seen { id: 3, count: 0, is_in_prompt: true }, Seen { id: 1, count: 2, is_in_prompt: false }];
    let mut penalties = Penalties::new(vec![0, 2], seen).unwrap();
    (penalties.repetition, penalties.frequency, penalties.presence) = (2.0, 0.25, 0.5);
    let shaped = log_prob(&Shaping { penalties: Some(&penalties), ..Shaping::at(0.5) });
    // 3 / 2 in the prompt alone; -2 * 2 - 0.25 * 2 - 0.5 in the response; then over the temperature.
    assert!((shaped.0 - (-10.0 - log_sum(&[2.0, -10.0, 1.0, 3.0]))).abs() < 1e-14);
}

#[test]
fn no_rows_give_no_numbers_and_zero_gradients() {
    let hidden = Tensor::zeros([0, DIM], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let weight = Tensor::ones([5, DIM], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let targets = Tensor::zeros([0], (Kind::Int64, Device::Cpu));
    let (log_probs, entropy) = train(&hidden, &weight, &targets, &Shaping::at(1.0)).unwrap();
    assert_eq!((log_probs.size(), entropy.size()), (vec![0], vec![0]));
    let head = kl::Head { hidden_rd: &hidden, weight_vd: &weight };
    let kl = kl::train(head, head, 1.0, None).unwrap();
    (log_probs.sum(None) + entropy.sum(None) + kl.sum(None)).backward();
    assert_eq!(hidden.grad().size(), [0, DIM]);
    assert!(weight.grad().abs().max().double_value(&[]) == 0.0);
    let mut never = |_: Rows<'_>| -> Result<Slopes> { panic!("there are no rows") };
    let fused = fused(&hidden, &weight, &targets, (&Shaping::at(1.0), None), &mut never).unwrap();
    assert!(fused.loss.double_value(&[]) == 0.0);
}

#[test]
fn what_does_not_fit_is_an_error_that_says_so() {
    let [hidden, weight] = leaves(Kind::Float);
    let message = |result: Result<(Tensor, Tensor)>| result.unwrap_err().to_string();
    let plain = Shaping::at(1.0);
    let ids = |ids: &[i64]| Tensor::from_slice(ids);
    let outside = ids(&[0, 1, 2, 3, 4, 5, VOCAB]);
    assert_eq!(message(train(&hidden, &weight, &outside, &plain)), "target: expected 0 to 149, got 150");
    assert_eq!(message(reference(&hidden, &weight, &outside, &plain)), "target: expected 0 to 149, got 150");
    let few = message(train(&hidden, &weight, &ids(&[1, 2]), &plain));
    assert!(few.starts_with("targets: expected i64 [7], got"), "{few}");
    let narrow = message(train(&hidden, &weight.narrow(1, 0, 2), &targets(), &plain));
    assert!(narrow.starts_with("weight of the head: expected [ids, d] like"), "{narrow}");
    let kept = KeptIds::new(vec![0, 1], vec![3], vec![true]).unwrap();
    let shaping = Shaping { kept: Some(&kept), ..plain };
    assert_eq!(message(train(&hidden, &weight, &targets(), &shaping)), "rows of kept ids: expected 7, got 1");
    let shard = Shard { start: 1, vocab: VOCAB, group: group(slime_comm::Single), sums_hidden_grad: true };
    let beyond = message(train_sharded(&hidden, &weight, &targets(), &plain, &shard));
    assert_eq!(beyond, "rows of a shard of the head: expected within 0 to 150, got 1 to 151");
    let head = |hidden_rd, weight_vd| kl::Head { hidden_rd, weight_vd };
    let other = kl::train(head(&hidden, &weight), head(&hidden, &weight.narrow(0, 0, 9)), 1.0, None);
    let expected = "reference's head: expected 7 rows and 150 ids, got 7 rows and 9 ids";
    assert_eq!(other.unwrap_err().to_string(), expected);
}

#[test]
fn frozen_weight_has_no_gradient_and_changes_none() {
    let shaping = Shaping::at(0.7);
    let targets = targets();
    let trained = |hidden: &Tensor, weight: &Tensor| train(hidden, weight, &targets, &shaping);
    let frozen = || {
        let [hidden, weight] = leaves(Kind::Double);
        [hidden, weight.set_requires_grad(false)]
    };
    let [_, _, expected, _] = run(trained, leaves(Kind::Double), true);
    let [_, _, hidden, weight] = run(trained, frozen(), true);
    assert!(hidden.equal(&expected) && !weight.defined());
    let [_, _, expected, _] = run_fused(leaves(Kind::Double), &targets, &shaping, None);
    let [_, _, hidden, weight] = run_fused(frozen(), &targets, &shaping, None);
    assert!(hidden.equal(&expected) && !weight.defined());
}
