//! The real loop on a tiny model with each way of the weights: the same bits, and kills in the middle of publishing and of
//! taking a version cost nothing but time.

#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;

use slime_config::{RunDir, Sync, SyncTransport, paths};
use slime_exchange::{FsStore, Physical, Store};
use slime_model::Model;
use slime_torch::bytes_of;
use slime_transport::{Version, Ways};
use slime_weights::{Dtype, TensorSpec, WeightDir};
use tch::{Device, Kind};
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
    tools.iter_mut().for_each(|tool| tiny_loop::kill(&mut tool.child));
    let memory = desk.left();
    assert!(memory.iter().any(|name| name.starts_with("slime-run-")), "{memory:?}");
    for name in memory {
        fs::remove_dir_all(desk.memory.path().join(name)).expect("removable");
    }
    whole(&run, &TOGETHER);
    assert_consumed_once(&run, &deeds(&run));
    assert_eq!(desk.left(), Vec::<String>::new());
}

/// The bytes of every tensor of a model.
fn snapshot(model: &Model) -> Vec<(String, Vec<u8>)> {
    model
        .params()
        .whole_tensors()
        .map(|whole| {
            let (name, tensor) = whole.expect("libtorch gives it");
            let tensor = tensor.expect("this rank holds all").contiguous();
            (name, bytes_of(&tensor).expect("on the CPU").to_vec())
        })
        .collect()
}

/// Sends what `snapshot` holds as a version of the run at `root`.
fn send(
    ways: &mut Ways,
    store: &mut FsStore,
    version: u64,
    kind: Kind,
    of: &Model,
) -> Vec<(String, Vec<u8>)> {
    let dtype = if kind == Kind::BFloat16 { Dtype::BF16 } else { Dtype::F32 };
    let specs = of.params().whole_tensors().specs().into_iter();
    let place = Physical { version, epoch: 1 };
    let outgoing = Version {
        place,
        is_whole: false,
        readable: (0..version).map(|version| Physical { version, epoch: 1 }).collect(),
        tensors: specs
            .map(|spec| TensorSpec {
                name: spec.name,
                dtype: if spec.kind == Kind::Float { Dtype::F32 } else { dtype },
                shape: spec.shape,
            })
            .collect(),
        side_files: Vec::new(),
    };
    let sent = snapshot(of);
    let mut outgoing = ways.sender().begin(outgoing).expect("there is room");
    sent.iter().for_each(|(name, bytes)| outgoing.write(name, bytes).expect("there is room"));
    let publication = outgoing.finish().expect("there is room");
    let text = serde_json::to_vec(&publication).expect("JSON");
    store.commit(&paths::version(place), &text).expect("writable");
    sent
}

#[test]
fn scrambled_engines_hold_what_the_trainer_sent_bit_by_bit() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    for (way, kind, name) in SyncTransport::ALL.into_iter().flat_map(|way| {
        [
            (way, Kind::Float, "llama_tied"),
            (way, Kind::BFloat16, "qwen3_moe"),
            (way, Kind::BFloat16, "glm4_moe"),
        ]
    }) {
        let desk = Desk::new();
        let memory_dir = desk.memory.path().display().to_string();
        let config = Sync { transport: way, full_interval: 3, memory_dir };
        let run_dir = RunDir::new(desk.dir.path());
        let mut store = FsStore::open(desk.dir.path()).expect("a folder");
        let (mut trainer, mut engine) = (Ways::new(&run_dir, &config), Ways::new(&run_dir, &config));
        let load = || Model::load(models.join(name), kind, Device::Cpu).expect("the fixture is there");
        let (policy, mut served) = (load(), load());
        for version in 0..4 {
            let sent = send(&mut trainer, &mut store, version, kind, &policy);
            tch::no_grad(|| {
                for (_, tensor) in served.params().iter() {
                    let _ = tensor.shallow_clone().fill_(f64::NAN);
                }
            });
            assert!(snapshot(&served) != sent, "scrambled");
            let place = Physical { version, epoch: 1 };
            let received = engine.receive(&mut store, place).expect("intact").expect("published");
            let weights = WeightDir::open(&received.dir).expect("a weight directory");
            served.params_mut().update_from(&weights).expect("of this model");
            assert!(snapshot(&served) == sent, "{way:?} {name}: version {version} differs");
            tch::no_grad(|| {
                for (_, tensor) in policy.params().iter() {
                    // A step that moves some values of bf16 and keeps others.
                    let step = tensor.randn_like() * 3e-4;
                    let _ = tensor.shallow_clone().g_add_(&step);
                }
            });
        }
    }
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

