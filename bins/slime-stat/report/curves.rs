//! The curves of a run, or of several in one picture each.

use maud::{Markup, html};

use super::chart::{Chart, Series, sparkline};
use super::plans::{OTHERS, Plan, REWARDS};
use crate::axis::{Scale, short};
use crate::downsample::downsample;
use crate::names::{self, PHASES, STEP_TIME};
use crate::read_run::Run;

/// Points of a curve; more would be nearer to each other than pixels.
const NUM_BUCKETS: usize = 240;
/// Lines of one chart.
const MAX_LINES: usize = 8;
const STEP: &str = "training step";

/// All charts of these runs: lines of one run are its numbers, lines of several runs are the runs.
pub fn charts(runs: &[Run]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = REWARDS.iter().take(1).map(|plan| chart(runs, plan)).collect();
    charts.push(evaluations(runs, "reward_mean", "Evaluations", "mean reward", "The same questions at several versions; held-out ones are never trained. This is the number to trust."));
    charts.extend(REWARDS.iter().skip(1).chain(&OTHERS).map(|plan| chart(runs, plan)));
    charts.push(evaluations(
        runs,
        "response_len_mean",
        "Length of evaluation answers",
        "tokens",
        "How long the answers to the evaluation questions are.",
    ));
    charts.extend(runs.iter().filter_map(|run| phases(run, runs.len() > 1)));
    charts.extend(engines(runs));
    charts.retain(|chart| chart.series.iter().any(|series| !series.buckets.is_empty()));
    charts
}

fn buckets(series: &[(u64, f64)]) -> Vec<crate::downsample::Bucket> {
    let points: Vec<(f64, f64)> = series.iter().map(|(step, value)| (*step as f64, *value)).collect();
    downsample(&points, NUM_BUCKETS)
}

fn chart(runs: &[Run], plan: &Plan) -> Chart {
    let mut series = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let mut numbers: Vec<(String, String)> = Vec::new();
        // Of several runs one number each is compared, unless a name stands for many.
        let num = if runs.len() == 1 { plan.numbers.len() } else { 1 };
        for (name, label) in plan.numbers.iter().take(num) {
            if name.ends_with(['/', '@', '_']) {
                let all = run.metrics.names().into_iter().filter(|known| known.starts_with(name));
                numbers
                    .extend(all.map(|known| (known.to_owned(), format!("{label}{}", &known[name.len()..]))));
            } else {
                numbers.push((name.to_string(), label.to_string()));
            }
        }
        let lines = numbers.into_iter().filter_map(|(name, label)| {
            let values = run.metrics.series(&name);
            (!values.is_empty()).then(|| (label, buckets(&values)))
        });
        // Old versions have one number under two of today's names.
        let mut lines: Vec<_> = lines.collect();
        lines.dedup_by(|a, b| a.1 == b.1);
        for (number, (label, buckets)) in lines.into_iter().enumerate() {
            let is_one = runs.len() == 1;
            series.push(Series {
                label: if is_one { label } else { format!("{}: {label}", run.name) },
                color: if is_one { number } else { at },
                is_dashed: !is_one && number > 0,
                buckets,
            });
        }
    }
    series.truncate(if runs.len() > 1 { 2 * MAX_LINES } else { MAX_LINES });
    Chart {
        title: plan.title.to_owned(),
        explanation: plan.explanation.to_owned(),
        note: if let [run] = runs { why_flat(run, plan.title, &series) } else { None },
        y_label: plan.y_label.to_owned(),
        x_label: STEP,
        scale: plan.scale,
        from_zero: plan.from_zero,
        is_stacked: false,
        series,
    }
}

