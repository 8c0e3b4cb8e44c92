//! The masters of bf16 weights begin at the f32 values of their file, on any number of ranks.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Single, Threads};
use slime_trainer::Trainer;
use slime_weights::{Dtype, WeightDir, decode_f32};
use tch::{Kind, Tensor};
use tiny::{settings, trainer};

fn weights() -> WeightDir {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    WeightDir::open(models.join("llama")).unwrap()
}

/// The bits of all weights.
fn bits(trainer: &Trainer) -> Vec<Vec<f32>> {
    let values =
        |tensor: &Tensor| Vec::try_from(tensor.detach().to_kind(Kind::Float).flatten(0, -1)).unwrap();
    trainer.policy().params().iter().map(|(_, tensor)| values(tensor)).collect()
}

/// Elements of masters that equal those of the file, and that bf16 cannot hold; all others fail.
fn compare(trainer: &Trainer, weights: &WeightDir) -> [usize; 2] {
    let mut counts = [0; 2];
    for buffer in trainer.buffers() {
        let Some(_) = buffer.name.strip_prefix("master/") else { continue };
        let values = trainer.read_buffer(&buffer.name).unwrap();
        let mut rest = values.as_slice();
        for part in &buffer.parts {
            let name = part.tensor.strip_prefix("master/").unwrap();
            let bytes = weights.part(name, &part.bounds, Dtype::F32).unwrap();
            let expected = &decode_f32(name, &bytes, Dtype::F32).unwrap()[part.range.clone()];
            let (got, after) = rest.split_at(part.len());
            rest = after;
            assert_eq!(got, expected, "{name}");
            counts[0] += got.len();
            counts[1] += got.iter().filter(|value| value.to_bits() & 0xffff != 0).count();
        }
    }
    counts
}

#[test]
fn masters_are_those_of_the_file_and_weights_their_rounding() {
    let weights = weights();
    let mut one = trainer(Kind::BFloat16, Arc::new(Single), settings());
    let before = bits(&one);
    one.read_masters(&weights, None).unwrap();
    let [num, num_finer] = compare(&one, &weights);
    assert!(num_finer * 2 > num, "{num_finer} of {num}");
    assert_eq!(bits(&one), before);
    // The weights that follow from the masters are the same.
    one.resume(slime_trainer::Progress::default()).unwrap();
    assert_eq!(bits(&one), before);
    for num_ranks in [2, 3] {
        let counts = Threads::spawn(num_ranks, |comm| {
            let mut trainer = trainer(Kind::BFloat16, Arc::new(comm), settings());
            trainer.read_masters(&weights, None).unwrap();
            compare(&trainer, &weights)
        })
        .unwrap();
        assert_eq!(counts.iter().map(|[num, _]| num).sum::<usize>(), num);
        assert_eq!(counts.iter().map(|[_, finer]| finer).sum::<usize>(), num_finer);
    }
}

#[test]
fn weights_in_f32_are_their_own_masters() {
    let mut trainer = trainer(Kind::Float, Arc::new(Single), settings());
    let before = bits(&trainer);
    trainer.read_masters(&weights(), None).unwrap();
    assert_eq!(bits(&trainer), before);
}
