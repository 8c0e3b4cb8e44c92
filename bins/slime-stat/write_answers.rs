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
        let marked = |(text, reward): &(String, f32), (right, all): (usize, usize)| {
            let mark = if *reward > 0.0 { '+' } else { '-' };
            let count = if all > 1 { format!(" {right}/{all}") } else { String::new() };
            format!("{mark}{count} {}", shown(text))
        };
        let [first, newest] = answer.num_right;
        rows.push([
            shown(&answer.question),
            shown(&answer.label),
            marked(before, first),
            marked(after, newest),
        ]);
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
    text.extend([format!("right before: {}\nright after:  {}\n", answers.count(0), answers.count(1))]);
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
        let answer = Answer {
            question: "Compute 3 + 8.".to_owned(),
            label: "11".to_owned(),
            responses,
            num_right: [(0, 1), (1, 1)],
        };
        let text =
            answers(&Answers { set: "greedy".to_owned(), versions: [0, 8], rows: vec![answer.clone()] });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "question        expected  version 0   version 8");
        assert_eq!(lines[2], "Compute 3 + 8.  11        - about 12  + 11");
        assert_eq!(lines[3..], ["right before: 0 of 1 answers", "right after:  1 of 1 answers"]);
        let several = Answer { num_right: [(0, 2), (1, 2)], ..answer };
        let text = answers(&Answers { set: "held_out".to_owned(), versions: [0, 8], rows: vec![several] });
        assert!(text.contains("- 0/2 about 12  + 1/2 11\n"), "{text}");
        assert!(text.ends_with("right after:  1 of 2 answers, 1 of 1 questions at least once\n"), "{text}");
    }
}
