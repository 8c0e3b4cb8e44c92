//! The modes of building steps on the real filesystem: their bounds and accounts under kills, replays, and what can never
//! fill a step.

#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use slime_record::Manifest;
use tempfile::TempDir;
use tiny_loop::{
    APART, APART_SETS, NUM_STEPS, ROLLOUT, TOGETHER, TRAIN, assert_consumed_once, deeds, kill, log, newest,
    run_dir, signal, start, torture, wait_until, whole,
};

/// Every sampled token of every step is in one place, and what is carried comes back.
fn assert_accounted(manifests: &[Manifest]) {
    let mut carried = 0;
    for Manifest { step, account, groups, .. } in manifests {
        let (wanted, placed) = account.balance(carried);
        assert_eq!(wanted, placed, "step {step}: {account:?}");
        assert_eq!(account.trained + account.masked + account.untrained, account.response, "step {step}");
        let response: u64 = groups.iter().map(slime_record::GroupEntry::num_tokens).sum();
        assert_eq!(account.response, response, "step {step}");
        carried = account.carried;
    }
}

#[test]
fn arrival_order_with_a_filter_keeps_its_bounds_under_kills() {
    let dir = TempDir::new().expect("a folder");
    let sets = [
        "run.max_staleness=1",
        "run.order=arrival",
        "rollout.dynamic_filter=nonzero_std",
        "rollout.over_sampling_batch_size=6",
        APART_SETS[0],
        APART_SETS[1],
    ];
    let run = run_dir(&dir, "arrival", &sets);
    assert!(torture(&run, &APART, 77, 1200) > 0);
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    assert_accounted(&deeds.manifests);
    for manifest in &deeds.manifests {
        assert!(manifest.staleness() <= 1, "step {}", manifest.step);
        let groups = manifest.groups.iter().map(|group| (group.step, group.group));
        let refused: BTreeSet<_> =
            manifest.refused.iter().map(|refusal| (refusal.step, refusal.group)).collect();
        assert!(groups.clone().all(|group| !refused.contains(&group)), "step {}", manifest.step);
    }
}

#[test]
fn fixed_order_fills_its_steps_with_a_filter_that_spares() {
    let dir = TempDir::new().expect("a folder");
    let sets = ["rollout.dynamic_filter=nonzero_std:fallback", "rollout.over_sampling_batch_size=6"];
    let run = run_dir(&dir, "killed", &sets);
    assert!(torture(&run, &TOGETHER, 5, 1200) > 0);
    let killed = deeds(&run);
    assert_consumed_once(&run, &killed);
    assert_accounted(&killed.manifests);
    for manifest in &killed.manifests {
        assert_eq!((manifest.groups.len(), manifest.staleness()), (4, 0));
        assert!(manifest.carried.is_empty() && manifest.outstanding.is_empty(), "step {}", manifest.step);
    }
}

#[test]
fn masked_parts_newest_first_keeps_its_bounds_under_kills() {
    let dir = TempDir::new().expect("a folder");
    let sets = [
        "run.max_staleness=2",
        "rollout.partial=mask",
        "rollout.buffer_order=newest",
        "rollout.over_sampling_batch_size=8",
        APART_SETS[0],
        APART_SETS[1],
    ];
    let run = run_dir(&dir, "newest", &sets);
    assert!(torture(&run, &APART, 21, 1200) > 0);
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    assert_accounted(&deeds.manifests);
    for manifest in &deeds.manifests {
        assert!(manifest.staleness() <= 2, "step {}", manifest.step);
        let versions = manifest.groups.iter().flat_map(|group| &group.samples).map(|s| s.versions.len());
        assert!(versions.max() <= Some(1), "only what the last weights sampled is trained");
    }
}

#[test]
fn groups_are_trained_as_often_as_they_may_be_under_kills() {
    let dir = TempDir::new().expect("a folder");
    let sets = ["run.max_staleness=2", "rollout.max_reuse=2", "rollout.buffer_order=stratified"];
    let run = run_dir(&dir, "twice", &sets);
    assert!(torture(&run, &TOGETHER, 9, 1200) > 0);
    let deeds = deeds(&run);
    assert_accounted(&deeds.manifests);
    let mut uses: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    for Manifest { groups, account, .. } in &deeds.manifests {
        let mut num_reused_tokens = 0;
        for group in groups {
            let num_uses = uses.entry((group.step, group.group)).or_default();
            assert_eq!(group.num_uses, *num_uses);
            num_reused_tokens += if *num_uses > 0 { group.num_tokens() } else { 0 };
            *num_uses += 1;
            assert!(*num_uses <= 2, "group {}/{}", group.step, group.group);
        }
        assert_eq!(account.reused, num_reused_tokens);
    }
}

