//! Segments come back as they were written, and broken ones are refused with one error.

use super::*;
use crate::testing::{Random, random_samples};
use crate::{LogProbSpace, Status, VersionRun};

fn provenance() -> Provenance {
    Provenance {
        tool: "slime-rollout".to_owned(),
        tool_version: "0.1.0".to_owned(),
        config_hash: "abcd".to_owned(),
        seed: 7,
        weight_version: Some(3),
        log_probs: LogProbSpace::AfterTruncation,
        extra: [("incarnation".to_owned(), "5".to_owned())].into(),
    }
}

#[test]
fn random_samples_come_back_as_they_were_written() {
    for seed in 0..30 {
        let samples = random_samples(seed, seed as usize);
        let segment = decode_segment(encode_segment(&samples, &provenance()).unwrap()).unwrap();
        assert_eq!(segment.samples().unwrap(), samples, "seed {seed}");
        assert_eq!(segment.provenance(), &provenance());
        for (i, sample) in samples.iter().enumerate() {
            assert_eq!(segment.sample(i).unwrap(), *sample);
            assert_eq!(segment.id(i), sample.id());
            assert_eq!(segment.view(i).tokens_hash(), sample.tokens_hash());
        }
    }
}

#[test]
fn samples_are_found_across_batches() {
    let samples = random_samples(1, 50);
    let bytes = encode_in_batches(&samples, &provenance(), 2000).unwrap();
    let segment = decode_segment(bytes).unwrap();
    assert!(segment.batches.len() > 5, "{}", segment.batches.len());
    for (i, sample) in samples.iter().enumerate() {
        assert_eq!(segment.sample(i).unwrap(), *sample);
    }
    assert_eq!(segment.samples().unwrap(), samples);
}

#[test]
fn columns_are_views_of_the_file_at_aligned_addresses() {
    let bytes = encode_segment(&random_samples(3, 20), &provenance()).unwrap();
    let file = Buffer::from_vec(bytes);
    let segment = decode_segment(file.clone()).unwrap();
    let inside = file.as_ptr_range();
    let view = segment.view(0);
    for (start, align) in [
        (view.tokens().as_ptr().cast::<u8>(), 4),
        (view.rollout_log_probs().as_ptr().cast::<u8>(), 4),
        (view.loss_mask().as_ptr(), 1),
    ] {
        assert!(inside.contains(&start));
        assert_eq!(start.addr() % align, 0);
        assert_eq!((start.addr() - inside.start.addr()) % ALIGNMENT_IN_FILE, 0);
    }
}
const ALIGNMENT_IN_FILE: usize = 64;

#[test]
fn the_same_samples_give_the_same_bytes() {
    // The file metadata is a map; its order must not depend on the process.
    let samples = random_samples(4, 10);
    let first = encode_segment(&samples, &provenance()).unwrap();
    for _ in 0..8 {
        assert!(encode_segment(&samples, &provenance()).unwrap() == first);
    }
}

#[test]
fn golden_segments_are_still_read() {
    let golden = include_bytes!("golden/segment.arrow");
    let segment = decode_segment(golden.to_vec()).unwrap();
    assert_eq!(segment.samples().unwrap(), golden_samples());
    assert_eq!(segment.provenance(), &provenance());
    // Before routed experts had a column.
    let before =
        decode_segment(include_bytes!("golden/segment_without_routed_experts.arrow").to_vec()).unwrap();
    let without = |sample| Sample { routed_experts: Vec::new(), ..sample };
    let samples: Vec<Sample> = golden_samples().into_iter().map(without).collect();
    assert_eq!(before.samples().unwrap(), samples);
    // Before kept ids had columns.
    let before = decode_segment(include_bytes!("golden/segment_without_kept_ids.arrow").to_vec()).unwrap();
    let without = |sample| Sample { kept_token_ids: Vec::new(), kept_lens: Vec::new(), ..sample };
    let samples: Vec<Sample> = samples.into_iter().map(without).collect();
    assert_eq!(before.samples().unwrap(), samples);
    assert!(encode_segment(&golden_samples(), &provenance()).unwrap() == golden, "the written bytes changed");
}

