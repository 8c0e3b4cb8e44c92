//! A run, or several beside each other, as one page that needs nothing but itself: styles, pictures and script are in it.

mod answers;
mod chart;
mod comparison;
mod curves;
mod glossary;
mod plans;
mod samples;
mod settings;
mod summary;
mod timeline;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::read_run::Run;
use crate::verdict::judge;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("page.js");

/// The page of these runs.
pub fn page(runs: &[Run]) -> String {
    match runs {
        [run] => single(run),
        _ => several(runs),
    }
}

fn single(run: &Run) -> String {
    let verdict = judge(run);
    let title = format!("{}: {}", run.name, verdict.headline);
    let sections = [
        summary::verdict(run, &verdict),
        summary::key_numbers(run),
        summary::warnings(std::slice::from_ref(run)),
        curves::section(std::slice::from_ref(run)),
        timeline::section(run),
        samples::section(run),
        answers::section(run),
        settings::configuration(run),
        settings::provenance(run),
        glossary::section(),
    ];
    let names = [
        ("numbers", "Key numbers"),
        ("warnings", "Warnings"),
        ("curves", "Curves"),
        ("timeline", "Timeline"),
        ("samples", "Samples"),
        ("answers", "Before and after"),
        ("configuration", "Configuration"),
        ("provenance", "Provenance"),
        ("glossary", "Words"),
    ];
    frame(&title, &run.name, &names, &sections)
}

fn several(runs: &[Run]) -> String {
    let title = format!("Comparison of {} runs", runs.len());
    let sections = [
        comparison::verdicts(runs),
        comparison::finals(runs),
        summary::warnings(runs),
        curves::section(runs),
        settings::differences(runs),
        glossary::section(),
    ];
    let names = [
        ("numbers", "Numbers"),
        ("warnings", "Warnings"),
        ("curves", "Curves"),
        ("settings", "Settings"),
        ("glossary", "Words"),
    ];
    frame(&title, "slime", &names, &sections)
}

fn frame(title: &str, name: &str, names: &[(&str, &str)], sections: &[Markup]) -> String {
    // A section that has nothing to say is not there, and needs no link.
    let is_there = |id: &str| sections.iter().any(|section| section.0.contains(&format!("id=\"{id}\"")));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(concat!("slime-stat ", env!("CARGO_PKG_VERSION")));
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                nav {
                    b { (name) }
                    @for (id, label) in names.iter().filter(|(id, _)| is_there(id)) { a href=(format!("#{id}")) { (label) } }
                    button #theme type="button" title="light or dark" { "◐" }
                }
                main { @for section in sections { (section) } }
                footer { "Made by slime-stat " (env!("CARGO_PKG_VERSION")) ". This page needs no network." }
                div #tip hidden {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// Data for the page's script; nothing in it can end the element.
fn script_json(class: &str, value: &Value) -> Markup {
    let text = value.to_string().replace('<', "\\u003c");
    html! { script.(class) type="application/json" { (PreEscaped(text)) } }
}
