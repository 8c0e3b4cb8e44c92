//! Command lines through clap, with its errors turned into failures (64) and its help into text for stdout.

use std::ffi::OsString;

use crate::{Failure, generate};

/// Parses the process's command line.
///
/// # Errors
/// A wrong command line is a usage failure; `--help`, `--version` and `--generate` come back as a failure of code 0
/// whose message `run` prints on stdout.
pub fn parse<T: clap::Parser>() -> Result<T, Failure> {
    parse_from(std::env::args_os().collect())
}

fn parse_from<T: clap::Parser>(arguments: Vec<OsString>) -> Result<T, Failure> {
    let mut command = generate::with_flag(T::command());
    if let Some(text) = generate::answer(command.clone(), &arguments).map_err(|error| failure(&error))? {
        return Err(Failure { code: 0, message: text, hint: None });
    }
    let mut matches = command.try_get_matches_from_mut(arguments).map_err(|error| failure(&error))?;
    T::from_arg_matches_mut(&mut matches).map_err(|error| failure(&error.format(&mut command)))
}

fn failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    if error.use_stderr() {
        Failure::usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end())
    } else {
        Failure::new(0, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    #[command(name = "slime-x", about = "A tool of a test.")]
    struct Args {
        #[arg(long)]
        port: Option<u16>,
    }

    fn parsed(arguments: &[&str]) -> Result<Args, Failure> {
        parse_from(arguments.iter().map(Into::into).collect())
    }

    #[test]
    fn generate_is_text_and_stands_alone() {
        assert_eq!(parsed(&["slime-x", "--generate", "bash"]).unwrap_err().code, 0);
        assert_eq!(
            parsed(&["slime-x", "--port", "7", "--generate", "bash"]).unwrap_err().code,
            crate::exit::USAGE
        );
    }

    #[test]
    fn wrong_flag_is_a_usage_failure_without_clap_prefix() {
        let failure = parsed(&["slime-x", "--prt", "1"]).unwrap_err();
        assert_eq!(failure.code, crate::exit::USAGE);
        assert!(failure.message.starts_with("unexpected argument '--prt'"), "{}", failure.message);
    }

    #[test]
    fn help_is_text_not_an_error() {
        let failure = parsed(&["slime-x", "--help"]).unwrap_err();
        assert_eq!(failure.code, 0);
        assert!(failure.message.contains("A tool of a test."));
        assert!(parsed(&["slime-x", "--port", "7"]).unwrap().port == Some(7));
    }
}
