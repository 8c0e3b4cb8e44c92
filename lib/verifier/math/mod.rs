//! Rewards for mathematics: an answer is found, read into a tree and compared with the label.
//!
//! [`extract`] finds the answer; [`latex`] and [`plain`] make tokens of it, [`parse`] a [`tree`]; [`equal`] compares two
//! trees by [`normal`] forms in exact arithmetic, then by evaluation at random points ([`numeric`]) with bounds of the
//! error. Work is counted everywhere, so that no text takes long.

mod antiderivative;
mod ball;
mod best;
mod bound;
mod call;
mod collection;
mod dapo;
mod deepscaler;
mod equal;
mod escape;
mod evaluate;
mod extract;
mod form;
mod formula;
mod gsm8k;
mod inequality;
mod last_number;
mod latex;
mod latex_text;
mod mathd;
mod matrix;
mod modulo;
mod normal;
pub(crate) mod numeral;
mod numeric;
mod operand;
mod parse;
mod plain;
mod polynomial;
mod quick;
pub(crate) mod rational;
mod real;
mod real_set;
mod relation;
mod series;
mod slime_box;
mod slime_form;
mod slime_math;
mod spelled;
mod statement;
mod table;
mod text;
mod token;
mod tree;
mod unit;
mod value;
mod words;

pub(crate) use best::{DECIMALS, Math};
pub(crate) use dapo::Dapo;
pub(crate) use deepscaler::Deepscaler;
pub(crate) use gsm8k::Gsm8k;
pub(crate) use mathd::Mathd;
pub(crate) use slime_math::SlimeMath;
