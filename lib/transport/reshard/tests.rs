//! Plans between random layouts, carried out element by element.

use std::path::Path;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::Pipeline;
use slime_weights::{QuantisedForm, Quantiser};

use super::*;

const DENSE: &str = r#"{"model_type":"qwen3","hidden_size":16,"intermediate_size":24,"num_hidden_layers":5,
    "num_attention_heads":8,"num_key_value_heads":2,"head_dim":4,"vocab_size":37,"tie_word_embeddings":true}"#;
const MOE: &str = r#"{"model_type":"glm4_moe","hidden_size":8,"intermediate_size":24,"num_hidden_layers":4,
    "num_attention_heads":8,"num_key_value_heads":2,"head_dim":4,"vocab_size":11,"n_routed_experts":8,"num_experts_per_tok":2,
    "moe_intermediate_size":12,"n_shared_experts":2,"first_k_dense_replace":1,"use_qk_norm":true,"attention_bias":true}"#;
const BF16: Target = Target { quantiser: None };
const APART: Hosts = Hosts { gpus_per_node: 8, is_colocated: false };

fn parse(text: &str) -> HfConfig {
    HfConfig::parse(text, Path::new("config.json")).unwrap()
}

fn layout(tp: usize, pp: usize, cp: usize, ep: usize, etp: usize, dp: usize) -> PlanLayout {
    PlanLayout { tp, pipeline: Pipeline::even(pp), cp, ep, etp, dp }
}

fn random_layout(rng: &mut ChaCha8Rng, is_moe: bool, max_pp: usize) -> PlanLayout {
    loop {
        let mut of = |sizes: &[usize]| *sizes.choose(rng).unwrap();
        let (tp, pp, cp, dp) = (of(&[1, 2, 4, 8]), of(&[1, 2, 3]), of(&[1, 2]), of(&[1, 2, 3, 4]));
        let (ep, etp) = if is_moe { (of(&[1, 2, 4, 8]), of(&[1, 2, 3])) } else { (1, 1) };
        if pp <= max_pp && (tp * cp * dp) % (ep * etp) == 0 {
            return layout(tp, pp, cp, ep, etp, dp);
        }
    }
}

/// A number for each element of each tensor.
fn value(tensor: usize, shape: &[usize], at: &[usize]) -> u64 {
    let index = at.iter().zip(shape).fold(0, |index, (at, len)| index * len + at);
    ((tensor as u64) << 32) | index as u64
}

/// The values of a box, row-major.
fn values(tensor: usize, shape: &[usize], part: &TensorBox) -> Vec<u64> {
    let at = |mut index: usize| {
        let mut at = vec![0; part.shape.len()];
        for dim in (0..part.shape.len()).rev() {
            at[dim] = part.start[dim] + index % part.shape[dim];
            index /= part.shape[dim];
        }
        at
    };
    (0..part.num_elements()).map(|index| value(tensor, shape, &at(index))).collect()
}

/// Carries out the plan for one replica and looks at what its ranks hold afterwards.
fn carry_out(plan: &ReshardPlan, senders: &[Vec<Held>], receivers: &[Vec<Held>], replica: usize) {
    let shape = |tensor: usize| plan.tensors[tensor].shape.as_slice();
    let mut memory: Vec<Vec<Vec<Option<u64>>>> = receivers
        .iter()
        .map(|boxes| boxes.iter().map(|held| vec![None; held.part.num_elements()]).collect())
        .collect();
    let held_values = |held: &Held| values(held.tensor, shape(held.tensor), &held.part);
    let buffers: Vec<Vec<Vec<u64>>> =
        senders.iter().map(|boxes| boxes.iter().map(held_values).collect()).collect();
    for (index, transfer) in plan.transfers.iter().enumerate() {
        let sender = plan.sender(index, replica);
        let is_source = |held: &Held| {
            held.tensor == transfer.tensor
                && held.part.intersect(&transfer.part).as_ref() == Some(&transfer.part)
        };
        let source = senders[sender].iter().position(is_source).expect("the sender holds all of it");
        let (source, buffer) = (&senders[sender][source], &buffers[sender][source]);
        let mut sent = vec![None; transfer.part.num_elements()];
        for run in source.part.runs(&transfer.part) {
            for i in 0..run.len {
                sent[run.to + i] = Some(buffer[run.from + i]);
            }
        }
        let wanted = &receivers[transfer.receiver][transfer.held];
        let target = &mut memory[transfer.receiver][transfer.held];
        for run in transfer.part.runs(&wanted.part) {
            for i in 0..run.len {
                let place = &mut target[run.to + i];
                assert_eq!(place.replace(sent[run.from + i].unwrap()), None, "written twice");
            }
        }
    }
    for (boxes, memory) in receivers.iter().zip(memory) {
        for (held, got) in boxes.iter().zip(memory) {
            let want = held_values(held).into_iter().map(Some);
            assert!(got.into_iter().eq(want), "{}", plan.tensors[held.tensor].name);
        }
    }
}

