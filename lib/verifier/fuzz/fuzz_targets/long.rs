//! Responses of a megabyte and of ten thousand nested pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slime_verifier_fuzz::{inputs, score};

const MAX_BYTES: usize = 1_000_000;

fuzz_target!(|text: &str| inputs::long(text, MAX_BYTES, &mut score));
