//! Scalars as an event file of `TensorBoard`, of the same form and names as the one that tools write during a run.

use std::io::Write;
use std::path::Path;

use prost::Message;
use slime_cli::{Failure, Output};
use slime_metrics::event_file::{Event, FILE_VERSION, Scalar, Summary, frame, tag};

use super::rows::Rows;
use crate::read_run::Run;

/// One fixed name, so that an export again replaces the one before; `TensorBoard` looks for `tfevents`.
const NAME: &str = "events.out.tfevents.0000000000.slime";

/// Writes the event file into a folder.
///
/// # Errors
/// It cannot be written.
pub fn write(run: &Run, place: &str) -> Result<(), Failure> {
    super::folder(Path::new(place))?;
    let path = Path::new(place).join(NAME);
    let name = path.to_string_lossy();
    let mut output = Output::create(&name)?;
    let mut put = |event: &Event| {
        let mut record = Vec::new();
        frame(&event.encode_to_vec(), &mut record);
        output.write_all(&record).map_err(|error| Failure::io(&name, &error))
    };
    let version = Some(FILE_VERSION.to_owned());
    put(&Event { file_version: version, ..Event::default() })?;
    for event in events(run) {
        put(&event)?;
    }
    output.finish()
}

fn events(run: &Run) -> Vec<Event> {
    let (steps, evals) = (Rows::of_steps(&run.metrics), Rows::of_evals(&run.metrics));
    let scalars = |names: Vec<String>, values: &[Option<f64>]| -> Vec<Scalar> {
        let scalar =
            |(tag, value): (String, &Option<f64>)| Some(Scalar { tag, simple_value: Some((*value)? as f32) });
        names.into_iter().zip(values).filter_map(scalar).collect()
    };
    let event = |at: u64, time: Option<f64>, value| Event {
        wall_time: time.unwrap_or(0.0),
        step: at as i64,
        file_version: None,
        summary: Some(Summary { value }),
    };
    let of_steps =
        steps.entries.iter().map(|row| event(row.at, row.time, scalars(steps.names.clone(), &row.values)));
    let of_evals = evals.entries.iter().map(|row| {
        let set = row.set.as_deref().unwrap_or_default();
        let names = evals.names.iter().map(|name| tag(Some(set), name)).collect();
        event(row.at, row.time, scalars(names, &row.values))
    });
    of_steps.chain(of_evals).collect()
}