#[test]
fn every_element_comes_once_to_its_place_between_random_layouts() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for round in 0..24 {
        let text = if round % 2 == 0 { DENSE } else { MOE };
        let config = parse(text);
        let is_moe = config.moe.is_some();
        let (trainer, engine) = (random_layout(&mut rng, is_moe, 3), random_layout(&mut rng, is_moe, 2));
        let num_replicas = rng.random_range(1..=3);
        let hosts = Hosts { gpus_per_node: 4, is_colocated: rng.random() };
        let request = Request { config: &config, trainer, engine, num_replicas, target: BF16, hosts };
        let plan = ReshardPlan::new(&request).unwrap();
        assert_eq!(plan, ReshardPlan::new(&request).unwrap(), "every rank makes the same plan");
        let tensors = Tensors::of(&storages(&config));
        let [senders, receivers] =
            [trainer, engine].map(|side| held_by_rank(&config, &tensors, side).unwrap());
        for replica in 0..num_replicas {
            carry_out(&plan, &senders, &receivers, replica);
        }
        let bytes: u64 = plan.transfers.iter().map(|transfer| transfer.num_bytes).sum();
        let traffic = plan.traffic();
        assert_eq!(traffic.links.values().sum::<u64>(), bytes * num_replicas as u64);
        let elements =
            |boxes: &Vec<Held>| boxes.iter().map(|held| held.part.num_elements() as u64).sum::<u64>();
        assert!(bytes >= 2 * receivers.iter().map(elements).sum::<u64>(), "bf16, and f32 where it is kept");
    }
}

#[test]
fn a_rank_that_lost_a_layer_is_found_before_anything_is_sent() {
    let config = parse(DENSE);
    let tensors = Tensors::of(&storages(&config));
    let receivers = held_by_rank(&config, &tensors, layout(2, 1, 1, 1, 1, 1)).unwrap();
    let request = Request {
        config: &config,
        trainer: layout(1, 2, 1, 1, 1, 1),
        engine: layout(2, 1, 1, 1, 1, 1),
        num_replicas: 1,
        target: BF16,
        hosts: APART,
    };
    let plan = ReshardPlan::new(&request).unwrap();
    let mut without = plan.clone();
    let lost = without.transfers.remove(3);
    let error = without.check(&receivers).unwrap_err();
    assert!(matches!(&error, Error::NotCovered { tensor, .. } if *tensor == plan.tensors[lost.tensor].name));
    let mut twice = plan.clone();
    twice.transfers.insert(4, lost);
    assert!(matches!(twice.check(&receivers), Err(Error::NotCovered { .. })));
}

#[test]
fn holders_of_the_same_boxes_send_equally_much() {
    let config = parse(DENSE);
    let (trainer, engine) = (layout(2, 1, 1, 1, 1, 4), layout(1, 1, 1, 1, 1, 1));
    let request = Request { config: &config, trainer, engine, num_replicas: 4, target: BF16, hosts: APART };
    let plan = ReshardPlan::new(&request).unwrap();
    let sent = plan.traffic().sent();
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    let largest = plan.transfers.iter().map(|transfer| transfer.num_bytes).max().unwrap();
    assert!(most - least <= largest, "{sent:?}");
}

