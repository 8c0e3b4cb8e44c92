//! The real loop on a tiny model with each way of the weights: the same bits, and kills in the middle of publishing and of
//! taking a version cost nothing but time.

mod refusals;
mod scrambled;
#[path = "../fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;

use tempfile::TempDir;
use tiny_loop::{
    Deeds, ROLLOUT, TOGETHER, TRAIN, Tool, assert_consumed_once, deeds, finish, log, newest, run_dir, start,
    start_in, torture, wait_until, whole,
};

/// The ways and the keys of [sync] that they want.
const WAYS: [(&str, &[&str]); 3] = [
    ("disk", &["sync.transport=disk"]),
    ("delta", &["sync.transport=delta", "sync.full_interval=3"]),
    ("shm", &["sync.transport=shm"]),
];

/// A place for runs, and one in memory for what they keep there.
struct Desk {
    dir: TempDir,
    memory: TempDir,
}

impl Desk {
    fn new() -> Self {
        let memory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        Self { dir: TempDir::new().expect("a folder"), memory }
    }

    fn run(&self, name: &str, sets: &[&str], more: &[&str]) -> PathBuf {
        let memory = format!("sync.memory_dir={}", self.memory.path().display());
        let is_disk = sets.contains(&"sync.transport=disk");
        let memory = (!is_disk).then_some(&*memory);
        let sets: Vec<&str> = sets.iter().chain(more).copied().chain(memory).collect();
        run_dir(&self.dir, name, &sets)
    }

    /// What is left in memory.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.memory.path()).expect("our own folder");
        entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
    }
}

/// What `slime-sync verify` says of a run.
fn verify(run: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_slime-sync")).arg("verify").arg(run).output();
    let output = output.expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The undisturbed run.
fn calm(desk: &Desk) -> Deeds {
    let run = desk.run("calm", WAYS[0].1, &[]);
    whole(&run, &TOGETHER);
    deeds(&run)
}

fn assert_same(run: &Path, calm: &Deeds) {
    let here = deeds(run);
    assert_consumed_once(run, &here);
    assert_eq!((here.schedule(), here.tokens()), (calm.schedule(), calm.tokens()), "{}", log(run));
    assert!(here.weights == calm.weights, "the last weights differ");
}

#[test]
fn the_loop_gives_the_same_bits_whichever_way_its_weights_go() {
    let desk = Desk::new();
    let calm = calm(&desk);
    for (way, sets) in WAYS {
        let run = desk.run(way, sets, &[]);
        whole(&run, &TOGETHER);
        assert_same(&run, &calm);
        assert_eq!(desk.left(), Vec::<String>::new(), "{way} leaves nothing in memory");
        let told = verify(&run);
        assert!(told.lines().any(|line| line.starts_with("replica.0 h") && line.contains(way)), "{told}");
        let ends_in_changes = told.contains(", changes of ");
        assert_eq!(ends_in_changes, way == "delta", "{told}");
        // Whichever way, the last version stands by itself.
        let last = newest(&run.join("weights"), tiny_loop::NUM_STEPS).expect("it is on disk");
        assert!(last.join("model.safetensors").exists() && last.join("tokenizer.json").exists());
    }
}

#[test]
fn a_stale_run_starts_again_on_a_node_that_lost_its_memory() {
    let desk = Desk::new();
    let (way, sets) = WAYS[2];
    let more = ["run.max_staleness=1", "eval.held_out.interval=1", "eval.held_out.num_prompts=4"];
    let run = desk.run(way, sets, &more);
    let mut tools: Vec<Tool> = tiny_loop::start_all(&TOGETHER, &run);
    let checkpoints = run.join("checkpoint");
    wait_until(&run, "a checkpoint", || {
        newest(&checkpoints, 3).is_some_and(|path| path.join("COMPLETE").exists())
    });
    for tool in &mut tools {
        tiny_loop::kill(&mut tool.child);
    }
    let memory = desk.left();
    assert!(memory.iter().any(|name| name.starts_with("slime-run-")), "{memory:?}");
    for name in memory {
        fs::remove_dir_all(desk.memory.path().join(name)).expect("removable");
    }
    whole(&run, &TOGETHER);
    assert_consumed_once(&run, &deeds(&run));
    assert_eq!(desk.left(), Vec::<String>::new());
}

/// The library that kills a tool at its n-th call.
fn kill_at() -> &'static Path {
    static LIBRARY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let dir = TempDir::new().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kill_at.c");
        let path = dir.path().join("kill_at.so");
        let arguments = ["-shared", "-fPIC", "-O1", "-o"];
        let mut command = Command::new("cc");
        let status = command.args(arguments).arg(&path).arg(source).arg("-ldl").status();
        assert!(status.is_ok_and(|status| status.success()), "cc builds it");
        (dir, path)
    });
    path
}

