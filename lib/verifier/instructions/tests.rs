//! Every kind of instruction, in rows of text, arguments and what must be said of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

fn data(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
    }
    path.exists().then_some(path)
}

fn rows(name: &str) -> Option<Vec<Value>> {
    let text = fs::read_to_string(data(name)?).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn judge(is_loose: bool) -> Instructions {
    Instructions { name: "ifbench", is_loose, pays_shares: false }
}

fn followed(row: &Value, is_loose: bool) -> Vec<bool> {
    let metadata = row.to_string();
    let response = row["response"].as_str().unwrap();
    let row = Row { response, metadata: Some(&metadata), ..Row::default() };
    judge(is_loose).followed(&row).unwrap().into_iter().map(|(_, is_followed)| is_followed).collect()
}

/// What [`agreement`] finds, by the group of kinds.
type Agreement<'a> = BTreeMap<&'a str, [(usize, usize); 2]>;

/// Verdicts that agree and all, strict and loose, of each group of kinds; and those that differ.
fn agreement(rows: &[Value]) -> (Agreement<'_>, Vec<String>) {
    let (mut agreed, mut wrong) = (Agreement::new(), Vec::new());
    for row in rows {
        for (column, (mode, is_loose)) in [("strict", false), ("loose", true)].into_iter().enumerate() {
            for (at, is_followed) in followed(row, is_loose).into_iter().enumerate() {
                let id = row["instruction_id_list"][at].as_str().unwrap();
                let is_right = row[mode][at] == json!(is_followed);
                let counts = &mut agreed.entry(id.split(':').next().unwrap()).or_default()[column];
                *counts = (counts.0 + usize::from(is_right), counts.1 + 1);
                if !is_right {
                    wrong.push(format!("{} {mode} {id}: got {is_followed}", row["key"]));
                }
            }
        }
    }
    (agreed, wrong)
}

/// Set `SLIME_WRITE_TABLE=1` to write the table into the README instead of comparing it.
#[test]
fn verdicts_agree_with_the_published_ones_as_the_readme_says() {
    let Some(rows) = rows("ifbench_verdicts.jsonl") else { return };
    let (agreed, wrong) = agreement(&rows);
    assert!(wrong.is_empty(), "{} verdicts differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(agreed.len() == 7 && rows.len() == 145);
    let mut table = "| kinds | number | strict | loose |\n|---|---|---|---|\n".to_owned();
    for (group, [strict, loose]) in agreed {
        let num = kinds::IFBENCH.iter().filter(|(id, _)| id.split(':').next() == Some(group)).count();
        writeln!(
            table,
            "| `{group}:*` | {num} | {} of {} | {} of {} |",
            strict.0, strict.1, loose.0, loose.1
        )
        .unwrap();
    }
    crate::readme::compare("ifbench", &table);
}

#[test]
fn every_instruction_of_the_benchmark_is_known_and_takes_its_arguments() {
    let Some(rows) = rows("IFBench_test.jsonl") else { return };
    for mut row in rows {
        row["response"] = json!("A word, and another one. Is it \"enough\"?\n\n* One\n- two");
        assert!(!followed(&row, true).is_empty());
    }
}

#[test]
fn kinds_of_ifeval_follow_its_definitions() {
    for (id, arguments, text, expected) in [
        ("keywords:existence", json!({"keywords": ["Red", "blue"]}), "red and BLUE", true),
        (
            "keywords:frequency",
            json!({"keyword": "a+b", "frequency": 2, "relation": "at least"}),
            "aab ab",
            true,
        ),
        (
            "keywords:frequency",
            json!({"keyword": "c++", "frequency": 1, "relation": "less than"}),
            "C++",
            false,
        ),
        ("keywords:forbidden_words", json!({"forbidden_words": ["cat"]}), "concatenate", true),
        ("keywords:forbidden_words", json!({"forbidden_words": ["cat"]}), "a Cat.", false),
        (
            "keywords:letter_frequency",
            json!({"letter": "e", "let_frequency": 3, "let_relation": "less than"}),
            "Eve",
            true,
        ),
        (
            "language:response_language",
            json!({"language": "de"}),
            "Das ist ein deutscher Satz über das Wetter.",
            true,
        ),
        (
            "language:response_language",
            json!({"language": "fr"}),
            "This sentence is plainly an English one.",
            false,
        ),
        (
            "length_constraints:number_sentences",
            json!({"num_sentences": 3, "relation": "less than"}),
            "One. Two!",
            true,
        ),
        (
            "length_constraints:number_words",
            json!({"num_words": 3, "relation": "at least"}),
            "one-two three",
            true,
        ),
        ("length_constraints:number_paragraphs", json!({"num_paragraphs": 2}), "a\n***\nb", true),
        ("length_constraints:number_paragraphs", json!({"num_paragraphs": 2}), "a\n***\n***\nb", false),
        (
            "length_constraints:nth_paragraph_first_word",
            json!({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Hello"}),
            "a b\n\n\"hello, you",
            true,
        ),
        ("detectable_content:number_placeholders", json!({"num_placeholders": 2}), "[name] at [place]", true),
        ("detectable_content:postscript", json!({"postscript_marker": "P.P.S"}), "text\np. p. s more", true),
        ("detectable_content:postscript", json!({"postscript_marker": "P.S."}), "text without", false),
        ("detectable_format:number_bullet_lists", json!({"num_bullets": 2}), "* a\n- b\n**c**", true),
        ("detectable_format:constrained_response", json!({}), "My answer is maybe.", true),
        (
            "detectable_format:number_highlighted_sections",
            json!({"num_highlights": 2}),
            "*a* and **b** but **",
            true,
        ),
        (
            "detectable_format:multiple_sections",
            json!({"section_spliter": "Section", "num_sections": 2}),
            "Section 1\na\nSection 2\nb",
            true,
        ),
        ("detectable_format:json_format", json!({}), "```json\n{\"a\": 1}\n```", true),
        ("detectable_format:json_format", json!({}), "{a: 1}", false),
        ("detectable_format:title", json!({}), "<<a song>>\nla", true),
        ("detectable_format:title", json!({}), "<<  >>", false),
        ("combination:two_responses", json!({}), "a\n******\nb", true),
        ("combination:two_responses", json!({}), "a\n******\na", false),
        ("combination:repeat_prompt", json!({"prompt_to_repeat": "Say it"}), "say it\nno", true),
        ("startend:end_checker", json!({"end_phrase": "Any questions?"}), "Yes. any questions?\"", true),
        ("startend:quotation", json!({}), "\"all\"", true),
        (
            "change_case:capital_word_frequency",
            json!({"capital_frequency": 2, "capital_relation": "at least"}),
            "I SAY no",
            true,
        ),
        ("change_case:english_capital", json!({}), "THIS IS PLAINLY AN ENGLISH SENTENCE.", true),
        ("change_case:english_lowercase", json!({}), "this is Not", false),
        ("punctuation:no_comma", json!({}), "a, b", false),
    ] {
        let check = kinds::find(id).unwrap();
        let got = check.is_followed(&Arguments(arguments.as_object().unwrap()), text).unwrap();
        assert_eq!(got, expected, "{id} {arguments} {text:?}");
    }
    assert_eq!((kinds::IFEVAL.len(), kinds::IFBENCH.len()), (25, 58));
}

#[test]
fn rows_without_usable_instructions_are_errors() {
    let verdict = |metadata: Value, spec: &str| {
        let metadata = metadata.to_string();
        let row = Row { response: "No commas here", metadata: Some(&metadata), ..Row::default() };
        crate::RewardSet::parse(&[spec]).unwrap().score(&[row]).map(|scored| scored[0].reward)
    };
    let both =
        json!({"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, null]});
    assert_eq!(verdict(both.clone(), "ifeval").unwrap().to_bits(), 0.0_f64.to_bits());
    assert_eq!(verdict(both, "ifeval:share").unwrap().to_bits(), 0.5_f64.to_bits());
    for (metadata, problem) in [
        (json!({}), "needs metadata.instruction_id_list"),
        (json!({"instruction_id_list": []}), "expected a list of ids"),
        (json!({"instruction_id_list": ["a:b"]}), "unknown instruction \"a:b\""),
        (
            json!({"instruction_id_list": ["count:numbers"], "kwargs": [{"N": null}]}),
            "N: expected a number, got none",
        ),
        (
            json!({"instruction_id_list": ["count:numbers"], "kwargs": 3}),
            "metadata.kwargs: expected an object",
        ),
    ] {
        let error = verdict(metadata, "ifbench").unwrap_err();
        assert!(error.exit_code() == 65 && error.to_string().contains(problem), "{error}");
    }
}
