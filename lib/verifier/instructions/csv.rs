//! Rows of comma- or tab-separated text, read as Python's `csv` module reads them.

/// The fields of each line; a quoted field keeps its separators and line breaks, a blank line is a row of none.
pub(super) fn rows(text: &str, separator: char) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut is_quoted, mut has_begun, mut line_is_empty) = (false, false, true);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' if is_quoted => is_quoted = false,
            _ if is_quoted => field.push(letter),
            '"' if !has_begun => (is_quoted, has_begun, line_is_empty) = (true, true, false),
            '\n' => {
                if !line_is_empty {
                    row.push(std::mem::take(&mut field));
                }
                rows.push(std::mem::take(&mut row));
                (has_begun, line_is_empty) = (false, true);
            }
            '\r' if letters.peek() == Some(&'\n') => {}
            _ if letter == separator => {
                row.push(std::mem::take(&mut field));
                (has_begun, line_is_empty) = (false, false);
            }
            _ => {
                field.push(letter);
                (has_begun, line_is_empty) = (true, false);
            }
        }
    }
    if !line_is_empty {
        row.push(field);
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_separators() {
        assert_eq!(rows("a,\"b,\"\"c\"\"\"\n\n1,2\n", ','), [vec!["a", "b,\"c\""], vec![], vec!["1", "2"]]);
        assert_eq!(rows("a,", ','), [["a", ""]]);
    }
}
