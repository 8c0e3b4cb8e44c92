//! The evaluation questions with the answers of the first and the newest version beside each other.

use maud::{Markup, html};

use super::samples::cut;
use crate::read_answers::{Answer, read_answers};
use crate::read_run::Run;

/// Questions of one set.
const MAX_ROWS: usize = 40;
/// Bytes of one answer.
const MAX_TEXT: usize = 1_500;

/// The section of all sets; nothing where none was evaluated twice.
pub fn section(run: &Run) -> Markup {
    let root = run.dir.root().to_string_lossy();
    let sets: Vec<_> =
        run.metrics.sets().into_iter().filter_map(|set| read_answers(&root, set).ok()).collect();
    let sets: Vec<_> = sets.into_iter().filter(|set| set.versions[0] != set.versions[1]).collect();
    if sets.is_empty() {
        return html! {};
    }
    html! {
        section #answers {
            h2 { "Before and after" }
            p.explain { "The same evaluation questions, answered by the first and by the newest version: of each its first answer, and "
                "how many of all its answers are right (have a reward above 0). Questions where that changed come first." }
            @for set in sets {
                @let [first, last] = set.versions;
                details.card open[set.rows.len() <= MAX_ROWS] {
                    summary {
                        "Set " b { (set.set) } ", right at version " (first) ": " (set.count(0))
                        "; at version " (last) ": " (set.count(1))
                    }
                    table.answers {
                        thead { tr { th { "question" } th { "expected" } th { "version " (first) } th { "version " (last) } } }
                        tbody { @for row in ordered(&set.rows) { (line(row)) } }
                    }
                    @if set.rows.len() > MAX_ROWS { p.note { (set.rows.len() - MAX_ROWS) " more questions are left out." } }
                }
            }
        }
    }
}

/// Changed ones first, otherwise in their order.
fn ordered(rows: &[Answer]) -> Vec<&Answer> {
    let mut ordered: Vec<&Answer> = rows.iter().collect();
    ordered.sort_by_key(|row| {
        row.num_right[0] == row.num_right[1] && (row.responses[0].1 - row.responses[1].1).abs() < 1e-6
    });
    ordered.truncate(MAX_ROWS);
    ordered
}

fn line(row: &Answer) -> Markup {
    html! {
        tr {
            td.text { (cut(&row.question, MAX_TEXT)) }
            td.text { (cut(&row.label, 200)) }
            @for ((response, reward), (right, all)) in row.responses.iter().zip(row.num_right) {
                td.text.right[*reward > 0.0].wrong[*reward <= 0.0] {
                    span.mark title=(format!("reward {reward}")) { @if *reward > 0.0 { "✓ " } @else { "✕ " } }
                    @if all > 1 { span.note { (right) " of " (all) " " } }
                    (cut(response, MAX_TEXT))
                }
            }
        }
    }
}
