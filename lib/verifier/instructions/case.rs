//! `change_case:*` and `language:*` of `IFEval`.

use whatlang::Lang;

use super::arguments::Arguments;
use super::tokens::tokens;

/// The two-letter codes of the languages `IFEval` asks for.
const CODES: [(&str, Lang); 29] = [
    ("ar", Lang::Ara),
    ("bg", Lang::Bul),
    ("bn", Lang::Ben),
    ("cs", Lang::Ces),
    ("de", Lang::Deu),
    ("en", Lang::Eng),
    ("es", Lang::Spa),
    ("fa", Lang::Pes),
    ("fi", Lang::Fin),
    ("fr", Lang::Fra),
    ("gu", Lang::Guj),
    ("he", Lang::Heb),
    ("hi", Lang::Hin),
    ("it", Lang::Ita),
    ("ja", Lang::Jpn),
    ("kn", Lang::Kan),
    ("ko", Lang::Kor),
    ("ml", Lang::Mal),
    ("mr", Lang::Mar),
    ("ne", Lang::Nep),
    ("pa", Lang::Pan),
    ("pl", Lang::Pol),
    ("pt", Lang::Por),
    ("ru", Lang::Rus),
    ("ta", Lang::Tam),
    ("te", Lang::Tel),
    ("th", Lang::Tha),
    ("uk", Lang::Ukr),
    ("vi", Lang::Vie),
];
/// Frequent words of Swahili, which the detector does not know.
const SWAHILI: &str =
    "na ya wa kwa ni katika za la kuwa hii cha vya kama lakini yake sana pia au hiyo watu mtu";

/// Whether the text is in the language, or in none that can be told.
pub(super) fn language(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let code = arguments.text("language")?;
    let found = whatlang::detect_lang(text);
    match code {
        "sw" => return Ok(is_swahili(text)),
        "ur" => return Ok(found.is_none_or(|found| found == Lang::Urd)),
        _ => {}
    }
    let wanted = CODES.iter().find(|(known, _)| *known == code).map(|(_, lang)| *lang);
    let wanted = wanted.ok_or_else(|| format!("language: expected a code such as en or sw, got {code:?}"))?;
    Ok(found.is_none_or(|found| found == wanted))
}

fn is_swahili(text: &str) -> bool {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    let num = words.iter().filter(|word| SWAHILI.split(' ').any(|known| known == **word)).count();
    num * 10 >= words.len()
}

/// Words all in capitals.
pub(super) fn capital_words(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num = tokens(text).filter(|word| has_only(word, char::is_uppercase, char::is_lowercase)).count();
    arguments.compares("capital_relation", num, arguments.number("capital_frequency")?)
}

/// Letters of one case, and none of the other.
fn has_only(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}

fn is_english(text: &str) -> bool {
    whatlang::detect_lang(&text.to_lowercase()).is_none_or(|found| found == Lang::Eng)
}

pub(super) fn upper(text: &str) -> bool {
    has_only(text, char::is_uppercase, char::is_lowercase) && is_english(text)
}

pub(super) fn lower(text: &str) -> bool {
    has_only(text, char::is_lowercase, char::is_uppercase) && is_english(text)
}