/// The training numbers that follow from samples and weights alone.
fn training(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics/train.jsonl")).expect("the trainer's numbers");
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let of_training = |(key, value): (&String, &serde_json::Value)| {
        (key.starts_with("train/") || key == "step").then(|| format!("{key}={value}"))
    };
    rows.flat_map(|row| row.as_object().expect("a row").iter().filter_map(of_training).collect::<Vec<_>>())
        .collect()
}

/// Copies a folder of a run with all it holds.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("writable");
        }
    }
}

/// A run that keeps all its steps and versions.
const KEEPS_ALL: [&str; 2] = ["checkpoint.interval=1", "checkpoint.keep_last=100"];

#[test]
fn saved_steps_train_to_the_same_bits_without_a_rollout() {
    let dir = TempDir::new().expect("a folder");
    let run = run_dir(&dir, "whole", &KEEPS_ALL);
    whole(&run, &TOGETHER);
    let replayed = run_dir(&dir, "train-only", &KEEPS_ALL);
    for folder in ["rollout", "column"] {
        copy(&run.join(folder), &replayed.join(folder));
    }
    whole(&replayed, &TOGETHER[..1]);
    assert_eq!(training(&replayed), training(&run));
    let weights = |run: &Path| {
        let weights = newest(&run.join("weights"), NUM_STEPS).expect("the last version is on disk");
        fs::read(weights.join("model.safetensors")).expect("weights")
    };
    assert!(weights(&replayed) == weights(&run), "the last weights differ");
}

#[test]
fn saved_versions_give_the_same_samples_without_a_trainer() {
    let dir = TempDir::new().expect("a folder");
    let run = run_dir(&dir, "whole", &KEEPS_ALL);
    whole(&run, &TOGETHER);
    let replayed = run_dir(&dir, "rollout-only", &KEEPS_ALL);
    for folder in ["epoch", "version", "weights"] {
        copy(&run.join(folder), &replayed.join(folder));
    }
    let mut rollout = start(ROLLOUT, &[], &replayed);
    wait_until(&replayed, "the last manifest", || tiny_loop::manifest(&replayed, NUM_STEPS - 1).exists());
    kill(&mut rollout);
    let content = |run: &Path| -> Vec<(u64, String, Vec<u64>)> {
        (0..NUM_STEPS)
            .flat_map(|step| {
                let bytes = fs::read(tiny_loop::manifest(run, step)).expect("a manifest");
                serde_json::from_slice::<Manifest>(&bytes).expect("a manifest").groups
            })
            .map(|group| {
                let hashes = group.samples.iter().map(|sample| sample.tokens_hash).collect();
                (group.cursor, group.prompt_id, hashes)
            })
            .collect()
    };
    assert_eq!(content(&replayed), content(&run));
}

#[test]
fn evaluations_have_a_start_and_rewards_of_their_own() {
    let dir = TempDir::new().expect("a folder");
    let sets = [
        "eval.odd.environment=arithmetic",
        "eval.odd.interval=4",
        "eval.odd.at_start=false",
        "eval.odd.num_prompts=4",
        "eval.odd.n_samples_per_prompt=2",
        "eval.odd.temperature=1.0",
        "eval.odd.reward_types=[\"format:regex=.*\"]",
    ];
    let run = run_dir(&dir, "run", &sets);
    whole(&run, &TOGETHER);
    let versions: BTreeSet<String> = fs::read_dir(run.join("eval"))
        .expect("evaluations")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy()[..6].to_owned())
        .collect();
    assert_eq!(versions, BTreeSet::from(["000004".to_owned(), format!("{NUM_STEPS:06}")]));
    let text = fs::read_to_string(run.join("metrics/rollout.jsonl")).expect("numbers");
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let of_set: Vec<_> = rows.filter(|row| row.get("majority@2").is_some()).collect();
    assert_eq!(of_set.len(), 2, "{text}");
    for row in of_set {
        // Whatever it answers is right by the set's own rewards, and by those of training about every second time.
        for key in ["reward_mean", "mean@2", "majority@2", "pass@2"] {
            assert!((row[key].as_f64().expect("a number") - 1.0).abs() < 1e-9, "{key}: {row}");
        }
    }
}