/// Why a chart shows nothing but a level or lacks a line, as far as the run's settings tell.
fn why_flat(run: &Run, title: &str, series: &[Series]) -> Option<String> {
    let config = run.config.as_ref()?;
    let is_zero = series.iter().all(|line| line.buckets.iter().all(|b| b.low == 0.0 && b.high == 0.0));
    let is_level = series.iter().all(|line| {
        line.buckets.iter().all(|b| Some((b.low, b.high)) == line.buckets.first().map(|b| (b.low, b.low)))
    });
    let once = config.batch().is_ok_and(|batch| batch.num_steps_per_rollout == 1);
    let words = match title {
        "Distance to the reference and the old policy" => {
            let lacks_reference = run.metrics.series("train/kl_loss").iter().all(|(_, value)| *value == 0.0);
            let reference = lacks_reference.then_some("There is no reference in this run.");
            let old = (once && is_zero)
                .then_some("One optimizer step per rollout starts at the old policy, so its distance is 0.");
            let words: Vec<&str> = reference.into_iter().chain(old).collect();
            return (!words.is_empty()).then(|| words.join(" "));
        }
        "Clipped tokens" if once && is_zero => "One optimizer step per rollout: nothing can be clipped.",
        "Staleness" if config.run.max_staleness == 0 && is_zero => "A synchronous run: the staleness is 0.",
        "Importance ratios" if once && is_level => "One optimizer step per rollout: both policies agree.",
        "Learning rate" if config.train.schedule == slime_config::Schedule::Constant && is_level => {
            "The schedule is constant."
        }
        _ => return None,
    };
    Some(words.to_owned())
}

fn evaluations(runs: &[Run], key: &str, title: &str, y_label: &str, explanation: &str) -> Chart {
    let mut series = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        for (number, set) in run.metrics.sets().into_iter().enumerate() {
            let is_one = runs.len() == 1;
            series.push(Series {
                label: if is_one { set.to_owned() } else { format!("{}: {set}", run.name) },
                color: if is_one { number } else { at },
                is_dashed: !is_one && number > 0,
                buckets: buckets(&run.metrics.eval_series(set, key)),
            });
        }
    }
    Chart {
        title: title.to_owned(),
        explanation: explanation.to_owned(),
        note: None,
        y_label: y_label.to_owned(),
        x_label: "policy version",
        scale: Scale::Linear,
        from_zero: true,
        is_stacked: false,
        series,
    }
}

/// The seconds of each step by what they were spent on.
fn phases(run: &Run, is_one_of_many: bool) -> Option<Chart> {
    let total = run.metrics.series(STEP_TIME);
    if total.is_empty() {
        return None;
    }
    let mut rest: std::collections::BTreeMap<u64, f64> = total.iter().copied().collect();
    let mut series = Vec::new();
    let told: Vec<(u64, Vec<(&str, f64)>)> =
        run.metrics.steps.iter().map(|(step, numbers)| (*step, names::phases(numbers))).collect();
    for (_, label) in PHASES {
        let of_step = |(step, parts): &(u64, Vec<(&str, f64)>)| {
            Some((*step, parts.iter().find(|(known, _)| *known == label)?.1))
        };
        let part: std::collections::BTreeMap<u64, f64> = told.iter().filter_map(of_step).collect();
        if part.values().all(|seconds| *seconds == 0.0) {
            continue;
        }
        let values: Vec<(u64, f64)> =
            rest.keys().map(|step| (*step, part.get(step).copied().unwrap_or(0.0))).collect();
        for (step, seconds) in &values {
            rest.entry(*step).and_modify(|left| *left = (*left - seconds).max(0.0));
        }
        let color = series.len() % 7;
        series.push(Series { label: label.to_owned(), color, is_dashed: false, buckets: buckets(&values) });
    }
    let rest: Vec<(u64, f64)> = rest.into_iter().collect();
    series.push(Series {
        label: "everything else".to_owned(),
        color: 7,
        is_dashed: false,
        buckets: buckets(&rest),
    });
    Some(Chart {
        title: if is_one_of_many {
            format!("Time of a step: {}", run.name)
        } else {
            "Time of a step".to_owned()
        },
        explanation:
            "Where the seconds of each step go. Waiting for samples means that generation is the slower side, or that an evaluation ran."
                .to_owned(),
        note: None,
        y_label: "seconds".to_owned(),
        x_label: STEP,
        scale: Scale::Linear,
        from_zero: true,
        is_stacked: true,
        series,
    })
}

