//! Questions with their answers before and after, right ones marked.

use crate::read_answers::Answers;

/// Characters of a question or an answer that are shown.
const SHOWN: usize = 56;

/// The table of answers.
pub fn answers(answers: &Answers) -> String {
    let [first, last] = answers.versions;
    let mut rows = vec![[
        "question".to_owned(),
        "expected".to_owned(),
        format!("version {first}"),
        format!("version {last}"),
    ]];
    for answer in &answers.rows {
        let [before, after] = &answer.responses;
        let marked = |(text, reward): &(String, f32)| {
            let mark = if *reward > 0.0 { '+' } else { '-' };
            format!("{mark} {}", shown(text))
        };
        rows.push([shown(&answer.question), shown(&answer.label), marked(before), marked(after)]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..4).map(width).collect();
    let mut text = format!("answers of set {} (+ has a reward above 0)\n", answers.set);
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    let count = |which: usize| answers.rows.iter().filter(|answer| answer.responses[which].1 > 0.0).count();
    text.extend([format!("{} of {} before, {} after\n", count(0), answers.rows.len(), count(1))]);
    text
}

/// One line, cut where it is too long.
fn shown(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= SHOWN {
        return line;
    }
    line.chars().take(SHOWN - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_answers::Answer;

    #[test]
    fn answers_stand_side_by_side_with_their_marks() {
        let responses = [("about\n12".to_owned(), 0.0), ("11".to_owned(), 1.0)];
        let answer = Answer { question: "Compute 3 + 8.".to_owned(), label: "11".to_owned(), responses };
        let text = answers(&Answers { set: "greedy".to_owned(), versions: [0, 8], rows: vec![answer] });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "question        expected  version 0   version 8");
        assert_eq!(lines[2], "Compute 3 + 8.  11        - about 12  + 11");
        assert_eq!(lines[3], "0 of 1 before, 1 after");
    }
}
