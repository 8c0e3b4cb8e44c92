//! Plans against counts that others have published, and against the tables of tensors.

use std::path::{Path, PathBuf};

use super::*;
use crate::{Place, Share, split, storages};
use slime_config::{HfConfig, Pipeline};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/models")
}

fn plan(model: &str, [tp, pp, cp, ep, dp]: [usize; 5]) -> Result<Plan> {
    let path = models().join(format!("{model}.json"));
    Plan::new(
        &std::fs::read_to_string(&path).unwrap(),
        &path,
        PlanLayout { tp, pipeline: Pipeline::even(pp), cp, ep, dp, etp: 1 },
    )
}

/// Elements of all tensors as the hub counts them, from the safetensors of each model; of fp8 checkpoints without scales.
const PUBLISHED: [(&str, u64); 20] = [
    ("Qwen2.5-0.5B-Instruct", 494_032_768),
    ("Qwen2.5-1.5B-Instruct", 1_543_714_304),
    ("Qwen2.5-3B-Instruct", 3_085_938_688),
    ("Qwen2.5-7B-Instruct", 7_615_616_512),
    ("Qwen2.5-32B", 32_763_876_352),
    ("Qwen3-4B", 4_022_468_096),
    ("Qwen3-8B", 8_190_735_360),
    ("Qwen3-14B", 14_768_307_200),
    ("Qwen3-32B", 32_762_123_264),
    ("Qwen3-30B-A3B", 30_532_122_624),
    ("Qwen3-235B-A22B", 235_093_634_560),
    ("Llama-3.1-8B-Instruct", 8_030_261_248),
    ("Llama-3.2-3B-Instruct", 3_212_749_824),
    ("SmolLM2-135M-Instruct", 134_515_008),
    ("MiMo-7B-RL", 7_833_409_536),
    ("GLM-4-9B-0414", 9_400_279_040),
    ("GLM-4-32B-0414", 32_566_081_536),
    ("GLM-4.5-Air", 110_468_824_832),
    ("GLM-4.7", 358_337_791_296),
    ("DeepSeek-R1", 684_489_845_504),
];

#[test]
fn parameters_are_those_that_the_hub_counts() {
    for (model, published) in PUBLISHED {
        let plan = plan(model, [1; 5]).unwrap();
        assert_eq!(plan.num_parameters + plan.num_mtp_parameters, published, "{model}");
    }
}

/// The names of the models say how large they are and what a token meets, in billions.
#[test]
fn parameters_are_those_that_names_and_papers_say() {
    for (model, total, activated) in [
        ("Qwen3-235B-A22B", 235.0, 22.0),
        ("Qwen3-30B-A3B", 30.5, 3.3),
        ("DeepSeek-R1", 671.0, 37.0),
        ("GLM-4.7", 355.0, 32.0),
        ("GLM-4.5-Air", 106.0, 12.0),
        ("GLM-5", 744.0, 40.0),
        ("GLM-5.2", 744.0, 40.0),
        ("MiniMax-M2.5", 229.0, 10.0),
    ] {
        let plan = plan(model, [1; 5]).unwrap();
        let near = |got: u64, want: f64, share: f64| (got as f64 / 1e9 - want).abs() <= want * share;
        assert!(near(plan.num_parameters, total, 0.01), "{model}: {}", plan.num_parameters);
        assert!(near(plan.num_activated, activated, 0.13), "{model}: {}", plan.num_activated);
    }
}

