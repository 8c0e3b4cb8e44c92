//! Why untrusted code cannot be run.

use std::io;

use crate::tier::Tier;

/// The causes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The broker was to be forked from a process that has other threads.
    #[error("the sandbox has to start before other threads, and this process has {num_threads}")]
    Threads {
        /// Threads of this process.
        num_threads: usize,
    },
    /// The machine allows less isolation than is asked for.
    #[error(
        "sandbox: expected at least the tier {wanted}, this machine allows {reached} ({reasons})\nhint: {}",
        hint(*.reached)
    )]
    Tier {
        /// The tier asked for.
        wanted: Tier,
        /// The best tier the machine allows.
        reached: Tier,
        /// What stopped the better ones.
        reasons: String,
    },
    /// A name that is no tier.
    #[error("unknown sandbox tier {name}\nhint: tiers are {}", Tier::names())]
    UnknownTier {
        /// The name as written.
        name: String,
    },
    /// An interpreter or compiler that is not installed.
    #[error(
        "{program} is not installed, and code in {language} needs it\nhint: install it, or put it on PATH"
    )]
    MissingProgram {
        /// The program looked for.
        program: String,
        /// The language that needs it.
        language: String,
    },
    /// A program of the toolchain that cannot be asked where its files are.
    #[error("cannot use {program}: {problem}")]
    Toolchain {
        /// The program.
        program: String,
        /// What it said.
        problem: String,
    },
    /// The isolation of a zygote or a case could not be set up, so no untrusted code ran.
    #[error("sandbox: {problem}")]
    Setup {
        /// The failing call and its error.
        problem: String,
    },
    /// A zygote ended while it started or a case was run, several times in a row.
    #[error("sandbox: the {kind} zygote ended {num_deaths} times in a row")]
    Died {
        /// The zygote.
        kind: &'static str,
        /// Deaths in a row.
        num_deaths: u32,
    },
    /// The broker ended.
    #[error("sandbox: the broker ended{}", .0.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    Broker(Option<io::Error>),
    /// The operating system refused a call of ours.
    #[error("sandbox: {call}: {source}")]
    Os {
        /// The call.
        call: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

fn hint(reached: Tier) -> String {
    format!("allow unprivileged user namespaces (or Landlock) here, or accept less: --sandbox-min {reached}")
}

impl Error {
    /// The sysexits code: 64 for a name that is no tier, 70 for a start that came too late, 71 for a refused call, else 69.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnknownTier { .. } => 64,
            Self::Threads { .. } => 70,
            Self::Os { .. } => 71,
            Self::Tier { .. }
            | Self::MissingProgram { .. }
            | Self::Toolchain { .. }
            | Self::Setup { .. }
            | Self::Died { .. }
            | Self::Broker(_) => 69,
        }
    }

    /// A refused call.
    pub(crate) fn os(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Os { call, source: errno.into() }
    }
}

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;
