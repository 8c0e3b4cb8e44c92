//! What a large row costs under each type: a megabyte of anything, ten thousand nested pieces, powers of powers, patterns
//! that look back. Types that only ask others (programs, servers, the sandbox) have bounds of their own for that.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::instructions::kind_ids;
use crate::{RewardSet, Row, types};

/// What takes longer is told at once.
const TOLD: Duration = Duration::from_millis(50);
/// Nesting of deep texts.
const DEPTH: usize = 10_000;
/// Types whose rows cost what others do with them.
const ASKS_OTHERS: [&str; 6] = ["code:rate", "command", "remote", "judge", "tournament", "reward_model"];
/// Arguments of all kinds of instructions together.
const ARGUMENTS: &str = include_str!("tests/arguments.json");

/// CPU time of this thread, as the scheduler last counted it: a few milliseconds may be missing.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// Texts by what they are made of.
fn texts(len: usize) -> Vec<(String, String)> {
    let pieces = [
        "9",
        "a",
        "a ",
        "A ",
        "é",
        "Ž",
        "\n",
        " ",
        "\u{a0}",
        "word. ",
        "x, ",
        "1. ",
        "- a\n",
        "* b\n\n",
        "(",
        ")",
        "[",
        "{\"a\":",
        "<a>",
        "\"",
        "'",
        "'t",
        "a.b,",
        "`",
        "```\n",
        "$",
        "\\",
        "\\boxed{",
        "\\boxed{1} ",
        "\\frac",
        "9^",
        "9^9^9^9 ",
        "x+",
        "Answer: ",
        "the answer is A. ",
        "(A) ",
        "####",
        "<think>",
        "</think>",
        "a-",
        "A?! ",
        "<<x>>",
        "***",
        "SECTION 1\n",
        "[x] ",
        "日本",
        "🙂",
        "aB3 ",
        "P.S. ",
        "and or ",
        "The cat sat. ",
    ];
    let long =
        pieces.iter().map(|piece| (format!("{piece:?} over and over"), piece.repeat(len / piece.len())));
    let nested = [
        ("(", ")"),
        ("[", "]"),
        ("{\"a\":", "}"),
        ("<a>", "</a>"),
        ("\\boxed{", "}"),
        ("\\frac{1}{", "}"),
        ("sqrt(", ")"),
        ("\\left(", "\\right)"),
    ];
    let deep = nested.iter().map(|(open, close)| {
        (
            format!("{open:?} nested"),
            format!("{}1{}", open.repeat(DEPTH.min(len)), close.repeat(DEPTH.min(len))),
        )
    });
    let words: String = (0..len / 8).fold(String::new(), |mut text, n| {
        let _ = write!(text, "w{n} ");
        text
    });
    let single = [
        ("9^9^9^9".to_owned(), "9^9^9^9".to_owned()),
        ("boxed 9^9^9^9".to_owned(), "\\boxed{9^{9^{9^{9}}}}".to_owned()),
        ("a long run of a, then b".to_owned(), "a".repeat(len) + "b"),
        ("words that are all different".to_owned(), words),
        ("a long box".to_owned(), format!("\\boxed{{{}}}", "1+".repeat(len / 2))),
        ("a long JSON list".to_owned(), format!("[{}1]", "1,".repeat(len / 2))),
        ("a long JSON text".to_owned(), format!("\"{}\"", "a".repeat(len))),
    ];
    long.chain(deep).chain(single).collect()
}

