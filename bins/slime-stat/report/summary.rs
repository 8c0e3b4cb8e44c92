//! The top of the page: the verdict, the numbers to look at first, and what the tools warned of.

use maud::{Markup, html};

use super::chart::sparkline;
use crate::axis::short;
use crate::names::{REWARD, STEP_TIME};
use crate::read_run::Run;
use crate::read_warnings::{self, grouped, is_grave};
use crate::standing::standing;
use crate::verdict::{Tone, Verdict, changes};

/// The verdict in words.
pub fn verdict(run: &Run, verdict: &Verdict) -> Markup {
    let (class, sign) = match verdict.tone {
        Tone::Good => ("good", "✓"),
        Tone::Neutral => ("neutral", "–"),
        Tone::Bad => ("bad", "✕"),
    };
    html! {
        section.verdict.(class) #verdict {
            span.sign aria-hidden="true" { (sign) }
            div {
                p.eyebrow { "Run " b { (run.name) } @if let Some(model) = model(run) { " · " (model) } }
                h1 { (verdict.headline) }
                p.reasons { (capital(&verdict.reasons)) "." }
            }
        }
    }
}

fn model(run: &Run) -> Option<String> {
    let path = run.config.as_ref()?.model.path.clone();
    let name = std::path::Path::new(&path).file_name()?.to_string_lossy().into_owned();
    (!name.is_empty()).then_some(name)
}

/// What is said below a number of this series.
type Note = dyn Fn(&[(u64, f64)]) -> String;

/// One number with its name, and how it went.
struct Card {
    name: String,
    value: String,
    note: String,
    points: Vec<(f64, f64)>,
}

/// The numbers to look at first.
pub fn key_numbers(run: &Run) -> Markup {
    let cards = cards(run);
    html! {
        section #numbers {
            h2 { "Key numbers" }
            div.cards {
                @for card in cards {
                    div.card.number {
                        p.name { (card.name) }
                        p.value { (card.value) }
                        p.note { (card.note) }
                        (sparkline(&card.points))
                    }
                }
            }
        }
    }
}

fn cards(run: &Run) -> Vec<Card> {
    let metrics = &run.metrics;
    let points =
        |series: &[(u64, f64)]| series.iter().map(|(step, value)| (*step as f64, *value)).collect::<Vec<_>>();
    let mut cards = Vec::new();
    for change in changes(run).iter().take(4) {
        let set = change.what.trim_end_matches(" reward").replace("held-out", "held_out").replace(' ', "_");
        let series = if change.what == "training reward" {
            metrics.series(REWARD)
        } else {
            metrics.eval_series(&set, "reward_mean")
        };
        let sign = if change.to >= change.from { "+" } else { "−" };
        cards.push(Card {
            name: capital(&change.what),
            value: format!("{:.2} → {:.2}", change.from, change.to),
            note: match change.averaged() {
                means if means.is_empty() => format!("{sign}{:.2}", (change.to - change.from).abs()),
                means => format!("{sign}{:.2}, {means}", (change.to - change.from).abs()),
            },
            points: points(&series),
        });
    }
    let num = metrics.num_trained();
    cards.push(Card {
        name: "Steps trained".to_owned(),
        value: num.to_string(),
        note: run.num_steps().map(|all| format!("of {all}")).unwrap_or_default(),
        points: Vec::new(),
    });
    if let Some(seconds) = run.duration_s() {
        let steps = metrics.series(STEP_TIME);
        let mean = steps.iter().map(|(_, s)| s).sum::<f64>() / steps.len().max(1) as f64;
        let note = if steps.is_empty() { String::new() } else { format!("{} a step", duration(mean)) };
        cards.push(Card { name: "Time".to_owned(), value: duration(seconds), note, points: points(&steps) });
    }
    let mut newest = |name: &str, key: &str, note: &Note| {
        let series = metrics.series(key);
        if let Some((_, last)) = series.last() {
            cards.push(Card {
                name: name.to_owned(),
                value: short(*last),
                note: note(&series),
                points: points(&series),
            });
        }
    };
    let from = |unit: &'static str| {
        move |series: &[(u64, f64)]| {
            format!("{unit}, {} at first", series.first().map_or(String::new(), |(_, v)| short(*v)))
        }
    };
    newest("Length of answers", "rollout/response_len/mean", &from("tokens"));
    newest("Entropy", "train/entropy_loss", &from("nats"));
    newest("Largest mismatch", "train/train_rollout_logprob_abs_diff_max", &|series| {
        let most = series.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        format!("at worst {}", short(most))
    });
    newest("Generation", "perf/tokens_per_gpu_per_sec", &|_| "tokens per second and GPU".to_owned());
    newest("Training", "perf/actor_train_tok_per_s", &|_| "tokens per second".to_owned());
    cards
}

pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Seconds as people say them.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0 => format!("{} ms", (seconds * 1e3).round()),
        1..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole / 3600 % 24),
    }
}

/// What the tools warned of, with advice.
pub fn warnings(runs: &[Run]) -> Markup {
    html! {
        section #warnings {
            h2 { "Warnings" }
            @for run in runs {
                @let groups = grouped(&run.warnings);
                @if runs.len() > 1 { h3.run { (run.name) } }
                @if groups.is_empty() {
                    p.fine { "None: nothing looked wrong to the tools." }
                }
                @for group in groups {
                    div.card.warning.grave[is_grave(&group.kind)] {
                        @let standing = standing(&group, &run.metrics).words();
                        h3 {
                            (read_warnings::title(&group.kind))
                            @if !standing.is_empty() { span.standing { (standing) } }
                        }
                        p {
                            @let (first, last) = group.steps;
                            @if group.count == 1 { "Step " (first) ": " } @else { (group.count) " times from step " (first) " to " (last) "; last: " }
                            (group.newest.message)
                            @if let (Some(value), Some(bound)) = (group.newest.value, group.newest.threshold) {
                                span.note { " (" (short(value)) ", bound " (short(bound)) ")" }
                            }
                        }
                        p.note { (read_warnings::advice(&group.kind)) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_said_as_people_say_them() {
        let texts = [0.25, 21.62, 251.0, 8_000.0, 200_000.0].map(duration);
        assert_eq!(texts, ["250 ms", "21.6 s", "4 min 11 s", "2 h 13 min", "2 d 07 h"]);
        assert_eq!(capital("held-out reward"), "Held-out reward");
    }
}
