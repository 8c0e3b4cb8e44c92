//! What packagers ask for: a tool's man page and its completions, made from the definitions that `--help` shows.

use std::io;

use clap::{Arg, Command, ValueEnum, value_parser};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The name of the flag, without its dashes.
const FLAG: &str = "generate";

/// What `--generate` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Generate {
    Man,
    Bash,
    Zsh,
    Fish,
}

/// The tool's command line with `--generate`, which stands alone.
pub(crate) fn with_flag(command: Command) -> Command {
    command.arg(flag())
}

fn flag() -> Arg {
    Arg::new(FLAG)
        .long(FLAG)
        .value_name("WHAT")
        .value_parser(value_parser!(Generate))
        .exclusive(true)
        .help("Prints the man page or a shell's completions, to be installed")
}

/// The text `--generate` asks for when it is the first of `arguments` (after the program), `None` when it is not.
/// It comes before the tool's own rules, which may require other arguments.
pub(crate) fn answer(
    command: Command,
    arguments: &[std::ffi::OsString],
) -> clap::error::Result<Option<String>> {
    let first = arguments.get(1).map(|argument| argument.to_string_lossy()).unwrap_or_default();
    if first.split('=').next() != Some("--generate") {
        return Ok(None);
    }
    let usage = format!("{} --{FLAG} <WHAT>", command.get_name());
    let only = Command::new("slime").override_usage(usage).arg(flag().required(true));
    let matches = only.try_get_matches_from(arguments)?;
    let what = matches.get_one::<Generate>(FLAG).copied();
    Ok(what.map(|what| generate(command, what)))
}

fn generate(mut command: Command, what: Generate) -> String {
    let shell = match what {
        Generate::Man => return man_page(command),
        Generate::Bash => Shell::Bash,
        Generate::Zsh => Shell::Zsh,
        Generate::Fish => Shell::Fish,
    };
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// One page for a tool, with a section for each subcommand and one for each part of the text after the options.
fn man_page(command: Command) -> String {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let man = Man::new(command.clone()).manual("slime");
    let mut page = text(|page| man.render_title(page));
    for (title, section) in [
        ("NAME", text(|page| man.render_name_section(page))),
        ("SYNOPSIS", text(|page| man.render_synopsis_section(page))),
        ("DESCRIPTION", text(|page| man.render_description_section(page))),
        ("OPTIONS", text(|page| man.render_options_section(page))),
    ] {
        page += &control("SH", &[title]);
        page += body(&section);
    }
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        let man = Man::new(subcommand.clone());
        page += &control("SH", &[subcommand.get_bin_name().unwrap_or_else(|| subcommand.get_name())]);
        page += body(&text(|page| man.render_description_section(page)));
        page += &control("PP", &[]);
        page += body(&text(|page| man.render_synopsis_section(page)));
        page += body(&text(|page| man.render_options_section(page)));
        page += &notes(subcommand, "SS");
    }
    page + &notes(&command, "SH")
}

/// What stands after the options in the help: each `Label:` at the start of a line begins a section.
fn notes(command: &Command, level: &str) -> String {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut sections: Vec<(&str, Vec<String>)> = Vec::new();
    for line in help.lines() {
        let label = line.split_once(':').map(|(label, _)| label).filter(|label| is_label(label));
        match (label, sections.last_mut()) {
            (Some(label), _) => {
                // The label's place stays blank, so that the lines below it keep their alignment.
                let rest = format!("{}{}", " ".repeat(label.len() + 1), &line[label.len() + 1..]);
                sections.push((label, vec![rest]));
            }
            (None, Some((_, lines))) => lines.push(line.to_owned()),
            (None, None) => sections.push(("Notes", vec![line.to_owned()])),
        }
    }
    let render = |(label, lines): &(&str, Vec<String>)| match *label {
        "Reads" | "Writes" => control(level, &[&label.to_uppercase()]) + &prose(lines),
        exit if exit.starts_with("Exit") => control(level, &["EXIT STATUS"]) + &prose(lines),
        label => control(level, &[&label.to_uppercase()]) + &verbatim(lines),
    };
    sections.iter().map(render).collect()
}

