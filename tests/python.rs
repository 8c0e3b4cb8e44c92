//! Python programs open what the tools write, and see the values our own readers see: pyarrow and pandas, h5py,
//! safetensors, gguf. `SLIME_TEST_PYTHON` names a Python that has them; else it is the one of
//! `modules/bootstrap.sh --tests`; without either a test says that it is skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use python::python;
use serde_json::{Value, json};
use slime_checkpoint::{Checkpoint, Dtype, Shard, Snapshot, complete, write};
use slime_config::TensorPart;
use slime_record::{
    Column, ColumnValues, Provenance, Sample, SampleId, Status, VersionRun, decode_segment, encode_segment,
};

#[path = "fixtures/python.rs"]
mod python;

/// What a program prints as JSON.
fn run(python: &Path, program: &str, paths: &[&Path]) -> Value {
    let output = Command::new(python).args(["-c", program]).args(paths).output().expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the program prints JSON")
}

fn tool(args: &[&Path]) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_slime-convert")).args(args).output().expect("slime-convert starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn samples() -> Vec<Sample> {
    let sample = |i: u32| Sample {
        step: 3,
        group: i / 2,
        index: i % 2,
        prompt_id: format!("p{}", i / 2),
        source: "a.jsonl".to_owned(),
        prompt: "[{\"role\":\"user\",\"content\":\"é\"}]".to_owned(),
        label: (i != 1).then(|| i.to_string()),
        response: format!("response {i}"),
        tokens: (0..5 + i).collect(),
        prompt_len: 3,
        loss_mask: vec![1; 2 + i as usize],
        rollout_log_probs: (0..2 + i).map(|t| -0.1 * t as f32).collect(),
        routed_experts: (0..2 * (4 + i as u16)).collect(),
        weight_versions: vec![VersionRun { version: 3, len: 2 + i }],
        status: if i == 2 { Status::Truncated } else { Status::Completed },
        weight: 0.5,
        ..Sample::default()
    };
    (0..4).map(sample).collect()
}

const SEGMENT: &str = "
import json, sys, pyarrow as pa, pyarrow.feather as feather
with pa.memory_map(sys.argv[1]) as source:
    table = pa.ipc.open_file(source).read_all()
    table.validate(full=True)
    frame = feather.read_feather(sys.argv[1])
    rewards = pa.ipc.open_file(sys.argv[2]).read_all()
    joined = frame.merge(rewards.to_pandas(), on=['step', 'group', 'index', 'attempt', 'part'])
    print(json.dumps({
        'rows': table.to_pylist(),
        'seed': table.schema.metadata[b'slime.seed'].decode(),
        'lens': [len(tokens) for tokens in frame['tokens']],
        'statuses': frame.groupby('status').size().to_dict(),
        'rewards': joined['reward'].tolist(),
    }))
";

