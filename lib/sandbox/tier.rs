//! The tiers of isolation: what each promises, and which one was reached.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How much isolation there is; each tier has everything the lesser ones have that still makes sense in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Limits of time, memory, processes and output only.
    Limits,
    /// A list of allowed system calls: no network, no signals to others, no tracing. Files are as the user sees them.
    Seccomp,
    /// Landlock: files outside the view can be neither read nor written.
    Landlock,
    /// User, mount, pid, network and ipc namespaces: nothing else exists.
    Namespaces,
}

/// From the least to the most.
const TIERS: [(Tier, &str); 4] = [
    (Tier::Limits, "limits"),
    (Tier::Seccomp, "seccomp"),
    (Tier::Landlock, "landlock"),
    (Tier::Namespaces, "namespaces"),
];

impl Tier {
    /// All names, from the least to the most.
    pub fn names() -> String {
        TIERS.map(|(_, name)| name).join(", ")
    }

    /// The tiers from this one down.
    pub(crate) fn downwards(self) -> impl Iterator<Item = Self> {
        TIERS.into_iter().rev().map(|(tier, _)| tier).filter(move |tier| *tier <= self)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TIERS.iter().find(|(tier, _)| tier == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Tier {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = TIERS.iter().find(|(_, known)| *known == name).map(|(tier, _)| *tier);
        found.ok_or_else(|| Error::UnknownTier { name: name.to_owned() })
    }
}

/// What a case cannot do in the tier that was reached; the limits of time and output hold in every tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each promise is kept or not, whatever the others are")]
pub struct Promises {
    /// Files outside the view cannot be read.
    pub no_reading_outside: bool,
    /// Files outside the work folder cannot be written.
    pub no_writing_outside: bool,
    /// There is no network.
    pub no_network: bool,
    /// Other processes cannot be signalled.
    pub no_signals: bool,
    /// Other processes cannot be seen.
    pub no_other_processes: bool,
    /// The number of processes is bounded.
    pub bounded_processes: bool,
    /// The memory of all processes of a case together is bounded (by a cgroup); that of each one always is.
    pub bounded_memory_in_all: bool,
    /// The size of the work folder is bounded; that of each file always is.
    pub bounded_work_folder: bool,
}

/// What was reached on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The tier.
    pub tier: Tier,
    /// What it promises here.
    pub promises: Promises,
    /// What stopped the better tiers, one line for each.
    pub reasons: Vec<String>,
    /// Where the cgroups of zygotes are, or why there are none.
    pub cgroup: Result<String, String>,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sandbox tier {}", self.tier)?;
        match &self.cgroup {
            Ok(path) => write!(f, ", cgroup {path}")?,
            Err(reason) => write!(f, ", no cgroup ({reason})")?,
        }
        let promises = self.promises;
        let broken: Vec<&str> = [
            (promises.no_reading_outside, "reading files"),
            (promises.no_writing_outside, "writing files"),
            (promises.no_network, "network"),
            (promises.no_signals, "signals"),
            (promises.bounded_processes, "number of processes"),
            (promises.bounded_memory_in_all, "memory of all processes together"),
        ]
        .into_iter()
        .filter_map(|(is_kept, name)| (!is_kept).then_some(name))
        .collect();
        if !broken.is_empty() {
            write!(f, "; not confined: {}", broken.join(", "))?;
        }
        self.reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_have_an_order_and_names() {
        assert!(Tier::Limits < Tier::Seccomp && Tier::Landlock < Tier::Namespaces);
        for (tier, name) in TIERS {
            assert_eq!((tier.to_string(), name.parse::<Tier>().unwrap()), (name.to_owned(), tier));
        }
        let error = "jail".parse::<Tier>().unwrap_err();
        assert_eq!(error.exit_code(), 64);
        assert!(
            error.to_string().contains("hint: tiers are limits, seccomp, landlock, namespaces"),
            "{error}"
        );
        assert_eq!(
            Tier::Landlock.downwards().collect::<Vec<_>>(),
            [Tier::Landlock, Tier::Seccomp, Tier::Limits]
        );
    }
}
