//! `keywords:*` of `IFEval`: words that must or must not appear. Keywords are patterns; one that is no pattern is taken
//! literally.

use regex::{Regex, RegexBuilder};

use super::arguments::Arguments;

/// The keyword between `before` and `after`, upper or lower case.
fn pattern(before: &str, keyword: &str, after: &str) -> Result<Regex, String> {
    let build = |keyword: &str| {
        RegexBuilder::new(&format!("{before}{keyword}{after}")).case_insensitive(true).build()
    };
    build(keyword).or_else(|_| build(&regex::escape(keyword))).map_err(|error| error.to_string())
}

pub(super) fn existence(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    for keyword in arguments.texts("keywords")? {
        if !pattern("", keyword, "")?.is_match(text) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn frequency(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num = pattern("", arguments.text("keyword")?.trim(), "")?.find_iter(text).count();
    arguments.compares("relation", num, arguments.number("frequency")?)
}

pub(super) fn forbidden(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    for word in arguments.texts("forbidden_words")? {
        if pattern(r"\b", word, r"\b")?.is_match(text) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn letter_frequency(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num = text.to_lowercase().matches(&arguments.text("letter")?.trim().to_lowercase()).count();
    arguments.compares("let_relation", num, arguments.number("let_frequency")?)
}
