//! A folder with good input of every kind, and the calls of tools in it that have to fail cleanly.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use slime_config::HfConfig;
use slime_weights::{Dtype, TensorSpec, WeightDir, WeightWriter};
use tempfile::TempDir;

/// The calls that load the weight directory `bad`.
pub const LOADERS: [&str; 4] = [
    "slime-convert import bad out",
    "slime-rollout --weights bad --prompts prompts.jsonl",
    "slime-train --config run.toml --weights bad --samples samples.jsonl --output out",
    "slime-sync verify bad",
];

const PROMPTS: &str = "{\"prompt\":\"w3 w5\",\"label\":\"7\"}\n{\"prompt\":\"w9 w2\",\"label\":\"8\"}\n";
const RUN: &str = "[run]\nnum_steps = 2\n[model]\npath = \"weights\"\n[data]\nenvironment = \"arithmetic\"\n\
    [rollout]\nrollout_batch_size = 4\nn_samples_per_prompt = 4\nmax_response_len = 4\n";

/// `weights/`, `prompts.jsonl`, `samples.jsonl` (with rewards), `run.toml` and `run/run.toml`.
pub struct Desk {
    dir: TempDir,
}

impl Desk {
    pub fn new() -> Self {
        let desk = Self { dir: TempDir::new().unwrap() };
        desk.copy_weights("weights");
        desk.write("prompts.jsonl", PROMPTS);
        let rows: Vec<String> = (0..16_u32)
            .map(|i| {
                json!({
                "step": 0, "group": i / 4, "index": i % 4, "status": "completed", "tokens": [1, 2, 3, 4, 5],
                "prompt_len": 3, "loss_mask": [1, 1], "rollout_log_probs": [-4.5, -4.5],
                "reward": f64::from(i % 2), "response": "4", "label": "4",
            }).to_string()
            })
            .collect();
        desk.write("samples.jsonl", &(rows.join("\n") + "\n"));
        desk.write("run.toml", RUN);
        fs::create_dir(desk.path("run")).unwrap();
        desk.write("run/run.toml", RUN);
        desk
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The tiny model of the fixtures with a tokenizer of one word for each token.
    pub fn copy_weights(&self, name: &str) {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
        let weights = self.path(name);
        fs::create_dir(&weights).unwrap();
        for name in ["config.json", "generation_config.json", "model.safetensors"] {
            fs::copy(fixture.join(name), weights.join(name)).unwrap();
        }
        let vocab: Map<String, Value> = (0..96).map(|id| (format!("w{id}"), id.into())).collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
        });
        fs::write(weights.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let settings = json!({"chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"});
        fs::write(weights.join("tokenizer_config.json"), settings.to_string()).unwrap();
    }

    /// A weight directory of some 25 MB, which takes a while to import.
    pub fn large_weights(&self, name: &str) {
        let dir = self.path(name);
        let small = fs::read_to_string(self.path("weights/config.json")).unwrap();
        let text = small
            .replace("\"hidden_size\": 32", "\"hidden_size\": 512")
            .replace("\"intermediate_size\": 48", "\"intermediate_size\": 1024")
            .replace("\"vocab_size\": 96", "\"vocab_size\": 4000");
        let config = HfConfig::parse(&text, &dir.join("config.json")).unwrap();
        let views = slime_weights::storages(&config).into_iter().flat_map(|storage| storage.views);
        let specs: Vec<TensorSpec> =
            views.map(|view| TensorSpec { name: view.name, dtype: Dtype::F32, shape: view.shape }).collect();
        let mut writer = WeightWriter::create(&dir, specs.clone(), usize::MAX).unwrap();
        for spec in &specs {
            let values: Vec<u8> =
                (0..spec.num_bytes() / 4).flat_map(|i| ((i % 251) as f32 / 251.0).to_le_bytes()).collect();
            writer.write(&spec.name, &values).unwrap();
        }
        writer.add_file("config.json", text.as_bytes()).unwrap();
        writer.finish().unwrap();
    }

