//! What every tool did when: from the trace files, else from the times of the steps.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::summary::duration;
use crate::names::{STEP_TIME, number, phases};
use crate::read_run::Run;
use crate::read_trace::Trace;

/// Width of the picture in its own units.
const WIDTH: f64 = 1000.0;
const LANE: f64 = 30.0;
/// Number of the grey among the colours.
const IDLE: usize = 7;
/// Stretches of one lane; more would be nearer to each other than pixels.
const MAX_SPANS: usize = 900;

/// A stretch of time in which a tool did one thing.
#[derive(Debug, Clone, PartialEq)]
struct Stretch {
    name: String,
    start: f64,
    end: f64,
    step: Option<u64>,
}

/// All that one tool did.
#[derive(Debug, Clone, PartialEq)]
struct Lane {
    name: String,
    stretches: Vec<Stretch>,
}

/// The section of the timeline; nothing where no times are known.
pub fn section(run: &Run) -> Markup {
    let is_traced = run.traces.iter().any(|trace| !trace.spans.is_empty());
    let (lanes, is_long) = end_of(if is_traced { traced(&run.traces) } else { told(run) }, MAX_SPANS);
    let stretches = || lanes.iter().flat_map(|lane| &lane.stretches);
    let start = stretches().map(|s| s.start).fold(f64::INFINITY, f64::min);
    let end = stretches().map(|s| s.end).fold(f64::NEG_INFINITY, f64::max);
    if end <= start {
        return html! {};
    }
    let mut names: Vec<&str> = Vec::new();
    for stretch in stretches() {
        if !names.contains(&stretch.name.as_str()) {
            names.push(&stretch.name);
        }
    }
    let colors: BTreeMap<&str, usize> = colors(&names);
    let height = LANE * lanes.len() as f64;
    let is_cut = is_long || run.traces.iter().any(|trace| trace.is_cut);
    html! {
        section #timeline {
            h2 { "Timeline" }
            p.explain {
                @if is_traced { "What each tool did when, from its trace file. " }
                @else { "What was done when, from the times that the steps tell. " }
                @if is_cut { "Of a long run the end is shown. " }
                span.screen { "Drag over a stretch to look at it closely, double-click to see all again." }
            }
            div.card.timeline {
                div.lanes {
                    div.names { @for lane in &lanes { div style=(format!("height:{LANE}px")) { (lane.name) } } }
                    div.picture {
                        svg #timeline-svg viewBox=(format!("0 0 {WIDTH} {height}")) preserveAspectRatio="none"
                            style=(format!("height:{height}px")) data-seconds=(end - start)
                            role="img" aria-label="timeline of the tools" {
                            @for (at, lane) in lanes.iter().enumerate() {
                                @let y = LANE * at as f64;
                                rect.track x="0" y=(y + 3.0) width=(WIDTH) height=(LANE - 6.0) {}
                                @for s in &lane.stretches {
                                    (bar(s, y, start, WIDTH / (end - start), colors.get(s.name.as_str()).copied()))
                                }
                            }
                        }
                        div.ticks #timeline-ticks {
                            @for part in 0..=5 {
                                span style=(format!("left:{}%", 20 * part)) { (duration((end - start) * f64::from(part) / 5.0)) }
                            }
                        }
                    }
                }
                p.axis-name { "time since the start of the first span" }
                ul.legend {
                    @for name in names.iter().take(16) {
                        li { span class=(format!("key c{}", colors[name])) {} (name) }
                    }
                }
            }
        }
    }
}

/// A colour for each name: grey for waiting and for what is not known, the others in turn.
fn colors<'a>(names: &[&'a str]) -> BTreeMap<&'a str, usize> {
    let is_idle = |name: &str| name.contains("wait") || name.contains("idle") || name == "everything else";
    let busy = names.iter().filter(|name| !is_idle(name)).enumerate().map(|(at, name)| (*name, at % IDLE));
    busy.chain(names.iter().filter(|name| is_idle(name)).map(|name| (*name, IDLE))).collect()
}

fn bar(stretch: &Stretch, y: f64, start: f64, scale: f64, color: Option<usize>) -> Markup {
    let seconds = stretch.end - stretch.start;
    let step = stretch.step.map(|step| format!(", step {step}")).unwrap_or_default();
    html! {
        rect class=(format!("bar c{}", color.unwrap_or(IDLE)))
            x=(format!("{:.2}", (stretch.start - start) * scale)) y=(y + 3.0)
            width=(format!("{:.2}", (seconds * scale).max(0.4))) height=(LANE - 6.0) {
            title { (stretch.name) (step) ": " (duration(seconds)) }
        }
    }
}

