//! What follows the name of a reward type: words `key=value`, quoted as in a shell, or a text taken whole.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};

/// The argument of one type while it is made; a key that nothing took is an error.
pub(crate) struct Options {
    /// The type as written, for messages.
    spec: String,
    text: String,
    words: Option<Vec<String>>,
    known: Vec<&'static str>,
}

impl Options {
    /// `text` is the argument of the type written `spec`.
    pub(crate) fn new(spec: &str, text: &str) -> Self {
        Self { spec: spec.to_owned(), text: text.to_owned(), words: None, known: Vec::new() }
    }

    /// The whole argument as it is.
    pub(crate) fn rest(&mut self) -> String {
        self.words = Some(Vec::new());
        std::mem::take(&mut self.text)
    }

    /// All words that nothing has taken.
    pub(crate) fn rest_words(&mut self) -> Result<Vec<String>> {
        Ok(std::mem::take(self.words()?))
    }

    /// The first word that is not `key=value`.
    pub(crate) fn word(&mut self) -> Result<Option<String>> {
        let words = self.words()?;
        let at = words.iter().position(|word| !is_pair(word));
        Ok(at.map(|at| words.remove(at)))
    }

    /// The value of a key, as text.
    pub(crate) fn text(&mut self, key: &'static str) -> Result<Option<String>> {
        self.known.push(key);
        let words = self.words()?;
        let value = |word: &String| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        let Some((at, found)) = words.iter().enumerate().find_map(|(at, word)| Some((at, value(word)?)))
        else {
            return Ok(None);
        };
        words.remove(at);
        Ok(Some(found))
    }

    /// The value of a key, read as what is wanted; `expected` says that in words.
    pub(crate) fn value<T: FromStr>(
        &mut self,
        key: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| self.wrong(key, expected, &text))
    }

    /// A finite number, or its default.
    pub(crate) fn number(&mut self, key: &'static str, default: f64) -> Result<f64> {
        let value = self.value(key, "a finite number")?.unwrap_or(default);
        if value.is_finite() { Ok(value) } else { Err(self.wrong(key, "a finite number", value)) }
    }

    /// A finite number, where it is given.
    pub(crate) fn optional_number(&mut self, key: &'static str) -> Result<Option<f64>> {
        let value: Option<f64> = self.value(key, "a finite number")?;
        match value.filter(|value| !value.is_finite()) {
            Some(value) => Err(self.wrong(key, "a finite number", value)),
            None => Ok(value),
        }
    }

    /// `on` or `off`, off where it is not given.
    pub(crate) fn switch(&mut self, key: &'static str) -> Result<bool> {
        match self.text(key)?.as_deref() {
            None | Some("off") => Ok(false),
            Some("on") => Ok(true),
            Some(other) => Err(self.wrong(key, "on or off", other)),
        }
    }

    /// A time above zero in seconds, or its default.
    pub(crate) fn duration(&mut self, key: &'static str, default_s: f64) -> Result<Duration> {
        let seconds = self.number(key, default_s)?;
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if seconds > 0.0 => Ok(duration),
            _ => Err(self.wrong(key, "seconds above 0", seconds)),
        }
    }

    /// A count of at least one, or its default.
    pub(crate) fn count(&mut self, key: &'static str, default: usize) -> Result<usize> {
        let value = self.value(key, "a whole number from 1")?.unwrap_or(default);
        if value > 0 { Ok(value) } else { Err(self.wrong(key, "a whole number from 1", value)) }
    }

    /// The value of a key that must be there.
    pub(crate) fn needed<T>(&self, key: &'static str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.problem(format!("expected {key}=...")))
    }

    /// The word that must be there.
    pub(crate) fn needed_word(&self, what: &str, word: Option<String>) -> Result<String> {
        word.ok_or_else(|| self.problem(format!("expected {what}")))
    }

    /// An error about the value of a key.
    pub(crate) fn wrong(&self, key: &str, expected: &str, got: impl Display) -> Error {
        self.problem(format!("{key}: expected {expected}, got {got}"))
    }

    /// An error about the whole.
    pub(crate) fn problem(&self, problem: impl Into<String>) -> Error {
        Error::Argument { spec: self.spec.clone(), problem: problem.into() }
    }

    /// Refuses what nothing took.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some(word) = self.words()?.first().cloned() else { return Ok(()) };
        let key = word.split('=').next().unwrap_or_default();
        let nearest = self
            .known
            .iter()
            .map(|known| (strsim::jaro_winkler(key, known), known))
            .filter(|(likeness, _)| *likeness >= 0.75)
            .max_by(|left, right| left.0.total_cmp(&right.0));
        let hint = match nearest {
            Some((_, known)) => format!("\nhint: did you mean {known}?"),
            None if self.known.is_empty() => String::new(),
            None => format!("\nhint: it takes {}", self.known.join(", ")),
        };
        Err(self.problem(format!("does not take {word}{hint}")))
    }

    fn words(&mut self) -> Result<&mut Vec<String>> {
        if self.words.is_none() {
            self.words = Some(split_words(&self.text).map_err(|problem| self.problem(problem))?);
        }
        Ok(self.words.get_or_insert_default())
    }
}

/// Whether a word is `key=value`, with a key in lower case.
pub(crate) fn is_pair(word: &str) -> bool {
    word.split_once('=').is_some_and(|(key, _)| {
        !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    })
}

/// Words separated by blanks; quotes keep blanks, a backslash keeps the next character.
fn split_words(line: &str) -> std::result::Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => {
                word.get_or_insert_default().push(letters.next().ok_or("nothing after the last backslash")?);
            }
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (_, Some(open)) if open == letter => quote = None,
            (_, None) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_would_without_expanding() {
        assert_eq!(split_words(r#"a 'b c'  "d \" $e" f\ g ''"#).unwrap(), ["a", "b c", "d \" $e", "f g", ""]);
        assert!(split_words("a 'b").is_err());
        assert!(split_words("a\\").is_err());
    }

    #[test]
    fn values_are_read_and_what_is_left_is_an_error() {
        let mut options = Options::new("x:..", "here max=3 name='a b'");
        assert_eq!(options.count("max", 1).unwrap(), 3);
        assert_eq!(options.text("name").unwrap().as_deref(), Some("a b"));
        assert!((options.number("value", 0.5).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(options.word().unwrap().as_deref(), Some("here"));
        options.finish().unwrap();
        let mut options = Options::new("x:..", "maxx=3");
        options.count("max", 1).unwrap();
        let message = options.finish().unwrap_err().to_string();
        assert_eq!(message, "reward type x:..: does not take maxx=3\nhint: did you mean max?");
        let message = |text: &str| Options::new("x", text).count("max", 1).unwrap_err().to_string();
        assert_eq!(message("max=0"), "reward type x: max: expected a whole number from 1, got 0");
        assert!(message("max=many").contains("got many"));
        assert!(Options::new("x", "value=inf").number("value", 0.0).is_err());
    }
}
