//! Prompts out of a file of rows: which keys they stand under, which slice is taken, in which order.

use std::path::PathBuf;

use serde_json::{Map, Number, Value};
use slime_config::{Data, Kind};
use slime_record::PromptContent;

use crate::recorded::{self, Problem, Recorded};
use crate::rows::{self, Rows};
use crate::{Error, Prompt, PromptSource, Result, permute, split_spec};

/// The keys under which a row holds its parts. A key of another than the default name must be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// What the rows hold, which decides about the keys that are read.
    pub kind: Kind,
    /// Whether texts go through a chat template.
    pub is_chat: bool,
    /// The prompt: text, or chat messages; required where responses are not recorded.
    pub input: String,
    /// The reference answer.
    pub label: String,
    /// Anything, passed through.
    pub metadata: String,
    /// Tool definitions.
    pub tools: String,
    /// A conversation.
    pub messages: String,
    /// The recorded response to the prompt.
    pub completion: String,
    /// The better response.
    pub chosen: String,
    /// The worse response.
    pub rejected: String,
    /// How much better it is.
    pub margin: String,
}

impl Default for Keys {
    fn default() -> Self {
        crate::keys(&Data::default())
    }
}

impl Keys {
    /// Those that are read.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = vec![&self.input, &self.label, &self.metadata, &self.tools];
        match self.kind {
            Kind::Prompts => {}
            Kind::Conversations => names.extend([self.messages.as_str(), &self.completion]),
            Kind::Preferences => names.extend([self.chosen.as_str(), &self.rejected, &self.margin]),
        }
        names
    }
}

/// The rows of a JSONL or Parquet file, or a slice of them, in a new order every epoch.
#[derive(Debug)]
pub struct PromptFile {
    path: PathBuf,
    name: String,
    rows: Box<dyn Rows>,
    /// The first row of the slice, and how many it has.
    first: usize,
    len: usize,
    keys: Keys,
    shuffle: Option<u64>,
}

impl PromptFile {
    /// Opens the file `spec` (`path` or `path@[a:b]`); `shuffle` is the seed, or none for file order.
    ///
    /// # Errors
    /// A file that cannot be read, has no rows, or whose first row lacks a key.
    pub fn open(spec: &str, keys: Keys, shuffle: Option<u64>) -> Result<Self> {
        let (path, slice) = split_spec(spec)?;
        let path = PathBuf::from(path);
        let rows = rows::open(&path, &keys.names())?;
        let range = slice.range(rows.len());
        if range.is_empty() {
            let reason = format!("the file has {} rows", rows.len());
            return Err(Error::Empty { name: spec.to_owned(), reason });
        }
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let prompts = Self { path, name, rows, first: range.start, len: range.len(), keys, shuffle };
        prompts.row(0)?;
        Ok(prompts)
    }