/// The lanes of the trace files: one for each tool, or thread of it.
fn traced(traces: &[Trace]) -> Vec<Lane> {
    let mut lanes: BTreeMap<(String, u64), Vec<Stretch>> = BTreeMap::new();
    for trace in traces {
        for span in &trace.spans {
            let start = span.start_us / 1e6;
            lanes.entry((trace.role.clone(), span.tid)).or_default().push(Stretch {
                name: span.name.clone(),
                start,
                end: start + span.dur_us / 1e6,
                step: span.step,
            });
        }
    }
    let num_threads = |role: &str| lanes.keys().filter(|(other, _)| other == role).count();
    let names: Vec<String> = lanes
        .keys()
        .map(|(role, tid)| if num_threads(role) > 1 { format!("{role} · {tid}") } else { role.clone() })
        .collect();
    let sorted = |mut stretches: Vec<Stretch>| {
        // Long ones first, so that what lies within them is drawn over them.
        stretches.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
        stretches
    };
    names.into_iter().zip(lanes.into_values()).map(|(name, s)| Lane { name, stretches: sorted(s) }).collect()
}

/// The lanes that the times of the steps tell; steps without a time are laid end to end.
fn told(run: &Run) -> Vec<Lane> {
    let metrics = &run.metrics;
    let (mut training, mut rollout) = (Vec::new(), Vec::new());
    let mut clock = 0.0;
    for (step, numbers) in &metrics.steps {
        let at = |tool: &str| metrics.times.get(&(*step, tool.to_owned())).copied();
        let seconds = number(numbers, STEP_TIME).unwrap_or(0.0);
        let end = at("train").unwrap_or(clock + seconds);
        let mut start = end - seconds;
        for (label, part) in phases(numbers).into_iter().filter(|(_, part)| *part > 0.0) {
            let stop = (start + part).min(end);
            training.push(Stretch { name: label.to_owned(), start, end: stop, step: Some(*step) });
            start = stop;
        }
        if end > start {
            // Older versions train at the end of a step and tell nothing of the rest.
            training.push(Stretch { name: "everything else".to_owned(), start, end, step: Some(*step) });
        }
        clock = end;
        if let (Some(end), Some(seconds)) = (at("rollout"), number(numbers, "perf/rollout_time")) {
            rollout.push(Stretch {
                name: "generate".to_owned(),
                start: end - seconds,
                end,
                step: Some(*step),
            });
        }
    }
    let lanes = [("generation", rollout), ("training", training)];
    let lane = |(name, stretches): (&str, Vec<Stretch>)| Lane { name: name.to_owned(), stretches };
    lanes.into_iter().filter(|(_, stretches)| !stretches.is_empty()).map(lane).collect()
}

/// Of lanes with more than `max` stretches the end in which the longest has that many; whether some were left out.
fn end_of(lanes: Vec<Lane>, max: usize) -> (Vec<Lane>, bool) {
    let longest = lanes.iter().map(|lane| &lane.stretches).max_by_key(|stretches| stretches.len());
    let Some(first) = longest.filter(|all| all.len() > max).map(|all| all[all.len() - max].start) else {
        return (lanes, false);
    };
    let late = |lane: Lane| Lane {
        stretches: lane.stretches.into_iter().filter(|stretch| stretch.start >= first).collect(),
        ..lane
    };
    (lanes.into_iter().map(late).collect(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_stretches_the_end_is_shown_in_all_lanes() {
        let lane = |name: &str, every: usize| {
            let stretch =
                |at| Stretch { name: "x".to_owned(), start: at as f64, end: at as f64 + 1.0, step: None };
            Lane { name: name.to_owned(), stretches: (0..5000).step_by(every).map(stretch).collect() }
        };
        let (lanes, is_cut) = end_of(vec![lane("busy", 1), lane("rare", 10)], 900);
        assert!(is_cut);
        assert_eq!((lanes[0].stretches.len(), lanes[1].stretches.len()), (900, 90));
        assert_eq!(end_of(vec![lane("rare", 10)], 900), (vec![lane("rare", 10)], false));
    }
}
