//! Instructions, JSON Schemas and the other rewards of text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slime_verifier_fuzz::{inputs, score};

fuzz_target!(|text: &str| inputs::text(text, &mut score));