fn is_label(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.chars().all(|letter| letter.is_ascii_alphabetic() || letter == ' ')
}

/// Lines that are filled to the reader's width.
fn prose(lines: &[String]) -> String {
    let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
    let mut roff = Roff::new();
    roff.text([roman(words.join(" "))]);
    roff.to_roff()
}

/// Lines that are not filled, without the blanks and empty lines around all of them.
fn verbatim(lines: &[String]) -> String {
    let is_text = |line: &&String| !line.trim().is_empty();
    let indent = lines.iter().filter(is_text).map(|line| line.len() - line.trim_start().len()).min();
    let first = lines.iter().position(|line| is_text(&line)).unwrap_or(0);
    let last = lines.iter().rposition(|line| is_text(&line)).map_or(0, |last| last + 1);
    let mut roff = Roff::new();
    roff.control("nf", []);
    for line in &lines[first..last] {
        roff.text([roman(line.get(indent.unwrap_or(0)..).unwrap_or_default())]);
    }
    roff.control("fi", []);
    roff.to_roff()
}

fn control(name: &str, arguments: &[&str]) -> String {
    let mut roff = Roff::new();
    roff.control(name, arguments.iter().copied());
    roff.to_roff()
}

/// A section as `clap_mangen` writes it, into memory, where writing does not fail.
fn text(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut page = Vec::new();
    let written = render(&mut page);
    debug_assert!(written.is_ok(), "memory takes every byte");
    String::from_utf8_lossy(&page).into_owned()
}

/// A section without its heading and what stands before it.
fn body(section: &str) -> &str {
    let heading = if section.starts_with(".SH") { Some(0) } else { section.find("\n.SH").map(|at| at + 1) };
    let after = heading.and_then(|at| section[at..].find('\n').map(|end| at + end + 1));
    after.map_or("", |at| &section[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> Command {
        with_flag(
            Command::new("slime-x")
                .version("1.0")
                .about("A tool of a test")
                .after_help("Reads:   a file;\n         or two\nExample: slime-x \\\n             --port 7\nExit:    0 ok")
                .arg(Arg::new("port").long("port").required(true).help("Where it listens"))
                .subcommand(Command::new("score").about("Scores").arg(Arg::new("input").long("input"))),
        )
    }

    fn asked(arguments: &[&str]) -> clap::error::Result<Option<String>> {
        let arguments: Vec<_> = arguments.iter().map(Into::into).collect();
        answer(tool(), &arguments)
    }

    #[test]
    fn man_page_has_every_section_and_keeps_the_layout_of_the_notes() {
        let page = asked(&["slime-x", "--generate", "man"]).unwrap().unwrap();
        for part in [
            ".TH slime-x 1",
            ".SH NAME\nslime\\-x \\- A tool of a test",
            "\\-\\-port",
            ".SH \"slime-x score\"\nScores",
            "\\-\\-input",
            ".SH READS\na file; or two\n",
            ".SH EXAMPLE\n.nf\nslime\\-x \\\\\n    \\-\\-port 7\n.fi",
            ".SH \"EXIT STATUS\"\n0 ok\n",
        ] {
            assert!(page.contains(part), "no {part:?} in\n{page}");
        }
        assert_eq!(page.matches("ds Aq").count(), 2, "the preamble stands once:\n{page}");
    }

    #[test]
    fn completions_name_the_flags() {
        for shell in ["bash", "zsh", "fish"] {
            let text = asked(&["slime-x", &format!("--generate={shell}")]).unwrap().unwrap();
            assert!(text.contains("port") && text.contains("score"), "{shell}: {text}");
        }
    }

    #[test]
    fn unknown_missing_and_surplus_words_are_errors_and_other_command_lines_are_left_alone() {
        for wrong in [
            &["slime-x", "--generate", "tcsh"][..],
            &["slime-x", "--generate"],
            &["slime-x", "--generate", "man", "x"],
        ] {
            assert!(asked(wrong).unwrap_err().use_stderr(), "{wrong:?}");
        }
        assert_eq!(asked(&["slime-x", "--port", "7"]).unwrap(), None);
        assert_eq!(asked(&["slime-x", "--generated"]).unwrap(), None);
    }
}