/// What the replicas said over time.
fn engines(runs: &[Run]) -> Vec<Chart> {
    type Value = fn(&crate::read_engines::EngineState) -> f64;
    let plans: [(&str, &str, &str, Value); 4] = [
        (
            "Rate of the replicas",
            "tokens per second",
            "Tokens that each replica generates each second.",
            |s| s.tokens_per_s,
        ),
        ("Sequences in work", "sequences", "Answers that each replica generates at the same time.", |s| {
            s.num_running
        }),
        (
            "Queue of the replicas",
            "sequences",
            "Answers that wait for room. A standing queue means that the KV cache or rollout.max_in_flight is the limit.",
            |s| s.num_waiting,
        ),
        ("KV cache in use", "share", "How full the memory of attention is.", |s| s.kv_used),
    ];
    let chart = |(title, y_label, explanation, value): (&str, &str, &str, Value)| {
        let mut series = Vec::new();
        for (at, run) in runs.iter().enumerate() {
            let start = run.engines.iter().filter_map(|engine| engine.states.first()).map(|state| state.time);
            let start = start.fold(f64::INFINITY, f64::min);
            for (number, engine) in run.engines.iter().enumerate() {
                let points: Vec<(f64, f64)> =
                    engine.states.iter().map(|state| ((state.time - start) / 60.0, value(state))).collect();
                let is_one = runs.len() == 1;
                series.push(Series {
                    label: if is_one {
                        format!("replica {}", engine.replica)
                    } else {
                        format!("{}: {}", run.name, engine.replica)
                    },
                    color: if is_one { number } else { at },
                    is_dashed: !is_one && number > 0,
                    buckets: downsample(&points, NUM_BUCKETS),
                });
            }
        }
        series.truncate(MAX_LINES);
        Chart {
            title: title.to_owned(),
            explanation: explanation.to_owned(),
            note: None,
            y_label: y_label.to_owned(),
            x_label: "minutes since the start",
            scale: Scale::Linear,
            from_zero: true,
            is_stacked: false,
            series,
        }
    };
    plans.into_iter().map(chart).collect()
}

/// The section of all charts.
pub fn section(runs: &[Run]) -> Markup {
    let charts = charts(runs);
    html! {
        section #curves {
            h2 { "Curves" }
            @if charts.is_empty() { p.note { "Nothing has been measured yet." } }
            div.charts { @for chart in &charts { (chart.figure()) } }
            @if let [run] = runs { (remaining(run)) }
        }
    }
}

/// Every number that no chart shows.
fn remaining(run: &Run) -> Markup {
    let is_shown = |name: &str| {
        let of_plan = |plan: &Plan| {
            plan.numbers.iter().any(|(known, _)| {
                *known == name || (known.ends_with(['/', '@', '_']) && name.starts_with(known))
            })
        };
        REWARDS.iter().chain(&OTHERS).any(of_plan)
            || PHASES.iter().any(|(known, _)| *known == name)
            || name == "time"
            || names::rank(name) < names::FIRST.len()
    };
    let rest: Vec<&str> = run.metrics.names().into_iter().filter(|name| !is_shown(name)).collect();
    if rest.is_empty() {
        return html! {};
    }
    html! {
        details.card {
            summary { "All other numbers (" (rest.len()) ")" }
            table.numbers {
                thead { tr { th { "name" } th.num { "first" } th.num { "newest" } th { "over the run" } } }
                tbody {
                    @for name in rest {
                        @let series = run.metrics.series(name);
                        @let points: Vec<(f64, f64)> = series.iter().map(|(step, value)| (*step as f64, *value)).collect();
                        @if let (Some(first), Some(last)) = (points.first(), points.last()) {
                            tr { td { code { (name) } } td.num { (short(first.1)) } td.num { (short(last.1)) } td { (sparkline(&points)) } }
                        }
                    }
                }
            }
        }
    }
}
