//! `slime-sync preflight` from outside: what it finds on good and bad nodes, and how it ends when a rank hangs.

#[path = "fixtures/launcher.rs"]
mod launcher;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const SYNC: &str = env!("CARGO_BIN_EXE_slime-sync");

/// A run directory with a canary, and a folder of programs that comes first on PATH.
struct Desk {
    dir: TempDir,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in ["run", "bin"] {
            fs::create_dir(dir.path().join(name)).expect("writable");
        }
        fs::write(dir.path().join("run/canary"), "token-7\n").expect("writable");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An `nvidia-smi` that answers `-L`, the question about ECC and that about remapped rows.
    fn nvidia_smi(&self, list: &str, ecc: &str, rows: &str) {
        let script = format!(
            "#!/bin/sh\ncase $1 in\n-L) printf '{list}' ;;\n*ecc*) printf '{ecc}' ;;\n\
             *remapped*) printf '{rows}' ;;\n\
             *) echo 'Field \"gpu_recovery_action\" is not a valid field to query.'; exit 2 ;;\nesac\n"
        );
        self.program("nvidia-smi", &script);
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, script).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own file");
    }

    /// The words of a check of this node with all its file systems.
    fn words(&self, more: &[&str]) -> Vec<String> {
        let (run, canary) = (self.path("run"), self.path("run/canary"));
        let mut words: Vec<String> = ["preflight", "node", "--deadline-s", "0.2"].map(str::to_owned).into();
        words.extend(["--run".to_owned(), run.display().to_string()]);
        words.extend(["--canary-file".to_owned(), canary.display().to_string()]);
        for default in [["--canary", "token-7"], ["--min-free-gb", "0.001"]] {
            if !more.contains(&default[0]) {
                words.extend(default.map(str::to_owned));
            }
        }
        words.extend(more.iter().map(|&word| word.to_owned()));
        words
    }

    /// Runs a program with the folder of programs first on PATH, as node n1 of a job without GPUs of its own.
    fn run(&self, program: &str, words: &[String]) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new(program)
            .args(words)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("SLURMD_NODENAME", "n1")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("SLURM_GPUS_ON_NODE")
            .output()
            .expect("it starts")
    }

    fn node(&self, more: &[&str]) -> Vec<Value> {
        let output = self.run(SYNC, &self.words(more));
        assert!(output.status.success(), "{}", stderr(&output));
        lines(&output)
    }

    /// The lines of this node when `setup` was done first in a mount namespace; none where that is not permitted.
    fn node_after(&self, setup: &str, more: &[&str]) -> Option<Vec<Value>> {
        let mut words: Vec<String> =
            ["--user", "--map-root-user", "--mount", "sh", "-c"].map(str::to_owned).into();
        words.push(format!("cd '{}' && {setup} || exit 42; exec \"$@\"", self.path("").display()));
        words.extend(["sh".to_owned(), SYNC.to_owned()]);
        words.extend(self.words(more));
        let output = self.run("unshare", &words);
        if output.status.code() == Some(42) || stderr(&output).starts_with("unshare:") {
            eprintln!("skipped: mounting is not permitted here: {}", stderr(&output));
            return None;
        }
        assert!(output.status.success(), "{}", stderr(&output));
        Some(lines(&output))
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = stdout(output);
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().inspect(|line| assert!(line.len() < 1000, "srun would cut {line}")).map(read).collect()
}

/// The check of this name.
fn check<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    let mut all = lines.iter().filter_map(|line| line["checks"].as_array()).flatten();
    all.find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name} in {lines:?}"))
}

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| line.to_string() + "\n").collect()
}

/// `slime-sync preflight verdict` with `input` on stdin.
fn verdict(input: &str, words: &[&str]) -> Output {
    let mut child = Command::new(SYNC)
        .args(["preflight", "verdict"])
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A tool that refuses its command line does not read.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("our own child")
}

