//! Pairs of answers of every kind, equal (`equal.txt`) and not (`different.txt`): a label, a tab and a response on each
//! line, `⏎` for a line break.

use crate::verdict;

/// Labels and responses that mean the same.
pub(crate) const EQUAL: &str = include_str!("equal.txt");
/// Labels and responses that do not.
pub(crate) const DIFFERENT: &str = include_str!("different.txt");

/// The pairs of a text; lines without a tab are headings.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(label, response)| (label.replace('⏎', "\n"), response.replace('⏎', "\n"))).collect()
}

#[test]
fn equal_pairs_are_equal_and_others_are_not() {
    let mut wrong = Vec::new();
    for (text, expected) in [(EQUAL, 1.0), (DIFFERENT, 0.0)] {
        for (label, response) in pairs(text) {
            let (reward, reason) = verdict("math", &response, &label);
            if (reward - expected).abs() > 0.5 {
                wrong.push(format!("{label}   {response}   expected {expected}: {reason}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
