//! Words with a meaning in formulas, shared by LaTeX commands and plain text.

use crate::math::series::Series;
use crate::math::token::{Bracket, Kind};
use crate::math::tree::{Brackets, Constant, Expr, Function, Relation};

/// Functions by their names in LaTeX, in programs and in calculators.
const FUNCTIONS: &[(&str, Function)] = &[
    ("sin", Function::Sin),
    ("cos", Function::Cos),
    ("tan", Function::Tan),
    ("tg", Function::Tan),
    ("cot", Function::Cot),
    ("ctg", Function::Cot),
    ("sec", Function::Sec),
    ("csc", Function::Csc),
    ("cosec", Function::Csc),
    ("arcsin", Function::Asin),
    ("asin", Function::Asin),
    ("arccos", Function::Acos),
    ("acos", Function::Acos),
    ("arctan", Function::Atan),
    ("arctg", Function::Atan),
    ("atan", Function::Atan),
    ("sinh", Function::Sinh),
    ("cosh", Function::Cosh),
    ("tanh", Function::Tanh),
    ("arsinh", Function::Asinh),
    ("arcsinh", Function::Asinh),
    ("asinh", Function::Asinh),
    ("arcosh", Function::Acosh),
    ("arccosh", Function::Acosh),
    ("acosh", Function::Acosh),
    ("artanh", Function::Atanh),
    ("arctanh", Function::Atanh),
    ("atanh", Function::Atanh),
    ("ln", Function::Ln),
    ("log", Function::Log),
    ("lg", Function::Log),
    ("exp", Function::Exp),
    ("abs", Function::Abs),
    ("floor", Function::Floor),
    ("ceil", Function::Ceil),
    ("factorial", Function::Factorial),
    ("max", Function::Max),
    ("min", Function::Min),
    ("gcd", Function::Gcd),
    ("lcm", Function::Lcm),
];

/// LaTeX commands that stand for one token.
const COMMANDS: &[(&str, Kind)] = &[
    ("times", Kind::Times),
    ("cdot", Kind::Times),
    ("ast", Kind::Times),
    ("div", Kind::Divide),
    ("pm", Kind::PlusMinus(true)),
    ("mp", Kind::PlusMinus(false)),
    ("frac", Kind::Fraction),
    ("dfrac", Kind::Fraction),
    ("tfrac", Kind::Fraction),
    ("cfrac", Kind::Fraction),
    ("sqrt", Kind::Root),
    ("overline", Kind::Overline),
    ("bar", Kind::Overline),
    ("binom", Kind::Binomial),
    ("dbinom", Kind::Binomial),
    ("tbinom", Kind::Binomial),
    ("sum", Kind::Series(Series::Sum)),
    ("prod", Kind::Series(Series::Product)),
    ("int", Kind::Integral),
    ("lim", Kind::Limit),
    ("to", Kind::To),
    ("rightarrow", Kind::To),
    ("bmod", Kind::Modulo),
    ("mod", Kind::Modulo),
    ("pmod", Kind::Modulus),
    ("pi", Kind::Constant(Constant::Pi)),
    ("infty", Kind::Constant(Constant::Infinity)),
    ("infin", Kind::Constant(Constant::Infinity)),
    ("imath", Kind::Constant(Constant::I)),
    ("eq", Kind::Relation(Relation::Equal)),
    ("approx", Kind::Relation(Relation::Near)),
    ("simeq", Kind::Relation(Relation::Near)),
    ("ne", Kind::Relation(Relation::NotEqual)),
    ("neq", Kind::Relation(Relation::NotEqual)),
    ("lt", Kind::Relation(Relation::Less)),
    ("le", Kind::Relation(Relation::LessEqual)),
    ("leq", Kind::Relation(Relation::LessEqual)),
    ("leqslant", Kind::Relation(Relation::LessEqual)),
    ("gt", Kind::Relation(Relation::Greater)),
    ("ge", Kind::Relation(Relation::GreaterEqual)),
    ("geq", Kind::Relation(Relation::GreaterEqual)),
    ("geqslant", Kind::Relation(Relation::GreaterEqual)),
    ("in", Kind::Relation(Relation::In)),
    ("equiv", Kind::Relation(Relation::Congruent)),
    ("cup", Kind::Union),
    ("cap", Kind::Intersection),
    ("setminus", Kind::SetMinus),
    ("backslash", Kind::SetMinus),
    ("emptyset", Kind::EmptySet),
    ("varnothing", Kind::EmptySet),
    ("circ", Kind::Degree),
    ("degree", Kind::Degree),
    ("prime", Kind::Prime),
    ("colon", Kind::Colon),
    ("mid", Kind::Bar),
    ("vert", Kind::Bar),
    ("lvert", Kind::Bar),
    ("rvert", Kind::Bar),
    ("lfloor", Kind::Open(Bracket::Floor)),
    ("rfloor", Kind::Close(Bracket::Floor)),
    ("lceil", Kind::Open(Bracket::Ceil)),
    ("rceil", Kind::Close(Bracket::Ceil)),
    ("langle", Kind::Open(Bracket::Angle)),
    ("rangle", Kind::Close(Bracket::Angle)),
    ("lbrace", Kind::Open(Bracket::Brace)),
    ("rbrace", Kind::Close(Bracket::Brace)),
    ("lbrack", Kind::Open(Bracket::Square)),
    ("rbrack", Kind::Close(Bracket::Square)),
    ("land", Kind::And),
    ("lor", Kind::And),
    ("wedge", Kind::And),
    ("vee", Kind::And),
    ("percent", Kind::Percent),
];

/// Greek letters that are variables.
const GREEK: &[&str] = &[
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "vartheta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "varrho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
    "ell",
];

