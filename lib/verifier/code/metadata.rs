//! What a row's metadata asks of its code: the language, the tests, the limits.

use serde_json::{Map, Value};

use super::language::Language;

/// What a row asks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    pub(super) language: Language,
    pub(super) form: Form,
    pub(super) time_limit_s: f64,
    pub(super) memory_limit_mb: u64,
}

/// How the code is tested.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form {
    /// A whole program: what it reads and what it has to write.
    Cases { cases: Vec<IoCase>, compare: Compare },
    /// Code in Python or JavaScript that tests call.
    Tests(Tests),
}

/// One run of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IoCase {
    pub(super) stdin: String,
    pub(super) stdout: String,
}

/// When an output is the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// Line by line, blanks at the ends of lines and of the whole left out.
    Lines,
    /// Word by word.
    Tokens,
    /// Byte by byte.
    Exact,
}

/// Tests that call functions.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Tests {
    /// Text the response continues, and that tests may rely on.
    pub(super) prompt: Option<String>,
    pub(super) setup: Vec<String>,
    /// The tests themselves, each a text of one or more statements.
    pub(super) texts: Vec<String>,
    /// Names that are the solution's even where Python has the same.
    pub(super) under_test: Vec<String>,
    /// The tests define `check`, which is given the function.
    pub(super) has_check: bool,
}

const TIME_LIMIT_S: f64 = 10.0;
const MEMORY_LIMIT_MB: u64 = 1024;
/// The keys that say what is tested, one of which a row needs.
const FORMS: &str = "cases, tests, test_list, or prompt with test and entry_point";

impl Asked {
    /// Reads a row's metadata; keys of others are left alone.
    ///
    /// # Errors
    /// What is missing or wrong, and what was expected.
    pub(super) fn parse(metadata: Option<&str>) -> Result<Self, String> {
        let text = metadata.ok_or_else(|| format!("the row has no metadata, expected {FORMS}"))?;
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("metadata: no JSON: {error}"))?;
        let Value::Object(fields) = value else {
            return Err(format!("metadata: expected an object, got {}", kind(&value)));
        };
        let fields = Fields(&fields);
        let language = match fields.text("language")? {
            None => Language::Python,
            Some(name) => Language::named(&name).ok_or_else(|| {
                format!("metadata: language: expected one of {}, got {name:?}", Language::names())
            })?,
        };
        let form = form(&fields, language)?;
        let time_limit_s = fields.number("time_limit_s", TIME_LIMIT_S, 0.01, 3600.0)?;
        let memory_limit_mb =
            fields.number("memory_limit_mb", MEMORY_LIMIT_MB as f64, 16.0, 1_048_576.0)? as u64;
        Ok(Self { language, form, time_limit_s, memory_limit_mb })
    }
}

fn form(fields: &Fields<'_>, language: Language) -> Result<Form, String> {
    let compare = match fields.text("compare")?.as_deref() {
        None | Some("lines") => Compare::Lines,
        Some("tokens") => Compare::Tokens,
        Some("exact") => Compare::Exact,
        Some(other) => {
            return Err(format!("metadata: compare: expected lines, tokens or exact, got {other:?}"));
        }
    };
    if fields.has("cases") {
        return Ok(Form::Cases { cases: cases(fields)?, compare });
    }
    let mut tests = Tests::default();
    if fields.has("tests") {
        tests.texts = fields.texts("tests")?;
        tests.setup = fields.texts("setup")?;
    } else if fields.has("test_list") {
        tests.texts = fields.texts("test_list")?;
        tests.texts.extend(fields.texts("challenge_test_list")?);
        tests.setup = [fields.texts("test_imports")?, fields.texts("test_setup_code")?].concat();
        tests.under_test = fields.text("code")?.map_or_else(Vec::new, |code| defined(&code));
    } else if fields.has("test") {
        tests.texts = vec![fields.text("test")?.unwrap_or_default()];
        tests.prompt = fields.text("prompt")?;
        tests.has_check = true;
        if !fields.has("entry_point") || tests.prompt.is_none() {
            return Err("metadata: test: expected prompt and entry_point beside it".to_owned());
        }
    } else {
        return Err(format!("metadata: expected {FORMS}; it has {}", fields.keys()));
    }
    tests.texts.retain(|test| !test.trim().is_empty());
    if tests.texts.is_empty() {
        return Err("metadata: the tests are empty, expected at least one".to_owned());
    }
    if tests.has_check && language != Language::Python {
        return Err(format!(
            "metadata: test: rows of HumanEval are in python, got language {}",
            language.name()
        ));
    }
    if !language.can_be_called() {
        // A native program shares its memory with its tests: what judges it would be in its hands.
        return Err(format!(
            "metadata: tests in {} run inside the code they test, which could forge the verdict: expected cases with \
             stdin and stdout",
            language.name()
        ));
    }
    tests.under_test.extend(fields.texts("entry_point")?);
    Ok(Form::Tests(tests))
}

