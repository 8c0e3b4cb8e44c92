//! Inputs and outputs of the public slime implementation, for tests.

use serde_json::Value;

const TEXT: &str = include_str!("golden/slime_algorithms.json");

/// The cases of one function.
pub(crate) fn cases(function: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(TEXT).unwrap();
    let cases = file["cases"].as_array().unwrap();
    cases.iter().filter(|case| case["function"] == function).cloned().collect()
}

/// A JSON list as numbers.
pub(crate) fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Asserts equality to 1e-5, absolute or relative.
pub(crate) fn close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (a, b) in got.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "expected {expected:?}, got {got:?}");
    }
}
