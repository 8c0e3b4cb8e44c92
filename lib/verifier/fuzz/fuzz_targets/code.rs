//! Metadata of a code reward, a tab and a response whose code is found; nothing is run.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slime_verifier_fuzz::within;

fuzz_target!(|text: &str| {
    let (metadata, response) = text.split_once('\t').unwrap_or(("{}", text));
    within("code", || slime_verifier::read_code(metadata, response));
});