fn cases(fields: &Fields<'_>) -> Result<Vec<IoCase>, String> {
    let Some(Value::Array(list)) = fields.0.get("cases") else {
        return Err(format!("metadata: cases: expected an array, got {}", fields.kind("cases")));
    };
    if list.is_empty() {
        return Err("metadata: cases: expected at least one, got none".to_owned());
    }
    let case = |(at, value): (usize, &Value)| {
        let Value::Object(case) = value else {
            return Err(format!("metadata: cases[{at}]: expected an object, got {}", kind(value)));
        };
        if let Some(key) = case.keys().find(|key| !["stdin", "stdout"].contains(&key.as_str())) {
            return Err(format!("metadata: cases[{at}]: unknown key {key:?}, expected stdin and stdout"));
        }
        let case = Fields(case);
        let at_case = |problem: String| problem.replacen("metadata: ", &format!("metadata: cases[{at}]."), 1);
        let stdout = case.text("stdout").map_err(at_case)?;
        let stdout = stdout.ok_or_else(|| format!("metadata: cases[{at}]: no stdout, expected a string"))?;
        Ok(IoCase { stdin: case.text("stdin").map_err(at_case)?.unwrap_or_default(), stdout })
    };
    list.iter().enumerate().map(case).collect()
}

/// Functions and classes that code defines at its top.
fn defined(code: &str) -> Vec<String> {
    let name = |line: &str| {
        let rest = ["def ", "class ", "async def "].iter().find_map(|word| line.strip_prefix(word))?;
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
        rest.get(..end).map(str::to_owned)
    };
    code.lines().filter_map(name).collect()
}

