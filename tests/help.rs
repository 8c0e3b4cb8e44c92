//! Every help page is a snapshot in `tests/fixtures/help`; `SLIME_UPDATE_HELP=1` writes them anew.

use std::fs;
use std::path::Path;
use std::process::Command;

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

const SYNC: [&str; 6] =
    ["verify", "push", "preflight", "preflight node", "preflight link", "preflight verdict"];

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
    check("slime-stat", env!("CARGO_BIN_EXE_slime-stat"), &[]);
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
    check("slime-rollout", env!("CARGO_BIN_EXE_slime-rollout"), &["score"]);
}
