//! Languages of responses: JSON schemas, regular expressions and grammars, as masks of tokens.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use slime_engine::{Constraint, Grammar, GrammarState};
use slime_tokenizer::{TokenBytes, Tokenizer};
use toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use crate::{ApiError, ApiResult};

/// A language, as a request names it.
#[derive(Debug, Clone, PartialEq)]
pub enum Language {
    /// Texts that are JSON of this schema.
    JsonSchema(Value),
    /// Texts that a regular expression matches as a whole.
    Regex(String),
    /// Texts of a grammar in llguidance's variant of Lark.
    Lark(String),
}

/// Compiles languages for one vocabulary.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos_ids: Vec<u32>,
    /// Built when the first language comes: it takes a walk over the vocabulary.
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl Grammars {
    /// For a model of this vocabulary, whose responses end with one of `eos_ids`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, eos_ids: Vec<u32>) -> Self {
        Self { tokenizer, vocab_size, eos_ids, factory: OnceLock::new() }
    }

    /// The constraint that keeps responses to a language. Takes time: not for a thread that answers others.
    ///
    /// # Errors
    /// The language is none: what its compiler says.
    pub fn compile(&self, language: &Language) -> ApiResult<Constraint> {
        let factory = self.factory.get_or_init(|| self.factory());
        let factory = factory.as_ref().map_err(|error| ApiError::internal(error.clone()))?;
        let (name, grammar) = match language {
            Language::JsonSchema(schema) => {
                ("JSON schema", TopLevelGrammar::from_json_schema(schema.clone()))
            }
            Language::Regex(regex) => ("regular expression", TopLevelGrammar::from_regex(regex)),
            Language::Lark(text) => ("grammar", TopLevelGrammar::from_lark(text.clone())),
        };
        let mut matcher = Matcher::new(factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(ApiError::bad_request(format!("the {name} cannot be used: {error}")));
        }
        for warning in matcher.grammar_warnings() {
            tracing::warn!("{name}: {warning}");
        }
        Ok(Constraint(Arc::new(Compiled(Mutex::new(matcher)))))
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let Some(&eos) = self.eos_ids.first() else {
            return Err(
                "the tokenizer names no end of text, so a constrained response could not end".to_owned()
            );
        };
        let bytes = |token| match token {
            TokenBytes::Text(bytes) => bytes,
            TokenBytes::Special(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat(),
            TokenBytes::Unused => Vec::new(),
        };
        let words: Vec<Vec<u8>> =
            self.tokenizer.token_bytes(self.vocab_size).into_iter().map(bytes).collect();
        let trie = TokTrie::from(&TokRxInfo::new(self.vocab_size as u32, eos), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&self.eos_ids)));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| error.to_string())?;
        factory.quiet();
        Ok(factory)
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Grammars").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

/// A language at its beginning.
struct Compiled(Mutex<Matcher>);

impl Grammar for Compiled {
    fn begin(&self) -> Box<dyn GrammarState> {
        let matcher = self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Box::new(State { matcher: Mutex::new(matcher), mask: SimpleVob::new() })
    }
}

/// A response in its language.
struct State {
    matcher: Mutex<Matcher>,
    mask: SimpleVob,
}

impl State {
    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GrammarState for State {
    fn allowed(&mut self) -> Option<&[u32]> {
        match self.matcher().compute_mask_or_eos() {
            Ok(mask) => {
                self.mask = mask;
                Some(self.mask.as_slice())
            }
            Err(error) => {
                tracing::warn!("a constrained response cannot go on: {error}");
                None
            }
        }
    }

    fn accept(&mut self, token: u32) {
        // An error is remembered by the matcher: the next mask tells it.
        let _ = self.matcher().consume_token(token);
    }

    fn is_complete(&self) -> bool {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
        matcher.is_stopped() && !matcher.is_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::printable;
    use serde_json::json;

    /// The text that always taking the last allowed token (or the first) writes, up to `most` tokens.
    fn write(constraint: &Constraint, tokenizer: &Tokenizer, most: usize, takes_last: bool) -> String {
        let mut state = constraint.0.begin();
        let mut tokens = Vec::new();
        while tokens.len() < most && !state.is_complete() {
            let allowed = state.allowed().unwrap().to_vec();
            let mut set = (0..96u32).filter(|&t| allowed[t as usize / 32] >> (t % 32) & 1 == 1);
            let token = if takes_last { set.next_back() } else { set.next() }.unwrap();
            state.accept(token);
            if token == 2 {
                break;
            }
            tokens.push(token);
        }
        tokenizer.decode(&tokens, true).unwrap()
    }

    #[test]
    fn masks_lead_to_texts_of_the_language() {
        let tokenizer = Arc::new(printable());
        let grammars = Grammars::new(tokenizer.clone(), 96, vec![2]);
        let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
            "required": ["a", "b"], "additionalProperties": false});
        let constraint = grammars.compile(&Language::JsonSchema(schema)).unwrap();
        let value: Value = serde_json::from_str(&write(&constraint, &tokenizer, 60, true)).unwrap();
        assert_eq!(value, json!({"a": "y", "b": true}));
        let constraint = grammars.compile(&Language::Regex("(yes|no)!{2}".to_owned())).unwrap();
        assert_eq!(write(&constraint, &tokenizer, 60, true), "yes!!");
        assert_eq!(write(&constraint, &tokenizer, 60, false), "no!!");
    }

    #[test]
    fn languages_that_are_none_are_refused_with_the_reason() {
        let grammars = Grammars::new(Arc::new(printable()), 96, vec![2]);
        for (language, part) in [
            (Language::Regex("(".to_owned()), "regular expression"),
            (Language::Lark("start: nothing".to_owned()), "grammar"),
            (Language::JsonSchema(json!({"type": "wishes"})), "JSON schema"),
        ] {
            let error = grammars.compile(&language).unwrap_err();
            assert!(error.status == 400 && error.message.contains(part), "{error:?}");
        }
        let endless = Grammars::new(Arc::new(printable()), 96, Vec::new());
        assert!(endless.compile(&Language::Regex("a".to_owned())).is_err());
    }
}
