//! Several runs beside each other: what became of each, and their numbers at the end.

use maud::{Markup, html};

use super::summary::{capital, duration};
use crate::axis::short;
use crate::names::{REWARD, STEP_TIME};
use crate::read_run::Run;
use crate::verdict::{Tone, judge};

/// A run's number in words.
type Cell = fn(&Run) -> Option<String>;

/// The verdicts, one for each run.
pub fn verdicts(runs: &[Run]) -> Markup {
    html! {
        section #verdict {
            p.eyebrow { "slime-stat" }
            h1 { "Comparison of " (runs.len()) " runs" }
            ul.verdicts {
                @for (at, run) in runs.iter().enumerate() {
                    @let verdict = judge(run);
                    li.card.good[verdict.tone == Tone::Good].bad[verdict.tone == Tone::Bad] {
                        span class=(format!("key c{}", at % 8)) {}
                        b { (run.name) } ": " (verdict.headline) "."
                        p.note { (capital(&verdict.reasons)) "." }
                    }
                }
            }
        }
    }
}

/// The last numbers of every run.
pub fn finals(runs: &[Run]) -> Markup {
    let fixed: [(&str, Cell); 8] = [
        ("outcome", |run| Some(run.metrics.outcome.clone())),
        ("steps trained", |run| Some(run.metrics.num_trained().to_string())),
        ("time", |run| run.duration_s().map(duration)),
        ("training reward", |run| newest(run, REWARD)),
        ("length of answers", |run| newest(run, "rollout/response_len/mean")),
        ("entropy", |run| newest(run, "train/entropy_loss")),
        ("largest mismatch", |run| newest(run, "train/train_rollout_logprob_abs_diff_max")),
        ("mean seconds of a step", |run| {
            let steps = run.metrics.series(STEP_TIME);
            let sum: f64 = steps.iter().map(|(_, seconds)| seconds).sum();
            (!steps.is_empty()).then(|| short(sum / steps.len() as f64))
        }),
    ];
    let mut sets: Vec<&str> = runs.iter().flat_map(|run| run.metrics.sets()).collect();
    sets.sort_unstable();
    sets.dedup();
    let eval = |run: &Run, set: &str| {
        let series = run.metrics.eval_series(set, "reward_mean");
        let (first, last) = (series.first()?, series.last()?);
        Some(if first.0 == last.0 {
            short(last.1)
        } else {
            format!("{} (from {})", short(last.1), short(first.1))
        })
    };
    html! {
        section #numbers {
            h2 { "Numbers at the end" }
            div.card.wide {
                table.numbers {
                    thead { tr { th { "number" } @for (at, run) in runs.iter().enumerate() { th.num { span class=(format!("key c{}", at % 8)) {} (run.name) } } } }
                    tbody {
                        @for set in &sets {
                            tr { td { (set.replace("held_out", "held-out").replace('_', " ")) " reward" } @for run in runs { td.num { (eval(run, set).unwrap_or("–".to_owned())) } } }
                        }
                        @for (name, cell) in fixed {
                            tr { td { (name) } @for run in runs { td.num { (cell(run).unwrap_or("–".to_owned())) } } }
                        }
                    }
                }
            }
        }
    }
}

fn newest(run: &Run, name: &str) -> Option<String> {
    run.metrics.series(name).last().map(|(_, value)| short(*value))
}
