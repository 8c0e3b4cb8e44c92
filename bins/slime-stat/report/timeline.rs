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
/// Colours for what is done, and greys for waiting and for what is not known.
const NUM_COLORS: usize = 18;
const NUM_GREYS: usize = 3;
/// Stretches of one lane; more would be nearer to each other than pixels.
const MAX_SPANS: usize = 900;

/// A stretch of time in which a tool did one thing.
#[derive(Debug, Clone, PartialEq)]
struct Stretch {
    name: String,
    start: f64,
    end: f64,
    step: Option<u64>,
    /// How many spans it is made of.
    num: usize,
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
    let colors = colors(&names);
    let height = LANE * lanes.len() as f64;
    let is_cut = is_long || run.traces.iter().any(|trace| trace.is_cut);
    html! {
        section #timeline {
            h2 { "Timeline" }
            p.explain {
                @if is_traced {
                    "What each tool did when, from its trace file: one lane for each process, in which spans of one name that "
                    "overlap (such as the samples of a replica) are one. "
                    code { "slime-stat RUN --export trace:FILE" } " has each by itself. "
                 }
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
                                @for s in long_first(&lane.stretches) {
                                    (bar(s, y, start, WIDTH / (end - start), colors.get(s.name.as_str()).map_or("", String::as_str)))
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
                    @for name in &names {
                        li { span class=(format!("key {}", colors[name])) {} (name) }
                    }
                }
            }
        }
    }
}

/// The class of a colour for each name: grey for waiting and for what is not known; beyond the last they begin again,
/// paler.
fn colors<'a>(names: &[&'a str]) -> BTreeMap<&'a str, String> {
    let is_idle = |name: &&str| {
        ["wait", "idle", "queued"].iter().any(|word| name.contains(word)) || *name == "everything else"
    };
    let class = |kind: char, at: usize, num: usize| {
        format!("{kind}{}{}", at % num, if at < num { "" } else { " pale" })
    };
    let (idle, busy): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_idle(name));
    let busy = busy.into_iter().enumerate().map(|(at, name)| (name, class('s', at, NUM_COLORS)));
    busy.chain(idle.into_iter().enumerate().map(|(at, name)| (name, class('i', at, NUM_GREYS)))).collect()
}

/// Long ones first, so that what lies within them is drawn over them.
fn long_first(stretches: &[Stretch]) -> Vec<&Stretch> {
    let mut sorted: Vec<&Stretch> = stretches.iter().collect();
    sorted.sort_by(|a, b| (b.end - b.start).total_cmp(&(a.end - a.start)));
    sorted
}

fn bar(stretch: &Stretch, y: f64, start: f64, scale: f64, color: &str) -> Markup {
    let seconds = stretch.end - stretch.start;
    let step = stretch.step.map(|step| format!(", step {step}")).unwrap_or_default();
    let num = if stretch.num > 1 { format!(", {} spans", stretch.num) } else { String::new() };
    html! {
        rect class=(format!("bar {color}"))
            x=(format!("{:.2}", (stretch.start - start) * scale)) y=(y + 3.0)
            width=(format!("{:.2}", (seconds * scale).max(0.4))) height=(LANE - 6.0) {
            title { (stretch.name) (step) (num) ": " (duration(seconds)) }
        }
    }
}

/// The lanes of the trace files: one for each tool.
fn traced(traces: &[Trace]) -> Vec<Lane> {
    let mut lanes: BTreeMap<(usize, &str), Vec<Stretch>> = BTreeMap::new();
    for trace in traces {
        let stretch = |span: &crate::read_trace::Span| {
            let start = span.start_us / 1e6;
            Stretch {
                name: span.name.clone(),
                start,
                end: start + span.dur_us / 1e6,
                step: span.step,
                num: 1,
            }
        };
        let lane = lanes.entry((place(&trace.role), &trace.role)).or_default();
        lane.extend(trace.spans.iter().map(stretch));
    }
    let lane = |((_, role), stretches): ((usize, &str), Vec<Stretch>)| Lane {
        name: role.to_owned(),
        stretches: folded(stretches),
    };
    lanes.into_iter().map(lane).collect()
}

