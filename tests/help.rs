//! Every help page is a snapshot in `tests/fixtures/help` (`SLIME_UPDATE_HELP=1` writes them anew), and man pages and
//! completions say what it says.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn help(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg("--help")
        .env("COLUMNS", "100")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?} --help: {}", output.status);
    assert!(output.stderr.is_empty(), "{program} --help writes to stderr");
    String::from_utf8(output.stdout).expect("a help page is text")
}

fn check(tool: &str, program: &str, subcommands: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/help");
    let mut pages = vec![(tool.to_owned(), help(program, &[]))];
    pages.extend(subcommands.iter().map(|name| {
        let words: Vec<&str> = name.split(' ').collect();
        (format!("{tool}-{}", words.join("-")), help(program, &words))
    }));
    for (name, page) in pages {
        let path = folder.join(format!("{name}.txt"));
        if std::env::var_os("SLIME_UPDATE_HELP").is_some() {
            fs::create_dir_all(&folder)
                .and_then(|()| fs::write(&path, &page))
                .expect("the snapshot is writable");
        }
        let snapshot = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            page, snapshot,
            "{name} --help changed; SLIME_UPDATE_HELP=1 cargo test --test help writes it anew"
        );
        if name == tool {
            for part in ["Reads:", "Writes:", "Example", "Exit"] {
                assert!(page.contains(part), "{name} --help does not say {part}");
            }
        }
    }
}

const SYNC: [&str; 8] =
    ["plan", "verify", "push", "bench", "preflight", "preflight node", "preflight link", "preflight verdict"];

#[test]
fn slime_convert_help_is_the_snapshot() {
    check("slime-convert", env!("CARGO_BIN_EXE_slime-convert"), &["import", "export", "inspect", "diff"]);
}

#[test]
fn slime_reward_help_is_the_snapshot() {
    check("slime-reward", env!("CARGO_BIN_EXE_slime-reward"), &[]);
}

#[test]
fn slime_stat_help_is_the_snapshot() {
    check("slime-stat", env!("CARGO_BIN_EXE_slime-stat"), &["archive"]);
}

#[test]
fn slime_sync_help_is_the_snapshot() {
    check("slime-sync", env!("CARGO_BIN_EXE_slime-sync"), &SYNC);
}

#[test]
fn slime_train_help_is_the_snapshot() {
    check("slime-train", env!("CARGO_BIN_EXE_slime-train"), &[]);
}

#[test]
fn slime_rollout_help_is_the_snapshot() {
    check("slime-rollout", env!("CARGO_BIN_EXE_slime-rollout"), &["score", "serve"]);
}

/// Every tool with its subcommands.
const TOOLS: [(&str, &str, &[&str]); 6] = [
    ("slime-convert", env!("CARGO_BIN_EXE_slime-convert"), &["import", "export", "inspect", "diff"]),
    ("slime-reward", env!("CARGO_BIN_EXE_slime-reward"), &[]),
    ("slime-rollout", env!("CARGO_BIN_EXE_slime-rollout"), &["score", "serve"]),
    ("slime-stat", env!("CARGO_BIN_EXE_slime-stat"), &[]),
    ("slime-sync", env!("CARGO_BIN_EXE_slime-sync"), &["plan", "verify", "push"]),
    ("slime-train", env!("CARGO_BIN_EXE_slime-train"), &[]),
];

fn generate(program: &str, what: &str) -> String {
    let output = Command::new(program).args(["--generate", what]).output().expect("it starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{program} --generate {what}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The long flags that lead a line of a help page.
fn flags(help: &str) -> Vec<&str> {
    let words = help.lines().filter_map(|line| line.split_whitespace().find(|word| !is_short(word)));
    let flags = words.filter(|word| word.starts_with("--"));
    flags.map(|word| word.trim_end_matches(['.', ','])).collect()
}

fn is_short(word: &str) -> bool {
    word.len() == 3 && word.starts_with('-') && word.ends_with(',')
}

/// Runs a program of the system with a text on stdin; `None`, said on stderr, where it is not there.
fn run_on(program: &str, arguments: &[&str], text: &str) -> Option<Output> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        writeln!(std::io::stderr(), "skipped: no {program} to read what --generate prints").expect("stderr");
        return None;
    };
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    Some(child.wait_with_output().expect("our own child"))
}

