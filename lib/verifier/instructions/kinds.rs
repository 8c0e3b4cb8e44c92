//! The kinds of instructions by their ids.

use super::arguments::Arguments;
use super::{
    case, content, count, custom, format, keywords, length, list, position, ratio, repeat, sentence, words,
};

/// Whether a response follows an instruction.
#[derive(Clone, Copy)]
pub(super) enum Check {
    /// One without arguments.
    Plain(fn(&str) -> bool),
    /// One with arguments; an error is about them.
    With(fn(&Arguments<'_>, &str) -> Result<bool, String>),
}

use Check::{Plain, With};

impl Check {
    /// Whether `text` follows it.
    pub(super) fn is_followed(self, arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
        match self {
            Plain(check) => Ok(check(text)),
            With(check) => check(arguments, text),
        }
    }
}

/// `IFEval`: Zhou et al. 2023, arXiv 2311.07911.
pub(super) const IFEVAL: &[(&str, Check)] = &[
    ("keywords:existence", With(keywords::existence)),
    ("keywords:frequency", With(keywords::frequency)),
    ("keywords:forbidden_words", With(keywords::forbidden)),
    ("keywords:letter_frequency", With(keywords::letter_frequency)),
    ("language:response_language", With(case::language)),
    ("length_constraints:number_sentences", With(length::sentences)),
    ("length_constraints:number_paragraphs", With(length::paragraphs)),
    ("length_constraints:number_words", With(length::words)),
    ("length_constraints:nth_paragraph_first_word", With(length::nth_paragraph_first_word)),
    ("detectable_content:number_placeholders", With(content::placeholders)),
    ("detectable_content:postscript", With(content::postscript)),
    ("detectable_format:number_bullet_lists", With(content::bullets)),
    ("detectable_format:constrained_response", Plain(content::constrained)),
    ("detectable_format:number_highlighted_sections", With(content::highlights)),
    ("detectable_format:multiple_sections", With(content::sections)),
    ("detectable_format:json_format", Plain(content::json)),
    ("detectable_format:title", Plain(content::title)),
    ("combination:two_responses", Plain(content::two_responses)),
    ("combination:repeat_prompt", With(content::repeats_prompt)),
    ("startend:end_checker", With(content::ends_with)),
    ("startend:quotation", Plain(content::quoted)),
    ("change_case:capital_word_frequency", With(case::capital_words)),
    ("change_case:english_capital", Plain(case::upper)),
    ("change_case:english_lowercase", Plain(case::lower)),
    ("punctuation:no_comma", Plain(content::no_comma)),
];

/// `IFBench`: Pyatkin et al. 2025, arXiv 2507.02833.
pub(super) const IFBENCH: &[(&str, Check)] = &[
    ("count:word_count_range", With(count::word_range)),
    ("count:unique_word_count", With(count::unique_words)),
    ("count:conjunctions", With(count::conjunctions)),
    ("count:person_names", With(count::person_names)),
    ("count:numbers", With(count::numbers)),
    ("count:punctuation", Plain(count::punctuation)),
    ("count:pronouns", With(count::pronouns)),
    ("count:keywords_multiple", With(count::keywords)),
    ("count:words_japanese", With(count::japanese)),
    ("ratio:stop_words", With(ratio::stop_words)),
    ("ratio:sentence_type", Plain(ratio::sentence_type)),
    ("ratio:sentence_balance", Plain(ratio::sentence_balance)),
    ("ratio:sentence_words", Plain(ratio::sentence_words)),
    ("ratio:overlap", With(ratio::overlap)),
    ("words:alphabet", Plain(words::alphabet)),
    ("words:vowel", Plain(words::vowels)),
    ("words:consonants", Plain(words::consonants)),
    ("words:palindrome", Plain(words::palindromes)),
    ("words:prime_lengths", Plain(words::prime_lengths)),
    ("words:repeats", With(words::repeats)),
    ("words:no_consecutive", Plain(words::no_consecutive)),
    ("words:odd_even_syllables", Plain(words::odd_even_syllables)),
    ("words:start_verb", Plain(words::start_verb)),
    ("words:last_first", Plain(position::last_first)),
    ("words:paragraph_last_first", Plain(position::paragraph_last_first)),
    ("words:keywords_specific_position", With(position::keyword_at)),
    ("words:words_position", With(position::second_and_second_last)),
    ("sentence:keyword", With(sentence::keyword)),
    ("sentence:increment", With(sentence::increment)),
    ("sentence:alliteration_increment", Plain(sentence::alliteration)),
    ("format:parentheses", Plain(format::parentheses)),
    ("format:quotes", Plain(format::quotes)),
    ("format:quote_unquote", Plain(format::quote_unquote)),
    ("format:options", With(format::options)),
    ("format:newline", Plain(format::newline)),
    ("format:emoji", Plain(format::emoji)),
    ("format:line_indent", Plain(format::line_indent)),
    ("format:title_case", Plain(format::title_case)),
    ("format:output_template", Plain(format::output_template)),
    ("format:no_whitespace", Plain(format::no_whitespace)),
    ("format:list", With(list::separators)),
    ("format:thesis", Plain(list::thesis)),
    ("format:sub-bullets", Plain(list::sub_bullets)),
    ("format:no_bullets_bullets", Plain(list::sentences_then_bullets)),
    ("repeat:repeat_change", With(repeat::change)),
    ("repeat:repeat_simple", Plain(repeat::simple)),
    ("repeat:repeat_span", With(repeat::span)),
    ("custom:multiples", Plain(custom::multiples)),
    ("custom:mcq_count_length", Plain(custom::questions)),
    ("custom:reverse_newline", Plain(custom::countries)),
    ("custom:word_reverse", Plain(custom::word_reverse)),
    ("custom:character_reverse", Plain(custom::character_reverse)),
    ("custom:sentence_alphabet", Plain(custom::sentence_alphabet)),
    ("custom:european_capitals_sort", Plain(custom::capitals)),
    ("custom:csv_city", Plain(custom::csv_city)),
    ("custom:csv_special_character", Plain(custom::csv_special_character)),
    ("custom:csv_quotes", Plain(custom::csv_quotes)),
    ("custom:date_format_list", Plain(custom::dates)),
];

/// The check of an id.
pub(super) fn find(id: &str) -> Option<Check> {
    IFEVAL.iter().chain(IFBENCH).find(|(known, _)| *known == id).map(|(_, check)| *check)
}
