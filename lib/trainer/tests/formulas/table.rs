//! The README's table: what was checked of each formula, made by the checks themselves.

use std::path::PathBuf;

use slime_config::formulas::{FORMULAS, Formula};

use crate::{golden, gradient, invariance, learns};

/// Largest relative error of a gradient against central differences in f64.
const GRADIENT: f64 = 1e-6;

const HEAD: &str = "| formula | golden values | gradient | invariance | learns |\n|---|---|---|---|---|\n";

/// The row of a formula. What is measured differs in its last digits from machine to machine, so rows say bounds.
fn row(formula: &Formula) -> String {
    let name = formula.name;
    let golden: Vec<String> =
        golden::check(name).into_iter().map(|(whose, num)| format!("{whose} {num}")).collect();
    let gradient = gradient::check(name).map_or("constant in the loss".to_owned(), |error| {
        assert!(error < GRADIENT, "{name}: gradient is off by {error:e}");
        "f64 differences".to_owned()
    });
    let apart = invariance::check(name);
    assert!(apart < 1e-4, "{name}: {apart:e}");
    let (before, after) = learns::check(name);
    println!("{name}: {golden:?}, layouts differ by {apart:.1e}, {before:.3} -> {after:.3}");
    format!("| `{name}` | {} | {gradient} | yes | yes |\n", golden.join(", "))
}

/// Set `SLIME_WRITE_TABLE=1` to write the table into the README instead of comparing it.
#[test]
fn table_of_the_readme_is_what_the_checks_say() {
    // The models are tiny: a second thread would only wait for the first.
    tch::set_num_threads(1);
    // Cheap checks of all first: an error there is told at once.
    for formula in FORMULAS {
        golden::check(formula.name);
        gradient::check(formula.name);
    }
    let table: String = HEAD.to_owned() + &FORMULAS.iter().map(row).collect::<String>();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- formulas: begin -->\n", "<!-- formulas: end -->");
    let (before, rest) = text.split_once(begin).expect("a table of formulas in the README");
    let (old, after) = rest.split_once(end).expect("the end of the table");
    if std::env::var_os("SLIME_WRITE_TABLE").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert!(old == table, "the README's table is not this one (SLIME_WRITE_TABLE=1 writes it):\n{table}");
}
