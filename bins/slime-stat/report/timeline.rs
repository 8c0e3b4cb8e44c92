//! What every tool did when: from the trace files, else from the times of the steps.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::summary::duration;
use crate::names::{PHASES, STEP_TIME, number};
use crate::read_run::Run;
use crate::read_trace::Trace;

/// Width of the picture in its own units.
const WIDTH: f64 = 1000.0;
const LANE: f64 = 30.0;
/// Number of the grey among the colours.
const IDLE: usize = 7;
/// Spans of one lane; of more, the one that fills most of each slot is drawn.
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
    let lanes = if is_traced { traced(&run.traces) } else { told(run) };
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
    let is_cut = run.traces.iter().any(|trace| trace.is_cut);
    html! {
        section #timeline {
            h2 { "Timeline" }
            p.explain {
                @if is_traced { "What each tool did when, from its trace file. " }
                @else { "What was done when, from the times that the steps tell. " }
                @if is_cut { "Of long traces the end is shown. " }
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
                                @for s in thinned(&lane.stretches, start, end) {
                                    (bar(&s, y, start, WIDTH / (end - start), colors.get(s.name.as_str()).copied()))
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
        for (name, label) in PHASES {
            let Some(part) = number(numbers, name).filter(|part| *part > 0.0) else { continue };
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

/// At most [`MAX_SPANS`]: of more, for each slot of time the one that fills most of it, neighbours joined.
fn thinned(stretches: &[Stretch], start: f64, end: f64) -> Vec<Stretch> {
    if stretches.len() <= MAX_SPANS {
        return stretches.to_vec();
    }
    let width = (end - start) / MAX_SPANS as f64;
    let mut filled: Vec<BTreeMap<&str, f64>> = vec![BTreeMap::new(); MAX_SPANS];
    for s in stretches {
        let slot = |time: f64| (((time - start) / width) as usize).min(MAX_SPANS - 1);
        for (at, names) in filled.iter_mut().enumerate().take(slot(s.end) + 1).skip(slot(s.start)) {
            let (from, to) = (start + at as f64 * width, start + (at + 1) as f64 * width);
            *names.entry(&s.name).or_default() += s.end.min(to) - s.start.max(from);
        }
    }
    let mut kept: Vec<Stretch> = Vec::new();
    for (at, names) in filled.iter().enumerate() {
        let Some((name, _)) = names.iter().max_by(|a, b| a.1.total_cmp(b.1)) else { continue };
        let (from, to) = (start + at as f64 * width, start + (at + 1) as f64 * width);
        match kept.last_mut() {
            Some(last) if last.name == *name && (from - last.end).abs() < width / 2.0 => last.end = to,
            _ => kept.push(Stretch { name: (*name).to_owned(), start: from, end: to, step: None }),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_spans_are_thinned_to_what_fills_the_time() {
        let stretch = |at: u32| Stretch {
            name: if at % 10 == 0 { "short" } else { "long" }.to_owned(),
            start: f64::from(at),
            end: f64::from(at) + if at % 10 == 0 { 0.1 } else { 1.0 },
            step: None,
        };
        let all: Vec<Stretch> = (0..50_000).map(stretch).collect();
        let kept = thinned(&all, 0.0, 50_000.0);
        assert!(!kept.is_empty() && kept.len() <= MAX_SPANS && kept.iter().all(|s| s.name == "long"));
        assert_eq!(thinned(&all[..5], 0.0, 5.0), all[..5]);
    }
}
