//! The bytes each token stands for, whatever neighbours it has.

use tokenizers::DecoderWrapper;

use crate::Tokenizer;

/// One token of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenBytes {
    /// Part of texts.
    Text(Vec<u8>),
    /// A special token, by its name.
    Special(String),
    /// An id that no token has.
    Unused,
}

impl Tokenizer {
    /// Every id below `vocab_size` (that of the model, which may be larger than the tokenizer's).
    ///
    /// Byte-level vocabularies spell bytes as the letters of GPT-2, the others spell a space as U+2581 and bytes that are
    /// no text as `<0x41>`.
    pub fn token_bytes(&self, vocab_size: usize) -> Vec<TokenBytes> {
        let decoder = self.inner.get_decoder().and_then(|decoder| serde_json::to_value(decoder).ok());
        let names = |name: &str| decoder.as_ref().is_some_and(|decoder| decoder.to_string().contains(name));
        let is_byte_level =
            matches!(self.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) || names("\"ByteLevel\"");
        let added = self.inner.get_added_tokens_decoder();
        let one = |id: u32| match (added.get(&id), self.inner.id_to_token(id)) {
            (Some(token), _) if token.special => TokenBytes::Special(token.content.clone()),
            (Some(token), _) => TokenBytes::Text(token.content.clone().into_bytes()),
            (None, Some(token)) if is_byte_level => TokenBytes::Text(of_letters(&token)),
            (None, Some(token)) => TokenBytes::Text(of_spelling(&token)),
            (None, None) => TokenBytes::Unused,
        };
        (0..vocab_size as u32).map(one).collect()
    }
}

/// The bytes of GPT-2's letters: printable ones stand for themselves, the others follow U+0100 in their order.
fn of_letters(token: &str) -> Vec<u8> {
    let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others: Vec<u8> = (0..=255).filter(|&byte| !is_printable(byte)).collect();
    let mut bytes = Vec::with_capacity(token.len());
    for letter in token.chars() {
        let code = u32::from(letter);
        match u8::try_from(code) {
            Ok(byte) if is_printable(byte) => bytes.push(byte),
            _ => match code.checked_sub(256).and_then(|index| others.get(index as usize)) {
                Some(&byte) => bytes.push(byte),
                None => bytes.extend(letter.to_string().into_bytes()),
            },
        }
    }
    bytes
}

fn of_spelling(token: &str) -> Vec<u8> {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match hex.filter(|hex| hex.len() == 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => token.replace('\u{2581}', " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::byte_level;

    #[test]
    fn bytes_of_tokens_are_those_of_the_text_they_come_from() {
        let dir = byte_level();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        let table = tokenizer.token_bytes(262);
        let text = "hi \u{0}\n\u{ad}é漢🙂~\u{7f}";
        let bytes: Vec<u8> = tokenizer.encode(text).unwrap().iter().fold(Vec::new(), |mut bytes, &id| {
            let TokenBytes::Text(more) = &table[id as usize] else { panic!("{id} is text") };
            bytes.extend(more);
            bytes
        });
        assert_eq!(bytes, text.as_bytes());
        assert_eq!(table[259], TokenBytes::Special("<|im_end|>".to_owned()));
        assert_eq!((&table[260], table.len()), (&TokenBytes::Unused, 262));
    }

    #[test]
    fn other_vocabularies_spell_spaces_and_bytes() {
        assert_eq!(of_spelling("\u{2581}the"), b" the");
        assert_eq!(of_spelling("<0xE2>"), [0xE2]);
        assert_eq!(of_spelling("<0x>"), b"<0x>");
    }
}
