//! Tokens of an English text by the conventions of the Penn Treebank: punctuation stands alone, and contractions are
//! cut (`do n't`, `it 's`).

use super::sentences::sentences;

/// Endings that are tokens of their own.
const ENDINGS: [&str; 7] = ["n't", "'ll", "'re", "'ve", "'s", "'m", "'d"];
/// Words that are two.
const PAIRS: [(&str, usize); 7] =
    [("cannot", 3), ("gimme", 3), ("gonna", 3), ("gotta", 3), ("lemme", 3), ("wanna", 3), ("d'ye", 2)];

/// The tokens of a text, sentence by sentence. A straight double quote is a token of its own, as it stands.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = &str> {
    sentences(text).into_iter().flat_map(|sentence| {
        let mut chunks = sentence.split_whitespace().peekable();
        std::iter::from_fn(move || {
            let rest = chunks.next()?;
            Some(Chunk { rest, ends_sentence: chunks.peek().is_none(), ending: None })
        })
        .flatten()
    })
}

/// What stands between blanks, as it is cut at its marks from left to right.
struct Chunk<'a> {
    rest: &'a str,
    ends_sentence: bool,
    /// The second part of the word that was cut last.
    ending: Option<&'a str>,
}

impl<'a> Iterator for Chunk<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if let Some(ending) = self.ending.take() {
            return Some(ending);
        }
        let mut word_len = 0;
        while let Some(letter) = self.rest.get(word_len..)?.chars().next() {
            let (len, is_alone) = self.mark(word_len, letter);
            if is_alone && word_len == 0 {
                return self.cut(len);
            }
            if is_alone {
                break;
            }
            word_len += len;
        }
        let word = self.cut(word_len).filter(|word| !word.is_empty())?;
        let Some((first, second)) = contraction(word).and_then(|at| word.split_at_checked(at)) else {
            return Some(word);
        };
        self.ending = Some(second);
        Some(first)
    }
}

impl<'a> Chunk<'a> {
    /// Takes so many bytes off the rest.
    fn cut(&mut self, len: usize) -> Option<&'a str> {
        let (token, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(token)
    }

    /// Bytes of what begins with `letter` behind so many bytes of a word, and whether it stands alone.
    fn mark(&self, word_len: usize, letter: char) -> (usize, bool) {
        if letter.is_ascii_alphanumeric() {
            return (1, false);
        }
        let from = self.rest.get(word_len..).unwrap_or_default();
        let rest = from.get(letter.len_utf8()..).unwrap_or_default();
        let is_alone = match letter {
            '.' if rest.starts_with('.') => {
                return (from.len() - from.trim_start_matches('.').len(), true);
            }
            '-' if rest.starts_with('-') => return (2, true),
            '.' => self.ends_sentence && rest.trim_start_matches(closes).is_empty(),
            ',' | ':' => !rest.starts_with(|next: char| next.is_ascii_digit()),
            '\'' if word_len == 0 => !begins_ending(rest),
            '\'' => rest.is_empty(),
            _ => is_mark(letter),
        };
        (letter.len_utf8(), is_alone)
    }
}

/// Marks that always stand alone.
fn is_mark(letter: char) -> bool {
    matches!(letter, ';' | '@' | '#' | '$' | '%' | '&' | '?' | '!' | '*' | '(' | ')' | '[' | ']' | '{' | '}')
        || matches!(letter, '<' | '>' | '"' | '`' | '“' | '”' | '‘' | '’' | '„' | '«' | '»')
}

/// Marks that may stand behind the full stop of a sentence.
fn closes(letter: char) -> bool {
    matches!(letter, ')' | ']' | '}' | '>' | '"' | '\'' | '»' | '”' | '’')
}

/// Whether what follows an apostrophe begins as an ending does.
fn begins_ending(rest: &str) -> bool {
    let mut bytes = rest.bytes().map(|byte| byte.to_ascii_lowercase());
    match bytes.next() {
        Some(b'm' | b't' | b's' | b'd' | b'n') => true,
        Some(b'r' | b'v') => bytes.next() == Some(b'e'),
        Some(b'l') => bytes.next() == Some(b'l'),
        _ => false,
    }
}

