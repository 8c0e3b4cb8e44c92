//! Prompts from a JSONL file: the file is indexed once, rows are read when they are drawn.

use crate::{Error, Prompt, PromptSource, Result, permute, split_spec};
use serde_json::{Map, Value};
use slime_record::PromptContent;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// The keys under which a row holds its parts. A key of another than the default name must be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The prompt: text, or chat messages; always required.
    pub input: String,
    /// The reference answer.
    pub label: String,
    /// Anything, passed through.
    pub metadata: String,
    /// Tool definitions.
    pub tools: String,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            input: "prompt".to_owned(),
            label: "label".to_owned(),
            metadata: "metadata".to_owned(),
            tools: "tools".to_owned(),
        }
    }
}

/// Where a row lies in the file.
#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    bytes: u64,
    line: u64,
}

/// The rows of a JSONL file, or a slice of them, in a new order every epoch.
#[derive(Debug)]
pub struct JsonlPrompts {
    path: PathBuf,
    name: String,
    file: File,
    places: Vec<Place>,
    content_hash: u64,
    keys: Keys,
    shuffle: Option<u64>,
}

impl JsonlPrompts {
    /// Indexes the file `spec` (`path` or `path@[a:b]`); `shuffle` is the seed, or none for file order.
    ///
    /// # Errors
    /// A file that cannot be read, has no rows, or whose first row lacks a key.
    pub fn open(spec: &str, keys: Keys, shuffle: Option<u64>) -> Result<Self> {
        let (path, slice) = split_spec(spec)?;
        let path = PathBuf::from(path);
        let failed = |source| Error::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(failed)?;
        let (mut places, content_hash) = index(&file).map_err(failed)?;
        let rows = places.len();
        let range = slice.range(rows);
        places.truncate(range.end);
        places.drain(..range.start);
        if places.is_empty() {
            let reason = format!("the file has {rows} rows");
            return Err(Error::Empty { name: spec.to_owned(), reason });
        }
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let prompts = Self { path, name, file, places, content_hash, keys, shuffle };
        prompts.row(0)?;
        Ok(prompts)
    }

    /// XXH3 (64 bits) of the whole file, for the run's provenance.
    pub fn content_hash(&self) -> u64 {
        self.content_hash
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn row(&self, row: usize) -> Result<Prompt> {
        let place = self.places[row];
        let wrong = |reason: String| Error::Row { path: self.path.clone(), line: place.line, reason };
        let mut bytes = vec![0; place.bytes as usize];
        self.file
            .read_exact_at(&mut bytes, place.offset)
            .map_err(|source| Error::Io { path: self.path.clone(), source })?;
        let mut object: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|error| wrong(json_reason(&error)))?;
        let keys: Vec<String> = object.keys().cloned().collect();
        let mut take = |key: &str, default: &str, option: &'static str| match object.remove(key) {
            None | Some(Value::Null) if key == default && default != "prompt" => Ok(None),
            None | Some(Value::Null) => Err(Error::Key {
                path: self.path.clone(),
                line: place.line,
                key: key.to_owned(),
                option,
                keys: keys.clone(),
            }),
            value => Ok(value),
        };
        let input = take(&self.keys.input, "prompt", "input_key")?;
        let label = take(&self.keys.label, "label", "label_key")?;
        let metadata = take(&self.keys.metadata, "metadata", "metadata_key")?;
        let tools = take(&self.keys.tools, "tools", "tool_key")?;
        let content = PromptContent::from_value(input.unwrap_or_default())
            .map_err(|error| wrong(format!("key \"{}\": {error}", self.keys.input)))?;
        Ok(Prompt {
            prompt_id: format!("{}:{}", self.name, place.line),
            source: self.name.clone(),
            prompt: content.to_json(),
            label: label.map(text_of),
            metadata: metadata.map(|value| value.to_string()),
            tools: tools.map(|value| value.to_string()),
        })
    }
}

impl PromptSource for JsonlPrompts {
    fn len(&self) -> Option<u64> {
        Some(self.places.len() as u64)
    }

    fn prompt(&self, cursor: u64) -> Result<Prompt> {
        let len = self.places.len() as u64;
        let (epoch, position) = (cursor / len, cursor % len);
        let row = self.shuffle.map_or(position, |seed| permute(position, len, seed, epoch));
        self.row(row as usize)
    }
}

/// A label is text; numbers and the like are taken as they are spelt.
fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// serde counts lines within the row, where there is only one.
fn json_reason(error: &serde_json::Error) -> String {
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    format!("column {}: {reason}", error.column())
}

