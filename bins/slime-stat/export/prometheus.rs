//! The newest value of each number in the text exposition format of Prometheus, for its textfile collector.

use std::collections::BTreeMap;

use slime_metrics::names::{self, EVALUATION, Name};
use slime_metrics::prometheus::{escaped, metric};

use crate::names::{rank, today};
use crate::read_run::Run;

/// Name, what it is, and lines of labels with a value.
type Family = (String, Vec<(String, f64)>);

/// The whole file.
pub fn text(run: &Run) -> String {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut add = |name: &str, help: String, labels: &[(&str, &str)], value: f64| {
        let mut all = vec![("run", run.name.as_str())];
        all.extend(labels);
        let labels: Vec<String> =
            all.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let line = format!("{{{}}}", labels.join(","));
        let family = families.entry(metric(name)).or_insert((help, Vec::new()));
        // Two names may become one legal name; the first stays.
        if family.1.iter().all(|(known, _)| *known != line) {
            family.1.push((line, value));
        }
    };
    let mut names = run.metrics.names();
    names.sort_by_key(|name| (rank(name), *name));
    for name in names.into_iter().filter(|name| *name != "time") {
        let newest = run.metrics.series(name).last().map(|(_, value)| *value);
        let tool = run.metrics.tools.get(name).map_or("", String::as_str);
        if let Some(newest) = newest {
            let name = today(name);
            add(
                name,
                help(names::find(name), name, "of the newest step that has it"),
                &[("tool", tool)],
                newest,
            );
        }
    }
    if let Some(step) = run.metrics.steps.keys().last() {
        add("step", "The newest step.".to_owned(), &[], *step as f64);
    }
    add("done", "1 when the run is complete.".to_owned(), &[], f64::from(u8::from(run.is_done())));
    for ((version, set), numbers) in &newest_evals(run) {
        add("eval_version", "The version evaluated last.".to_owned(), &[("set", set)], *version as f64);
        for (name, value) in numbers.iter().filter(|(name, _)| *name != "time") {
            let known = names::find_in(EVALUATION, name);
            let help = help(known, name, "of the newest evaluation of a set");
            add(&format!("eval_{name}"), help, &[("set", set)], value.as_f64().unwrap_or(f64::NAN));
        }
    }
    for engine in &run.engines {
        let Some(state) = engine.states.last() else { continue };
        let tool = format!("replica.{}", engine.replica);
        for (name, value) in [
            ("num_running", state.num_running),
            ("num_waiting", state.num_waiting),
            ("tokens_per_s", state.tokens_per_s),
            ("kv_used", state.kv_used),
            ("busy", state.busy),
            ("version", state.version),
        ] {
            let help = help(names::find_in(names::ENGINE, name), name, "of a replica");
            add(&format!("engine_{name}"), help, &[("tool", &tool)], value);
        }
    }
    for group in crate::read_warnings::grouped(&run.warnings) {
        let help = "Warnings of the tools by their kind.".to_owned();
        add("warnings", help, &[("kind", &group.kind)], group.count as f64);
    }
    let family = |(name, (help, lines)): (String, Family)| {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let mut values = String::new();
        for (labels, value) in lines {
            values.extend([format!("{name}{labels} {value}\n")]);
        }
        format!("# HELP {name} {help}\n# TYPE {name} gauge\n{values}")
    };
    families.into_iter().map(family).collect()
}

/// Meaning and unit of a known number; else its name and what it is `of`.
fn help(known: Option<&Name>, name: &str, of: &str) -> String {
    match known {
        Some(Name { unit: "", meaning, .. }) => (*meaning).to_owned(),
        Some(Name { unit, meaning, .. }) => format!("{meaning} ({unit})"),
        None => format!("{name} {of}"),
    }
}

/// The newest evaluation of each set.
fn newest_evals(run: &Run) -> Vec<((u64, String), crate::read_metrics::Numbers)> {
    let newest = |set: &str| run.metrics.evals.iter().rev().find(|((_, known), _)| known == set);
    run.metrics
        .sets()
        .into_iter()
        .filter_map(|set| newest(set).map(|(key, n)| (key.clone(), n.clone())))
        .collect()
}
