//! The whole of a run's metrics as one JSON object.

use serde_json::{Value, json};

use crate::read_metrics::{Metrics, Numbers};
use crate::summarise::Summary;
use crate::write_summary;

/// `{"steps":[...],"eval":[...],"outcome":"..."}` and a line end; with a run also the keys of its summary.
pub fn json(metrics: &Metrics, summary: Option<&Summary>) -> String {
    let steps: Vec<Value> =
        metrics.steps.iter().map(|(step, numbers)| row([("step", json!(step))], numbers)).collect();
    let evals: Vec<Value> = metrics
        .evals
        .iter()
        .map(|((version, set), numbers)| row([("version", json!(version)), ("set", json!(set))], numbers))
        .collect();
    let mut all = Numbers::new();
    all.insert("steps".to_owned(), steps.into());
    all.insert("eval".to_owned(), evals.into());
    all.insert("outcome".to_owned(), metrics.outcome.as_str().into());
    all.extend(summary.map(write_summary::json).unwrap_or_default());
    format!("{}\n", Value::Object(all))
}

fn row<const N: usize>(identity: [(&str, Value); N], numbers: &Numbers) -> Value {
    let mut fields = Numbers::new();
    fields.extend(identity.map(|(key, value)| (key.to_owned(), value)));
    fields.extend(numbers.clone());
    Value::Object(fields)
}
