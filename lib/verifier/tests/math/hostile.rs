//! Texts made to cost time, memory or stack. Work is counted, so each ends within milliseconds; a verdict never depends
//! on what was scored before it.

use slime_verifier::{RewardSet, Row};

/// Every mathematics reward.
pub(crate) const KINDS: [&str; 8] =
    ["math", "slime_math", "deepscaler", "dapo", "dapo:strict_box", "mathd", "gsm8k", "number"];

/// One megabyte of a piece; a tenth of it without optimisation.
fn megabyte(piece: &str) -> String {
    let len = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    piece.repeat(len / piece.len())
}

fn boxed(inner: &str) -> String {
    format!(r"\boxed{{{inner}}}")
}

/// Nested ten thousand times.
fn deep(open: &str, close: &str, inner: &str) -> String {
    format!("{}{inner}{}", open.repeat(10_000), close.repeat(10_000))
}

/// Responses with labels that make them look worth the effort.
pub(crate) fn texts() -> Vec<(String, &'static str)> {
    [long_texts(), formulas(), repetitions()].concat()
}

fn long_texts() -> Vec<(String, &'static str)> {
    vec![
        (megabyte("9"), "9"),
        (megabyte("9 "), "9"),
        (megabyte("1,000 "), "1000"),
        (megabyte("9.9"), "9.9"),
        (megabyte("1/"), "1/2"),
        (megabyte("$"), "x"),
        (megabyte("$x"), "x"),
        (megabyte("$x$ "), "x"),
        (megabyte(r"\("), "x"),
        (megabyte(r"\[x\]"), "x"),
        (megabyte(r"\boxed{1}, "), "1, 2"),
        (megabyte(r"\boxed{"), "1"),
        (megabyte("{"), "1"),
        (megabyte("}"), "1"),
        (megabyte(r"\frac"), "1"),
        (megabyte(r"\frac{1}{2}"), "1/2"),
        (megabyte("answer is "), "1"),
        (megabyte("the final answer is 1. "), "1"),
        (megabyte("Answer: "), "1"),
        (megabyte("<|"), "1"),
        (megabyte("<|im_end|>"), "1"),
        (megabyte("</think>"), "1"),
        (megabyte("<think>"), "1"),
        (megabyte("###Response"), "1"),
        (megabyte("####"), "1"),
        (megabyte(r"\\"), "1"),
        (megabyte("-"), "-1"),
        (megabyte("x+"), "x"),
        (megabyte("é"), "é"),
        (megabyte("a "), "a"),
        (megabyte("or and "), "1 or 2"),
        (format!("{}42", megabyte(" ")), "42"),
        (boxed(&megabyte("9")), "9"),
        (boxed(&megabyte("x+")), "x"),
        (boxed(&megabyte(r"\text{ m}")), "5"),
        (boxed(&megabyte("- ")), "5"),
        (boxed(&megabyte("1 ")), "5"),
        (deep("(", ")", "1"), "1"),
        (deep("{", "}", "1"), "1"),
        (deep("[", "]", "1"), "1"),
        (deep("|", "|", "x"), "x"),
        (deep(r"\frac{1}{", "}", "2"), "2"),
        (deep(r"\sqrt{", "}", "2"), "2"),
        (deep(r"\boxed{", "}", "1"), "1"),
        (deep(r"\left(", r"\right)", "1"), "1"),
        (deep(r"\begin{pmatrix}", r"\end{pmatrix}", "1"), "1"),
        (deep("sin(", ")", "x"), "x"),
        (deep("-", "", "1"), "1"),
        (deep("x^", "", "1"), "x"),
        (deep("x_", "", "1"), "x"),
        (deep("{}", "", "1"), "1"),
        (deep(r"\{", r"\}", "1"), "1"),
    ]
}

