//! The frame of every tool: run its body, print its failure, choose its exit code.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use crate::{Failure, exit, watchdog};

/// Runs a tool's body; the only place that prints errors and chooses exit codes.
///
/// A panic is a defect of the tool and ends with exit code 70.
pub fn run(tool: &'static str, main: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    match catch_unwind(AssertUnwindSafe(main)) {
        Ok(Ok(())) => {
            watchdog::finish();
            ExitCode::SUCCESS
        }
        Ok(Err(failure)) => ExitCode::from(report(tool, &failure)),
        Err(_) => {
            let message = format!("internal error (a defect of {tool}; the panic above says where)");
            ExitCode::from(report(tool, &Failure::new(exit::BUG, message)))
        }
    }
}

/// Prints what the failure says, asked-for text on stdout, everything else on stderr; returns the exit code.
///
/// For a rank that has to abort its world; everything else leaves through [`run`].
pub fn report(tool: &str, failure: &Failure) -> u8 {
    if failure.code == 0 {
        let mut stdout = std::io::stdout();
        let written = stdout.write_all(failure.message.as_bytes()).and_then(|()| stdout.flush());
        return match written.map_err(|error| Failure::io("stdout", &error)) {
            Err(failure) if failure.code != 0 => report(tool, &failure),
            // A closed stdout is the reader's choice; there is nobody left to tell.
            _ => 0,
        };
    }
    let kind = if failure.code == exit::TRY_AGAIN { "drained" } else { "error" };
    if failure.code == exit::TRY_AGAIN {
        watchdog::finish();
    } else {
        watchdog::record(tool, failure);
    }
    let mut text = format!("{tool}: {kind}: {}\n", failure.message.trim_end());
    if let Some(hint) = &failure.hint {
        text = format!("{text}{tool}: hint: {}\n", hint.trim_end());
    }
    // In one piece, so that a launcher does not mix it with what other ranks say.
    eprint!("{text}");
    failure.code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_the_failures_code() {
        assert_eq!(run("slime-x", || Ok(())), ExitCode::SUCCESS);
        assert_eq!(run("slime-x", || Err(Failure::data("row 3 is broken"))), ExitCode::from(exit::DATA));
    }

    #[test]
    fn panic_ends_with_the_code_of_a_bug() {
        let code = run("slime-x", || {
            let empty: [u8; 0] = [];
            assert_eq!(empty.len(), 1, "a panic on purpose");
            Ok(())
        });
        assert_eq!(code, ExitCode::from(exit::BUG));
    }
}
