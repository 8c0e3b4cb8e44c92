//! `format:*`: brackets, quotes, lines, emoji and case.

use std::sync::LazyLock;

use regex::Regex;

use super::arguments::Arguments;
use super::sentences::sentences;
use super::text::{is_edge, without_punctuation};
use super::tokens::tokens;

/// Brackets nested at least five deep, of which the innermost closes.
pub(super) fn parentheses(text: &str) -> bool {
    let (mut open, mut deepest) = (Vec::new(), 0);
    for letter in text.chars() {
        match letter {
            '(' | '[' | '{' => {
                open.push(letter);
                deepest = deepest.max(open.len());
            }
            ')' | ']' | '}' => {
                let fits =
                    matches!((open.pop(), letter), (Some('('), ')') | (Some('['), ']') | (Some('{'), '}'));
                if !fits {
                    open.clear();
                    deepest = 0;
                } else if deepest >= 5 {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// Quotes in quotes in quotes, `"` and `'` in turn.
pub(super) fn quotes(text: &str) -> bool {
    let (mut open, mut deepest) = (Vec::new(), 0_usize);
    for letter in text.chars().filter(|letter| matches!(letter, '"' | '\'')) {
        if open.last() == Some(&letter) {
            open.pop();
            if deepest - open.len() >= 3 {
                return true;
            }
        } else {
            open.push(letter);
            deepest = deepest.max(open.len());
        }
    }
    false
}

/// No quote directly behind another, and none at the end.
pub(super) fn quote_unquote(text: &str) -> bool {
    let text: String = text.replace(['“', '”'], "\"").replace("'\"'", "").split_whitespace().collect();
    let ends = |letter: char| letter != '"' && (letter.is_ascii_punctuation() || letter.is_ascii_digit());
    !text.contains("\"\"") && !text.trim_end_matches(ends).ends_with('"')
}

/// One of the options and nothing else; letters (`a), b), c)`) must stand as they are.
pub(super) fn options(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    static LETTERS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\W*[aA]\W*[bB]\W*[cC]\W*").ok());
    let options = arguments.text("options")?;
    let separator = ["/", "or"].into_iter().find(|separator| options.contains(separator)).unwrap_or(",");
    let mut options_are = options.split(separator).map(str::trim);
    if LETTERS.as_ref().is_some_and(|letters| letters.is_match(options)) {
        return Ok(options_are.any(|option| option == text));
    }
    let bare = |text: &str| text.trim_matches(is_edge).to_lowercase();
    Ok(options_are.any(|option| bare(option) == bare(text)))
}

/// A word on each line.
pub(super) fn newline(text: &str) -> bool {
    let bare = without_punctuation(text);
    let num_lines = bare.trim().lines().filter(|line| !line.is_empty()).count();
    num_lines == bare.split_whitespace().count()
}

/// An emoji at the end of every sentence, or at the beginning of what follows it.
pub(super) fn emoji(text: &str) -> bool {
    let bare: Vec<String> =
        sentences(text).iter().map(|sentence| without_punctuation(sentence).trim().to_owned()).collect();
    let ends = |at: usize, sentence: &String| {
        // The last may be a variation selector.
        let at_end = sentence.chars().rev().take(2).any(is_emoji);
        at_end || bare.get(at + 1).and_then(|next| next.chars().next()).is_some_and(is_emoji)
    };
    bare.iter().enumerate().all(|(at, sentence)| !sentence.is_empty() && ends(at, sentence))
}

fn is_emoji(letter: char) -> bool {
    static EMOJI: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[\p{Emoji}--[0-9#*\x{1F1E6}-\x{1F1FF}]]$").ok());
    let mut buffer = [0; 4];
    EMOJI.as_ref().is_some_and(|emoji| emoji.is_match(letter.encode_utf8(&mut buffer)))
}

/// Each line is indented deeper than the one before; of blank lines in a row every second counts as a line.
pub(super) fn line_indent(text: &str) -> bool {
    let mut lines = Vec::new();
    let mut before_is_dropped = false;
    for line in text.split('\n') {
        before_is_dropped = line.trim().is_empty() && !before_is_dropped;
        if !before_is_dropped {
            lines.push(line.len() - line.trim_start_matches(' ').len());
        }
    }
    lines.windows(2).all(|pair| pair[0] < pair[1])
}

/// No word in lower case; words of mixed case pass.
pub(super) fn title_case(text: &str) -> bool {
    let is_low = |word: &str| {
        let mut letters = word.chars();
        let first_is_low = letters.next().is_some_and(char::is_lowercase);
        let rest = letters.as_str();
        let has_case = rest.chars().any(|letter| letter.is_lowercase() || letter.is_uppercase());
        let is_uniform = !rest.chars().any(char::is_uppercase) || !rest.chars().any(char::is_lowercase);
        first_is_low && (rest.is_empty() || has_case && is_uniform)
    };
    !tokens(text).any(is_low)
}

pub(super) fn output_template(text: &str) -> bool {
    ["My Answer:", "My Conclusion:", "Future Outlook:"].iter().all(|part| text.contains(part))
}

pub(super) fn no_whitespace(text: &str) -> bool {
    !text.contains(char::is_whitespace)
}
