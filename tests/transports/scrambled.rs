//! Snapshot, scramble, sync, compare: models whose weights are overwritten hold what was sent, by each way.

use std::path::Path;

use slime_config::{RunDir, Sync, SyncTransport, paths};
use slime_exchange::{FsStore, Physical, Store};
use slime_model::Model;
use slime_torch::bytes_of;
use slime_transport::{Version, Ways};
use slime_weights::{Dtype, TensorSpec, WeightDir};
use tch::{Device, Kind};

use crate::Desk;

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
    for (name, bytes) in &sent {
        outgoing.write(name, bytes).expect("there is room");
    }
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