/// The fields of an object, null as if absent.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn keys(&self) -> String {
        let keys: Vec<&str> = self.0.keys().map(String::as_str).collect();
        if keys.is_empty() { "no key".to_owned() } else { keys.join(", ") }
    }

    fn kind(&self, key: &str) -> &'static str {
        self.0.get(key).map_or("nothing", kind)
    }

    fn text(&self, key: &str) -> Result<Option<String>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(format!("metadata: {key}: expected a string, got {}", kind(other))),
        }
    }

    /// A string or an array of strings.
    fn texts(&self, key: &str) -> Result<Vec<String>, String> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(list)) => {
                let text = |(at, value): (usize, &Value)| match value {
                    Value::String(text) => Ok(text.clone()),
                    other => Err(format!("metadata: {key}[{at}]: expected a string, got {}", kind(other))),
                };
                list.iter().enumerate().map(text).collect()
            }
            Some(other) => {
                Err(format!("metadata: {key}: expected a string or an array of them, got {}", kind(other)))
            }
        }
    }

    fn number(&self, key: &str, default: f64, min: f64, max: f64) -> Result<f64, String> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Number(number)) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                if (min..=max).contains(&number) {
                    Ok(number)
                } else {
                    Err(format!("metadata: {key}: expected {min} to {max}, got {number}"))
                }
            }
            Some(other) => Err(format!("metadata: {key}: expected a number, got {}", kind(other))),
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_apart_by_their_keys() {
        let tests = |text: &str| match Asked::parse(Some(text)).unwrap().form {
            Form::Tests(tests) => tests,
            form @ Form::Cases { .. } => panic!("{form:?}"),
        };
        let human = tests(
            r#"{"task_id": "x", "prompt": "def f():", "test": "def check(c): pass", "entry_point": "f"}"#,
        );
        assert!(human.has_check && human.under_test == ["f"] && human.prompt.as_deref() == Some("def f():"));
        let mbpp = tests(
            r#"{"code": "import re\ndef sum(a, b):\n  def inner(): 1", "test_list": ["assert sum(1, 2) == 3"], "test_setup_code": ""}"#,
        );
        assert_eq!((mbpp.under_test.as_slice(), mbpp.texts.len()), (&["sum".to_owned()][..], 1));
        assert_eq!(
            tests(r#"{"tests": "assert f() == 1", "entry_point": ["f", "g"]}"#).under_test,
            ["f", "g"]
        );
        let cases = Asked::parse(Some(
            r#"{"language": "C++", "cases": [{"stdin": "1", "stdout": "2"}, {"stdout": ""}], "compare": "tokens"}"#,
        ));
        let cases = cases.unwrap();
        assert_eq!((cases.language, cases.time_limit_s), (Language::Cpp, 10.0));
        let Form::Cases { cases, compare } = cases.form else { panic!() };
        assert_eq!((cases[1].stdin.as_str(), compare), ("", Compare::Tokens));
    }

    #[test]
    fn wrong_metadata_says_where_what_and_what_was_expected() {
        for (metadata, problem) in [
            (None, "the row has no metadata, expected cases, tests"),
            (Some("{"), "metadata: no JSON"),
            (Some("3"), "expected an object, got a number"),
            (
                Some("{}"),
                "expected cases, tests, test_list, or prompt with test and entry_point; it has no key",
            ),
            (Some(r#"{"cases": []}"#), "cases: expected at least one, got none"),
            (Some(r#"{"cases": "a"}"#), "cases: expected an array, got a string"),
            (Some(r#"{"cases": [1]}"#), "cases[0]: expected an object, got a number"),
            (Some(r#"{"cases": [{"stdin": "1"}]}"#), "cases[0]: no stdout, expected a string"),
            (Some(r#"{"cases": [{"stdout": 1}]}"#), "cases[0].stdout: expected a string, got a number"),
            (Some(r#"{"cases": [{"stdout": "1", "input": ""}]}"#), r#"cases[0]: unknown key "input""#),
            (Some(r#"{"tests": []}"#), "the tests are empty"),
            (Some(r#"{"tests": [1]}"#), "tests[0]: expected a string, got a number"),
            (Some(r#"{"tests": {}}"#), "tests: expected a string or an array of them, got an object"),
            (Some(r#"{"test": "x"}"#), "test: expected prompt and entry_point beside it"),
            (
                Some(r#"{"tests": "x", "language": "cobol"}"#),
                "language: expected one of python, c, cpp, rust",
            ),
            (Some(r#"{"tests": "x", "language": 1}"#), "language: expected a string, got a number"),
            (Some(r#"{"tests": "x", "language": "rust"}"#), "expected cases with stdin and stdout"),
            (Some(r#"{"tests": "x", "time_limit_s": 0}"#), "time_limit_s: expected 0.01 to 3600, got 0"),
            (Some(r#"{"tests": "x", "time_limit_s": "1"}"#), "time_limit_s: expected a number, got a string"),
            (
                Some(r#"{"tests": "x", "memory_limit_mb": 1}"#),
                "memory_limit_mb: expected 16 to 1048576, got 1",
            ),
            (
                Some(r#"{"cases": [{"stdout": ""}], "compare": "eq"}"#),
                "compare: expected lines, tokens or exact",
            ),
        ] {
            let error = Asked::parse(metadata).unwrap_err();
            assert!(error.contains(problem), "{metadata:?}: {error}");
        }
    }
}
