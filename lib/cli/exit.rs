//! The exit codes of every tool (BSD sysexits), so that scripts and Slurm can tell causes apart.

/// The command line is wrong.
pub const USAGE: u8 = 64;
/// The data is wrong: broken rows, corrupt files, a step that cannot be filled.
pub const DATA: u8 = 65;
/// An input does not exist or cannot be opened.
pub const NO_INPUT: u8 = 66;
/// A device, library or service is not available.
pub const UNAVAILABLE: u8 = 69;
/// A defect of the tool itself.
pub const BUG: u8 = 70;
/// The operating system refused something.
pub const OS: u8 = 71;
/// An output cannot be created.
pub const CANNOT_CREATE: u8 = 73;
/// Reading or writing failed.
pub const IO: u8 = 74;
/// Not an error: the tool drained and wants to be started again.
pub const TRY_AGAIN: u8 = 75;
/// Permission denied.
pub const PERMISSION: u8 = 77;
/// Nothing went on for too long (as the program `timeout` says it).
pub const TIMEOUT: u8 = 124;
/// The configuration is wrong.
pub const CONFIG: u8 = 78;
