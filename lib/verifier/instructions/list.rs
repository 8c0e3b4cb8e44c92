//! `format:*` about lists: separators, bullets and theses.

use super::arguments::Arguments;
use super::sentences::sentences;

/// The separator stands at least twice.
pub(super) fn separators(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    Ok(text.matches(arguments.text("sep")?).count() >= 2)
}

/// A text in italics of HTML, with text behind it.
pub(super) fn thesis(text: &str) -> bool {
    let Some(open) = text.find("<i>").or_else(|| text.find("<em>")) else { return false };
    let rest = text[open..].get(3..).unwrap_or_default();
    let Some(close) = rest.find("</i>").or_else(|| rest.find("</em>")) else { return false };
    let (thesis, behind) = rest.split_at(close);
    !thesis.trim().is_empty() && !behind.get(4..).unwrap_or_default().trim().is_empty()
}

/// A `-` behind every `*`.
pub(super) fn sub_bullets(text: &str) -> bool {
    text.split('*').skip(1).all(|bullet| bullet.contains('-'))
}

/// At least two sentences, then at least two lines that begin with `*`; a blank line ends the sentences.
pub(super) fn sentences_then_bullets(text: &str) -> bool {
    let (mut num_sentences, mut num_bullets, mut may_have_sentences) = (0, 0, true);
    for line in text.split('\n').map(str::trim) {
        if line.starts_with('*') {
            may_have_sentences = false;
            if num_sentences < 2 {
                return false;
            }
            num_bullets += 1;
        } else if may_have_sentences {
            let num = sentences(line).len();
            may_have_sentences = num > 0;
            num_sentences += num;
        } else {
            return false;
        }
    }
    num_bullets >= 2
}
