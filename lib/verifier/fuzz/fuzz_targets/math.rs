//! Mathematics: extraction and equivalence under every grader.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slime_verifier_fuzz::{inputs, score};

fuzz_target!(|text: &str| inputs::math(text, &mut score));
