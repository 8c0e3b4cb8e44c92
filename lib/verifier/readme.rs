//! Tables of the README that tests make and compare.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

/// Two tables may be written by two tests at once.
static WRITING: Mutex<()> = Mutex::new(());

/// Holds the table between `<!-- NAME: begin -->` and `<!-- NAME: end -->` to `table`; `SLIME_WRITE_TABLE=1` writes it.
pub(crate) fn compare(name: &str, table: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let _writing = WRITING.lock().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = text.split_once(&begin).expect("the table's begin in the README");
    let (old, after) = rest.split_once(&end).expect("the table's end in the README");
    if std::env::var_os("SLIME_WRITE_TABLE").is_some() {
        fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert!(
        old == table,
        "the README's table {name} is not this one (SLIME_WRITE_TABLE=1 writes it):\n{table}"
    );
}
