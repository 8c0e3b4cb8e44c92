//! Headers of untrusted files: whatever is done to the bytes of a safetensors file or to its index, opening it ends in an
//! answer, and what opens holds every tensor inside its file.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use slime_weights::{Dtype, TensorSpec, WeightDir, WeightWriter};

/// A linear congruential generator (Knuth's MMIX constants): mutations repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// What headers are made of, so that mutations get past the parser.
const WORDS: [&str; 24] = [
    "\"F32\"",
    "\"BF16\"",
    "\"F8_E4M3\"",
    "\"I64\"",
    "\"BOOL\"",
    "[0,16]",
    "[16,0]",
    "[]",
    "[0]",
    "0",
    "1",
    "-1",
    "1e3",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "{}",
    "\"shape\"",
    "\"data_offsets\"",
    "\"x\"",
    ",",
    "\\u0000",
    "__metadata__",
];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => {
                let word = WORDS[random.below(WORDS.len())];
                let end = (at + random.below(8)).min(bytes.len());
                bytes.splice(at..end, word.bytes());
            }
            3 => {
                let end = (at + random.below(16)).min(bytes.len());
                let part: Vec<u8> = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            4 => bytes
                .splice(0..bytes.len().min(8), (random.below(1 << 30) as u64).to_le_bytes())
                .for_each(drop),
            _ => {
                // The length of the header follows its text, so that what stands in it is read.
                let end = bytes.len().saturating_sub(random.below(24)).max(8);
                let len = (end - 8) as u64;
                bytes.splice(0..bytes.len().min(8), len.to_le_bytes());
            }
        }
    }
}

/// Opens what lies there; of an answer every tensor is read.
fn open(dir: &Path) -> bool {
    match WeightDir::open(dir) {
        Ok(weights) => {
            for name in weights.names() {
                let info = weights.info(name).unwrap();
                let tensor = weights.tensor(name).unwrap();
                assert_eq!(
                    tensor.bytes.len(),
                    info.shape.iter().product::<usize>() * info.dtype.num_bytes(),
                    "{name}"
                );
            }
            true
        }
        Err(error) => {
            let code = error.exit_code();
            assert!((64..=78).contains(&code), "{error}");
            assert!(
                error.to_string().contains(&dir.display().to_string())
                    || error.to_string().starts_with("tensor "),
                "{error}"
            );
            false
        }
    }
}

fn write(dir: &Path, max_shard_bytes: usize) {
    let spec = |name: &str, dtype| TensorSpec { name: name.to_owned(), dtype, shape: vec![2, 2] };
    let specs = vec![spec("x", Dtype::F32), spec("y", Dtype::BF16), spec("z", Dtype::F8E4M3)];
    let mut writer = WeightWriter::create(dir, specs.clone(), max_shard_bytes).unwrap();
    for spec in specs {
        writer.write(&spec.name, &vec![0; spec.num_bytes()]).unwrap();
    }
    writer.finish().unwrap();
}

fn sweep(num: usize) {
    let root = tempfile::tempdir().unwrap();
    let (one, many) = (root.path().join("one"), root.path().join("many"));
    write(&one, 1 << 20);
    write(&many, 16);
    let mut random = Random(7);
    let mut num_opened = 0;
    for (dir, file) in [
        (&one, "model.safetensors"),
        (&many, "model-00001-of-00002.safetensors"),
        (&many, "model.safetensors.index.json"),
    ] {
        let path = dir.join(file);
        let good = fs::read(&path).unwrap();
        assert!(open(dir));
        for _ in 0..num {
            let mut bytes = good.clone();
            mutate(&mut bytes, &mut random);
            fs::write(&path, bytes).unwrap();
            num_opened += usize::from(open(dir));
        }
        fs::write(&path, good).unwrap();
    }
    assert!(num_opened < 3 * num, "no mutation was noticed");
}

#[test]
fn mutated_headers_end_in_an_answer() {
    sweep(400);
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn a_hundred_thousand_mutated_headers_end_in_an_answer() {
    sweep(33_334);
}

/// The same for the parts of quantised weights: their names, types and shapes.
#[test]
fn mutated_quantised_directories_end_in_an_answer() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quantised");
    let root = tempfile::tempdir().unwrap();
    let mut random = Random(11);
    for form in ["fp8_block", "fp8_ct", "int4_awq", "int4_gptq", "int4_ct"] {
        let dir = root.path().join(form);
        fs::create_dir(&dir).unwrap();
        fs::copy(fixtures.join(form).join("config.json"), dir.join("config.json")).unwrap();
        let good = fs::read(fixtures.join(form).join("model.safetensors")).unwrap();
        let header_len = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
        for _ in 0..60 {
            let mut header = good[8..8 + header_len].to_vec();
            let at = random.below(header.len());
            let digit = header[at..].iter().position(u8::is_ascii_digit).map(|found| at + found);
            if let Some(digit) = digit {
                header[digit] = b'0' + random.below(10) as u8;
            }
            let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &good[8 + header_len..]].concat();
            fs::write(dir.join("model.safetensors"), bytes).unwrap();
            if let Ok(weights) = WeightDir::open(&dir) {
                for name in weights.names() {
                    _ = weights.tensor(name);
                }
            }
        }
    }
}