#[test]
fn ranks_hold_everything_once_for_each_copy() {
    let whole = plan("Qwen3-235B-A22B", [1; 5]).unwrap();
    assert_eq!(whole.stages.len(), 1);
    assert_eq!(whole.stages[0].num_elements, whole.num_parameters);
    assert_eq!(whole.kv_bytes_per_token, 94 * 2 * 4 * 128 * 2);
    // The published layout: 64 ranks, experts 16 ways, 4 heads of keys and values for 4 ranks.
    let split = plan("Qwen3-235B-A22B", [4, 4, 2, 16, 2]).unwrap();
    assert_eq!(split.layout.world_size(), 64);
    let layers: Vec<_> = split.stages.iter().map(|stage| stage.layers[0].len()).collect();
    assert_eq!(layers, [24, 24, 23, 23]);
    let experts: u64 = split.stages.iter().map(|stage| stage.num_expert_elements * 16).sum();
    assert_eq!(experts, 94 * 128 * 3 * 4096 * 1536);
    let first = &split.stages[0];
    assert_eq!((first.experts, first.heads, first.key_value_heads, first.vocab_rows), (8, 16, 1, 37_984));
    assert_eq!(first.num_copies, [1, 4]);
    let others = first.num_elements - first.num_expert_elements;
    assert_eq!(first.optimizer_bytes(), 12 * (first.num_expert_elements + others / 4));
    assert_eq!(first.training_bytes(), 8 * first.num_elements + first.optimizer_bytes());
    // Fewer heads of keys and values than ranks: each rank has one.
    assert_eq!(plan("Qwen3-235B-A22B", [8, 1, 1, 1, 1]).unwrap().stages[0].key_value_heads, 1);
}

#[test]
fn layouts_that_do_not_divide_the_model_are_refused() {
    for (layout, word) in [
        ([3, 1, 1, 1, 1], "tp divides the 64 heads, got 3"),
        ([1, 95, 1, 1, 1], "95 stages of the model's 94 layers leave stage 94 without one"),
        ([1, 1, 1, 3, 3], "ep divides the 128 experts, got 3"),
        ([4, 1, 1, 8, 1], "ep x etp divides the 4 ranks of a stage (tp x cp x dp), got 8"),
    ] {
        let message = plan("Qwen3-235B-A22B", layout).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    assert!(plan("Qwen3-4B", [1, 1, 1, 2, 2]).is_err(), "a dense model has no experts to divide");
}

#[test]
fn every_model_of_configs_is_planned() {
    let mut num = 0;
    for entry in std::fs::read_dir(models()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let layout = PlanLayout::SINGLE;
        let plan = Plan::new(&text, &path, layout).unwrap();
        assert!(!plan.lines().is_empty());
        if let Ok(config) = HfConfig::parse(&text, &path) {
            let elements =
                crate::storages(&config).iter().map(|spec| spec.num_elements() as u64).sum::<u64>();
            assert_eq!(plan.num_parameters, elements, "{}", path.display());
        }
        num += 1;
    }
    assert!(num >= 25, "{num}");
}

/// A plan counts what the trainer's ranks hold: see `split`.
#[test]
fn the_largest_rank_of_a_plan_is_the_largest_of_the_trainer() {
    let mut num = 0;
    for entry in std::fs::read_dir(models()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let Ok(config) = HfConfig::parse(&text, &path) else { continue };
        let specs = storages(&config);
        for [tp, ep, etp, dp] in [[2, 1, 1, 1], [8, 1, 1, 1], [1, 4, 1, 4], [2, 4, 2, 4], [4, 8, 1, 2]] {
            let Ok(plan) = Plan::new(&text, &path, PlanLayout { tp, ep, etp, dp, ..PlanLayout::SINGLE })
            else {
                continue;
            };
            // Where something does not divide, the first ranks have one more.
            let first = |size: usize| Share { rank: 0, size };
            let place = Place { tp: first(tp), ep: first(ep), etp: first(etp), ..Place::default() };
            let specs = specs.iter().map(|spec| split(spec.clone(), &config, place));
            let most = specs.map(|spec| spec.num_elements() as u64).sum::<u64>();
            assert_eq!(plan.stages[0].num_elements, most, "{}: tp {tp} ep {ep} etp {etp}", path.display());
            num += 1;
        }
    }
    assert!(num > 40, "{num}");
}
