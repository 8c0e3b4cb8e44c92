//! The lines in which nodes and ranks report, cut so that srun passes each on in one piece.

use std::io::{Write, stdout};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use slime_cli::Failure;

use super::check::Check;

/// The schema of the lines; another number means that old readers would misread them.
pub const SCHEMA: &str = "slime-preflight/1";
/// Bytes of a line with its end. Slurm sends the output of tasks on in messages of 1024 bytes, so a longer line of one
/// node gets lines of other nodes in its middle.
const MAX_LINE_BYTES: usize = 1000;
/// Bytes of the texts of a check, so that one check fits into a line beside two names of the longest kind (64 bytes).
const MAX_GOT_BYTES: usize = 190;
const MAX_EXPECTED_BYTES: usize = 100;
const MAX_HINT_BYTES: usize = 120;

/// Who reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Reporter {
    /// A node about itself.
    Node {
        /// The node's clock when it began.
        unix_s: f64,
    },
    /// A rank about its links.
    Link {
        /// The rank.
        rank: usize,
        /// Ranks of the world.
        size: usize,
        /// The node's clock at a moment that all ranks share; none where they did not come so far.
        #[serde(default)]
        unix_s: Option<f64>,
        /// Bandwidth to the rank before it on the ring; none for one rank.
        left_bytes_per_s: Option<f64>,
        /// Bandwidth to the rank after it.
        right_bytes_per_s: Option<f64>,
        /// Bytes an all-reduce moves through this rank's link, per second.
        all_reduce_bytes_per_s: Option<f64>,
    },
}

/// A part of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// [`SCHEMA`].
    pub schema: String,
    /// The name Slurm has for the node, else the host's.
    pub node: String,
    /// The host's own name.
    pub host: String,
    /// Who reports.
    #[serde(flatten)]
    pub reporter: Reporter,
    /// The place of this line among those of the report.
    pub part: usize,
    /// Lines of the report.
    pub num_parts: usize,
    /// Some of the checks.
    pub checks: Vec<Check>,
}

/// The name Slurm has for this node, else the host's, and the host's own.
pub fn place() -> (String, String) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let node = std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty());
    (node.unwrap_or_else(|| host.clone()), host)
}

/// The node's clock: seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A report as text: as many lines as it needs, each with its end.
pub fn text(node: &str, host: &str, reporter: &Reporter, checks: &[Check]) -> Result<String, Failure> {
    let line = |checks: &[Check], part, num_parts| {
        let (schema, node, host) = (SCHEMA.to_owned(), node.to_owned(), host.to_owned());
        let (reporter, checks) = (reporter.clone(), checks.to_vec());
        let line = Line { schema, node, host, reporter, part, num_parts, checks };
        serde_json::to_string(&line).map_err(|error| Failure::new(slime_cli::exit::BUG, error))
    };
    let mut parts: Vec<Vec<Check>> = vec![Vec::new()];
    for check in checks {
        let mut longer = parts.last().cloned().unwrap_or_default();
        longer.push(shortened(check));
        // Two digits stand for the numbers of any report here.
        let fits = line(&longer, 10, 10)?.len() < MAX_LINE_BYTES;
        if fits || longer.len() == 1 {
            parts.pop();
            parts.push(longer);
        } else {
            parts.push(vec![shortened(check)]);
        }
    }
    let mut text = String::new();
    for (number, part) in parts.iter().enumerate() {
        text += &line(part, number, parts.len())?;
        text.push('\n');
    }
    Ok(text)
}

/// Writes a report to stdout at once.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::io("stdout", &error))
}

fn shortened(check: &Check) -> Check {
    Check {
        name: check.name.clone(),
        verdict: check.verdict,
        got: short(&check.got, MAX_GOT_BYTES),
        expected: check.expected.as_deref().map(|text| short(text, MAX_EXPECTED_BYTES)),
        hint: check.hint.as_deref().map(|text| short(text, MAX_HINT_BYTES)),
    }
}

/// The text without what JSON would make longer, cut where it is too long.
fn short(text: &str, max_bytes: usize) -> String {
    let plain = |c: char| match c {
        '"' => '\'',
        '\\' => '/',
        c if c.is_control() => ' ',
        c => c,
    };
    let mut short = String::new();
    for c in text.trim().chars().map(plain) {
        if short.len() + c.len_utf8() > max_bytes {
            return short + "...";
        }
        short.push(c);
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Line> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn report_is_one_line_while_it_fits_and_no_line_is_ever_too_long() {
        let reporter = Reporter::Node { unix_s: 1_764_480_000.123_456 };
        let checks = vec![Check::ok("clock", "fine"); 3];
        let one = text("n1", "h1", &reporter, &checks).unwrap();
        assert_eq!((one.lines().count(), read(&one)[0].checks.len()), (1, 3));

        let long = "\"\\\u{1}ä€".repeat(1000);
        let checks: Vec<Check> = (0..30).map(|_| Check::bad(&"n".repeat(20), &long, &long, &long)).collect();
        let node = "x".repeat(64);
        let rate = Some(1_234_567_890_123.0);
        let reporter = Reporter::Link {
            rank: 10_000,
            size: 10_001,
            unix_s: Some(1_764_480_000.123_456),
            left_bytes_per_s: rate,
            right_bytes_per_s: rate,
            all_reduce_bytes_per_s: rate,
        };
        let many = text(&node, &node, &reporter, &checks).unwrap();
        assert!(many.lines().all(|line| line.len() < MAX_LINE_BYTES), "{many}");
        let lines = read(&many);
        assert_eq!(lines.iter().map(|line| line.checks.len()).sum::<usize>(), 30);
        assert!(lines.iter().enumerate().all(|(at, line)| line.part == at && line.num_parts == lines.len()));
    }

    #[test]
    fn empty_report_is_a_line_too() {
        let text = text("n1", "h1", &Reporter::Node { unix_s: 1.0 }, &[]).unwrap();
        assert_eq!(read(&text)[0].num_parts, 1);
    }
}
