//! Every kind of bad input through the real tools: one clear error, its exit code, nothing lost, nothing left behind.
#![allow(clippy::unwrap_used)]

#[path = "bad_input/desk.rs"]
mod desk;
#[path = "fixtures/launcher.rs"]
#[allow(dead_code, reason = "the prefix of a command line is all that is wanted")]
mod launcher;

use std::fs;
use std::path::Path;

use desk::{Desk, LOADERS};
use slime_weights::WeightDir;

const ROLLOUT: &str = "slime-rollout --weights weights --set rollout.max_response_len=4 --prompts";
const TRAIN: &str = "slime-train --config run.toml --output out --samples";

/// What is done to a weight directory, the exit code, and what the message says.
type Damage = (fn(&Path), i32, &'static str);

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{} does not contain {from}", path.display());
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Writes `value` over one element of an f32 tensor.
fn poison(dir: &Path, tensor: &str, element: usize, value: f32) {
    let place = WeightDir::open(dir).unwrap().place(tensor).unwrap().1.start + 4 * element;
    edit(&dir.join("model.safetensors"), |bytes| {
        bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
    });
}

#[test]
fn broken_weights_are_refused_by_every_tool_that_loads_them() {
    let cases: [Damage; 15] = [
        (|dir| fs::remove_dir_all(dir).unwrap(), 66, "bad"),
        (|dir| fs::remove_file(dir.join("config.json")).unwrap(), 66, "bad/config.json: cannot read"),
        (|dir| fs::write(dir.join("config.json"), "{").unwrap(), 65, "bad/config.json: not a model config"),
        (
            |dir| replace(&dir.join("config.json"), "\"llama\"", "\"mamba\""),
            65,
            "key model_type: expected llama, qwen2, qwen3, qwen3_moe, glm4, glm4_moe, minimax_m2 or mimo, got \"mamba\"",
        ),
        (
            |dir| fs::remove_file(dir.join("model.safetensors")).unwrap(),
            66,
            "bad: expected model.safetensors or model.safetensors.index.json, found none",
        ),
        (
            |dir| edit(&dir.join("model.safetensors"), Vec::clear),
            65,
            "bad/model.safetensors: truncated: expected 8 bytes (the length of the header), got 0",
        ),
        (
            |dir| edit(&dir.join("model.safetensors"), |bytes| bytes.truncate(100)),
            65,
            "(the header), got 100",
        ),
        (
            |dir| edit(&dir.join("model.safetensors"), |bytes| bytes.truncate(88_759)),
            65,
            "expected 88760 bytes (the header and all tensors), got 88759",
        ),
        (
            |dir| edit(&dir.join("model.safetensors"), |bytes| bytes[8] = b'!'),
            65,
            "bad/model.safetensors: corrupt: the header is not JSON",
        ),
        (
            |dir| {
                desk::shard(dir);
                fs::remove_file(dir.join("model-00002-of-00003.safetensors")).unwrap();
            },
            66,
            "bad/model-00002-of-00003.safetensors: cannot read",
        ),
        (
            |dir| {
                desk::shard(dir);
                replace(&dir.join("model.safetensors.index.json"), "lm_head.weight", "lm_haed.weight");
            },
            65,
            "tensor lm_haed.weight is missing",
        ),
        (
            |dir| replace(&dir.join("config.json"), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
            65,
            "bad: tensor model.layers.2.input_layernorm.weight is missing",
        ),
        (
            |dir| replace(&dir.join("config.json"), "\"hidden_size\": 32", "\"hidden_size\": 64"),
            65,
            "tensor model.embed_tokens.weight: expected shape [96, 64], got [96, 32]",
        ),
        (
            |dir| poison(dir, "model.layers.1.mlp.up_proj.weight", 40, f32::NAN),
            65,
            "bad: tensor model.layers.1.mlp.up_proj.weight: element 40 is not a finite number",
        ),
        (
            |dir| poison(dir, "model.norm.weight", 31, f32::NEG_INFINITY),
            65,
            "bad: tensor model.norm.weight: element 31 is not a finite number",
        ),
    ];
    for (damage, code, part) in cases {
        let desk = Desk::new();
        desk.copy_weights("bad");
        damage(&desk.path("bad"));
        for line in LOADERS {
            desk.fails(line, "", code, &[part]);
        }
        if part.contains("not a finite number") {
            desk.fails("slime-rollout score --weights bad --input samples.jsonl", "", code, &[part]);
        }
    }
}

#[test]
fn tokenizer_is_missed_where_it_is_needed() {
    let desk = Desk::new();
    fs::remove_file(desk.path("weights/tokenizer.json")).unwrap();
    desk.fails(
        &format!("{ROLLOUT} prompts.jsonl"),
        "",
        66,
        &["weights/tokenizer.json", "slime-convert import"],
    );
    desk.write("weights/tokenizer.json", "{");
    desk.fails(&format!("{ROLLOUT} prompts.jsonl"), "", 65, &["weights/tokenizer.json"]);
}

#[test]
fn broken_gguf_files_are_refused_by_name() {
    let desk = Desk::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf");
    let good = fs::read(fixture.join("tiny.gguf")).unwrap();
    let find = |needle: &[u8]| good.windows(needle.len()).position(|window| window == needle).unwrap();
    let refuse = |code: i32, part: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        fs::write(desk.path("bad.gguf"), bytes).unwrap();
        desk.fails("slime-convert import bad.gguf out", "", code, &["bad.gguf: ", part]);
    };
    for len in [0, 3, 20, 4000, good.len() / 2, good.len() - 40] {
        let part = if len < 4 { "does not begin with GGUF" } else { "truncated: expected" };
        refuse(65, part, &|bytes| bytes.truncate(len));
    }
    refuse(65, "does not begin with GGUF", &|bytes| bytes[0] = b'X');
    refuse(65, "unsupported GGUF version 9", &|bytes| bytes[4] = 9);
    // Behind the name: the number of dimensions (4 bytes), two dimensions (8 each), then the type.
    let name = b"blk.0.ffn_up.weight";
    let kind = find(name) + name.len() + 20;
    refuse(65, "GGUF type IQ2_XXS of tensor blk.0.ffn_up.weight", &|bytes| bytes[kind] = 16);
    refuse(65, "GGUF type number 99 of tensor blk.0.ffn_up.weight", &|bytes| bytes[kind] = 99);
    let norm = find(b"output_norm.weight");
    refuse(65, "tensor output_norm.weight is missing", &|bytes| bytes[norm] = b'x');
    // Behind the key: the type of the value (4 bytes) and its length (8).
    let architecture = find(b"general.architecture") + "general.architecture".len() + 12;
    refuse(65, "architecture xlama", &|bytes| bytes[architecture] = b'x');
    let expected = WeightDir::open(fixture.join("expected.safetensors")).unwrap();
    let values = find(&expected.tensor("model.norm.weight").unwrap().bytes);
    refuse(65, "tensor model.norm.weight: element 1 is not a finite number", &|bytes| {
        bytes[values + 4..values + 8].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    desk.fails("slime-convert import none.gguf out", "", 66, &["cannot open none.gguf"]);
}

#[test]
fn bad_prompts_are_named_by_line_key_and_length() {
    let desk = Desk::new();
    let good = "{\"prompt\":\"w1\",\"label\":\"1\"}\n";
    for (line, parts) in [
        ("{\"question\":\"w1\"}", &["line 2: no key \"prompt\" (input_key)", "the keys question"][..]),
        ("{\"prompt\":\"w1\",", &["line 2: column"]),
        ("[1]", &["line 2: column 0: invalid type: sequence, expected a map"]),
        ("{\"prompt\":5}", &["line 2: key \"prompt\"", "expected a string or a list of messages", "got 5"]),
        ("{\"prompt\":[{\"content\":\"x\"}]}", &["line 2", "messages with \"role\""]),
        ("{\"prompt\":\"\"}", &["prompt stdin:2 of stdin has no tokens"]),
    ] {
        // Neither stdout nor a file that is already there gets a part of it.
        for output in ["-", "prompts.jsonl"] {
            let call = format!("{ROLLOUT} - --output {output}");
            desk.fails(&call, &format!("{good}{line}\n"), 65, &[&["stdin"], parts].concat());
        }
        desk.write("broken.jsonl", &format!("{good}{line}\n"));
        let parts: Vec<String> = parts.iter().map(|part| part.replace("stdin", "broken.jsonl")).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        desk.fails(&format!("{ROLLOUT} broken.jsonl"), "", 65, &[&["broken.jsonl"], &parts[..]].concat());
    }
    let long = format!("{{\"prompt\":\"{}\"}}\n", "w1 ".repeat(300));
    desk.fails(
        &format!("{ROLLOUT} -"),
        &long,
        65,
        &["prompt stdin:1", "300 tokens, expected at most 255", "context"],
    );
    let short = format!("{ROLLOUT} prompts.jsonl --set data.max_prompt_len=1");
    desk.fails(
        &short,
        "",
        65,
        &["prompt prompts.jsonl:1", "2 tokens, expected at most 1 (data.max_prompt_len)"],
    );
    let foreign = format!("{ROLLOUT} prompts.jsonl --set data.label_key=answer");
    desk.fails(&foreign, "", 65, &["prompts.jsonl: line 1: no key \"answer\" (label_key)", "prompt, label"]);
    desk.fails(&format!("{ROLLOUT} none.jsonl"), "", 66, &["none.jsonl: No such file"]);
    desk.fails(&format!("{ROLLOUT} weights"), "", 66, &["weights: Is a directory"]);
    desk.fails(&format!("{ROLLOUT} prompts.jsonl@[7:]"), "", 65, &["no prompts", "the file has 2 rows"]);
}

#[test]
fn bad_rows_are_named_by_file_and_line() {
    let desk = Desk::new();
    let samples = fs::read_to_string(desk.path("samples.jsonl")).unwrap();
    let first = samples.lines().next().unwrap();
    for (name, rows) in
        [("cut.jsonl", format!("{first}\n{}\n", &first[..40])), ("list.jsonl", format!("{first}\n[1]\n"))]
    {
        desk.write(name, &rows);
        for line in [
            "slime-reward --type number --output prompts.jsonl --input",
            "slime-rollout score --weights weights --output prompts.jsonl --input",
            TRAIN,
        ] {
            desk.fails(&format!("{line} {name}"), "", 65, &[name, "line 2"]);
        }
    }
    let foreign = format!("{first}\n{{\"text\":1}}\n");
    desk.fails(&format!("{TRAIN} -"), &foreign, 65, &["stdin: row 2", "no reward"]);
    desk.fails("slime-reward --type number", &foreign, 65, &["stdin: line 2: no response; the row has text"]);
    let score = "slime-rollout score --weights weights --output prompts.jsonl";
    desk.fails(score, &foreign, 65, &["stdin: line 2: no key \"tokens\", got text"]);
    let unscored = samples.replace("\"reward\"", "\"points\"");
    desk.fails(
        &format!("{TRAIN} -"),
        &unscored,
        65,
        &["stdin: row 1 (sample 0/0/0.0.0): no reward", "slime-reward"],
    );
    let foreign = samples.replacen("[1,2,3,4,5]", "[1,2,3,4,500]", 1);
    desk.fails(&format!("{TRAIN} -"), &foreign, 65, &["expected ids below 96, got 500"]);
}

#[test]
fn empty_inputs_say_so() {
    let desk = Desk::new();
    desk.write("empty.jsonl", "");
    for line in [
        ROLLOUT,
        TRAIN,
        "slime-rollout score --weights weights --input",
        "slime-reward --type number --input",
    ] {
        for blank in ["", "\n\n"] {
            desk.fails(&format!("{line} -"), blank, 65, &["stdin: "]);
        }
        desk.fails(&format!("{line} empty.jsonl"), "", 65, &["empty.jsonl: "]);
        desk.fails(&format!("{line} none.jsonl"), "", 66, &["none.jsonl", "No such file"]);
    }
}

#[test]
fn wrong_configurations_name_the_line_and_what_was_meant() {
    let desk = Desk::new();
    for (text, parts) in [
        (
            "[rollout]\ntemprature = 1\n",
            &["bad.toml:2: unknown key rollout.temprature", "did you mean rollout.temperature?"][..],
        ),
        ("[rolout]\n", &["bad.toml:1: unknown key rolout", "did you mean rollout?"]),
        ("[rollout]\nlr = 1e-6\n", &["bad.toml:2: unknown key rollout.lr", "lr is a key of [train]"]),
        ("[rollout]\n\ntemperature =\n", &["bad.toml:3: "]),
        ("[rollout\n", &["bad.toml:1: "]),
        ("[run]\nseed = 1\nseed = 2\n", &["bad.toml:3: duplicate key"]),
        ("[rollout]\ntemperature = \"hot\"\n", &["bad.toml:2: invalid type: string \"hot\", expected f64"]),
        ("[model]\ndtype = \"f16\"\n", &["bad.toml:2: unknown variant `f16`, expected `f32` or `bf16`"]),
        ("[rollout]\ntop_p = 2.0\n", &["rollout.top_p: expected a number above 0 and up to 1, got 2"]),
        (
            "[rollout]\nrollout_batch_size = 3\nn_samples_per_prompt = 4\n[train]\nglobal_batch_size = 4\nnum_steps_per_rollout = 2\n",
            &[
                "3 x n_samples_per_prompt 4 = 12 samples",
                "4 x num_steps_per_rollout 2 = 8",
                "leave one of the four out",
            ],
        ),
        (
            "[rollout]\nrollout_batch_size = 3\nn_samples_per_prompt = 5\n[train]\nglobal_batch_size = 4\n",
            &["cannot derive train.num_steps_per_rollout: 15 samples do not divide"],
        ),
        ("[run]\npublish_interval = 2\n", &["waits for ever", "at most max_staleness + 1"]),
    ] {
        desk.write("bad.toml", text);
        for line in [
            "slime-train --dry-run --config bad.toml",
            "slime-reward --input samples.jsonl --config bad.toml",
        ] {
            desk.fails(line, "", 78, parts);
        }
    }
    for (set, part) in [
        ("rollout.temprature=1", "did you mean rollout.temperature?"),
        ("temperature=1", "--set temperature=1: expected section.key=value"),
        ("rollout.max_response_len=fast", "invalid type: string \"fast\", expected u32"),
        ("rollout.max_response_len=-1", "invalid value: integer `-1`, expected u32"),
        ("data.environment=arithmetik", "known environments: arithmetic"),
    ] {
        desk.fails(&format!("slime-rollout --weights weights --num-prompts 2 --set {set}"), "", 78, &[part]);
    }
    desk.fails("slime-train --dry-run --config none.toml", "", 66, &["none.toml: No such file"]);
    desk.fails("slime-train --dry-run --config weights", "", 66, &["weights: Is a directory"]);
    fs::write(desk.path("bad.toml"), b"x = \xff\n").unwrap();
    desk.fails("slime-train --dry-run --config bad.toml", "", 78, &["bad.toml", "UTF-8"]);
}

#[test]
fn world_that_does_not_fit_is_refused_once() {
    let desk = Desk::new();
    let Some(mpirun) = launcher::launcher() else { return };
    for (ranks, line, code, parts) in [
        (
            3,
            format!("{TRAIN} samples.jsonl --set parallel.dp=2"),
            78,
            &["tp 1 x dp 2 = 2 ranks, but the launcher started 3 ranks", "3 ranks fit as tp 1 dp 3"],
        ),
        (2, format!("{TRAIN} samples.jsonl --set train.lrr=1"), 78, &["train.lrr", "did you mean train.lr?"]),
        (
            2,
            format!("{TRAIN} samples.jsonl --weights none"),
            66,
            &["none/config.json", "slime-convert import"],
        ),
        (2, format!("{TRAIN} none.jsonl"), 66, &["cannot open none.jsonl", "No such file"]),
        (2, format!("{ROLLOUT} prompts.jsonl"), 78, &["expected a world of one rank", "started 2"]),
    ] {
        let prefix = [mpirun.as_str(), "--oversubscribe", "-n", &ranks.to_string()].map(str::to_owned);
        desk.fails_below(&prefix, &line, "", code, parts);
    }
    desk.fails(
        &format!("{TRAIN} samples.jsonl --set parallel.dp=2"),
        "",
        78,
        &["started 1 rank", "mpirun -n 2"],
    );
    desk.fails(
        &format!("{TRAIN} samples.jsonl --set parallel.tp=3"),
        "",
        78,
        &["tp 3 x dp 1 = 3 ranks, but the launcher started 1 rank", "1 rank fit as tp 1 dp 1"],
    );
    desk.fails(
        "slime-train --dry-run --config run.toml --set parallel.tp=3",
        "",
        78,
        &["parallel.tp: expected a divisor of the model's 4 heads, got 3"],
    );
    desk.fails(
        "slime-train --dry-run --config run.toml --set parallel.ep=2",
        "",
        78,
        &["the model has no experts"],
    );
    for (sets, part) in [
        ("--set parallel.pp=3", "parallel.pp: 3 stages of the model's 2 layers leave stage 2 without one"),
        ("--set parallel.pp=2 --set parallel.virtual_pp=2", "in 2 runs each of the model's 2 layers"),
        ("--set parallel.virtual_pp=2", "parallel.virtual_pp: one stage has nothing to interleave with"),
        ("--set parallel.pp=2 --set parallel.last_stage_layers=3", "take 3 of the model's 2 layers"),
        ("--set parallel.cp=0", "parallel.cp"),
        ("--set parallel.cp_comm_type=a2a", "cp_comm_type"),
    ] {
        desk.fails(&format!("slime-train --dry-run --config run.toml {sets}"), "", 78, &[part]);
    }
}

/// Calls that write to the place that is put behind them.
const WRITERS: [&str; 7] = [
    "slime-convert import weights",
    "slime-convert export weights",
    "slime-train --config run.toml --samples samples.jsonl --output",
    "slime-train --config run.toml --samples samples.jsonl --dump",
    "slime-rollout --weights weights --prompts prompts.jsonl --set rollout.n_samples_per_prompt=200 --output",
    "slime-rollout score --weights weights --input many.jsonl --output",
    "slime-reward --type number --input many.jsonl --output",
];

#[test]
fn outputs_that_cannot_be_written_are_told_before_the_work() {
    let desk = Desk::new();
    desk.write("many.jsonl", &fs::read_to_string(desk.path("samples.jsonl")).unwrap().repeat(50));
    for line in WRITERS {
        // A file in the place of a folder stops root too.
        desk.fails(&format!("{line} prompts.jsonl/out"), "", 73, &["prompts.jsonl/out", "Not a directory"]);
        if !line.ends_with("--dump") {
            desk.fails(&format!("{line} weights"), "", 73, &["weights"]);
        }
    }
    for line in &WRITERS[..3] {
        desk.fails(
            &format!("{line} prompts.jsonl"),
            "",
            73,
            &["prompts.jsonl: exists already", "another name"],
        );
    }
    for line in [
        "slime-rollout --follow prompts.jsonl",
        "slime-train --follow prompts.jsonl",
        "slime-reward --follow prompts.jsonl",
    ] {
        desk.fails(line, "", 66, &["prompts.jsonl/run.toml: Not a directory"]);
    }
    for line in ["slime-rollout --follow none", "slime-train --follow none", "slime-reward --follow none"] {
        desk.fails(line, "", 66, &["none/run.toml: No such file"]);
    }
}

#[test]
fn full_disk_is_one_error_and_leaves_no_half_file() {
    let desk = Desk::new();
    desk.write("many.jsonl", &fs::read_to_string(desk.path("samples.jsonl")).unwrap().repeat(50));
    // Without a disk of its own: files may not grow beyond 32 KiB.
    let limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 32; exec \"$@\"", "limited"].map(str::to_owned);
    for line in WRITERS {
        desk.fails_below(&limited, &format!("{line} out"), "", 74, &["out", "File too large"]);
    }
    for line in [
        "slime-rollout --weights weights --prompts prompts.jsonl",
        "slime-rollout --weights weights --prompts prompts.jsonl --format arrow",
        "slime-rollout score --weights weights --input samples.jsonl",
        "slime-reward --type number --input samples.jsonl",
        "slime-convert inspect weights",
        "slime-sync verify weights",
        "slime-train --dry-run",
        "slime-train --help",
    ] {
        let full = ["bash", "-c", "exec \"$@\" > /dev/full", "full"].map(str::to_owned);
        desk.fails_below(&full, line, "", 74, &["stdout: No space left on device"]);
    }
}

#[test]
fn full_or_read_only_file_systems_lose_nothing() {
    let desk = Desk::new();
    desk.write("many.jsonl", &fs::read_to_string(desk.path("samples.jsonl")).unwrap().repeat(50));
    fs::create_dir(desk.path("disk")).unwrap();
    let Some(namespace) = desk::mount_namespace() else { return };
    let listing = tempfile::NamedTempFile::new().unwrap();
    let run = |setup: &str, line: &str, code: i32, parts: &[&str]| {
        // The folder is another file system inside the namespace only; what stays in it is listed.
        let list = format!("find disk -type f > '{}'", listing.path().display());
        let script = format!("{setup} && \"$@\"; code=$?; {list}; exit $code");
        let prefix =
            [&namespace[..], &["bash".to_owned(), "-c".to_owned(), script, "mounted".to_owned()]].concat();
        desk.fails_below(&prefix, line, "", code, parts);
        let files = fs::read_to_string(listing.path()).unwrap();
        files.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let small = "mount -t tmpfs -o size=64k tmpfs disk";
    let with_run = format!("{small} && cp -r run disk/run");
    let read_only = "mount --bind . disk && mount -o remount,ro,bind disk";
    for line in WRITERS {
        let left = run(small, &format!("{line} disk/out"), 74, &["disk/out", "No space left on device"]);
        assert_eq!(left, Vec::<String>::new(), "{line}");
        run(read_only, &format!("{line} disk/out"), 73, &["disk/out", "Read-only file system"]);
    }
    let filled = format!("{with_run}; head -c 100000 /dev/zero > disk/fill 2> /dev/null; true");
    for tool in ["slime-rollout", "slime-train"] {
        let left = run(
            &filled,
            &format!("{tool} --follow disk/run"),
            74,
            &["the disk or the quota is full", "nothing sealed is lost"],
        );
        assert!(
            left.iter().all(|file| ["disk/fill", "disk/run/run.toml"].contains(&file.as_str())),
            "{left:?}"
        );
        run(read_only, &format!("{tool} --follow disk/run"), 73, &["Read-only file system"]);
    }
    // Room for the first names, not for the weights of version 0.
    let left = run(&with_run, "slime-train --follow disk/run", 74, &["weights/000000.e001", "No space left"]);
    assert!(!left.iter().any(|file| file.contains("version/") || file.ends_with(".safetensors")), "{left:?}");
}

#[test]
fn killed_writers_leave_nothing_to_the_next() {
    let desk = Desk::new();
    desk.large_weights("large");
    fs::create_dir(desk.path("place")).unwrap();
    desk.write("many.jsonl", &fs::read_to_string(desk.path("samples.jsonl")).unwrap().repeat(60));
    for (line, clean) in [
        ("slime-convert import large place/out", "slime-convert import large clean"),
        (
            "slime-rollout score --weights weights --input many.jsonl --output place/rows.jsonl",
            "slime-rollout score --weights weights --input many.jsonl --output rows.jsonl",
        ),
        (
            "slime-reward --type number --input many.jsonl --output place/scored.jsonl",
            "slime-reward --type number --input many.jsonl --output scored.jsonl",
        ),
    ] {
        let whole = desk.succeeds(clean);
        let result = desk::contents(&desk.path(clean.rsplit(' ').next().unwrap()));
        let (place, target) = (desk.path("place"), desk.path(line.rsplit(' ').next().unwrap()));
        let mut num_leftovers = 0;
        for kill in 0..8 {
            desk.kill(line, &place, whole * kill / 16);
            if target.exists() {
                assert_eq!(desk::contents(&target), result, "{line}: half a result after kill {kill}");
                desk::remove(&target);
            }
            let num_left = fs::read_dir(&place).unwrap().count();
            assert!(num_left <= 1, "{line}: {num_left} leftovers");
            num_leftovers += num_left;
        }
        assert!(num_leftovers > 0, "{line}: no kill met a half-written output");
        desk.succeeds(line);
        let names: Vec<_> = fs::read_dir(desk.path("place")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(names, std::slice::from_ref(&target), "{line}");
        assert_eq!(desk::contents(&target), result, "{line}");
        desk::remove(&target);
    }
}