#[test]
fn filter_that_rejects_everything_ends_the_run_with_its_histogram() {
    let dir = TempDir::new().expect("a folder");
    let sets = ["rollout.dynamic_filter=response_len:min=100000", "rollout.max_groups=8"];
    let run = run_dir(&dir, "run", &sets);
    let mut trainer = start(TRAIN, &[], &run);
    let code = start(ROLLOUT, &[], &run).wait().expect("our own child").code();
    kill(&mut trainer);
    assert_eq!(code, Some(65), "{}", log(&run));
    let text = log(&run);
    assert!(text.contains("groups refused (too_short: ") && text.contains("max_groups 8"), "{text}");
}

#[test]
fn rewards_that_never_come_are_named_and_end_the_run() {
    let dir = TempDir::new().expect("a folder");
    let run = run_dir(&dir, "run", &["reward.placement=separate", "reward.patience_s=1"]);
    let mut trainer = start(TRAIN, &[], &run);
    let code = start(ROLLOUT, &[], &run).wait().expect("our own child").code();
    kill(&mut trainer);
    assert_eq!(code, Some(69), "{}", log(&run));
    let text = log(&run);
    assert!(text.contains("finished groups wait for the column reward since "), "{text}");
    assert!(text.contains("slime-reward --follow RUN"), "{text}");
}

#[test]
fn samples_of_a_drained_replica_go_on_where_they_were() {
    let dir = TempDir::new().expect("a folder");
    let sets = [
        "rollout.max_in_flight=4",
        "run.max_staleness=5",
        "rollout.max_response_len=400",
        "train.max_tokens_per_gpu=16384",
    ];
    let run = run_dir(&dir, "drained", &sets);
    let mut trainer = start(TRAIN, &[], &run);
    let files = |prefix: &str| -> Vec<std::path::PathBuf> {
        let steps = fs::read_dir(run.join("rollout")).into_iter().flatten().flatten();
        let files = steps.filter_map(|step| fs::read_dir(step.path()).ok()).flatten().flatten();
        let is_named = |path: &std::path::PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        };
        files.map(|file| file.path()).filter(is_named).collect()
    };
    let unfinished = || -> Vec<_> {
        let segments = files("parts-");
        let segments = segments
            .iter()
            .map(|path| slime_record::decode_segment(fs::read(path).expect("readable")).expect("whole"));
        let samples = |segment: slime_record::Segment| {
            (0..segment.len()).map(|row| segment.sample(row).expect("whole")).collect::<Vec<_>>()
        };
        segments.flat_map(samples).filter(|sample| sample.response_len() > 0).collect()
    };
    // Drained a little later each time behind the first assignment, until samples are under way.
    for tries in 0.. {
        assert!(tries < 50, "nothing was ever under way\n{}", log(&run));
        let num_assigned = files("assign-").len();
        let mut rollout = start(ROLLOUT, &[], &run);
        wait_until(&run, "an assignment", || files("assign-").len() > num_assigned);
        std::thread::sleep(std::time::Duration::from_millis(10 * tries));
        signal(&rollout, "-USR2");
        assert_eq!(rollout.wait().expect("our own child").code(), Some(75), "{}", log(&run));
        if !unfinished().is_empty() {
            break;
        }
    }
    let before = unfinished();
    let mut rollout = start(ROLLOUT, &[], &run);
    assert!(rollout.wait().expect("our own child").success(), "{}", log(&run));
    assert!(trainer.wait().expect("our own child").success(), "{}", log(&run));
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    assert_accounted(&deeds.manifests);
    let mut num_continued = 0;
    for group in deeds.manifests.iter().flat_map(|manifest| &manifest.groups) {
        let Ok(bytes) = fs::read(run.join(&group.segment.path)) else { continue };
        let segment = slime_record::decode_segment(bytes).expect("whole");
        for row in 0..segment.len() {
            let sample = segment.sample(row).expect("whole");
            assert!(sample.response_len() <= 400, "the whole response has the limit");
            let old = before
                .iter()
                .find(|old| (old.step, old.group, old.index) == (sample.step, sample.group, sample.index));
            if let Some(old) = old.filter(|_| sample.part > 0) {
                num_continued += 1;
                assert_eq!(sample.tokens[..old.tokens.len()], old.tokens[..], "tokens are kept");
                assert_eq!(sample.rollout_log_probs[..old.response_len()], old.rollout_log_probs[..]);
            }
        }
    }
    assert!(num_continued > 0, "no sample went on\n{}", log(&run));
}
