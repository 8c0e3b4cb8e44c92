//! From lines to the verdict: read, judge, write, and an exit code that a job script can trust.

use std::fs::File;
use std::io::{Read, stdin};

use slime_cli::{Failure, exit};

use super::args::Verdict;
use super::judge::{Expected, Judged, judge};
use super::line::{Line, SCHEMA, write};
use super::write_verdict::{failure, warnings, write_json};

/// Judges the lines of `args.input`.
///
/// # Errors
/// A bad node (69), and input or output that is not usable.
pub fn run(args: &Verdict) -> Result<(), Failure> {
    let (name, text) = read(&args.input)?;
    let lines = parse(&name, &text)?;
    let expected: Vec<&str> =
        args.expect_nodes.iter().map(|node| node.trim()).filter(|node| !node.is_empty()).collect();
    if lines.is_empty() && expected.is_empty() {
        return Err(Failure::data(format!("{name}: no line of a preflight")).with_hint(
            "slime-sync preflight node writes them; --expect-nodes makes a silent node a bad one",
        ));
    }
    let expected = Expected { nodes: &expected, links: args.expect_links };
    let judged: Judged = judge(&lines, &expected, args.max_skew_s.as_secs_f64());
    for warning in warnings(&judged) {
        tracing::warn!("{warning}");
    }
    if let Some(output) = &args.output {
        write_json(&judged, output)?;
    }
    if !judged.exclude.is_empty() && args.output.as_deref() != Some("-") {
        write(&format!("{}\n", judged.exclude.join(",")))?;
    }
    failure(&judged).map_or(Ok(()), Err)
}

fn read(input: &str) -> Result<(String, String), Failure> {
    let mut bytes = Vec::new();
    let name = if input == "-" { "stdin" } else { input };
    if input == "-" {
        stdin().read_to_end(&mut bytes).map_err(|error| Failure::io(name, &error))?;
    } else {
        let mut file = File::open(input).map_err(|error| Failure::open(input, &error))?;
        file.read_to_end(&mut bytes).map_err(|error| Failure::io(name, &error))?;
    }
    Ok((name.to_owned(), String::from_utf8_lossy(&bytes).into_owned()))
}

/// The lines of the preflight; what modules and launchers print between them is counted and left out.
fn parse(name: &str, text: &str) -> Result<Vec<Line>, Failure> {
    let (mut lines, mut others) = (Vec::new(), 0);
    for (number, line) in text.lines().enumerate() {
        // srun --label puts the task before the line.
        let Some(start) = line.find("{\"schema\":\"slime-preflight/") else {
            others += usize::from(!line.trim().is_empty());
            continue;
        };
        let broken =
            |problem: String| Failure::new(exit::DATA, format!("{name}: line {}: {problem}", number + 1));
        let value: serde_json::Value = serde_json::from_str(line[start..].trim_end())
            .map_err(|error| broken(format!("a broken line of a preflight: {error}")))?;
        if value["schema"] != SCHEMA {
            let message = format!("expected schema {SCHEMA}, got {}", value["schema"]);
            return Err(broken(message).with_hint("use the same slime-sync on all nodes"));
        }
        let line = serde_json::from_value(value);
        lines.push(line.map_err(|error| broken(format!("a broken line of a preflight: {error}")))?);
    }
    if others > 0 {
        tracing::warn!("{name}: left out {others} lines that are not of a preflight");
    }
    Ok(lines)
}
