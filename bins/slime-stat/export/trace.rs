//! The trace files of all tools as one array of Chrome's trace format, with names of processes and threads.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::{Value, json};
use slime_cli::{Failure, Output, exit};

use crate::read_run::Run;
use crate::read_trace::{TRACES, read_events, trace_files};

/// Writes the merged trace.
///
/// # Errors
/// There is no trace, or the file cannot be written.
pub fn write(run: &Run, path: &str) -> Result<(), Failure> {
    let files = trace_files(&run.dir);
    if files.is_empty() {
        let message = format!("{}: no trace files", run.dir.join(TRACES).display());
        return Err(
            Failure::new(exit::NO_INPUT, message).with_hint("tools write them when [metrics] trace = true")
        );
    }
    let mut output = Output::create(path)?;
    let mut put = |text: String| output.write_all(text.as_bytes()).map_err(|error| Failure::io(path, &error));
    put("[\n".to_owned())?;
    let mut separator = "";
    for (at, (role, incarnation, file)) in files.iter().enumerate() {
        let (events, _) = read_events(file, u64::MAX).map_err(|error| Failure::io(file.display(), &error))?;
        // Numbers of processes repeat on other nodes; here each file is a process of its own.
        let pid = at + 1;
        let mut threads = BTreeSet::new();
        let name = if incarnation.is_empty() { role.clone() } else { format!("{role} ({incarnation})") };
        let mut lines = vec![
            meta("process_name", pid, 0, &json!({"name": name})),
            meta("process_sort_index", pid, 0, &json!({"sort_index": at})),
        ];
        for mut event in events {
            let tid = event.get("tid").and_then(Value::as_u64).unwrap_or(0);
            let is_name = event.get("ph").and_then(Value::as_str) == Some("M");
            let kind = event.get("name").and_then(Value::as_str).unwrap_or_default();
            if is_name && kind.starts_with("process_") {
                // Its name and place are those above.
                continue;
            }
            if is_name && kind == "thread_name" {
                threads.insert(tid);
            } else if !is_name && threads.insert(tid) {
                lines.push(meta("thread_name", pid, tid, &json!({"name": format!("{role} {tid}")})));
            }
            event.insert("pid".to_owned(), json!(pid));
            event.insert("tid".to_owned(), json!(tid));
            lines.push(Value::Object(event));
        }
        for line in lines {
            put(format!("{separator}{line}"))?;
            separator = ",\n";
        }
    }
    put("\n]\n".to_owned())?;
    output.finish()
}

fn meta(name: &str, pid: usize, tid: u64, args: &Value) -> Value {
    json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})
}
