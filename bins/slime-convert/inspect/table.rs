//! Aligned text: a table with a header, and a list of facts.

/// Rows of equal length, the first of them the header; columns of numbers stand to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let num_columns = rows.first().map_or(0, Vec::len);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
    let is_number = |i: usize| {
        rows.iter()
            .skip(1)
            .filter_map(|row| row.get(i))
            .all(|cell| cell.parse::<f64>().is_ok() || cell == "-")
    };
    let columns: Vec<(usize, bool)> =
        (0..num_columns).map(|i| (width(i).unwrap_or(0), rows.len() > 1 && is_number(i))).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&columns).map(|(cell, (width, is_number))| {
            if *is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// One fact a line, names to the left; facts without a value are left out.
pub fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines = facts.iter().filter(|(_, value)| !value.trim().is_empty());
    lines.map(|(name, value)| format!("{name:<width$}  {value}\n")).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let rows = [["name", "n"], ["a", "10"], ["long", "-"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "name   n\na     10\nlong   -\n");
        assert_eq!(
            facts(&[("a", "x".to_owned()), ("long", "y".to_owned()), ("b", String::new())]),
            "a     x\nlong  y\n"
        );
    }
}