/// The environment in which a tool is killed before its `n`-th call that touches what `words` name.
fn killing(words: &str, n: u32) -> [(&'static str, String); 3] {
    [
        ("LD_PRELOAD", kill_at().display().to_string()),
        ("SLIME_KILL_WORDS", words.to_owned()),
        ("SLIME_KILL_AT", n.to_string()),
    ]
}

/// How a tool ends by itself.
fn ended(mut child: Child, run: &Path) -> ExitStatus {
    let mut status = None;
    wait_until(run, "the end of a tool", || {
        status = child.try_wait().expect("our own child");
        status.is_some()
    });
    status.expect("it ended")
}

/// Kills `victim` before its `n`-th call that touches version 2 or an image, then starts it again; whether it had so many.
fn killed_at(run: &Path, victim: &'static str, n: u32) -> bool {
    let variables = killing("/000002.e001:.000002.e001:slime-image", n);
    let other = if victim == TRAIN { ROLLOUT } else { TRAIN };
    let child = start_in(victim, &[], run, &variables);
    let mut tools = vec![Tool { program: other, roles: &[], child: start(other, &[], run) }];
    let status = ended(child, run);
    let is_killed = !status.success();
    if is_killed {
        assert_eq!(status.signal(), Some(9), "{}", log(run));
        tools.push(Tool { program: victim, roles: &[], child: start(victim, &[], run) });
    }
    finish(tools, run);
    is_killed
}

/// Kills each tool before the calls of these numbers, or as many of them as there are, with each way.
fn assert_kills_cost_nothing<I: Iterator<Item = u32>>(calls: impl Fn() -> I) {
    let desk = Desk::new();
    let calm = calm(&desk);
    for (way, sets) in WAYS {
        for (name, victim) in [("trainer", TRAIN), ("engine", ROLLOUT)] {
            for n in calls() {
                let run = desk.run(&format!("{way}-{name}-{n}"), sets, &[]);
                let is_killed = killed_at(&run, victim, n);
                eprintln!("{way}: {name} killed at call {n}: {is_killed}");
                assert_same(&run, &calm);
                assert_eq!(desk.left(), Vec::<String>::new(), "{way}: {name} killed at call {n}");
                verify(&run);
                fs::remove_dir_all(&run).expect("our own folder");
                if !is_killed {
                    break;
                }
            }
        }
    }
}

#[test]
fn kills_in_the_middle_of_publishing_and_taking_cost_nothing_but_time() {
    assert_kills_cost_nothing(|| std::iter::once(6));
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn kills_at_many_calls_of_publishing_and_taking_cost_nothing_but_time() {
    // All there are, the later ones farther apart.
    assert_kills_cost_nothing(|| std::iter::successors(Some(1), |n| Some(n + n / 8 + 3)));
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn kills_anywhere_lose_and_double_nothing_with_each_way() {
    let desk = Desk::new();
    let calm = calm(&desk);
    for (way, sets) in WAYS {
        for seed in 0..4 {
            let run = desk.run(&format!("{way}-{seed}"), sets, &[]);
            torture(&run, &TOGETHER, seed, 1200);
            let here = deeds(&run);
            assert_eq!(here.schedule(), calm.schedule(), "{way}, seed {seed}");
            assert_consumed_once(&run, &here);
            verify(&run);
        }
    }
}