/// How a type is written and which label and metadata its row has.
fn specs() -> Vec<(String, &'static str, Value)> {
    let schema = json!({"json_schema": {"anyOf": [
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "string", "pattern": "^(?=(a+)+$)(\\w)\\2"},
        {"type": "array", "items": {"$ref": "#"}, "uniqueItems": true},
        {"type": "object", "additionalProperties": {"$ref": "#"}},
    ]}});
    let none = Value::Null;
    let mut specs: Vec<(String, &str, Value)> = Vec::new();
    let mut add = |spec: &str, metadata: &Value| specs.push((spec.to_owned(), "1", metadata.clone()));
    for kind in types().filter(|kind| !ASKS_OTHERS.contains(&kind.name)) {
        match kind.name {
            "format:regex" => add(r"format:regex=(a+)+$|(x|x)*y|(?i)the\s+answer\s+is\s*(.*)*z", &none),
            "json_schema" => add("json_schema", &schema),
            "length" => {
                for unit in ["words", "characters"] {
                    add(&format!("length:min=3 max=9 slack=5 unit={unit}"), &none);
                }
            }
            "overlong" => add("overlong:max=9 cache=3 unit=words", &none),
            "repetition" => {
                for n in [1, 4, 1000] {
                    add(&format!("repetition:n={n}"), &none);
                }
            }
            "gpqa" => add("gpqa", &json!({"choices": ["one", "two", "a"]})),
            "boxed" | "guard" | "group_norm" | "group_rank" => {
                for inner in ["math", "f1"] {
                    add(&format!("{}:{inner}", kind.name), &none);
                }
            }
            "by_metadata" => add("by_metadata", &json!({"rm_type": "math"})),
            // By the ids of their kinds, and by the search for code.
            "ifeval" | "ifbench" | "code" => {}
            name => add(name, &none),
        }
    }
    let arguments: Value = serde_json::from_str(ARGUMENTS).unwrap();
    for id in kind_ids() {
        let metadata = json!({"instruction_id_list": [id], "kwargs": [arguments]});
        specs.push(("ifeval:loose".to_owned(), "", metadata));
    }
    specs
}

/// The most that a row costs under each type, and the text that costs it.
fn slowest(len: usize) -> BTreeMap<String, (Duration, String)> {
    let mut slowest: BTreeMap<String, (Duration, String)> = BTreeMap::new();
    let mut timed = |name: &str, text: &str, work: &dyn Fn()| {
        let before = cpu_time();
        work();
        let taken = cpu_time().saturating_sub(before);
        if taken > TOLD {
            eprintln!("{name}: {taken:?} for {text}");
        }
        let most = slowest.entry(name.to_owned()).or_default();
        if taken >= most.0 {
            *most = (taken, text.to_owned());
        }
    };
    let texts = texts(len);
    for (spec, label, metadata) in specs() {
        let name = metadata["instruction_id_list"][0].as_str().unwrap_or(&spec);
        let set = RewardSet::parse(&[&spec]).unwrap();
        let text = metadata.to_string();
        let metadata = (!metadata.is_null()).then_some(text.as_str());
        for (what, response) in &texts {
            // Only guards look at the prompt.
            let prompt = spec.starts_with("guard").then(|| json!(response).to_string());
            let prompt = prompt.as_deref();
            let row =
                Row { prompt, response, label: Some(label), metadata, group: Some((0, 0)), ..Row::default() };
            timed(name, what, &|| drop(set.try_score(&[row])));
        }
    }
    for (what, response) in &texts {
        let metadata = r#"{"tests": "assert f(2) == 4"}"#;
        timed("code (found, not run)", what, &|| crate::code::read_code(metadata, response));
    }
    slowest
}

/// Scores on one thread, so that its CPU time is that of the rows.
fn on_one_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(work)
}

#[test]
fn every_type_ends_on_any_text() {
    for (spec, label, metadata) in specs() {
        let text = metadata.to_string();
        let row = Row {
            response: "a 1",
            label: Some(label),
            metadata: Some(&text),
            group: Some((0, 0)),
            ..Row::default()
        };
        let set = RewardSet::parse(&[&spec]).unwrap();
        assert!(set.try_score(&[row]).iter().all(Result::is_ok), "{spec} {text}");
    }
    assert!(on_one_thread(|| slowest(1000)).len() > 100);
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn no_type_takes_long_for_a_megabyte() {
    let bound = Duration::from_millis(if cfg!(debug_assertions) { 10_000 } else { 100 });
    let len = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let mut slowest: Vec<_> = on_one_thread(|| slowest(len)).into_iter().collect();
    slowest.sort_by_key(|(_, (taken, _))| std::cmp::Reverse(*taken));
    for (name, (taken, text)) in &slowest {
        eprintln!("{:7.1} ms  {name}: {text}", taken.as_secs_f64() * 1000.0);
    }
    let wrong: Vec<_> = slowest.iter().take_while(|(_, (taken, _))| *taken > bound).collect();
    assert!(wrong.is_empty(), "over {bound:?}: {wrong:#?}");
}