/// Where a tool's lane stands.
fn place(role: &str) -> usize {
    let kinds = ["trainer", "builder", "replica", "reward"];
    kinds.iter().position(|kind| role.starts_with(kind)).unwrap_or(kinds.len())
}

/// Spans of one name that overlap as one stretch, in the order of their start.
fn folded(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut folded: Vec<Stretch> = Vec::new();
    let mut open: BTreeMap<String, usize> = BTreeMap::new();
    for stretch in stretches {
        let last = open.get(&stretch.name).and_then(|at| folded.get_mut(*at));
        if let Some(last) = last.filter(|last| stretch.start < last.end) {
            last.end = last.end.max(stretch.end);
            last.step = last.step.filter(|step| Some(*step) == stretch.step);
            last.num += 1;
        } else {
            open.insert(stretch.name.clone(), folded.len());
            folded.push(stretch);
        }
    }
    folded
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
            training.push(Stretch { name: label.to_owned(), start, end: stop, step: Some(*step), num: 1 });
            start = stop;
        }
        if end > start {
            // Older versions train at the end of a step and tell nothing of the rest.
            training.push(Stretch {
                name: "everything else".to_owned(),
                start,
                end,
                step: Some(*step),
                num: 1,
            });
        }
        clock = end;
        if let (Some(end), Some(seconds)) = (at("rollout"), number(numbers, "perf/rollout_time")) {
            rollout.push(Stretch {
                name: "generate".to_owned(),
                start: end - seconds,
                end,
                step: Some(*step),
                num: 1,
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
    fn samples_of_a_replica_are_one_lane_and_the_trainer_is_first() {
        let span = |name: &str, tid, start_us, dur_us| crate::read_trace::Span {
            name: name.to_owned(),
            start_us,
            dur_us,
            step: Some(3),
            tid,
        };
        let trace = |role: &str, spans| Trace { role: role.to_owned(), spans, ..Trace::default() };
        let samples = (10..74).map(|tid| span("decode", tid, 1e6 + f64::from(tid as u32), 2e6)).collect();
        let roles =
            [("reward.0", vec![]), ("replica.0", samples), ("builder.0", vec![]), ("trainer.0", vec![])];
        let lanes = traced(&roles.map(|(role, spans)| trace(role, spans)));
        let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        assert_eq!(names, ["trainer.0", "builder.0", "replica.0", "reward.0"]);
        let [all] = lanes[2].stretches.as_slice() else { panic!("{lanes:?}") };
        assert_eq!((all.num, all.step, all.start), (64, Some(3), 1.00001));
        let apart = folded(
            traced(&[trace("replica.0", vec![span("a", 1, 0.0, 1e6), span("a", 1, 2e6, 1e6)])])
                .remove(0)
                .stretches,
        );
        assert_eq!(apart.len(), 2, "with a gap between them");
    }

    #[test]
    fn every_name_has_its_own_colour() {
        let names: Vec<String> = (0..18).map(|at| format!("n{at}")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.extend(["train_wait", "queued"]);
        let mut classes: Vec<String> = colors(&names).into_values().collect();
        classes.sort();
        classes.dedup();
        assert_eq!(classes.len(), 20);
        for class in &classes {
            let style = format!(".{class} {{ --c: #");
            assert!(include_str!("style.css").contains(&style), "{style}");
        }
    }

    #[test]
    fn of_many_stretches_the_end_is_shown_in_all_lanes() {
        let lane = |name: &str, every: usize| {
            let stretch = |at| Stretch {
                name: "x".to_owned(),
                start: at as f64,
                end: at as f64 + 1.0,
                step: None,
                num: 1,
            };
            Lane { name: name.to_owned(), stretches: (0..5000).step_by(every).map(stretch).collect() }
        };
        let (lanes, is_cut) = end_of(vec![lane("busy", 1), lane("rare", 10)], 900);
        assert!(is_cut);
        assert_eq!((lanes[0].stretches.len(), lanes[1].stretches.len()), (900, 90));
        assert_eq!(end_of(vec![lane("rare", 10)], 900), (vec![lane("rare", 10)], false));
    }
}