    /// The same under another name, which samples carry.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    fn row(&self, row: usize) -> Result<Prompt> {
        let row = self.first + row;
        let unit = self.rows.unit();
        let (number, mut object) = self.rows.read(row)?;
        let known = self.rows.keys(&object);
        let missing = |key: &str, option: &'static str| Error::Key {
            path: self.path.clone(),
            unit,
            row: number,
            key: key.to_owned(),
            option,
            keys: known.clone(),
        };
        let wrong = |reason: String| Error::Row { path: self.path.clone(), unit, row: number, reason };
        let recorded = match self.keys.kind {
            Kind::Prompts => Ok(Recorded::default()),
            Kind::Conversations => recorded::conversation(&mut object, &self.keys),
            Kind::Preferences => recorded::preference(&mut object, &self.keys),
        };
        let recorded = recorded.map_err(|problem| match problem {
            Problem::Missing(key, option) => missing(&key, option),
            Problem::Wrong(reason) => wrong(reason),
        })?;
        let mut take = |key: &str, default: &str, option: &'static str| match object.remove(key) {
            None | Some(Value::Null) if key == default => Ok(None),
            None | Some(Value::Null) => Err(missing(key, option)),
            value => Ok(value),
        };
        let prompt = match self.keys.kind {
            Kind::Prompts => {
                // No default: without a prompt there is nothing.
                let input = take(&self.keys.input, "", "input_key")?;
                let content = PromptContent::from_value(input.unwrap_or_default())
                    .map_err(|error| wrong(format!("key \"{}\": {error}", self.keys.input)))?;
                content.to_json()
            }
            Kind::Conversations | Kind::Preferences => recorded.prompt.to_string(),
        };
        let label = take(&self.keys.label, "label", "label_key")?;
        let metadata = take(&self.keys.metadata, "metadata", "metadata_key")?;
        let tools = take(&self.keys.tools, "tools", "tool_key")?;
        let tools = tools.map(|tools| tool_list(tools, &self.keys.tools)).transpose().map_err(wrong)?;
        let metadata = with_margin(metadata, recorded.margin, &self.keys).map_err(wrong)?;
        Ok(Prompt {
            prompt_id: format!("{}:{number}", self.name),
            source: self.name.clone(),
            prompt,
            label: label.map(text_of),
            metadata: metadata.map(|value| value.to_string()),
            tools: tools.map(|value| value.to_string()),
            responses: recorded.responses.iter().map(Value::to_string).collect(),
        })
    }
}

/// Tools are a list, or text that holds one, as tables have it that cannot hold lists of many shapes.
fn tool_list(tools: Value, key: &str) -> Result<Value, String> {
    let list = match &tools {
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    };
    match list.unwrap_or(tools) {
        list @ Value::Array(_) => Ok(list),
        other => Err(format!("key \"{key}\": expected a list of tool definitions, got {other}")),
    }
}

/// The metadata with the margin among them.
fn with_margin(
    metadata: Option<Value>,
    margin: Option<Number>,
    keys: &Keys,
) -> Result<Option<Value>, String> {
    let Some(margin) = margin else { return Ok(metadata) };
    match metadata.unwrap_or_else(|| Value::Object(Map::new())) {
        Value::Object(mut fields) => {
            fields.insert("margin".to_owned(), Value::Number(margin));
            Ok(Some(Value::Object(fields)))
        }
        other => Err(format!(
            "key \"{}\": expected an object, to which the margin can be added, got {other}",
            keys.metadata
        )),
    }
}

impl PromptSource for PromptFile {
    fn len(&self) -> Option<u64> {
        Some(self.len as u64)
    }

