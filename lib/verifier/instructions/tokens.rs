//! Tokens of an English text by the conventions of the Penn Treebank: punctuation stands alone, and contractions are
//! cut (`do n't`, `it 's`).

use super::sentences::sentences;

/// Endings that are tokens of their own.
const ENDINGS: [&str; 7] = ["n't", "'ll", "'re", "'ve", "'s", "'m", "'d"];
/// Words that are two.
const PAIRS: [(&str, usize); 7] =
    [("cannot", 3), ("gimme", 3), ("gonna", 3), ("gotta", 3), ("lemme", 3), ("wanna", 3), ("d'ye", 2)];
/// Marks that always stand alone.
const MARKS: &str = ";@#$%&?!*()[]{}<>\"“”‘„«»`";

/// The tokens of a text, sentence by sentence. A straight double quote is a token of its own, as it stands.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for sentence in sentences(text) {
        let chunks: Vec<&str> = sentence.split_whitespace().collect();
        let last = chunks.len().saturating_sub(1);
        for (at, chunk) in chunks.into_iter().enumerate() {
            cut_marks(chunk, at == last, &mut found);
        }
    }
    found
}

/// Cuts what stands between blanks at its marks.
fn cut_marks(chunk: &str, ends_sentence: bool, found: &mut Vec<String>) {
    if chunk.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return push_word(chunk, found);
    }
    let letters: Vec<char> = chunk.chars().collect();
    let mut word = String::new();
    let mut at = 0;
    while let Some(&letter) = letters.get(at) {
        let rest = letters.get(at + 1..).unwrap_or_default();
        let repeats = rest.first() == Some(&letter);
        let closes = || rest.iter().all(|next| ")]}>\"'»”’ ".contains(*next));
        let (num, alone) = match letter {
            '.' if repeats => (1 + rest.iter().take_while(|next| **next == '.').count(), true),
            '-' if repeats => (2, true),
            '.' => (1, ends_sentence && closes()),
            ',' | ':' => (1, !rest.first().is_some_and(char::is_ascii_digit)),
            '\'' => (1, word.is_empty() && !begins_ending(rest) || rest.is_empty() && !word.is_empty()),
            '’' => (1, true),
            _ => (1, MARKS.contains(letter)),
        };
        if alone {
            push_word(&word, found);
            word.clear();
            found.push(std::iter::repeat_n(letter, num).collect());
        } else {
            word.extend(std::iter::repeat_n(letter, num));
        }
        at += num;
    }
    push_word(&word, found);
}

fn begins_ending(rest: &[char]) -> bool {
    let rest = rest.iter().take(2).collect::<String>().to_lowercase();
    ["re", "ve", "ll", "m", "t", "s", "d", "n"].iter().any(|ending| rest.starts_with(ending))
}

/// Cuts the contraction off a word.
fn push_word(word: &str, found: &mut Vec<String>) {
    if word.is_empty() {
        return;
    }
    let pair = PAIRS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, at)| *at);
    let at = pair.or_else(|| {
        // Every ending has its apostrophe.
        let lower = word.contains('\'').then(|| word.to_lowercase())?;
        let ending = ENDINGS.iter().find(|ending| lower.ends_with(**ending) && lower.len() > ending.len())?;
        Some(word.len().saturating_sub(ending.len()))
    });
    match at.and_then(|at| word.split_at_checked(at)) {
        Some((first, second)) => found.extend([first.to_owned(), second.to_owned()]),
        None => found.push(word.to_owned()),
    }
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
            assert_eq!(tokens(text).join(" "), expected);
        }
    }
}
