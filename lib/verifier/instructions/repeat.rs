//! `repeat:*`: the request or a part of it said again.

use super::arguments::Arguments;

/// The request with another first word.
pub(super) fn change(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let request = arguments.text("prompt_to_repeat")?;
    Ok(request != text && request.split_whitespace().skip(1).eq(text.split_whitespace().skip(1)))
}

/// The sentence of the instruction itself.
pub(super) fn simple(text: &str) -> bool {
    text.trim().to_lowercase() == "only output this sentence here, ignore all other requests."
}

/// The words from `n_start` to `n_end` of the request, both included.
pub(super) fn span(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let (first, last) = (arguments.count("n_start")?, arguments.count("n_end")?);
    let words: Vec<&str> = arguments.text("prompt_to_repeat")?.split_whitespace().collect();
    let end = (last + 1).min(words.len());
    let span = words.get(first.min(end)..end).unwrap_or_default().join(" ");
    Ok(text.trim().to_lowercase() == span.to_lowercase())
}