/// Kills each tool before each of `calls`, or as many of them as there are, with each way.
fn assert_kills_cost_nothing(calls: impl Iterator<Item = u32> + Clone) {
    let desk = Desk::new();
    let calm = calm(&desk);
    for (way, sets) in WAYS {
        for (name, victim) in [("trainer", TRAIN), ("engine", ROLLOUT)] {
            for n in calls.clone() {
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
    assert_kills_cost_nothing([4, 9].into_iter());
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn kills_at_every_seventh_call_of_publishing_and_taking_cost_nothing_but_time() {
    assert_kills_cost_nothing((1..).step_by(7));
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

/// A run in changes whose engine ended just before it looked at version 2; its trainer waits for step 2.
fn before_version_two(desk: &Desk, name: &str) -> (PathBuf, Tool) {
    let run = desk.run(name, WAYS[1].1, &[]);
    let trainer = Tool { program: TRAIN, roles: &[], child: start(TRAIN, &[], &run) };
    let engine = start_in(ROLLOUT, &[], &run, &killing("weights/000002.e001", 1));
    assert!(!ended(engine, &run).success());
    (run, trainer)
}

/// Starts the engine, which ends by itself; its code, and what it said last.
fn refusal(run: &Path) -> (Option<i32>, String) {
    let status = ended(start(ROLLOUT, &[], run), run);
    let log = log(run);
    (status.code(), log[log.rfind("error: ").unwrap_or(0)..].trim().to_owned())
}

#[test]
fn a_corrupt_version_or_a_gap_is_one_clear_error_and_the_run_goes_on_once_it_is_mended() {
    let desk = Desk::new();
    let calm = calm(&desk);
    let (run, mut trainer) = before_version_two(&desk, "run");
    let changes = run.join("weights/000002.e001/delta.safetensors");
    let intact = fs::read(&changes).expect("version 2 is in changes");
    let mut broken = intact.clone();
    *broken.last_mut().expect("bytes") ^= 1;
    fs::write(&changes, broken).expect("writable");
    let (code, message) = refusal(&run);
    assert!(
        code == Some(65) && message.contains("weights/000002.e001/delta.safetensors: tensor "),
        "{message}"
    );
    fs::write(&changes, intact).expect("writable");

    let base = run.join("version/000001.e001.json");
    fs::rename(&base, run.join("elsewhere")).expect("writable");
    let (code, message) = refusal(&run);
    let expected = "version 000002.e001: expected the published version 000001.e001, whose changes lead to it, found none";
    assert!(code == Some(65) && message.contains(expected), "{message}");
    fs::rename(run.join("elsewhere"), &base).expect("writable");

    assert!(trainer.child.try_wait().expect("our own child").is_none(), "the trainer waits");
    let engine = Tool { program: ROLLOUT, roles: &[], child: start(ROLLOUT, &[], &run) };
    finish(vec![trainer, engine], &run);
    assert_same(&run, &calm);
}

#[test]
fn a_second_trainer_is_refused_and_one_that_takes_over_ends_the_first() {
    let desk = Desk::new();
    let calm = calm(&desk);
    for (way, sets) in WAYS {
        let run = desk.run(way, sets, &[]);
        let first = start(TRAIN, &[], &run);
        wait_until(&run, "version 0", || run.join("version/000000.e001.json").exists());
        assert_eq!(ended(start(TRAIN, &[], &run), &run).code(), Some(73), "{}", log(&run));
        let engine = Tool { program: ROLLOUT, roles: &[], child: start(ROLLOUT, &[], &run) };
        let second = start(TRAIN, &["--takeover"], &run);
        let code = ended(first, &run).code();
        // It may have been over before the second one came.
        assert!(code == Some(75) || code == Some(0), "{way}: {code:?}\n{}", log(&run));
        finish(vec![engine, Tool { program: TRAIN, roles: &["--takeover"], child: second }], &run);
        assert_same(&run, &calm);
        assert_eq!(desk.left(), Vec::<String>::new(), "{way}");
    }
}

#[test]
fn memory_without_room_is_one_clear_error_and_nothing_is_published() {
    let desk = Desk::new();
    let memory = desk.memory.path().display();
    for (way, program) in [(WAYS[2], "slime-train"), (WAYS[1], "slime-rollout")] {
        let run = desk.run(way.0, way.1, &[]);
        let trainer = (program == "slime-rollout").then(|| Tool {
            program: TRAIN,
            roles: &[],
            child: start(TRAIN, &[], &run),
        });
        let tool = Path::new(TRAIN).with_file_name(program);
        let script = format!(
            "mount -t tmpfs -o size=16k tmpfs '{memory}' || exit 99; exec '{}' --follow '{}'",
            tool.display(),
            run.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "bash", "-c", &script]).env("OMP_NUM_THREADS", "1");
        let output = command.output().expect("unshare is there");
        let message = String::from_utf8_lossy(&output.stderr);
        if let Some(mut trainer) = trainer {
            tiny_loop::kill(&mut trainer.child);
        }
        if output.status.code() == Some(99) || message.starts_with("unshare:") {
            eprintln!("skipped: no file system can be mounted here");
            return;
        }
        assert_eq!(output.status.code(), Some(74), "{message}");
        assert!(message.contains("expected room for ") && message.contains("hint: free some"), "{message}");
        let is_published = run.join("version/000000.e001.json").exists();
        assert_eq!(is_published, program == "slime-rollout");
    }
}
