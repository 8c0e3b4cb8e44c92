//! The deterministic simulator.

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    IgnoreStaleness,
    TrainTwice,
}
