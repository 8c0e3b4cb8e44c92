//! Words of a text, in the ways the instructions count them.

use std::collections::HashSet;
use std::sync::LazyLock;

/// English stop words: the single words of the list of the Natural Language Toolkit.
const STOP_WORDS: &str = "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she \
    her hers herself it its itself they them their theirs themselves what which who whom this that these those am is \
    are was were be been being have has had having do does did doing a an the and but if or because as until while of \
    at by for with about against between into through during before after above below to from up down in out on off \
    over under again further then once here there when where why how all any both each few more most other some such \
    no nor not only own same so than too very s t can will just don should now d ll m o re ve y ain aren couldn didn \
    doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn";

static STOP: LazyLock<HashSet<&'static str>> = LazyLock::new(|| STOP_WORDS.split_whitespace().collect());

/// ASCII punctuation and the space: what is stripped from a word.
pub(super) fn is_edge(letter: char) -> bool {
    letter.is_ascii_punctuation() || letter == ' '
}

/// Runs of letters, digits and underscores.
pub(super) fn runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).filter(|run| !run.is_empty())
}

/// How many of the runs are stop words.
pub(super) fn num_stop_words(text: &str) -> usize {
    runs(text).filter(|run| STOP.contains(run.to_lowercase().as_str())).count()
}

/// The text without ASCII punctuation.
pub(super) fn without_punctuation(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_punctuation()).collect()
}

/// Words in lower case between blanks, punctuation removed first.
pub(super) fn bare_words(text: &str) -> Vec<String> {
    without_punctuation(&text.to_lowercase()).split_whitespace().map(str::to_owned).collect()
}
