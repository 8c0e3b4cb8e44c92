//! The newest numbers of a tool in Prometheus' text exposition format, version 0.0.4, for a node exporter's
//! `textfile` collector.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result, Row, names};

/// A file that is replaced with each row and always holds the newest of every number.
#[derive(Debug)]
pub struct Exposition {
    path: PathBuf,
    tool: String,
    /// By metric, then by labels: help and number.
    newest: BTreeMap<String, (String, BTreeMap<String, f64>)>,
}

impl Exposition {
    /// The file at `path`; its folder is made with the first row.
    pub fn new(path: PathBuf, tool: &str) -> Self {
        Self { path, tool: tool.to_owned(), newest: BTreeMap::new() }
    }

    /// Takes the numbers of a row and replaces the file.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write(&mut self, row: &Row) -> Result<()> {
        let failed = |source| Error::Write { path: self.path.clone(), source };
        let mut labels = format!("tool=\"{}\"", escaped(&self.tool));
        if let Some(set) = row.set_name() {
            write!(labels, ",set=\"{}\"", escaped(set)).expect("a string grows");
        }
        let family = if row.set_name().is_some() { "eval/" } else { "" };
        let position = row.step().map(|step| ("step", step as f64));
        for (name, value) in row.numbers().chain(position).chain([("time", row.time())]) {
            let help = names::find(name).map_or("", |name| name.meaning).to_owned();
            let metric = self.newest.entry(metric(&format!("{family}{name}"))).or_default();
            metric.0 = help;
            metric.1.insert(labels.clone(), value);
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        replace(&self.path, &self.text()).map_err(failed)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, (help, values)) in &self.newest {
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n").expect("a string grows");
            for (labels, value) in values {
                writeln!(text, "{name}{{{labels}}} {value}").expect("a string grows");
            }
        }
        text
    }
}

/// `train/lr-pg_0` as `slime_train_lr_pg_0`: letters, digits and `_` only.
pub fn metric(name: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("slime_{}", name.chars().map(word).collect::<String>())
}

/// The value of a label between its quotes.
pub fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("prom.{}.tmp", std::process::id()));
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_holds_the_newest_of_every_number_with_its_help() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics/rollout.prom");
        let mut exposition = Exposition::new(path.clone(), "rollout");
        for step in 0..2 {
            let mut row = Row::of_step(step, "rollout");
            row.set("passrate/pass@2", 0.25 * (step + 1) as f64);
            exposition.write(&row).unwrap();
        }
        let mut row = Row::of_evaluation(2, "a", "rollout");
        row.set("reward_mean", 0.5);
        exposition.write(&row).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for line in [
            "# TYPE slime_passrate_pass_2 gauge",
            "slime_passrate_pass_2{tool=\"rollout\"} 0.5",
            "slime_step{tool=\"rollout\"} 1",
            "slime_eval_reward_mean{tool=\"rollout\",set=\"a\"} 0.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("# HELP slime_passrate_pass_2 probability"), "{text}");
        // Every sample line is `name{labels} number`, and every name follows its HELP and TYPE.
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, rest) = line.split_once('{').unwrap();
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{line}");
            assert!(rest.split_once("} ").unwrap().1.parse::<f64>().is_ok(), "{line}");
        }
        assert_eq!(fs::read_dir(folder.path().join("metrics")).unwrap().count(), 1, "nothing is left behind");
    }
}