    /// `line` is the tool and its arguments, `prefix` the program that starts them.
    fn command(&self, prefix: &[String], line: &str) -> Command {
        let (tool, arguments) = line.split_once(' ').unwrap();
        let tool = Path::new(env!("CARGO_BIN_EXE_slime-train")).with_file_name(tool);
        let mut words = prefix.iter().map(PathBuf::from).chain([tool]);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .args(arguments.split(' '))
            .arg("-q")
            .current_dir(self.dir.path())
            .env("OMP_NUM_THREADS", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, prefix: &[String], line: &str, stdin: &str) -> Output {
        let mut child = self.command(prefix, line).spawn().unwrap();
        // A tool that refuses its arguments does not read.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// The call ends with `code` and one error that contains `parts`; stdout and every file are as before.
    pub fn fails(&self, line: &str, stdin: &str, code: i32, parts: &[&str]) {
        self.fails_below(&[], line, stdin, code, parts);
    }

    /// The same for a call that another program starts.
    pub fn fails_below(&self, prefix: &[String], line: &str, stdin: &str, code: i32, parts: &[&str]) {
        let before = contents(self.dir.path());
        let output = self.run(prefix, line, stdin);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}\n{stderr}");
        assert!(output.stdout.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
        for part in parts {
            assert!(stderr.contains(part), "{line}: expected {part:?} in\n{stderr}");
        }
        let tool = line.split(' ').next().unwrap();
        let (error, hint) = (format!("{tool}: error: "), format!("{tool}: hint: "));
        let lines: Vec<&str> = stderr.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(stderr.matches(&error).count(), 1, "{line}\n{stderr}");
        // A launcher has its own words about a rank that ended.
        let is_alone = prefix.first().is_none_or(|program| !program.ends_with("mpirun"));
        let rest = || lines.iter().filter(|line| !line.starts_with(&error));
        assert!(
            !is_alone || rest().all(|line| line.starts_with(&hint)) && lines.len() <= 2,
            "{line}\n{stderr}"
        );
        let after = contents(self.dir.path());
        let changed: Vec<_> =
            before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
        assert!(changed.is_empty(), "{line}: changed {changed:?}");
    }

    /// How long the successful call took.
    pub fn succeeds(&self, line: &str) -> Duration {
        let started = Instant::now();
        let output = self.run(&[], line, "");
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        started.elapsed()
    }

    /// Kills the call this long after it made something new in `place`, unless it was faster.
    pub fn kill(&self, line: &str, place: &Path, delay: Duration) {
        let before = contents(place);
        let mut child: Child = self.command(&[], line).spawn().unwrap();
        while child.try_wait().unwrap().is_none()
            && contents(place).keys().all(|name| before.contains_key(name))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(delay);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Every file below `path` with its bytes, every folder without.
pub fn contents(path: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    fn walk(path: &Path, root: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
        let name = path.strip_prefix(root).unwrap().to_owned();
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                walk(&entry.unwrap().path(), root, found);
            }
            found.insert(name, None);
        } else if let Ok(bytes) = fs::read(path) {
            found.insert(name, Some(bytes));
        }
    }
    let mut found = BTreeMap::new();
    walk(path, path, &mut found);
    found
}

pub fn remove(path: &Path) {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
}

/// Puts three shards with an index in the place of the one file of `dir`.
pub fn shard(dir: &Path) {
    let weights = WeightDir::open(dir).unwrap();
    let parts = dir.join("parts");
    let spec = |name: &str| {
        let info = weights.info(name).unwrap();
        TensorSpec { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone() }
    };
    let specs: Vec<TensorSpec> = weights.names().map(spec).collect();
    let mut writer = WeightWriter::create(&parts, specs, 32_000).unwrap();
    for name in weights.names() {
        writer.write(name, &weights.tensor(name).unwrap().bytes).unwrap();
    }
    writer.finish().unwrap();
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    for entry in fs::read_dir(&parts).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    fs::remove_dir(parts).unwrap();
}

/// How to start a program that may mount, if this system allows it.
pub fn mount_namespace() -> Option<Vec<String>> {
    for flags in ["--mount", "--map-root-user --mount"] {
        let words: Vec<String> = format!("unshare {flags}").split(' ').map(str::to_owned).collect();
        let mounted =
            Command::new("unshare").args(&words[1..]).args(["mount", "-t", "tmpfs", "x", "/mnt"]).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(words);
        }
    }
    eprintln!("skipped: no file system can be mounted here");
    None
}
