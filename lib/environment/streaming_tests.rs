//! What large prompt files take: the peak memory of a process that opens one and draws from it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::{Keys, PromptFile, PromptSource};

/// Names the file that the child opens.
const FILE: &str = "SLIME_TEST_STREAM";
/// Draws of the child, spread over the file.
const NUM_DRAWS: u64 = 60;

/// In a process of its own, which [`peak_of`] starts: draws from the file and says the most memory that took.
#[test]
#[ignore = "not a test by itself"]
fn child_body() {
    let Ok(path) = std::env::var(FILE) else { return };
    let prompts = PromptFile::open(&path, Keys::default(), Some(1)).unwrap();
    for cursor in 0..NUM_DRAWS {
        assert!(prompts.prompt(cursor).unwrap().prompt.len() > 999);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    eprintln!("peak {}", line.split_whitespace().nth(1).unwrap());
}

/// The child's peak resident memory in MB.
fn peak_of(path: &Path) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "streaming_tests::child_body", "--ignored", "--nocapture"]).env(FILE, path);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let peak = said.lines().find_map(|line| line.strip_prefix("peak ")).unwrap_or_else(|| panic!("{said}"));
    peak.parse::<u64>().unwrap() / 1024
}

/// A text of about a kilobyte that no other row has.
fn text(row: u64) -> String {
    format!("{row} {}", "x".repeat(1100))
}

fn write_jsonl(path: &Path, num_rows: u64) {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    for row in 0..num_rows {
        writeln!(file, "{{\"prompt\": \"{}\"}}", text(row)).unwrap();
    }
}

fn write_parquet(path: &Path, num_groups: u64, rows_of_group: u64) {
    let schema = arrow_schema::Schema::new(vec![arrow_schema::Field::new(
        "prompt",
        arrow_schema::DataType::Utf8,
        false,
    )]);
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(rows_of_group as usize)).build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), Arc::new(schema.clone()), Some(properties))
            .unwrap();
    for start in (0..num_groups * rows_of_group).step_by(1000) {
        let rows = (start..start + 1000).map(text).collect::<Vec<_>>();
        let column: ArrayRef = Arc::new(StringArray::from(rows));
        writer.write(&RecordBatch::try_new(Arc::new(schema.clone()), vec![column]).unwrap()).unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn a_large_file_of_lines_takes_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prompts.jsonl");
    write_jsonl(&path, 100_000);
    let peak = peak_of(&path);
    assert!(peak < 40, "{peak} MB for a file of 110 MB");
}

/// A page of a row group is read at a time, so neither the file's size nor the row group's matters.
#[test]
fn a_large_parquet_file_takes_little_memory_whatever_its_row_groups() {
    let dir = tempfile::tempdir().unwrap();
    for (name, num_groups, rows_of_group) in [("many.parquet", 20, 1000), ("one.parquet", 1, 20_000)] {
        let path = dir.path().join(name);
        write_parquet(&path, num_groups, rows_of_group);
        let peak = peak_of(&path);
        assert!(peak < 40, "{name}: {peak} MB for 20,000 rows of a kilobyte");
    }
}

/// 10 GB of either kind, which a temporary folder has to hold.
#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn ten_gigabytes_take_less_than_200_mb() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prompts.jsonl");
    write_jsonl(&path, 9_000_000);
    let of_lines = (std::fs::metadata(&path).unwrap().len() >> 20, peak_of(&path));
    std::fs::remove_file(&path).unwrap();
    let path = dir.path().join("prompts.parquet");
    write_parquet(&path, 90, 100_000);
    let of_parquet = (std::fs::metadata(&path).unwrap().len() >> 20, peak_of(&path));
    eprintln!("JSON lines, Parquet: (MB of the file, MB of memory) {of_lines:?}, {of_parquet:?}");
    assert!(of_lines.0 > 9500 && of_parquet.0 > 9500, "{of_lines:?}, {of_parquet:?}");
    assert!(of_lines.1 < 200 && of_parquet.1 < 200, "{of_lines:?}, {of_parquet:?}");
}