    fn prompt(&self, cursor: u64) -> Result<Prompt> {
        let len = self.len as u64;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn open(text: &str, keys: Keys) -> Result<PromptFile> {
        PromptFile::open(file(text).path().to_str().unwrap(), keys, None)
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
        let tools = concat!(
            "{\"prompt\":\"a\",\"tools\":\"[{\\\"name\\\": \\\"f\\\"}]\"}\n",
            "{\"prompt\":\"a\",\"tools\":{\"name\":1}}",
        );
        let prompts = open(tools, Keys::default()).unwrap();
        assert_eq!(prompts.prompt(0).unwrap().tools.as_deref(), Some(r#"[{"name":"f"}]"#));
        let error = prompts.prompt(1).unwrap_err().to_string();
        assert!(
            error.ends_with("line 2: key \"tools\": expected a list of tool definitions, got {\"name\":1}"),
            "{error}"
        );
    }

    #[test]
    fn rows_with_recorded_responses_carry_them_and_their_margin() {
        let keys = |kind| Keys { kind, ..Keys::default() };
        let text = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}],\"label\":1}\n{\"prompt\":\"x\"}\n";
        let chats = open(text, keys(Kind::Conversations)).unwrap();
        let chat = chats.prompt(0).unwrap();
        assert_eq!(chat.prompt, r#"[{"role":"user","content":"q"}]"#);
        assert_eq!(chat.responses, [r#"[{"role":"assistant","content":"a"}]"#]);
        assert_eq!((chat.label.as_deref(), chat.metadata), (Some("1"), None));
        let error = chats.prompt(1).unwrap_err().to_string();
        assert!(error.ends_with(
            ": line 2: no key \"completion\" (completion_key)\nhint: the row has the keys prompt"
        ));
        let text = "{\"prompt\":\"q\",\"chosen\":\"a\",\"rejected\":\"b\",\"margin\":2,\"metadata\":{\"x\":1}}\n\
                    {\"prompt\":\"q\",\"chosen\":\"a\",\"rejected\":\"a\"}\n\
                    {\"prompt\":\"q\",\"chosen\":\"a\",\"rejected\":\"b\",\"margin\":2,\"metadata\":[]}\n";
        let pairs = open(text, keys(Kind::Preferences)).unwrap();
        let pair = pairs.prompt(0).unwrap();
        assert_eq!(pair.responses, ["\"a\"", "\"b\""]);
        assert_eq!(pair.metadata.as_deref(), Some(r#"{"x":1,"margin":2}"#));
        let error = pairs.prompt(1).unwrap_err();
        assert!(
            error.to_string().contains(": line 2: keys \"chosen\" and \"rejected\": expected two different")
        );
        assert_eq!(error.exit_code(), 65);
        assert!(pairs.prompt(2).unwrap_err().to_string().contains("key \"metadata\": expected an object"));
    }

    #[test]
    fn every_epoch_has_every_row_once_in_an_order_of_its_own() {
        let file = numbered(23);
        let prompts = PromptFile::open(file.path().to_str().unwrap(), Keys::default(), Some(3)).unwrap();
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
        let prompts = PromptFile::open(&spec, Keys::default(), None).unwrap();
        let labels: Vec<_> = (0..4).map(|i| prompts.prompt(i).unwrap().label.unwrap()).collect();
        assert_eq!(labels, ["3", "4", "3", "4"]);
        let spec = format!("{}@[10:]", file.path().display());
        let error = PromptFile::open(&spec, Keys::default(), None).unwrap_err();
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
    fn row_ten_thousand_without_its_key_is_named_when_it_is_drawn() {
        let mut lines: Vec<String> = (1..10_000).map(|i| format!("{{\"prompt\":\"p{i}\"}}\n")).collect();
        lines.push("{\"question\":\"late\"}\n".to_owned());
        let prompts = open(&lines.concat(), Keys::default()).unwrap();
        assert_eq!(prompts.prompt(9_998).unwrap().prompt, "\"p9999\"");
        let error = prompts.prompt(9_999).unwrap_err();
        assert!(error.to_string().contains(": line 10000: no key \"prompt\" (input_key)"), "{error}");
        assert_eq!(error.exit_code(), 65);
    }

    #[test]
    fn compressed_lines_read_like_plain_ones_and_a_cut_stream_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.jsonl.zst");
        let lines: Vec<String> = (0..50).map(|i| format!("{{\"prompt\":\"p{i}\"}}\n")).collect();
        let packed = slime_archive::pack_bytes(lines.concat().as_bytes()).unwrap();
        std::fs::write(&path, &packed).unwrap();
        let spec = format!("{}@[-2:]", path.display());
        let prompts = PromptFile::open(&spec, Keys::default(), None).unwrap();
        let last = prompts.prompt(1).unwrap();
        assert_eq!((last.prompt.as_str(), last.prompt_id.as_str()), ("\"p49\"", "p.jsonl.zst:50"));
        for (bytes, reason) in [
            (&packed[..packed.len() / 2], "not a whole zstd stream"),
            (b"plain".as_slice(), "does not begin with 28"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = PromptFile::open(path.to_str().unwrap(), Keys::default(), None).err().unwrap();
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(error.exit_code(), 65);
        }
    }

    #[test]
    fn a_missing_or_empty_file_says_so() {
        let error = PromptFile::open("/nonexistent/p.jsonl", Keys::default(), None).unwrap_err();
        assert_eq!(error.exit_code(), 66);
        assert_eq!(open("\n", Keys::default()).unwrap_err().exit_code(), 65);
    }
}
