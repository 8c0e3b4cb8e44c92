//! Decoding token by token: text comes out as soon as it is certain, never half a character.

use crate::{Result, Tokenizer};

/// What bytes that are no UTF-8 (yet) decode to.
const REPLACEMENT: char = '\u{fffd}';

/// The text of a growing list of tokens.
///
/// A token's text depends on its neighbours, so a window is decoded again: the tokens of the last
/// complete piece and those after it.
#[derive(Debug, Clone)]
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special_tokens: bool,
    window: Vec<u32>,
    /// How many tokens of the window belong to the last complete piece.
    context: usize,
    /// How many bytes of the window's text have been handed out.
    given: usize,
}

impl<'a> DecodeStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, skip_special_tokens: bool) -> Self {
        Self { tokenizer, skip_special_tokens, window: Vec::new(), context: 0, given: 0 }
    }

    /// Adds a token and returns the text that has become certain; it may be empty.
    ///
    /// # Errors
    /// [`crate::Error::Codec`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.window.push(token);
        let text = self.tokenizer.decode(&self.window, self.skip_special_tokens)?;
        let certain = text.trim_end_matches(REPLACEMENT);
        let new = certain.get(self.given..).unwrap_or_default().to_owned();
        self.given = self.given.max(certain.len());
        if certain.len() == text.len() && !new.is_empty() {
            self.window.drain(..self.context);
            self.context = self.window.len();
            self.given = self.tokenizer.decode(&self.window, self.skip_special_tokens)?.len();
        }
        Ok(new)
    }

    /// The text that was held back: bytes that never became a character, as U+FFFD.
    ///
    /// # Errors
    /// [`crate::Error::Codec`].
    pub fn finish(self) -> Result<String> {
        let text = self.tokenizer.decode(&self.window, self.skip_special_tokens)?;
        Ok(text.get(self.given..).unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::byte_level;

    fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
        let mut stream = tokenizer.decode_stream(true);
        let pieces = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        (pieces, stream.finish().unwrap())
    }

    #[test]
    fn characters_of_many_bytes_come_whole() {
        let dir = byte_level();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        let ids = tokenizer.encode("aé🙂b").unwrap();
        let (pieces, rest) = pieces(&tokenizer, &ids);
        assert_eq!(pieces, ["a", "", "é", "", "", "", "🙂", "b"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn a_character_that_never_ends_comes_at_the_end() {
        let dir = byte_level();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        let mut ids = tokenizer.encode("a🙂").unwrap();
        ids.truncate(3);
        let (pieces, rest) = pieces(&tokenizer, &ids);
        assert_eq!((pieces.concat().as_str(), rest.as_str()), ("a", "\u{fffd}"));
    }

    #[test]
    fn any_tokens_give_the_same_text_as_at_once() {
        let dir = byte_level();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        let mut state = 7u64;
        for _ in 0..300 {
            let ids: Vec<u32> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Few distinct bytes, many of them parts of characters, and the special tokens.
                    [97, 0xc3, 0xa9, 0xf0, 0x9f, 0x99, 0x82, 256, 259, 32][(state >> 40) as usize % 10]
                })
                .collect();
            let (pieces, rest) = pieces(&tokenizer, &ids);
            assert_eq!(pieces.concat() + &rest, tokenizer.decode(&ids, true).unwrap(), "{ids:?}");
        }
    }
}