/// The places of all rows that are not blank, and the hash of the file.
fn index(file: &File) -> std::io::Result<(Vec<Place>, u64)> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let (mut places, mut hasher) = (Vec::new(), Xxh3::new());
    let (mut offset, mut line, mut text) = (0, 0, Vec::new());
    loop {
        text.clear();
        let bytes = reader.read_until(b'\n', &mut text)? as u64;
        if bytes == 0 {
            return Ok((places, hasher.digest()));
        }
        hasher.update(&text);
        line += 1;
        let mark: u64 = if line == 1 && text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        if !text[mark as usize..].trim_ascii().is_empty() {
            places.push(Place { offset: offset + mark, bytes: bytes - mark, line });
        }
        offset += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn open(text: &str, keys: Keys) -> Result<JsonlPrompts> {
        JsonlPrompts::open(file(text).path().to_str().unwrap(), keys, None)
    }

    fn numbered(rows: usize) -> tempfile::NamedTempFile {
        let lines: Vec<_> = (0..rows).map(|i| format!("{{\"prompt\":\"p{i}\",\"label\":{i}}}\n")).collect();
        file(&lines.concat())
    }

    #[test]
    fn rows_are_read_with_text_messages_labels_metadata_and_tools() {
        let text = concat!(
            "\u{feff}{\"prompt\":\"a\",\"label\":7,\"metadata\":{\"b\":1,\"a\":2}}\n",
            "\n",
            "{\"prompt\":[{\"role\":\"user\",\"content\":\"é\"}],\"tools\":[{\"name\":\"f\"}]}",
        );
        let prompts = open(text, Keys::default()).unwrap();
        assert_eq!(prompts.len(), Some(2));
        let first = prompts.prompt(0).unwrap();
        assert_eq!((first.prompt.as_str(), first.label.as_deref()), ("\"a\"", Some("7")));
        assert_eq!(first.metadata.as_deref(), Some(r#"{"b":1,"a":2}"#));
        let second = prompts.prompt(1).unwrap();
        assert_eq!(second.prompt, r#"[{"role":"user","content":"é"}]"#);
        assert_eq!(second.tools.as_deref(), Some(r#"[{"name":"f"}]"#));
        assert!(second.prompt_id.ends_with(":3"), "{}", second.prompt_id);
        assert_eq!(second.label, None);
    }

    #[test]
    fn every_epoch_has_every_row_once_in_an_order_of_its_own() {
        let file = numbered(23);
        let prompts = JsonlPrompts::open(file.path().to_str().unwrap(), Keys::default(), Some(3)).unwrap();
        let epoch = |e: u64| -> Vec<String> {
            (0..23).map(|i| prompts.prompt(e * 23 + i).unwrap().label.unwrap()).collect()
        };
        assert_ne!(epoch(0), epoch(1));
        for e in 0..3 {
            let mut labels: Vec<u32> = epoch(e).iter().map(|label| label.parse().unwrap()).collect();
            labels.sort_unstable();
            assert_eq!(labels, (0..23).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_slice_is_a_part_of_the_rows() {
        let file = numbered(10);
        let spec = format!("{}@[3:5]", file.path().display());
        let prompts = JsonlPrompts::open(&spec, Keys::default(), None).unwrap();
        let labels: Vec<_> = (0..4).map(|i| prompts.prompt(i).unwrap().label.unwrap()).collect();
        assert_eq!(labels, ["3", "4", "3", "4"]);
        let spec = format!("{}@[10:]", file.path().display());
        let error = JsonlPrompts::open(&spec, Keys::default(), None).unwrap_err();
        assert!(error.to_string().ends_with("@[10:]: no prompts: the file has 10 rows"), "{error}");
    }

    #[test]
    fn errors_name_the_line_and_the_keys_that_exist() {
        let keys = Keys { input: "question".to_owned(), ..Keys::default() };
        let error = open("\n{\"q\":1,\"answer\":2}\n", keys).unwrap_err().to_string();
        assert!(
            error.ends_with("line 2: no key \"question\" (input_key)\nhint: the row has the keys q, answer")
        );
        let keys = Keys { label: "solution".to_owned(), ..Keys::default() };
        let error = open("{\"prompt\":\"a\",\"answer\":2}\n", keys).unwrap_err().to_string();
        assert!(error.contains("no key \"solution\" (label_key)"), "{error}");
        let error = open("{\"prompt\":\"a\"", Keys::default()).unwrap_err();
        assert!(error.to_string().contains(": line 1: column 13: EOF while parsing"), "{error}");
        let error = open("{\"prompt\":5}", Keys::default()).unwrap_err();
        assert!(error.to_string().contains("line 1: key \"prompt\": prompt: expected a string"), "{error}");
        assert_eq!(error.exit_code(), 65);
        let later = open("{\"prompt\":\"a\"}\n[]\n", Keys::default()).unwrap();
        assert!(later.prompt(1).unwrap_err().to_string().contains(": line 2: "));
    }

    #[test]
    fn a_missing_or_empty_file_says_so() {
        let error = JsonlPrompts::open("/nonexistent/p.jsonl", Keys::default(), None).unwrap_err();
        assert_eq!(error.exit_code(), 66);
        assert_eq!(open("\n", Keys::default()).unwrap_err().exit_code(), 65);
    }
}