pub(crate) fn golden_samples() -> Vec<Sample> {
    let full = Sample {
        step: 12,
        group: 3,
        index: 1,
        attempt: 0,
        episode: 99,
        part: 1,
        prompt_id: "arithmetic/7".to_owned(),
        source: "arithmetic".to_owned(),
        status: Status::Truncated,
        finish_reason: "length".to_owned(),
        prompt: r#"[{"role":"user","content":"Compute 2 + 3."}]"#.to_owned(),
        tools: Some("[]".to_owned()),
        response: "5 é".to_owned(),
        tokens: vec![1, 2, 3, 49151, 0],
        prompt_len: 3,
        loss_mask: vec![1, 0],
        rollout_log_probs: vec![-0.25, 0.0],
        kept_token_ids: vec![49151, 5],
        kept_lens: vec![2, 0],
        routed_experts: vec![3, 127, 65535, 65535, 0, 1, 2, 9],
        weight_versions: vec![VersionRun { version: 11, len: 1 }, VersionRun { version: 12, len: 1 }],
        label: Some("5".to_owned()),
        metadata: Some(r#"{"difficulty":10}"#.to_owned()),
        weight: 0.5,
    };
    vec![full, Sample::default()]
}

#[test]
#[ignore = "writes lib/record/golden/segment.arrow anew"]
fn write_golden() {
    let bytes = encode_segment(&golden_samples(), &provenance()).unwrap();
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/segment.arrow"), bytes).unwrap();
}

#[test]
fn a_segment_cut_anywhere_is_refused() {
    let bytes = encode_segment(&random_samples(5, 3), &provenance()).unwrap();
    for len in 0..bytes.len() {
        let error = decode_segment(bytes[..len].to_vec()).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{len}: {error}");
        assert_eq!(error.exit_code(), 65);
    }
}

#[test]
fn a_flipped_bit_in_the_body_is_noticed_and_one_in_the_footer_never_changes_a_sample() {
    let samples = random_samples(6, 3);
    let bytes = encode_segment(&samples, &provenance()).unwrap();
    let sealed = bytes.len() - 10 - footer_len(&bytes) - 8;
    for at in 0..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 1 << (at % 8);
        match decode_segment(broken) {
            Err(Error::Corrupt { .. }) => {}
            Err(other) => panic!("byte {at}: {other}"),
            Ok(segment) => {
                assert!(at >= sealed, "byte {at} of {sealed} was altered unnoticed");
                assert!(segment.samples().unwrap() == samples, "byte {at}");
            }
        }
    }
}

fn footer_len(bytes: &[u8]) -> usize {
    let end = bytes.len() - 10;
    u32::from_le_bytes(bytes[end..end + 4].try_into().unwrap()) as usize
}

#[test]
fn random_damage_never_panics() {
    let bytes = encode_segment(&random_samples(8, 4), &provenance()).unwrap();
    let mut random = Random::new(9);
    for _ in 0..3000 {
        let mut broken = bytes.clone();
        for _ in 0..=random.below(8) {
            let at = random.below(broken.len() as u64) as usize;
            broken[at] = random.below(256) as u8;
        }
        let _ = decode_segment(broken);
    }
}

#[test]
fn a_file_of_other_columns_is_refused_by_column_and_type() {
    use arrow_array::{ArrayRef, Int32Array};
    let step: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter([("weight_versions", step)]).unwrap();
    let bytes = ipc::write_file(&batch.schema(), [Ok(batch.clone())], 0).unwrap();
    let message = decode_segment(bytes).unwrap_err().to_string();
    assert!(message.starts_with("column \"weight_versions\": expected "), "{message}");
    assert!(message.ends_with("got Int32"), "{message}");
}

#[test]
fn a_missing_file_is_no_input() {
    let error = read_segment(Path::new("/nonexistent/x.arrow")).unwrap_err();
    assert_eq!(error.exit_code(), 66);
    assert!(error.to_string().starts_with("/nonexistent/x.arrow: cannot read: "));
}
