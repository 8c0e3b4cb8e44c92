//! Isolation of untrusted code: what a model wrote runs in a child that sees a read-only view of the machine, an empty
//! work folder, no network and no other process, within limits.
//!
//! ```text
//! tool ── broker (forked early, one thread) ── zygote of a language (in its own namespaces) ── case, case, ...
//! ```
//!
//! The broker starts and restarts zygotes and holds nothing of the tool. A zygote is an interpreter (or, for programs
//! that are executed, a loop of ours) already started in its namespaces; it forks a child for each case, which gives up
//! everything a case must not have before untrusted code runs.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod broker;
mod calls;
mod case;
mod cgroup;
mod error;
mod filter;
mod landlocked;
mod limits;
mod native;
mod outer;
mod plan;
mod sandbox;
mod tier;
mod toolchain;
mod view;
mod wire;
mod zygote;

pub use case::{Build, Case, Entry, Killer, Outcome, Report, Running};
pub use error::{Error, Result};
pub use limits::Limits;
pub use sandbox::{Options, Sandbox};
pub use tier::{Promises, Standing, Tier};
pub use toolchain::{Program, Toolchain};
pub use zygote::{Kind, Zygote};
