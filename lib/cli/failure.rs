//! The one error type that leaves a tool: an exit code, a message, and a hint when the user can act.

use std::error::Error;
use std::fmt::Display;
use std::io;

use crate::exit;

/// Why a tool ends without success; `run` prints it and exits with its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code (see [`crate::exit`]); 0 marks text that was asked for, such as a help page.
    pub code: u8,
    /// A lower-case fragment that reads well after `slime-train: error:`.
    pub message: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with this exit code; a line of the message that begins with `hint: ` becomes the hint.
    pub fn new(code: u8, message: impl Display) -> Self {
        let text = message.to_string();
        let (message, hint) = match text.split_once("\nhint: ") {
            Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
            None => (text, None),
        };
        Self { code, message, hint }
    }

    /// The same failure with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// A failure from a library's error, with those of its sources that its own text does not already tell.
    pub fn from_error(code: u8, error: &dyn Error) -> Self {
        let mut failure = Self::new(code, error);
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !failure.message.contains(&text) {
                failure.message.push_str(": ");
                failure.message.push_str(&text);
            }
            source = cause.source();
        }
        failure
    }

    /// A wrong command line.
    pub fn usage(message: impl Display) -> Self {
        Self::new(exit::USAGE, message)
    }

    /// Wrong data.
    pub fn data(message: impl Display) -> Self {
        Self::new(exit::DATA, message)
    }

    /// An input at `path` that could not be opened.
    pub fn open(path: impl Display, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => exit::PERMISSION,
            _ => exit::NO_INPUT,
        };
        Self::new(code, format!("cannot open {path}: {error}"))
    }

    /// An output at `path` that could not be created.
    pub fn create(path: impl Display, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => exit::PERMISSION,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => exit::IO,
            _ => exit::CANNOT_CREATE,
        };
        Self::new(code, format!("cannot create {path}: {error}"))
    }

    /// A failed read or write of `path`; a reader that closed our pipe is a quiet end, not an error.
    pub fn io(path: impl Display, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self { code: 0, message: String::new(), hint: None },
            io::ErrorKind::PermissionDenied => Self::new(exit::PERMISSION, format!("{path}: {error}")),
            io::ErrorKind::IsADirectory => Self::new(exit::NO_INPUT, format!("{path}: {error}")),
            _ => Self::new(exit::IO, format!("{path}: {error}")),
        }
    }

    /// A library's failure to write `path`: an I/O error among its causes is told as by [`Failure::io`].
    pub fn write(path: impl Display, code: u8, error: &(dyn Error + 'static)) -> Self {
        let mut causes = std::iter::successors(Some(error), |error| (*error).source());
        match causes.find_map(|cause| cause.downcast_ref::<io::Error>()) {
            Some(cause) => Self::io(path, cause),
            None => Self::from_error(code, error),
        }
    }

    /// The end of a resident tool that stopped because it was asked to and wants to be started again.
    pub fn drained(message: impl Display) -> Self {
        Self::new(exit::TRY_AGAIN, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_line_is_split_from_the_message() {
        let failure = Failure::new(exit::CONFIG, "unknown key lrr\nhint: did you mean lr?");
        assert_eq!(failure.message, "unknown key lrr");
        assert_eq!(failure.hint.as_deref(), Some("did you mean lr?"));
    }

    #[test]
    fn closed_pipe_is_a_quiet_end() {
        let failure = Failure::io("stdout", &io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.code, failure.message.as_str()), (0, ""));
    }

    #[test]
    fn io_error_below_a_library_error_names_the_output() {
        #[derive(Debug)]
        struct Outer(io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("cannot write a batch")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let full = Failure::write("a.arrow", exit::BUG, &Outer(io::ErrorKind::StorageFull.into()));
        assert_eq!((full.code, full.message.as_str()), (exit::IO, "a.arrow: no storage space"));
        let closed = Failure::write("stdout", exit::BUG, &Outer(io::ErrorKind::BrokenPipe.into()));
        assert_eq!(closed.code, 0);
    }

    #[test]
    fn sources_are_told_once() {
        #[derive(Debug)]
        struct Outer(io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("cannot read a.toml")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let failure = Failure::from_error(exit::IO, &Outer(io::Error::other("disk on fire")));
        assert_eq!(failure.message, "cannot read a.toml: disk on fire");
    }
}
