//! The kinds of instructions by their ids.

use super::arguments::Arguments;
use super::{
    case, content, count, custom, format, keywords, length, list, position, ratio, repeat, sentence, words,
};

/// Whether a response follows an instruction; an error is about its arguments.
pub(super) type Check = fn(&Arguments<'_>, &str) -> Result<bool, String>;

/// `IFEval`: Zhou et al. 2023, arXiv 2311.07911.
pub(super) const IFEVAL: &[(&str, Check)] = &[
    ("keywords:existence", keywords::existence),
    ("keywords:frequency", keywords::frequency),
    ("keywords:forbidden_words", keywords::forbidden),
    ("keywords:letter_frequency", keywords::letter_frequency),
    ("language:response_language", case::language),
    ("length_constraints:number_sentences", length::sentences),
    ("length_constraints:number_paragraphs", length::paragraphs),
    ("length_constraints:number_words", length::words),
    ("length_constraints:nth_paragraph_first_word", length::nth_paragraph_first_word),
    ("detectable_content:number_placeholders", content::placeholders),
    ("detectable_content:postscript", content::postscript),
    ("detectable_format:number_bullet_lists", content::bullets),
    ("detectable_format:constrained_response", content::constrained),
    ("detectable_format:number_highlighted_sections", content::highlights),
    ("detectable_format:multiple_sections", content::sections),
    ("detectable_format:json_format", content::json),
    ("detectable_format:title", content::title),
    ("combination:two_responses", content::two_responses),
    ("combination:repeat_prompt", content::repeats_prompt),
    ("startend:end_checker", content::ends_with),
    ("startend:quotation", content::quoted),
    ("change_case:capital_word_frequency", case::capital_words),
    ("change_case:english_capital", case::upper),
    ("change_case:english_lowercase", case::lower),
    ("punctuation:no_comma", content::no_comma),
];

/// `IFBench`: Pyatkin et al. 2025, arXiv 2507.02833.
pub(super) const IFBENCH: &[(&str, Check)] = &[
    ("count:word_count_range", count::word_range),
    ("count:unique_word_count", count::unique_words),
    ("count:conjunctions", count::conjunctions),
    ("count:person_names", count::person_names),
    ("count:numbers", count::numbers),
    ("count:punctuation", count::punctuation),
    ("count:pronouns", count::pronouns),
    ("count:keywords_multiple", count::keywords),
    ("count:words_japanese", count::japanese),
    ("ratio:stop_words", ratio::stop_words),
    ("ratio:sentence_type", ratio::sentence_type),
    ("ratio:sentence_balance", ratio::sentence_balance),
    ("ratio:sentence_words", ratio::sentence_words),
    ("ratio:overlap", ratio::overlap),
    ("words:alphabet", words::alphabet),
    ("words:vowel", words::vowels),
    ("words:consonants", words::consonants),
    ("words:palindrome", words::palindromes),
    ("words:prime_lengths", words::prime_lengths),
    ("words:repeats", words::repeats),
    ("words:no_consecutive", words::no_consecutive),
    ("words:odd_even_syllables", words::odd_even_syllables),
    ("words:start_verb", words::start_verb),
    ("words:last_first", position::last_first),
    ("words:paragraph_last_first", position::paragraph_last_first),
    ("words:keywords_specific_position", position::keyword_at),
    ("words:words_position", position::second_and_second_last),
    ("sentence:keyword", sentence::keyword),
    ("sentence:increment", sentence::increment),
    ("sentence:alliteration_increment", sentence::alliteration),
    ("format:parentheses", format::parentheses),
    ("format:quotes", format::quotes),
    ("format:quote_unquote", format::quote_unquote),
    ("format:options", format::options),
    ("format:newline", format::newline),
    ("format:emoji", format::emoji),
    ("format:line_indent", format::line_indent),
    ("format:title_case", format::title_case),
    ("format:output_template", format::output_template),
    ("format:no_whitespace", format::no_whitespace),
    ("format:list", list::separators),
    ("format:thesis", list::thesis),
    ("format:sub-bullets", list::sub_bullets),
    ("format:no_bullets_bullets", list::sentences_then_bullets),
    ("repeat:repeat_change", repeat::change),
    ("repeat:repeat_simple", repeat::simple),
    ("repeat:repeat_span", repeat::span),
    ("custom:multiples", custom::multiples),
    ("custom:mcq_count_length", custom::questions),
    ("custom:reverse_newline", custom::countries),
    ("custom:word_reverse", custom::word_reverse),
    ("custom:character_reverse", custom::character_reverse),
    ("custom:sentence_alphabet", custom::sentence_alphabet),
    ("custom:european_capitals_sort", custom::capitals),
    ("custom:csv_city", custom::csv_city),
    ("custom:csv_special_character", custom::csv_special_character),
    ("custom:csv_quotes", custom::csv_quotes),
    ("custom:date_format_list", custom::dates),
];

/// The check of an id.
pub(super) fn find(id: &str) -> Option<Check> {
    IFEVAL.iter().chain(IFBENCH).find(|(known, _)| *known == id).map(|(_, check)| *check)
}