#[test]
fn pyarrow_and_pandas_see_the_samples_and_columns_that_we_see() {
    let Some(python) = python("pyarrow, pandas") else { return };
    let root = tempfile::tempdir().expect("a folder");
    let (segment, column) = (root.path().join("segment.arrow"), root.path().join("reward.arrow"));
    let provenance = Provenance { seed: 17, ..Provenance::default() };
    fs::write(&segment, encode_segment(&samples(), &provenance).expect("encodes")).expect("writable");
    let rewards = ColumnValues::F32(vec![1.0, 0.25, -1.0, 0.0]);
    let bytes = Column::new("reward", &samples(), rewards).encode(&provenance).expect("encodes");
    fs::write(&column, bytes).expect("writable");
    let seen = run(&python, SEGMENT, &[&segment, &column]);
    let ours =
        decode_segment(fs::read(&segment).expect("readable")).expect("decodes").samples().expect("whole");
    let rows = seen["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), ours.len());
    for (row, sample) in rows.iter().zip(&ours) {
        let SampleId { step, group, index, attempt, part } = sample.id();
        for (name, value) in [
            ("step", json!(step)),
            ("group", json!(group)),
            ("index", json!(index)),
            ("attempt", json!(attempt)),
            ("part", json!(part)),
            ("prompt", json!(sample.prompt)),
            ("source", json!(sample.source)),
            ("label", json!(sample.label)),
            ("response", json!(sample.response)),
            ("status", json!(sample.status.as_str())),
            ("tokens", json!(sample.tokens)),
            ("prompt_len", json!(sample.prompt_len)),
            ("loss_mask", json!(sample.loss_mask)),
            ("rollout_log_probs", json!(sample.rollout_log_probs)),
            ("kept_token_ids", json!(sample.kept_token_ids)),
            ("kept_lens", json!(sample.kept_lens)),
            ("routed_experts", json!(sample.routed_experts)),
            ("weight", json!(sample.weight)),
            ("weight_versions", json!([{"version": 3, "len": sample.loss_mask.len()}])),
        ] {
            assert_eq!(row[name], value, "{name}");
        }
    }
    assert_eq!(seen["seed"], "17");
    assert_eq!(seen["lens"], json!([5, 6, 7, 8]));
    assert_eq!(seen["statuses"], json!({"completed": 3, "truncated": 1}));
    assert_eq!(seen["rewards"], json!([1.0, 0.25, -1.0, 0.0]));
}

const CHECKPOINT: &str = "
import json, sys, h5py
seen = {}
for path in sys.argv[1:]:
    with h5py.File(path) as file:
        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                part, = json.loads(item.attrs['parts'])
                rank = int(file.attrs['rank'])
                seen[f'{name} of rank {rank}'] = {
                    'dtype': item.attrs['dtype'], 'start': part['range']['start'], 'shape': part['shape'],
                    'values': item[:].tolist(),
                }
        file.visititems(visit)
print(json.dumps(seen))
";

#[test]
fn h5py_sees_the_shards_that_we_read() {
    let Some(python) = python("h5py") else { return };
    let root = tempfile::tempdir().expect("a folder");
    let dir = root.path().join("000040.e003");
    fs::create_dir(&dir).expect("writable");
    let floats: Vec<f32> = (0..12).map(|i| i as f32 / 3.0).collect();
    let bytes = |range: std::ops::Range<usize>| floats[range].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::thread::scope(|scope| {
        for rank in [1_usize, 0] {
            let range = rank * 6..rank * 6 + 6;
            let bytes = bytes(range.clone());
            let parts = vec![TensorPart { range, ..TensorPart::whole("model/norm", &[3, 4]) }];
            let mut shards = vec![Shard { name: "model/norm".to_owned(), dtype: Dtype::F32, parts, bytes }];
            if rank == 0 {
                // 1.0 and -2.0 in bf16.
                shards.push(Shard::whole("model/small", Dtype::Bf16, &[2], vec![0x80, 0x3f, 0x00, 0xc0]));
                shards.push(Shard::whole("step", Dtype::U64, &[], 40_u64.to_le_bytes().to_vec()));
            }
            let token = "e003.1".to_owned();
            let snapshot = Snapshot { rank, world_size: 2, token, meta: json!({"step": 40}), shards };
            let dir = &dir;
            scope.spawn(move || write(dir, &snapshot, Duration::from_secs(20)).expect("writes"));
        }
    });
    complete(&dir).expect("completes");
    let seen = run(&python, CHECKPOINT, &[&dir.join("rank_00000.h5"), &dir.join("rank_00001.h5")]);
    let ours = Checkpoint::open(&dir).expect("opens");
    for (start, rank) in [(0, 0), (6, 1)] {
        let shard = &seen[format!("model/norm of rank {rank}")];
        assert_eq!(shard["start"], json!(start));
        assert_eq!((&shard["dtype"], &shard["shape"]), (&json!("f32"), &json!([3, 4])));
        let read = ours.read("model/norm", start..start + 6).expect("readable");
        let values: Vec<f32> = read.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(shard["values"], json!(values));
    }
    assert_eq!(seen["model/small of rank 0"]["dtype"], "bf16");
    assert_eq!(seen["model/small of rank 0"]["values"], json!([0x3f80, 0xc000]));
    assert_eq!(seen["step of rank 0"]["values"], json!([40]));
}

const SHARDS: &str = "
import json, os, sys
from safetensors import safe_open
index = json.load(open(os.path.join(sys.argv[1], 'model.safetensors.index.json')))
total, sizes = 0, {}
for name, file in index['weight_map'].items():
    with safe_open(os.path.join(sys.argv[1], file), 'np') as shard:
        assert name in shard.keys(), (name, file)
        assert shard.metadata()['format'] == 'pt'
        sizes.setdefault(file, 0)
        sizes[file] += shard.get_tensor(name).nbytes
with safe_open(sys.argv[2], 'np') as whole:
    for name in whole.keys():
        with safe_open(os.path.join(sys.argv[1], index['weight_map'][name]), 'np') as shard:
            assert (shard.get_tensor(name) == whole.get_tensor(name)).all(), name
print(json.dumps({'total': sum(sizes.values()), 'index': index['metadata']['total_size'], 'files': sorted(sizes)}))
";

#[test]
fn safetensors_reads_sharded_exports_by_their_index() {
    let Some(python) = python("safetensors, numpy") else { return };
    let root = tempfile::tempdir().expect("a folder");
    let (src, out) = (fixture("models/llama"), root.path().join("out"));
    tool(&[Path::new("export"), &src, &out, Path::new("--max-shard-size"), Path::new("9KiB")]);
    let seen = run(&python, SHARDS, &[&out, &src.join("model.safetensors")]);
    assert_eq!(seen["total"], seen["index"]);
    let num = seen["files"].as_array().expect("files").len();
    assert!(num > 1 && seen["files"][0] == format!("model-00001-of-{num:05}.safetensors"), "{seen}");
}

const GGUF: &str = "
import json, sys, numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open
names = {'token_embd': 'model.embed_tokens', 'blk.0.attn_v': 'model.layers.0.self_attn.v_proj',
    'blk.0.attn_output': 'model.layers.0.self_attn.o_proj', 'blk.0.ffn_gate': 'model.layers.0.mlp.gate_proj',
    'blk.0.ffn_down': 'model.layers.0.mlp.down_proj', 'output_norm': 'model.norm'}
equal = []
with safe_open(sys.argv[2], 'np') as ours:
    for tensor in GGUFReader(sys.argv[1]).tensors:
        name = names.get(tensor.name.removesuffix('.weight'))
        if name:
            got = ours.get_tensor(name + '.weight')
            expected = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(got.shape)
            assert (got.view(np.uint32) == expected.view(np.uint32)).all(), tensor.name
            equal.append(tensor.tensor_type.name)
print(json.dumps(sorted(equal)))
";

#[test]
fn gguf_package_dequantises_to_the_bits_of_an_import() {
    let Some(python) = python("gguf, safetensors, numpy") else { return };
    let root = tempfile::tempdir().expect("a folder");
    let (src, out) = (fixture("gguf/mixed.gguf"), root.path().join("out"));
    tool(&[Path::new("import"), &src, &out]);
    let seen = run(&python, GGUF, &[&src, &out.join("model.safetensors")]);
    assert_eq!(seen, json!(["F32", "Q2_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K"]));
}