/// Where the contraction of a word begins.
fn contraction(word: &str) -> Option<usize> {
    let pair = PAIRS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, at)| *at);
    pair.or_else(|| {
        let begins = ENDINGS.iter().map(|ending| (word.len().saturating_sub(ending.len()), ending));
        let is_ending = |at: usize, ending: &str| {
            at > 0 && word.get(at..).is_some_and(|end| end.eq_ignore_ascii_case(ending))
        };
        // Every ending has its apostrophe.
        let mut begins = begins.filter(|_| word.contains('\''));
        begins.find(|(at, ending)| is_ending(*at, ending)).map(|(at, _)| at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_alone_and_contractions_are_cut() {
        let cases = [
            ("Don't panic, it's 3,000: (really).", "Do n't panic , it 's 3,000 : ( really ) ."),
            ("We cannot go... \"No\" -- yes!", "We can not go ... \" No \" -- yes !"),
            ("The dogs' bowl. 'quoted' text", "The dogs ' bowl . ' quoted ' text"),
            ("at 5:30 e.g. here", "at 5:30 e.g. here"),
        ];
        for (text, expected) in cases {
            assert_eq!(tokens(text).collect::<Vec<_>>().join(" "), expected);
        }
    }

    /// The tokens by copies of letters, a word at a time: slow, and plain to read.
    fn naive(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for sentence in sentences(text) {
            let chunks: Vec<&str> = sentence.split_whitespace().collect();
            for (at, chunk) in chunks.iter().enumerate() {
                naive_chunk(&chunk.chars().collect::<Vec<char>>(), at + 1 == chunks.len(), &mut found);
            }
        }
        found
    }

    fn naive_chunk(letters: &[char], ends_sentence: bool, found: &mut Vec<String>) {
        let mut word = String::new();
        let mut at = 0;
        while at < letters.len() {
            let (letter, rest) = (letters[at], &letters[at + 1..]);
            let repeats = rest.first() == Some(&letter);
            let closes = || rest.iter().all(|next| ")]}>\"'»”’ ".contains(*next));
            let (num, is_alone) = match letter {
                '.' if repeats => (1 + rest.iter().take_while(|next| **next == '.').count(), true),
                '-' if repeats => (2, true),
                '.' => (1, ends_sentence && closes()),
                ',' | ':' => (1, !rest.first().is_some_and(char::is_ascii_digit)),
                '\'' if word.is_empty() => {
                    let rest = rest.iter().take(2).collect::<String>().to_lowercase();
                    (1, !["re", "ve", "ll", "m", "t", "s", "d", "n"].iter().any(|end| rest.starts_with(end)))
                }
                '\'' => (1, rest.is_empty()),
                _ => (1, ";@#$%&?!*()[]{}<>\"“”‘’„«»`".contains(letter)),
            };
            if is_alone {
                naive_word(&word, found);
                word.clear();
                found.push(std::iter::repeat_n(letter, num).collect());
            } else {
                word.extend(std::iter::repeat_n(letter, num));
            }
            at += num;
        }
        naive_word(&word, found);
    }

    fn naive_word(word: &str, found: &mut Vec<String>) {
        let lower = word.to_lowercase();
        let pair = PAIRS.iter().find(|(known, _)| *known == lower).map(|(_, at)| *at);
        let ending = ENDINGS.iter().find(|ending| lower.ends_with(**ending) && lower.len() > ending.len());
        match pair.or_else(|| ending.map(|ending| word.len() - ending.len())) {
            Some(at) => found.extend([word[..at].to_owned(), word[at..].to_owned()]),
            None if word.is_empty() => {}
            None => found.push(word.to_owned()),
        }
    }

    #[test]
    fn tokens_are_those_of_the_naive_form() {
        let pieces = [
            "'", "'s", "n't", "N'T", "'LL", "'re", "'l", "'é", ".", "..", "-", "--", ",", ":", "5", "a", "I",
            "Dr", "cannot", "GONNA", "d'ye", " ", "  ", "\n", "(", ")", "\"", "”", "’", "‘", "»", "!", "?",
            "*", "`", "/", "é", "İ", "ſ", "K", "日", "🙂", "\u{301}", "\u{a0}", "_", "\\", "<", "e.g", "x",
            "T", "'t", "'d",
        ];
        let mut seed = 1_u64;
        let mut draw = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % bound
        };
        for round in 0..20_000 {
            // Few different pieces make long runs of the same.
            let num_kinds = 1 + draw(if round % 2 == 0 { 3 } else { pieces.len() });
            let kinds: Vec<&str> = (0..num_kinds).map(|_| pieces[draw(pieces.len())]).collect();
            let text: String = (0..draw(40)).map(|_| kinds[draw(num_kinds)]).collect();
            assert_eq!(tokens(&text).collect::<Vec<_>>(), naive(&text), "{text:?}");
        }
    }
}