#[test]
fn colocated_ranks_of_one_layout_send_nothing_away() {
    let config = parse(MOE);
    let same = layout(4, 1, 1, 4, 1, 1);
    let hosts = Hosts { gpus_per_node: 4, is_colocated: true };
    let request =
        Request { config: &config, trainer: same, engine: same, num_replicas: 1, target: BF16, hosts };
    let traffic = ReshardPlan::new(&request).unwrap().traffic();
    assert_eq!((traffic.bytes_over(Way::SameNode), traffic.bytes_over(Way::Network)), (0, 0));
    assert!(
        traffic.bytes_over(Way::SameGpu) > 0 && traffic.seconds(Rates { node: 1.0, network: 1.0 }) == 0.0
    );
}

#[test]
fn estimate_is_the_time_of_the_busiest_end() {
    let config = parse(DENSE);
    let one = layout(1, 1, 1, 1, 1, 1);
    let hosts = Hosts { gpus_per_node: 2, is_colocated: false };
    let request =
        Request { config: &config, trainer: one, engine: one, num_replicas: 3, target: BF16, hosts };
    let traffic = ReshardPlan::new(&request).unwrap().traffic();
    let model = traffic.bytes_over(Way::SameNode);
    assert_eq!(traffic.bytes_over(Way::Network), 2 * model);
    let seconds = traffic.seconds(Rates { node: model as f64, network: model as f64 / 2.0 });
    assert!((seconds - 4.0).abs() < 1e-9, "{seconds}");
}

#[test]
fn quantised_boxes_travel_as_whole_blocks_or_later() {
    let text = DENSE.replace("\"hidden_size\":16", "\"hidden_size\":256").replace(":24,", ":768,");
    let config = parse(&text.replace("\"head_dim\":4", "\"head_dim\":128"));
    let quantiser =
        Quantiser { form: QuantisedForm::Fp8Block, group_size: 128, is_symmetric: true, only_experts: false };
    let target = Target { quantiser: Some(quantiser) };
    let plan = |trainer: usize, engine: usize| {
        let sides = [trainer, engine].map(|tp| layout(tp, 1, 1, 1, 1, 1));
        let [trainer, engine] = sides;
        ReshardPlan::new(&Request { config: &config, trainer, engine, num_replicas: 1, target, hosts: APART })
    };
    let wires = |plan: &ReshardPlan, wanted: Wire| plan.transfers.iter().filter(|t| t.wire == wanted).count();
    let even = plan(2, 2).unwrap();
    assert!(wires(&even, Wire::Quantised) > 0 && wires(&even, Wire::QuantisedLater) == 0);
    // Rows 0..384 of the 768 are three blocks; a trainer of 8 ranks has 96 of them each.
    let uneven = plan(8, 2).unwrap();
    assert!(wires(&uneven, Wire::Quantised) > 0 && wires(&uneven, Wire::QuantisedLater) > 0);
    let down = |plan: &ReshardPlan| -> u64 {
        let is_down =
            |t: &&Transfer| plan.tensors[t.tensor].name.ends_with("down_proj.weight") && t.receiver == 0;
        plan.transfers.iter().filter(is_down).map(|t| t.num_bytes).sum()
    };
    let (blocks, elements) = (5 * 2 * 3, 5 * 256 * 384);
    assert_eq!((down(&even), down(&uneven)), (elements + 4 * blocks, 2 * elements));
    let error = plan(2, 8).unwrap_err().to_string();
    assert!(
        error.contains("expected boxes of whole blocks of 128 x 128") && error.contains("hint: "),
        "{error}"
    );
}

#[test]
fn large_boxes_are_shared_between_their_holders() {
    let whole = TensorBox::whole(&[1000, 8]);
    let parts = cut(&whole, 3 * MAX_TRANSFER_BYTES, 128);
    assert_eq!(parts.iter().map(|part| part.shape[0]).collect::<Vec<_>>(), [384, 384, 232]);
    assert_eq!(cut(&whole, 16_000, 1), [whole]);
}
