//! The whole of a run's metrics as one JSON object.

use serde_json::{Value, json};

use crate::read_metrics::{Metrics, Numbers};

/// `{"steps":[...],"eval":[...],"outcome":"..."}` and a line end.
pub fn json(metrics: &Metrics) -> String {
    let steps: Vec<Value> =
        metrics.steps.iter().map(|(step, numbers)| row([("step", json!(step))], numbers)).collect();
    let evals: Vec<Value> = metrics
        .evals
        .iter()
        .map(|((version, set), numbers)| row([("version", json!(version)), ("set", json!(set))], numbers))
        .collect();
    format!("{}\n", json!({"steps": steps, "eval": evals, "outcome": metrics.outcome}))
}

fn row<const N: usize>(identity: [(&str, Value); N], numbers: &Numbers) -> Value {
    let mut fields = Numbers::new();
    fields.extend(identity.map(|(key, value)| (key.to_owned(), value)));
    fields.extend(numbers.clone());
    Value::Object(fields)
}
