//! Formulas within prose: between dollars or brackets, or in an environment.

/// A formula and where it stands, its signs included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Formula<'a> {
    pub(crate) content: &'a str,
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

/// The signs around formulas; an environment is a formula with its signs.
const MARKS: [(&str, &str); 5] =
    [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), (ENVIRONMENT, "\\end{")];
const ENVIRONMENT: &str = "\\begin{";
/// Formulas are shorter.
const MAX_BYTES: usize = 1024;

/// The closed formulas of a text in order, but for prose between two amounts of money.
pub(crate) fn formulas(text: &str) -> Vec<Formula<'_>> {
    let mut formulas = Vec::new();
    let mut at = 0;
    // Where each closing sign stands next: looked for once, however many open.
    let mut next_close: [Option<usize>; MARKS.len()] = [Some(0); MARKS.len()];
    while let Some(found) = text.get(at..).and_then(|rest| rest.find(['$', '\\'])) {
        let begin = at + found;
        let rest = &text[begin..];
        let Some(kind) = MARKS.iter().position(|(open, _)| rest.starts_with(open)) else {
            // An escaped dollar is no formula.
            at = begin + 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
            continue;
        };
        let (open, close) = MARKS[kind];
        let start = begin + open.len();
        if next_close[kind].is_some_and(|close| close < start) {
            next_close[kind] = unescaped(&text[start..], close).map(|len| start + len);
        }
        at = start;
        let Some(closed) = next_close[kind].filter(|end| end - start <= MAX_BYTES) else { continue };
        let formula = if open == ENVIRONMENT {
            environment(text, begin)
        } else {
            Some(Formula { content: &text[start..closed], begin, end: closed + close.len() })
        };
        if let Some(formula) = formula.filter(|formula| is_formula(formula.content)) {
            at = formula.end;
            formulas.push(Formula { content: formula.content.trim(), ..formula });
        }
    }
    formulas
}

/// The environment that begins at `begin`, up to the end of the same name.
fn environment(text: &str, begin: usize) -> Option<Formula<'_>> {
    let mut bound = text.len().min(begin + MAX_BYTES);
    while !text.is_char_boundary(bound) {
        bound -= 1;
    }
    let window = &text[begin..bound];
    let name = window.strip_prefix(ENVIRONMENT)?.split('}').next()?;
    let close = format!("\\end{{{name}}}");
    let end = window.find(&close)? + close.len();
    Some(Formula { content: &window[..end], begin, end: begin + end })
}

/// Where `mark` stands first without a backslash before it.
fn unescaped(text: &str, mark: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(mark)) {
        let at = from + found;
        if !mark.starts_with('$') || !text[..at].ends_with('\\') {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Whether a text between dollars is a formula: no words outside commands and their braces.
fn is_formula(text: &str) -> bool {
    let mut run = 0;
    let mut depth = 0_i32;
    let mut in_command = false;
    for c in text.chars() {
        match c {
            '\\' => in_command = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c.is_ascii_lowercase() && !in_command && depth <= 0 {
            run += 1;
            if run >= 4 {
                return false;
            }
        } else {
            run = 0;
        }
        in_command = in_command && (c == '\\' || c.is_ascii_alphabetic());
    }
    !text.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_found_in_prose() {
        let contents = |text| formulas(text).into_iter().map(|formula| formula.content).collect::<Vec<_>>();
        assert_eq!(contents(r"we get $x^2$ and \(y\), so \[ z \]"), ["x^2", "y", "z"]);
        assert_eq!(contents("it costs $5 more and then $7"), [""; 0]);
        assert_eq!(contents(r"$\$5$ and \$ 6"), [r"\$5"]);
        assert_eq!(
            contents(r"so \begin{align*} x &= 5 \end{align*} holds"),
            [r"\begin{align*} x &= 5 \end{align*}"]
        );
        assert_eq!(contents(r"\begin{a} $x$"), ["x"]);
    }
}
