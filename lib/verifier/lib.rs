//! Rewards: one file per reward type, and the weighted sum of several.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod catalogue;
mod choice;
mod code;
mod command;
mod error;
mod exact;
mod format;
mod group;
mod guard;
mod http;
mod instructions;
mod judge;
#[cfg(test)]
mod large_rows;
mod length;
mod math;
mod nested;
mod number;
mod options;
mod process;
mod program;
mod question;
#[cfg(test)]
mod readme;
mod registry;
mod remote;
mod reply;
mod reward_set;
mod row;
mod samples;
mod schema;
mod spans;
mod spec;
mod template;
#[cfg(test)]
mod test_server;
mod tournament;
mod verifier;

pub use answer::{answer_text, voted_answer};
pub use catalogue::FAMILIES;
#[cfg(feature = "fuzzing")]
pub use code::read_code;
pub use code::{num_sandbox_restarts, start_sandbox, start_sandbox_with};
pub use error::{Error, Result};
pub use program::Program;
pub use registry::{Family, Form, RewardType, help, list, types};
pub use reward_set::{Part, RewardSet, Scored};
pub use row::{Row, Verdict};
pub use spec::split_types;

use verifier::{RowVerifier, Verifier};