/// Commands that change nothing but the look; what follows is read as if they were not there.
const SILENT: &[&str] = &[
    "left",
    "right",
    "big",
    "Big",
    "bigg",
    "Bigg",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "biggl",
    "biggr",
    "Biggl",
    "Biggr",
    "displaystyle",
    "textstyle",
    "scriptstyle",
    "limits",
    "nolimits",
    "mathbf",
    "mathit",
    "mathsf",
    "boldsymbol",
    "bm",
    "mathcal",
    "mathop",
    "vec",
    "hat",
    "underline",
    "overrightarrow",
    "widehat",
    "boxed",
    "fbox",
    "phantom",
    "rm",
    "bf",
    "it",
    "triangle",
    "angle",
    "measuredangle",
    "nonumber",
    "hline",
    "bigskip",
    "medskip",
    "smallskip",
    "noindent",
    "mathrel",
    "mathbin",
];

/// Commands that are blanks.
const BLANKS: &[&str] = &["quad", "qquad", "space", "thinspace", "enspace", "hfill", "newline", "hspace"];

/// Commands whose argument is text.
const TEXTS: &[&str] = &[
    "text",
    "textbf",
    "textit",
    "textrm",
    "textnormal",
    "textsf",
    "texttt",
    "mbox",
    "hbox",
    "mathrm",
    "operatorname",
    "mathsfit",
    "emph",
];

/// What a LaTeX command is.
pub(crate) enum Command {
    Token(Kind),
    Silent,
    Blank,
    Text,
}

/// The meaning of a command by its name without the backslash.
pub(crate) fn command(name: &str) -> Option<Command> {
    if let Some((_, kind)) = COMMANDS.iter().find(|(known, _)| *known == name) {
        return Some(Command::Token(kind.clone()));
    }
    if let Some(function) = function(name) {
        return Some(Command::Token(Kind::Function(function)));
    }
    if GREEK.contains(&name) {
        return Some(Command::Token(Kind::Symbol(greek(name).to_owned())));
    }
    if TEXTS.contains(&name) {
        return Some(Command::Text);
    }
    if SILENT.contains(&name) {
        return Some(Command::Silent);
    }
    BLANKS.contains(&name).then_some(Command::Blank)
}

/// Variants of a letter are the letter.
fn greek(name: &str) -> &str {
    match name {
        "varepsilon" => "epsilon",
        "vartheta" => "theta",
        "varphi" => "phi",
        "varrho" => "rho",
        other => other,
    }
}

/// The function of a name.
pub(crate) fn function(name: &str) -> Option<Function> {
    FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
}

/// The function that a command such as `\sin^{-1}` inverts to.
pub(crate) fn inverse(function: Function) -> Option<Function> {
    Some(match function {
        Function::Sin => Function::Asin,
        Function::Cos => Function::Acos,
        Function::Tan => Function::Atan,
        Function::Sinh => Function::Asinh,
        Function::Cosh => Function::Acosh,
        Function::Tanh => Function::Atanh,
        _ => return None,
    })
}

/// The power of ten that a word counts in.
pub(crate) fn power_of_ten(word: &str) -> Option<i64> {
    Some(match word.to_ascii_lowercase().as_str() {
        "hundred" => 2,
        "thousand" => 3,
        "million" => 6,
        "billion" => 9,
        "trillion" => 12,
        _ => return None,
    })
}

/// A set that has a name in words.
pub(crate) fn named_set(text: &str) -> Option<Expr> {
    Some(match text.to_ascii_lowercase().as_str() {
        "all real numbers" | "all reals" | "real numbers" | "the real numbers" => Expr::NumberSet('R'),
        "all integers" | "integers" | "the integers" => Expr::NumberSet('Z'),
        "empty set" | "the empty set" => Expr::List(Brackets::Brace, Vec::new()),
        _ => return None,
    })
}

/// The meaning of a word outside commands, in any case.
pub(crate) fn word(text: &str) -> Option<Kind> {
    let lower = text.to_ascii_lowercase();
    Some(match lower.as_str() {
        "sqrt" => Kind::Root,
        "pi" => Kind::Constant(Constant::Pi),
        "inf" | "infty" | "infinity" | "oo" => Kind::Constant(Constant::Infinity),
        "and" | "or" => Kind::And,
        "mod" => Kind::Modulo,
        "percent" | "pct" => Kind::Percent,
        "degree" | "degrees" => Kind::Degree,
        "union" | "cup" => Kind::Union,
        "theta" | "alpha" | "beta" | "gamma" | "delta" | "lambda" | "mu" | "phi" | "sigma" | "omega" => {
            Kind::Symbol(lower)
        }
        _ => return function(&lower).map(Kind::Function),
    })
}

/// The variable or constant of one letter.
pub(crate) fn letter(c: char) -> Kind {
    match c {
        'e' => Kind::Constant(Constant::E),
        'i' => Kind::Constant(Constant::I),
        'θ' => Kind::Symbol("theta".to_owned()),
        'α' => Kind::Symbol("alpha".to_owned()),
        'β' => Kind::Symbol("beta".to_owned()),
        'γ' => Kind::Symbol("gamma".to_owned()),
        'λ' => Kind::Symbol("lambda".to_owned()),
        'μ' => Kind::Symbol("mu".to_owned()),
        'φ' => Kind::Symbol("phi".to_owned()),
        'ω' => Kind::Symbol("omega".to_owned()),
        _ => Kind::Symbol(c.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_one_thing() {
        for name in GREEK.iter().chain(SILENT).chain(BLANKS).chain(TEXTS) {
            assert!(COMMANDS.iter().all(|(known, _)| known != name), "{name}");
            assert!(FUNCTIONS.iter().all(|(known, _)| known != name), "{name}");
        }
    }
}