#[test]
fn good_node_is_fit() {
    let desk = Desk::new();
    desk.nvidia_smi(
        "GPU 0: NVIDIA H200 (UUID: GPU-a)\\nGPU 1: NVIDIA H200 (UUID: GPU-b)\\n",
        "0, 0\\n1, [N/A]\\n",
        "GPU-a, No, No\\nGPU-b, No, No\\n",
    );
    // The run directory of a workstation may well lie in its scratch folder.
    let run = desk.path("run").display().to_string();
    let lines = desk.node(&["--gpus", "2", "--interface", "lo", "--scratch", &run]);
    assert_eq!(lines[0]["node"], "n1");
    assert!(lines[0]["host"].as_str().is_some_and(|host| !host.is_empty()));
    for name in [
        "canary",
        "run_dir_writable",
        "free_space",
        "scratch",
        "tcp",
        "gpus",
        "gpu_ecc",
        "gpu_remapped_rows",
        "gpu_recovery",
        "slime-train",
        "slime-rollout",
    ] {
        assert_eq!(check(&lines, name)["verdict"], "ok", "{lines:?}");
    }
    for name in ["memlock", "stack", "open_files", "shared_memory", "mpi_plugin"] {
        assert!(check(&lines, name)["got"].is_string());
    }
    assert_eq!(fs::read_dir(desk.path("run")).expect("readable").count(), 1, "only the canary stays");

    let output = desk.path("verdict.json");
    let file = output.to_str().expect("text");
    // What a launcher prints on stdout is no line of ours; srun --label puts the task before it.
    let input = format!("Loading slime/0.1.0\n0: {}", text(&lines));
    let judged = verdict(&input, &["--expect-nodes", "n1", "--output", file]);
    assert!(judged.status.success(), "{}", stderr(&judged));
    assert!(judged.stdout.is_empty());
    assert!(stderr(&judged).contains("left out 1 lines"), "{}", stderr(&judged));
    let value: Value = serde_json::from_slice(&fs::read(&output).expect("written")).expect("JSON");
    assert_eq!(value["schema"], "slime-preflight-verdict/1");
    assert_ne!(value["verdict"], "bad");
    assert_eq!(value["nodes"][0]["node"], "n1");
    assert_eq!(check(value["nodes"].as_array().expect("a list"), "clock")["verdict"], "ok");
}

