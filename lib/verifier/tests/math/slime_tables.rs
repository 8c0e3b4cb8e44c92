//! The tables of the framework slime's graders, row by row: response, label, reward.

use slime_verifier::{Error, RewardSet, Row};

use crate::verdict;

const SLIME_MATH: &[(&str, &str, f64)] = &[
    (r"\boxed{42}", "42", 1.0),
    (r"\boxed{42}", r"\boxed{42}", 1.0),
    ("just 42", "42", 0.0),
    (r"\boxed{42}", "", 0.0),
    (r"\boxed{0}", "0", 1.0),
    (r"\boxed{42.0}", "42", 1.0),
    (r"\boxed{1,000}", "1000", 1.0),
    (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", 0.0),
    (r"\boxed{0.25}", r"\frac{1}{4}", 1.0),
    (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
    (r"\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
    (r"\boxed{x+1}", "1+x", 1.0),
    (r"\boxed{[1,2]}", "(1,2)", 0.0),
    (r"\boxed{(1,2)}", "(1, 2)", 1.0),
    (r"\boxed{50\%}", "50", 1.0),
    (r"\boxed{\$5}", "5", 1.0),
    (r"\boxed{5\text{ cm}}", "5", 1.0),
    (r"\boxed{5 cm}", "5", 1.0),
    (r"\boxed{3 million}", "3000000", 0.0),
    (r"\boxed{\text{Paris}}", "paris", 1.0),
    (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", 1.0),
    (r"\boxed{\pi/2}", r"\frac{\pi}{2}", 1.0),
    (r"\boxed{1 1/2}", "3/2", 1.0),
    (r"\boxed{1\frac{1}{2}}", r"\frac{3}{2}", 1.0),
    (r"\boxed{x=5}", "5", 1.0),
    (r"\boxed{90^\circ}", "90", 1.0),
    (r"\boxed{}", "5", 0.0),
    (r"\fbox{7}", "7", 0.0),
    (r"\boxed 7", "7", 0.0),
    (r"\boxed{7", "7", 0.0),
    (r"\boxed{10^{6}}", "1000000", 0.0),
    (r"\boxed{2^10}", "1024", 0.0),
    (r"\boxed{1/3}", "0.333333", 0.0),
    (r"\boxed{a+b}", "b+a", 1.0),
    (r"\boxed{a+b+c}", "c+b+a", 0.0),
    (r"\boxed{1e3}", "1000", 1.0),
    (r"\boxed{A}", "a", 1.0),
    (r"\boxed{1 or 2}", "1,2", 1.0),
    (r"\boxed{3.0000000001}", "3", 1.0),
    (r"\boxed{1}, \boxed{2}", "2", 1.0),
];

const DEEPSCALER: &[(&str, &str, f64)] = &[
    (r"… \boxed{99}</think>Final: \boxed{42}", "42", 1.0),
    (r"Scratch \boxed{wrong}###Response\boxed{42}", "42", 1.0),
    (r"\boxed{42}", "42", 0.0),
    ("plain</think>no box here", "42", 0.0),
    (r"</think>\boxed{42}", "", 0.0),
    (r"</think>\boxed{42}", "42", 1.0),
    (r"</think>\boxed{42}", r"\boxed{42}", 1.0),
    (r"</think>\boxed{4}", "4.0", 1.0),
    (r"</think>\boxed{43}", "42", 0.0),
    (r"</think>\boxed{\frac{1}{2}}", "0.5", 1.0),
    (r"</think>\boxed{1}</think>\boxed{2}", "2", 1.0),
    (r"###Response\boxed{1}###Response\boxed{2}", "1", 1.0),
    (r"</think>\fbox{3}", "3", 0.0),
    (r"\boxed{4}</think>", "4", 0.0),
    (r"</think>\boxed{4}", r"\boxed{4", 0.0),
];

const DAPO: &[(&str, &str, f64)] = &[
    ("Answer: 42", "42", 1.0),
    ("ANSWER:42", "42.0", 1.0),
    ("Answer:\n42", "42", 1.0),
    (r"Answer: \boxed{42}", "42", 1.0),
    ("Answer: $42$", "42", 1.0),
    ("Answer: 1,000", "1000", 1.0),
    ("Answer: x = 42", "42", 1.0),
    ("Answer: 42 dollars", "42", 1.0),
    ("Answer: -3", "-3", 1.0),
    ("Answer: 42", "42.7", 1.0),
    ("Answer: 41 was wrong\nAnswer: 42", "42", 1.0),
    ("answer : 42.", "42", -1.0),
    ("**Answer:** 42", "42", -1.0),
    ("Answer: 42.0", "42", -1.0),
    ("Answer: 042", "42", -1.0),
    ("The answer is 42", "42", -1.0),
    ("just a number 42", "42", -1.0),
    (r"\boxed{42}", "42", -1.0),
];

const DAPO_STRICT: &[(&str, &str, f64)] =
    &[(r"… \boxed{42}", "42", 1.0), (r"\boxed{43}", "42", -1.0), ("plain 42", "42", -1.0)];

#[test]
fn rewards_are_those_of_the_tables() {
    let mut wrong = Vec::new();
    for (kind, table) in [
        ("slime_math", SLIME_MATH),
        ("deepscaler", DEEPSCALER),
        ("dapo", DAPO),
        ("dapo:strict_box", DAPO_STRICT),
    ] {
        for (response, label, expected) in table {
            let (reward, reason) = verdict(kind, response, label);
            if (reward - expected).abs() > 0.1 {
                wrong.push(format!(
                    "{kind}: {response} / {label}: expected {expected}, got {reward}: {reason}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dapo_names_the_answer_it_found() {
    for (response, label, answer) in [
        ("answer : 42.", "42", "the answer is 42., the label is 42"),
        ("**Answer:** 42", "42", "the answer is **42, the label is 42"),
        ("Answer: 42.0", "42", "the answer is 42.0, the label is 42"),
        ("Answer: 042", "42", "the answer is 042, the label is 42"),
        ("The answer is 42", "42", "the answer is [INVALID], the label is 42"),
        ("Answer: -3", "-3", "the answer -3 is the label"),
    ] {
        assert_eq!(verdict("dapo", response, label).1, answer);
    }
    assert_eq!(verdict("dapo:strict_box", "plain 42", "42").1, "no box");
}

#[test]
fn dapo_looks_at_the_last_300_characters() {
    let late = format!("Answer: 42\n{}", "é".repeat(301));
    assert!(verdict("dapo", &late, "42").0 < 0.0);
    let near = format!("Answer: 42\n{}", "é".repeat(280));
    assert!(verdict("dapo", &near, "42").0 > 0.0);
}

/// What raises an exception there is an error here, and names the row.
#[test]
fn labels_that_raise_exceptions_are_errors() {
    let error = |kind: &str, label: Option<&str>| {
        let rows = [
            Row { response: "Answer: 42", label: Some("42"), ..Row::default() },
            Row { response: "Answer: 42", label, ..Row::default() },
        ];
        RewardSet::parse(&[kind]).unwrap().score(&rows).unwrap_err()
    };
    for kind in ["math", "slime_math", "deepscaler", "dapo", "mathd", "gsm8k"] {
        let problem = error(kind, None);
        assert_eq!(
            problem.to_string(),
            format!("row 2: the {kind} reward needs a label, and the row has none")
        );
        assert!(matches!(problem, Error::Row { row: 1, .. }), "{kind}");
    }
    for kind in ["dapo", "gsm8k"] {
        let problem = error(kind, Some("abc"));
        assert!(matches!(problem, Error::Row { row: 1, .. }), "{problem}");
        assert_eq!(
            problem.to_string(),
            format!("row 2: the {kind} reward finds no number in the label \"abc\"")
        );
    }
}
