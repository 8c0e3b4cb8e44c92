//! Other readers open our files: pyarrow, where a Python with it is at hand.

use crate::testing::random_samples;
use crate::{Column, ColumnValues, Provenance, Row, StreamWriter, decode_segment, encode_segment};
use std::path::Path;
use std::process::Command;

/// A Python that can import pyarrow: `SLIME_PYTHON` or `python3`.
fn python() -> Option<String> {
    let python = std::env::var("SLIME_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let import = Command::new(&python).args(["-c", "import pyarrow"]).output();
    if import.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    eprintln!("skipped: {python} cannot import pyarrow (set SLIME_PYTHON)");
    None
}

fn run(python: &str, program: &str, path: &Path) -> String {
    let output = Command::new(python).args(["-c", program]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pyarrow_reads_segments_streams_and_columns() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file.arrow");
    let samples = random_samples(41, 6);
    let tokens: usize = samples.iter().map(|sample| sample.tokens.len()).sum();

    let program = "import pyarrow as pa, sys\n\
        with pa.memory_map(sys.argv[1]) as m:\n    \
            t = pa.ipc.open_file(m).read_all(); t.validate(full=True)\n    \
            print(t.num_rows, sum(map(len, t['tokens'].to_pylist())), t.schema.metadata[b'slime.seed'].decode())";
    std::fs::write(
        &path,
        encode_segment(&samples, &Provenance { seed: 5, ..Provenance::default() }).unwrap(),
    )
    .unwrap();
    assert_eq!(run(&python, program, &path).trim(), format!("6 {tokens} 5"));

    let column = Column::new("reward", &samples, ColumnValues::F32(vec![0.5; 6]));
    std::fs::write(&path, column.encode(&Provenance::default()).unwrap()).unwrap();
    let program = "import pyarrow as pa, sys\n\
        t = pa.ipc.open_file(sys.argv[1]).read_all(); t.validate(full=True); print(sum(t['reward'].to_pylist()))";
    assert_eq!(run(&python, program, &path).trim(), "3.0");

    let rows: Vec<Row> = samples.into_iter().map(Row::from).collect();
    let mut writer = StreamWriter::new(Vec::new(), &Provenance::default()).unwrap();
    writer.write(&rows).unwrap();
    std::fs::write(&path, writer.finish().unwrap()).unwrap();
    let program = "import pyarrow as pa, sys\n\
        t = pa.ipc.open_stream(sys.argv[1]).read_all(); t.validate(full=True); print(t['reward'].null_count)";
    assert_eq!(run(&python, program, &path).trim(), "6");
}

#[test]
fn a_segment_rewritten_by_pyarrow_is_read_back() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file.arrow");
    let samples = random_samples(42, 6);
    std::fs::write(&path, encode_segment(&samples, &Provenance::default()).unwrap()).unwrap();
    let program = "import pyarrow as pa, sys\n\
        t = pa.ipc.open_file(open(sys.argv[1], 'rb').read()).read_all()\n\
        with pa.OSFile(sys.argv[1], 'wb') as f, pa.ipc.new_file(f, t.schema) as w: w.write_table(t)";
    run(&python, program, &path);
    assert_eq!(decode_segment(std::fs::read(&path).unwrap()).unwrap().samples().unwrap(), samples);
}
