//! Command lines through clap, with its errors turned into failures (64) and its help into text for stdout.

use crate::Failure;

/// Parses the process's command line.
///
/// # Errors
/// A wrong command line is a usage failure; `--help` and `--version` come back as a failure of code 0 whose
/// message `run` prints on stdout.
pub fn parse<T: clap::Parser>() -> Result<T, Failure> {
    T::try_parse().map_err(|error| failure(&error))
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

    #[test]
    fn wrong_flag_is_a_usage_failure_without_clap_prefix() {
        let failure = failure(&Args::try_parse_from(["slime-x", "--prt", "1"]).unwrap_err());
        assert_eq!(failure.code, crate::exit::USAGE);
        assert!(failure.message.starts_with("unexpected argument '--prt'"), "{}", failure.message);
    }

    #[test]
    fn help_is_text_not_an_error() {
        let failure = failure(&Args::try_parse_from(["slime-x", "--help"]).unwrap_err());
        assert_eq!(failure.code, 0);
        assert!(failure.message.contains("A tool of a test."));
        assert!(Args::try_parse_from(["slime-x", "--port", "7"]).unwrap().port == Some(7));
    }
}