#[test]
fn man_page_has_every_flag_and_section_of_the_help() {
    for (tool, program, subcommands) in TOOLS {
        let page = generate(program, "man").replace("\\-", "-");
        for arguments in [&[][..]].into_iter().chain(subcommands.iter().map(std::slice::from_ref)) {
            let help = help(program, arguments);
            let flags = flags(&help);
            assert!(flags.contains(&"--help"), "no flags found in\n{help}");
            for flag in flags {
                assert!(page.contains(&format!("\\fB{flag}\\fR")), "{tool}(1) does not have {flag}");
            }
            for name in arguments {
                assert!(page.contains(&format!(".SH \"{tool} {name}\"")), "{tool}(1) does not have {name}");
            }
        }
        for section in
            [".SH NAME", ".SH SYNOPSIS", ".SH READS", ".SH WRITES", ".SH EXAMPLE", ".SH \"EXIT STATUS\""]
        {
            assert!(page.contains(section), "{tool}(1) does not have {section}");
        }
        if let Some(output) = run_on("groff", &["-man", "-Tutf8", "-ww", "-z"], &generate(program, "man")) {
            assert!(output.status.success() && output.stderr.is_empty(), "{tool}(1): {output:?}");
        }
    }
}

#[test]
fn bash_completes_a_flag_from_its_first_letters() {
    for (tool, program, subcommands) in TOOLS {
        let script = generate(program, "bash");
        let output = run_on("bash", &["-n"], &script).expect("bash is here: the scripts need it");
        assert!(output.status.success() && output.stderr.is_empty(), "{tool}: {output:?}");
        let complete = |words: &[&str]| -> Vec<String> {
            // What the shell itself does for a TAB: the function that `complete -p` names, with three words.
            let driver = "\nfunction=$(complete -p \"$1\" | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
                          COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))\n\
                          \"$function\" \"$1\" \"${!#}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"\n\
                          printf '%s\\n' \"${COMPREPLY[@]}\"\n";
            let arguments = [&["-s", tool][..], words].concat();
            let output = run_on("bash", &arguments, &format!("{script}{driver}")).expect("bash is here");
            assert!(output.status.success() && output.stderr.is_empty(), "{tool} {words:?}: {output:?}");
            String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
        };
        assert_eq!(complete(&["--gen"]), ["--generate"], "{tool}");
        assert_eq!(complete(&["--generate", ""]), ["man", "bash", "zsh", "fish"], "{tool}");
        for name in subcommands {
            assert_eq!(complete(&[&name[..name.len() - 1]]), [*name], "{tool}");
        }
        if tool == "slime-train" {
            assert_eq!(complete(&["--con"]), ["--config"]);
        }
    }
}

#[test]
fn zsh_and_fish_completions_name_every_flag_and_parse() {
    for (tool, program, _) in TOOLS {
        let help = help(program, &[]);
        let (zsh, fish) = (generate(program, "zsh"), generate(program, "fish"));
        assert!(zsh.starts_with(&format!("#compdef {tool}")), "{zsh}");
        for flag in flags(&help) {
            assert!(
                zsh.contains(&format!("{flag}[")) || zsh.contains(&format!("{flag}=[")),
                "{tool}: zsh: {flag}"
            );
            assert!(fish.contains(&format!("-l {}", &flag[2..])), "{tool}: fish: {flag}");
        }
        for (shell, text) in [("zsh", &zsh), ("fish", &fish)] {
            if let Some(output) = run_on(shell, &["-n"], text) {
                assert!(output.status.success() && output.stderr.is_empty(), "{tool}: {shell}: {output:?}");
            }
        }
    }
}

#[test]
fn what_generate_does_not_know_is_a_usage_error() {
    for (tool, program, _) in TOOLS {
        for wrong in [&["tcsh"][..], &[], &["man", "bash"]] {
            let output = Command::new(program).arg("--generate").args(wrong).output().expect("it starts");
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{tool} {wrong:?}: {message}");
            assert_eq!(message.matches("error:").count(), 1, "{tool} {wrong:?}: {message}");
            assert!(output.stdout.is_empty());
        }
    }
}
