//! JSON spelt as Python's `json.dumps` spells it, because models were trained on that spelling.

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{Result, Write};

/// JSON on one line with `", "` and `": "`, or over several lines with an indent.
pub(crate) fn dumps(value: &impl Serialize, indent: Option<usize>) -> serde_json::Result<String> {
    let mut out = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine))?,
        Some(width) => {
            let spaces = vec![b' '; width];
            let formatter = PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
        }
    }
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spelling_is_that_of_python() {
        // json.dumps(value, ensure_ascii=False) and the same with indent=2 under CPython 3.12.
        let value = json!({"z": [1, 2.5, null, true], "a": {"é": "\"\n<"}, "e": [], "o": {}});
        let one_line = r#"{"z": [1, 2.5, null, true], "a": {"é": "\"\n<"}, "e": [], "o": {}}"#;
        assert_eq!(dumps(&value, None).unwrap(), one_line);
        let lines = "{\n  \"a\": [\n    1,\n    2\n  ]\n}";
        assert_eq!(dumps(&json!({"a": [1, 2]}), Some(2)).unwrap(), lines);
    }
}
