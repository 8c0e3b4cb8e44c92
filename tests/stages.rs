//! What later steps go by what earlier ones say: stages that a metric begins, curricula by pass rate, samples that stop when a
//! step is full. Manifests carry it, so killed tools that start again agree.

#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;

use slime_record::{GroupEntry, Manifest};
use tempfile::TempDir;
use tiny_loop::{
    APART, APART_SETS, NUM_STEPS, ROLLOUT, TOGETHER, TRAIN, assert_consumed_once, deeds, finish, kill, log,
    manifest, run_dir, start, start_all, wait_until, whole,
};

/// Every step trains the samples of four groups, and no group twice.
fn assert_whole(manifests: &[Manifest]) {
    let mut seen = BTreeSet::new();
    for manifest in manifests {
        assert_eq!(manifest.groups.len(), 4);
        assert!(manifest.groups.iter().all(|group| seen.insert((group.step, group.group))));
    }
}

/// Kills all tools whenever a step is committed, and starts them again, until the run is done.
fn killed_at_every_step(run: &Path, roles: &[(&'static str, &'static [&'static str])]) {
    let mut tools = start_all(roles, run);
    for step in 0..NUM_STEPS - 1 {
        wait_until(run, "a manifest", || manifest(run, step).exists());
        for tool in &mut tools {
            kill(&mut tool.child);
            tool.child = start(tool.program, tool.roles, run);
        }
    }
    finish(tools, run);
}

/// Adds tables to the configuration of a run.
fn append(run: &Path, text: &str) {
    let mut file = File::options().append(true).open(run.join("run.toml")).expect("writable");
    file.write_all(text.as_bytes()).expect("writable");
}

/// Prompts from somewhere else than the environment of the tiny loop.
fn draw_from(run: &Path, source: &str) {
    let file = run.join("run.toml");
    let text = std::fs::read_to_string(&file).expect("readable");
    std::fs::write(&file, text.replacen("environment = \"arithmetic\"", source, 1)).expect("writable");
}

#[test]
fn stages_that_a_metric_begins_are_the_same_after_kills() {
    let dir = TempDir::new().expect("a folder");
    let run = run_dir(&dir, "run", &["run.max_staleness=1"]);
    append(
        &run,
        "[[stage]]\nwhen = \"response_len:min=1\"\nn_samples_per_prompt = 4\n\
         [[stage]]\nwhen = \"pass_rate:min=0.1\"\nmax_response_len = 2\n",
    );
    killed_at_every_step(&run, &TOGETHER);
    let manifests = deeds(&run).manifests;
    assert_whole(&manifests);
    // Step 0 begins the first for step 2, and that the second for step 4 at the earliest.
    let begun = manifests.iter().fold(BTreeMap::new(), |before, manifest| {
        let begun = &manifest.stages.begun;
        assert!(before.iter().all(|(stage, first)| begun.get(stage) == Some(first)), "what has begun stays");
        begun.clone()
    });
    assert_eq!(begun.get(&0), Some(&2), "{begun:?}");
    for group in manifests.iter().flat_map(|manifest| &manifest.groups) {
        let stage = begun.iter().rev().find(|(_, first)| **first <= group.step).map(|(stage, _)| *stage);
        let (num_samples, longest) = match stage {
            None => (8, u32::MAX),
            Some(0) => (4, u32::MAX),
            Some(_) => (8, 2),
        };
        assert_eq!(group.samples.len(), num_samples, "step {} of stage {stage:?}", group.step);
        assert!(group.samples.iter().all(|sample| sample.response_len <= longest), "step {}", group.step);
    }
    assert!(log(&run).contains("stage[0] (response_len:min=1) begins with step 2"), "{}", log(&run));
}

#[test]
fn a_stage_that_the_run_did_not_reach_is_told_with_how_near_it_came() {
    let dir = TempDir::new().expect("a folder");
    let run = run_dir(&dir, "run", &[]);
    append(&run, "[[stage]]\nwhen = \"reward_mean:min=5\"\nmax_response_len = 2\n");
    whole(&run, &TOGETHER);
    let best = deeds(&run).manifests.iter().filter_map(|manifest| manifest.stages.nearest).next_back();
    let best = best.expect("a mean reward");
    let said = format!("stage[0] (reward_mean:min=5) was never reached: reward_mean got to {best} of 5");
    assert!(log(&run).contains(&said), "{said}\n{}", log(&run));
}

/// The prompts of a file in the order of the stream: `shuffle` is off.
fn stream_prompt(cursor: u64) -> String {
    format!("prompts.jsonl:{}", cursor % NUM_PROMPTS + 1)
}

const NUM_PROMPTS: u64 = 6;

#[test]
fn a_curriculum_chooses_by_the_manifests_alone_under_kills() {
    let dir = TempDir::new().expect("a folder");
    let rows: Vec<String> =
        (0..NUM_PROMPTS).map(|row| format!("{{\"prompt\": \"{row} + 1 =\"}}\n")).collect();
    let path = dir.path().join("prompts.jsonl");
    std::fs::write(&path, rows.concat()).expect("writable");
    let run = run_dir(&dir, "run", &["data.shuffle=false"]);
    let source = format!("prompts = {path:?}\ncurriculum = \"pass_rate:min=0.3 max=0.6 share=1\"");
    draw_from(&run, &source);
    killed_at_every_step(&run, &TOGETHER);
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    let mut newest: BTreeMap<String, f64> = BTreeMap::new();
    let mut num_chosen = 0;
    for manifest in &deeds.manifests {
        let is_inside = |prompt: &str| newest.get(prompt).map(|rate| (0.3..=0.6).contains(rate));
        let has_window = newest.values().any(|rate| (0.3..=0.6).contains(rate));
        for GroupEntry { cursor, chosen, prompt_id, .. } in &manifest.groups {
            let own = stream_prompt(*cursor);
            let gives_way = is_inside(&own) == Some(false) && has_window;
            assert_eq!(
                chosen.is_some_and(|position| position != *cursor),
                gives_way,
                "step {}",
                manifest.step
            );
            assert_eq!(*prompt_id, stream_prompt(chosen.unwrap_or(*cursor)));
            if gives_way {
                num_chosen += 1;
                assert_eq!(is_inside(prompt_id), Some(true), "step {}: {prompt_id}", manifest.step);
            }
        }
        for group in &manifest.groups {
            newest.insert(group.prompt_id.clone(), group.scores.pass_rate);
        }
    }
    assert!(num_chosen > 0 || newest.values().all(|rate| (0.3..=0.6).contains(rate)), "{newest:?}");
}

#[test]
fn samples_that_stop_when_a_step_is_full_are_trained_once_under_kills() {
    let dir = TempDir::new().expect("a folder");
    let sets = [
        "run.max_staleness=1",
        "run.order=arrival",
        "rollout.early_abort=true",
        "rollout.over_sampling_batch_size=8",
        APART_SETS[0],
        APART_SETS[1],
    ];
    let run = run_dir(&dir, "run", &sets);
    killed_at_every_step(&run, &APART);
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    assert_eq!(deeds.manifests.len() as u64, NUM_STEPS);
    let mut carried = 0;
    for manifest in &deeds.manifests {
        assert!(manifest.staleness() <= 1, "step {}", manifest.step);
        let (wanted, placed) = manifest.account.balance(carried);
        assert_eq!(wanted, placed, "step {}: {:?}", manifest.step, manifest.account);
        carried = manifest.account.carried;
    }
}

#[test]
fn prompts_and_stages_that_cannot_be_are_named() {
    let dir = TempDir::new().expect("a folder");
    // The last of 10,000 rows is another one's.
    let mut rows: Vec<String> = (1..10_000).map(|row| format!("{{\"prompt\": \"{row}\"}}\n")).collect();
    rows.push("{\"question\": \"10000\"}\n".to_owned());
    let path = dir.path().join("prompts.jsonl");
    std::fs::write(&path, rows.concat()).expect("writable");
    let slice = |name: &str, slice: &str| {
        let run = run_dir(&dir, name, &["data.shuffle=false"]);
        draw_from(&run, &format!("prompts = \"{}@{slice}\"", path.display()));
        run
    };
    let never = run_dir(&dir, "never", &[]);
    append(&never, "[[stage]]\nwhen = \"pass_rate:min=1.5\"\nmax_response_len = 2\n");
    for (run, code, said) in [
        (slice("few", "[0:3]"), 78, "3 prompts do not fill one step of rollout_batch_size 4"),
        (slice("late", "[9996:10000]"), 65, "prompts.jsonl: line 10000: no key \"prompt\" (input_key)"),
        (never, 78, "stage[0].when \"pass_rate:min=1.5\" is never reached: pass_rate is from 0 to 1"),
    ] {
        let mut trainer = start(TRAIN, &[], &run);
        let ended = start(ROLLOUT, &[], &run).wait().expect("our own child").code();
        kill(&mut trainer);
        assert_eq!(ended, Some(code), "{}", log(&run));
        assert!(log(&run).contains(said), "{said}\n{}", log(&run));
    }
}