#[test]
fn canary_that_is_missing_or_of_another_attempt_is_bad() {
    let desk = Desk::new();
    let other = desk.node(&["--canary", "token-8"]);
    let canary = check(&other, "canary");
    assert_eq!(canary["verdict"], "bad");
    assert!(canary["got"].as_str().is_some_and(|got| got.starts_with("'token-7' in ")), "{canary}");
    assert_eq!(canary["expected"], "'token-8' within 0.2 s");
    fs::remove_file(desk.path("run/canary")).expect("removable");
    let missing = desk.node(&[]);
    assert!(check(&missing, "canary")["got"].as_str().is_some_and(|got| got.starts_with("No such file")));

    let judged = verdict(&text(&missing), &[]);
    assert_eq!(judged.status.code(), Some(69));
    assert_eq!(stdout(&judged), "n1\n");
    let message = stderr(&judged);
    for part in
        ["slime-sync: error: 1 of 1 nodes is not fit", "n1: canary: got No such file", "all nodes share"]
    {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn file_system_that_hangs_is_bad_and_holds_up_nothing_else() {
    let desk = Desk::new();
    fs::remove_file(desk.path("run/canary")).expect("removable");
    // Opening a pipe that nobody writes waits for ever, as a dead file server makes everybody wait.
    let made = Command::new("mkfifo").arg(desk.path("run/canary")).status().expect("mkfifo is there");
    assert!(made.success());
    let lines = desk.node(&[]);
    assert_eq!(check(&lines, "canary")["got"], "no answer in 2.2 s");
    assert_eq!(check(&lines, "run_dir_writable")["verdict"], "ok");
}

#[test]
fn run_directory_that_is_read_only_or_absent_is_bad() {
    let desk = Desk::new();
    let setup = "mount --bind run run && mount -o remount,bind,ro run";
    if let Some(lines) = desk.node_after(setup, &[]) {
        assert_eq!(check(&lines, "canary")["verdict"], "ok", "reading is permitted");
        let writable = check(&lines, "run_dir_writable");
        assert_eq!(writable["verdict"], "bad");
        assert!(
            writable["got"].as_str().is_some_and(|got| got.contains("Read-only file system")),
            "{writable}"
        );
    }
    fs::remove_dir_all(desk.path("run")).expect("removable");
    let lines = desk.node(&[]);
    assert_eq!(check(&lines, "run_dir_writable")["verdict"], "bad");
}

#[test]
fn run_directory_without_room_is_bad() {
    let desk = Desk::new();
    let setup = "mount -t tmpfs -o size=64m,nr_inodes=500 tmpfs run";
    if let Some(lines) = desk.node_after(setup, &["--min-free-gb", "1"]) {
        assert_eq!(check(&lines, "run_dir_writable")["verdict"], "ok");
        let space = check(&lines, "free_space");
        assert_eq!((&space["verdict"], &space["expected"]), (&"bad".into(), &"at least 1 GB".into()));
        assert_eq!(check(&lines, "free_inodes")["verdict"], "bad");
    }
}

#[test]
fn gpus_that_are_missing_or_broken_are_bad() {
    let desk = Desk::new();
    desk.nvidia_smi("GPU 0: H (UUID: GPU-a)\\n", "0, 2\\n", "GPU-a, Yes, No\\n");
    let lines = desk.node(&["--gpus", "2"]);
    let gpus = check(&lines, "gpus");
    assert_eq!((&gpus["verdict"], &gpus["expected"]), (&"bad".into(), &"2".into()));
    assert!(gpus["got"].as_str().is_some_and(|got| got.starts_with("1 by nvidia-smi")), "{gpus}");
    assert_eq!(check(&lines, "gpu_ecc")["got"], "GPU 0 has 2");
    assert_eq!(check(&lines, "gpu_remapped_rows")["verdict"], "bad");
    assert_eq!(check(&lines, "gpu_recovery")["verdict"], "ok", "an old driver does not know the question");

    desk.program("nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed because of the driver.'\nexit 9\n");
    let lines = desk.node(&["--gpus", "1"]);
    let gpus = check(&lines, "gpus");
    assert_eq!(gpus["verdict"], "bad");
    assert_eq!(gpus["got"], "nvidia-smi ended with 9: NVIDIA-SMI has failed because of the driver.");
}

#[test]
fn tool_that_does_not_start_is_bad_and_the_plugin_only_where_it_is_needed() {
    let desk = Desk::new();
    fs::copy(SYNC, desk.path("bin/slime-sync")).expect("room for a copy");
    let lost =
        "#!/bin/sh\necho 'slime-train: libtorch_cpu.so: cannot open shared object file' >&2\nexit 127\n";
    desk.program("slime-train", lost);
    let moved = desk.path("bin/slime-sync").display().to_string();
    for (more, verdict) in [(&[][..], "warn"), (&["--mpi"], "bad")] {
        let mut words = vec!["SLIME_MPI_PLUGIN=/no/such/plugin.so".to_owned(), moved.clone()];
        words.extend(desk.words(more));
        let output = desk.run("env", &words);
        assert!(output.status.success(), "{}", stderr(&output));
        let lines = lines(&output);
        let plugin = check(&lines, "mpi_plugin");
        assert_eq!(plugin["verdict"], verdict);
        assert!(plugin["got"].as_str().is_some_and(|got| got.contains("/no/such/plugin.so")), "{plugin}");
        let tool = check(&lines, "slime-train");
        assert_eq!(tool["verdict"], "bad");
        let said = "slime-train: libtorch_cpu.so: cannot open shared object file (exit status: 127)";
        assert_eq!(tool["got"], said);
        assert!(!text(&lines).contains("slime-rollout"), "a tool that is not installed is not started");
    }
}

#[test]
fn absent_interface_is_bad() {
    let lines = Desk::new().node(&["--interface", "=nosuch"]);
    assert_eq!(check(&lines, "tcp")["verdict"], "bad");
}

/// The lines of one good node under other names, each with its clock shifted.
fn nodes(shifts: &[(&str, f64)]) -> String {
    let good = Desk::new().node(&[]);
    let node = |(name, shift): &(&str, f64)| {
        let renamed = good.iter().map(|line| {
            let mut line = line.clone();
            let time = line["unix_s"].as_f64().expect("a number");
            line["node"] = (*name).into();
            line["unix_s"] = (time + shift).into();
            line
        });
        text(&renamed.collect::<Vec<_>>())
    };
    shifts.iter().map(node).collect()
}

#[test]
fn clock_of_its_own_and_silence_are_bad() {
    let lines = nodes(&[("n1", 0.0), ("n2", 0.4), ("n3", -60.0), ("n5", 0.2)]);
    let judged = verdict(&lines, &["--expect-nodes", "n1,n2,n3,n4,n5"]);
    assert_eq!(judged.status.code(), Some(69));
    assert_eq!(stdout(&judged), "n3,n4\n");
    let message = stderr(&judged);
    for part in [
        "n3: clock: got -60.1 s from the median of 4 nodes, expected within 5 s",
        "n4: answer: got none, it did not answer",
        "slime-sync: hint: sbatch --exclude=n3,n4",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let judged = verdict(&lines, &["--max-skew-s", "100", "--output", "-"]);
    assert!(judged.status.success(), "{}", stderr(&judged));
    let value: Value = serde_json::from_slice(&judged.stdout).expect("JSON alone");
    assert_eq!(value["nodes"].as_array().map(Vec::len), Some(4));

    // The measurement of the links ended without a line.
    let unlinked = verdict(&lines, &["--max-skew-s", "100", "--expect-links"]);
    assert_eq!(unlinked.status.code(), Some(69));
    assert!(unlinked.stdout.is_empty(), "no node is to blame");
    assert!(stderr(&unlinked).contains("link_answer: got none"), "{}", stderr(&unlinked));

    // No node answered at all.
    let silent = verdict("", &["--expect-nodes", "n1,n2", "--output", "-"]);
    assert_eq!(silent.status.code(), Some(69));
    let value: Value = serde_json::from_slice(&silent.stdout).expect("JSON alone");
    assert_eq!((&value["verdict"], &value["everywhere"][0]), (&"bad".into(), &"answer".into()));
}

#[test]
fn bad_input_is_one_clear_error() {
    let broken = "{\"schema\":\"slime-preflight/1\",\"node\":\n";
    let other = "{\"schema\":\"slime-preflight/9\"}\n";
    for (input, words, code, part) in [
        ("", &[][..], 65, "stdin: no line of a preflight"),
        (broken, &[], 65, "stdin: line 1: a broken line of a preflight"),
        (other, &[], 65, "expected schema slime-preflight/1, got \"slime-preflight/9\""),
        ("", &["--input", "/no/such/file"], 66, "cannot open /no/such/file"),
        ("", &["--max-skew-s", "0"], 64, "more than 0"),
        ("", &["--expect-nodes", "n1", "--output", "/no/such/folder/x"], 73, "cannot create"),
    ] {
        let judged = verdict(input, words);
        assert_eq!(judged.status.code(), Some(code), "{words:?}: {}", stderr(&judged));
        assert!(stderr(&judged).contains(part), "{}", stderr(&judged));
        assert!(judged.stdout.is_empty());
    }
    let alone = Command::new(SYNC).args(["preflight", "node", "--canary", "x"]).output().expect("it starts");
    assert_eq!(alone.status.code(), Some(64));
}

/// `num_ranks` ranks outside a job.
fn mpirun(num_ranks: usize) -> Option<Command> {
    let mut command = launcher::mpirun(num_ranks)?;
    command.env_remove("SLURMD_NODENAME");
    Some(command)
}

const LINK: [&str; 3] = [SYNC, "preflight", "link"];

#[test]
fn ranks_measure_their_links() {
    for num_ranks in [2, 3] {
        let Some(mut command) = mpirun(num_ranks) else { return };
        let output = command.args(LINK).args(["--measure-s", "0.02"]).output().expect("mpirun starts");
        assert!(output.status.success(), "{}", stderr(&output));
        let lines = lines(&output);
        assert_eq!(lines.len(), num_ranks);
        for (rank, line) in lines.iter().enumerate() {
            assert_eq!((&line["kind"], &line["rank"]), (&"link".into(), &rank.into()));
            assert_eq!(line["checks"][0]["name"], "all_reduce_sum");
            assert_eq!(line["checks"][0]["verdict"], "ok");
            assert_eq!(line["right_bytes_per_s"], lines[(rank + 1) % num_ranks]["left_bytes_per_s"]);
            for name in ["left_bytes_per_s", "right_bytes_per_s", "all_reduce_bytes_per_s"] {
                assert!(line[name].as_f64().is_some_and(|rate| rate > 1e3), "{line}");
            }
        }
    }
}

#[test]
fn rank_alone_needs_no_mpi() {
    let output = Command::new(SYNC)
        .args(["preflight", "link"])
        .env("SLIME_MPI_PLUGIN", "/no/such/plugin")
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(lines(&output)[0]["size"], 1);
}

#[test]
fn rank_that_never_comes_ends_the_others() {
    let Some(mut command) = mpirun(3) else { return };
    let wrapper = "[ $OMPI_COMM_WORLD_RANK = 2 ] && kill -STOP $$; exec \"$@\"";
    let output = command
        .args(["sh", "-c", wrapper, "sh"])
        .args(LINK)
        .args(["--deadline-s", "3"])
        .output()
        .expect("mpirun starts");
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains("the start of MPI did not end in 3 s: rank 0 of 3 on "), "{message}");
    assert!(output.stdout.is_empty());
}

#[test]
fn rank_that_falls_silent_is_named_with_its_node() {
    let Some(mut command) = mpirun(3) else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let wrapper =
        "rank=$OMPI_COMM_WORLD_RANK; echo $$ >pid.$rank; export SLURMD_NODENAME=n$rank; exec \"$@\"";
    let mut child = command
        .current_dir(dir.path())
        .args(["sh", "-c", wrapper, "sh"])
        .args(LINK)
        .args(["-v", "--deadline-s", "12", "--measure-s", "1000"])
        .env_remove("SLIME_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mpirun starts");
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok) {
        // The measurement takes longer than the deadline, so from here on the rank is in its middle.
        if line.contains("the bandwidth between neighbours") && !said.contains("the bandwidth") {
            stop(&dir.path().join("pid.1"));
        }
        said += &line;
        said.push('\n');
    }
    let output = child.wait_with_output().expect("our own child");
    assert_eq!(output.status.code(), Some(69), "{said}");
    // The rank may have stopped just before it began what another has begun.
    assert!(said.contains(" did not end in 12 s: no answer from rank 1 on n1\n"), "{said}");
    let lines = lines(&output);
    assert_eq!((&lines[0]["node"], &lines[0]["checks"][0]["name"]), (&"n1".into(), &"link_answer".into()));
    assert_eq!(stdout(&verdict(&text(&lines), &[])), "n1\n");
}

fn stop(pid: &Path) {
    let pid = fs::read_to_string(pid).expect("the wrapper wrote it");
    let status = Command::new("kill").args(["-STOP", pid.trim()]).status().expect("kill is there");
    assert!(status.success());
}
