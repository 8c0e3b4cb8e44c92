//! Rows as comma-separated values with a line of names (RFC 4180).

use super::rows::Rows;

/// The whole file; what a row does not have is empty.
pub fn text(rows: &Rows) -> String {
    let has_set = rows.entries.iter().any(|row| row.set.is_some());
    let mut names = vec![rows.key.to_owned()];
    names.extend(has_set.then(|| "set".to_owned()));
    names.push("time".to_owned());
    names.extend(rows.names.iter().map(|name| quoted(name)));
    let mut text = names.join(",") + "\n";
    for row in &rows.entries {
        text += &row.at.to_string();
        if let Some(set) = &row.set {
            text.push(',');
            text += &quoted(set);
        }
        for value in std::iter::once(&row.time).chain(&row.values) {
            text.push(',');
            text += &value.map(|value| value.to_string()).unwrap_or_default();
        }
        text.push('\n');
    }
    text
}

fn quoted(text: &str) -> String {
    let is_plain = !text.contains([',', '"', '\n', '\r']);
    if is_plain { text.to_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Entry;
    use super::*;

    #[test]
    fn missing_values_are_empty_and_names_are_quoted() {
        let entry = Entry { at: 3, set: None, time: Some(1.5), values: vec![None, Some(2e-5)] };
        let rows =
            Rows { key: "step", names: vec!["a".to_owned(), "b,\"c\"".to_owned()], entries: vec![entry] };
        assert_eq!(text(&rows), "step,time,a,\"b,\"\"c\"\"\"\n3,1.5,,0.00002\n");
    }
}