/// Short enough to be read as formulas: exponential results and much arithmetic.
fn formulas() -> Vec<(String, &'static str)> {
    [
        ("9^9^9^9", "1"),
        ("9^{9^{9^{9}}}", "9^{9^{9^{9}}}+1"),
        ("((9^9)^9)^9", "1"),
        ("10^{10^{10}}", "10^{10^{10}}"),
        ("2^{1000000000}", "0"),
        ("1.0000001^{99999999}", "1"),
        ("(1/3)^{5000}", "(1/3)^{5000}+1"),
        ("99999999999!", "1"),
        ("1000!", "1000!"),
        ("((100!)!)!", "1"),
        (r"\binom{1000000}{500000}", "1"),
        (r"\binom{900}{450}^{40}", "1"),
        ("(a+b+c+d+e+f)^{40}", "(f+e+d+c+b+a)^{40}"),
        ("(1+x)^{40}(1-x)^{40}", "(1-x^2)^{40}"),
        ("((((x+1)^9)^9)^9)^9", "x"),
        ("(x+y+z)^{30}/(x-y)^{30}+(x-z)^{30}/(y-z)^{30}", "1"),
        ("1e400*1e400*1e400", "1"),
        ("1e-400^{400}", "0"),
        (r"\sqrt[1000]{2^{999}}", "2"),
        (r"\sin(10^{300})", "0"),
        (r"e^{e^{e^{e^{e}}}}", "1"),
        (r"\ln(\ln(\ln(\ln(x))))", "1"),
        (r"\gcd(10^{2000}, 7^{2000})", "1"),
        ("1/(x-x)", "1/0"),
        (r"\frac{0}{0}", r"\frac{0}{0}+1"),
        (r"\infty-\infty", "0"),
        (r"0^0", "1"),
        (r"\log_1 5", "1"),
        (r"\log 0", r"\ln 0"),
        (r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{16}", "1"),
        (r"\begin{pmatrix}x&y\\z&w\end{pmatrix}^{16}", r"\begin{pmatrix}1&1\\1&0\end{pmatrix}"),
    ]
    .iter()
    .flat_map(|(formula, label)| [(boxed(formula), *label), ((*formula).to_owned(), *label)])
    .collect()
}

/// Many equal parts, at most 4096 bytes of them, and nesting within the bound.
fn repetitions() -> Vec<(String, &'static str)> {
    let many = |piece: &str, num: usize| vec![piece; num].join(",");
    vec![
        (boxed(&many("1", 1900)), "1, 2"),
        (boxed(&format!(r"\{{{}\}}", many(r"\sqrt{2}", 400))), r"\{\sqrt{3}, 1\}"),
        (boxed(&format!("({})", many("x", 1000))), "(1,2)"),
        (boxed(&vec!["[0,1]"; 600].join(r"\cup")), r"[0,1]\cup[2,3]"),
        (boxed(&vec![r"(\sqrt{2},\sqrt{3})"; 150].join(r"\cup")), r"(\sqrt{2},\sqrt{3})"),
        (boxed(&vec![r"\pm x"; 600].join("+")), "x"),
        (boxed(&vec![r"\sin(x)"; 500].join("+")), r"500\sin(x)+1-\cos^2(x)-\sin^2(x)"),
        (boxed(&vec![r"\ln(x+1)"; 400].join(r"\cdot ")), r"\ln(x)"),
        (boxed(&vec!["x"; 900].join("<")), "x<y"),
        (boxed(&vec!["x=1"; 900].join(",")), "x=1"),
        (boxed(&vec!["1"; 1500].join(":")), "1:1"),
        (boxed(&vec!["99999999999999999999999999/7"; 140].join("+")), "1"),
        (boxed(&vec!["2^{x}"; 600].join("+")), "600\\cdot 2^x"),
        (boxed(&"floor(".repeat(60)), "1"),
        (boxed(&format!("{}x{}", "floor(".repeat(60), ")".repeat(60))), "1"),
        (boxed(&format!("{}x{}", "max(x,".repeat(60), ")".repeat(60))), "x"),
        (boxed(&format!("{}x{}", r"\sqrt{1+".repeat(60), "}".repeat(60))), "x"),
        (boxed(&format!("{}2{}", r"\sqrt{1+".repeat(60), "}".repeat(60))), "2"),
        (boxed(&format!("{}x{}", r"\frac{1}{1+".repeat(60), "}".repeat(60))), "x"),
    ]
}

#[test]
fn hostile_texts_end() {
    for kind in KINDS {
        let set = RewardSet::parse(&[kind]).unwrap();
        for (response, label) in texts() {
            // As the response, and as the label; a label without number is an error of the right kind.
            let row = Row { response: &response, label: Some(label), ..Row::default() };
            let _ = set.score(&[row]);
            let row = Row { response: label, label: Some(&response), ..Row::default() };
            let _ = set.score(&[row]);
        }
    }
}

#[test]
fn nothing_absurd_is_right() {
    for (response, label) in [
        ("9^9^9^9", "1"),
        ("1/(x-x)", "1/(y-y)"),
        (r"\frac{0}{0}", "1"),
        ("99999999999!", "99999999998!"),
        ("2^{1000000000}", "2^{1000000001}"),
        (r"\infty-\infty", "0"),
        ("((100!)!)!", "1"),
    ] {
        assert!(crate::verdict("math", response, label).0 < 0.5, "{response} {label}");
    }
}

#[test]
fn verdicts_do_not_depend_on_neighbours() {
    let pairs: Vec<(String, String)> = [
        (r"\boxed{\sin^2 x+\cos^2 x}", "1"),
        (r"\boxed{\sqrt{12}}", r"2\sqrt{3}"),
        (r"\boxed{9^9^9^9}", "2"),
        ("42", "42"),
        (r"\boxed{\ln(x^2)}", r"2\ln x"),
        (r"\boxed{x \in [0,1]}", r"0\le x\le 1"),
    ]
    .iter()
    .map(|(response, label)| ((*response).to_owned(), (*label).to_owned()))
    .collect();
    let rows: Vec<Row<'_>> = pairs
        .iter()
        .map(|(response, label)| Row { response, label: Some(label), ..Row::default() })
        .collect();
    let reversed: Vec<Row<'_>> = rows.iter().rev().copied().collect();
    let set = RewardSet::parse(&["math"]).unwrap();
    let together = set.score(&rows).unwrap();
    let mut backwards = set.score(&reversed).unwrap();
    backwards.reverse();
    let alone: Vec<_> = rows
        .iter()
        .map(|row| RewardSet::parse(&["math"]).unwrap().score(std::slice::from_ref(row)).unwrap().remove(0))
        .collect();
    assert_eq!(together, backwards);
    assert_eq!(together, alone);
}
