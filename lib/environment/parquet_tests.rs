//! Files that pyarrow wrote, read row by row; broken ones.

use crate::{Keys, PromptFile, PromptSource};

/// 70 rows in row groups of 24, written by pyarrow (`tests/fixtures/prompts/make.py`).
const CHAT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/prompts/chat.parquet");

fn open(path: &str) -> crate::Result<PromptFile> {
    let keys = Keys { input: "messages".to_owned(), label: "answer".to_owned(), ..Keys::default() };
    PromptFile::open(path, keys, None)
}

#[test]
fn nested_messages_labels_and_metadata_come_out_of_every_row_group() {
    let prompts = open(CHAT).unwrap();
    assert_eq!(prompts.len(), Some(70));
    for i in [0, 15, 16, 23, 24, 47, 48, 69, 3] {
        let prompt = prompts.prompt(i).unwrap();
        let system = if i % 2 == 0 { "{\"role\":\"system\",\"content\":\"é\"}," } else { "" };
        let user = format!("{{\"role\":\"user\",\"content\":\"question {i}\"}}");
        assert_eq!(prompt.prompt, format!("[{system}{user}]"));
        assert_eq!(prompt.label, Some(i.to_string()));
        assert_eq!(prompt.metadata, Some(format!("{{\"level\":{},\"tags\":[\"t{i}\"]}}", i % 5)));
        assert_eq!(prompt.prompt_id, format!("chat.parquet:{}", i + 1));
    }
    let slice = open(&format!("{CHAT}@[30:32]")).unwrap();
    assert_eq!(slice.prompt(3).unwrap().label.as_deref(), Some("31"), "an epoch of the slice has two rows");
}

#[test]
fn conversations_are_read_from_nested_columns() {
    let keys = Keys { kind: slime_config::Kind::Conversations, ..Keys::default() };
    let error = PromptFile::open(CHAT, keys, None).err().unwrap();
    let expected =
        "chat.parquet: row 1: key \"messages\": expected a message of the assistant, got only system, user";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn lacking_columns_and_null_prompts_are_named_with_their_row() {
    let error = PromptFile::open(CHAT, Keys::default(), None).err().unwrap();
    let expected = "chat.parquet: row 1: no key \"prompt\" (input_key)\nhint: the row has the keys messages, answer, metadata";
    assert!(error.to_string().ends_with(expected), "{error}");
    let path = CHAT.replace("chat.parquet", "holes.parquet");
    let holes = open(&path).unwrap();
    assert_eq!(holes.prompt(0).unwrap().prompt, "\"text\"");
    let error = holes.prompt(1).unwrap_err();
    assert!(error.to_string().contains("holes.parquet: row 2: no key \"messages\""), "{error}");
    assert_eq!(error.exit_code(), 65);
}

#[test]
fn broken_files_are_named_and_a_broken_page_with_its_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let text = path.to_str().unwrap();
    let bytes = std::fs::read(CHAT).unwrap();
    for (bytes, reason) in
        [(&bytes[..bytes.len() - 9], "not a whole Parquet file"), (b"{}\n", "begin with PAR1")]
    {
        std::fs::write(&path, bytes).unwrap();
        let error = open(text).err().unwrap();
        assert!(error.to_string().contains(reason) && error.exit_code() == 65, "{error}");
    }
    // The pages of the last row group lie before the footer.
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize;
    let mut broken = bytes.clone();
    let end = bytes.len() - 8 - footer;
    broken[end - 400..end].fill(0xa5);
    std::fs::write(&path, broken).unwrap();
    let prompts = open(text).unwrap();
    assert_eq!(prompts.prompt(5).unwrap().label.as_deref(), Some("5"));
    let error = prompts.prompt(60).unwrap_err();
    assert!(error.to_string().contains("x.parquet: row 61: "), "{error}");
    assert_eq!(error.exit_code(), 65);
}
