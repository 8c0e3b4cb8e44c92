//! One chart as SVG, with its numbers beside it for the values under the pointer.

use maud::{Markup, PreEscaped, html};
use serde_json::json;

use super::script_json;
use crate::axis::{Axis, Scale, short};
use crate::downsample::Bucket;

/// The picture and the plot inside it, in units of the SVG.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 548.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 196.0;
/// Up to so many points each gets a dot.
const MAX_DOTS: usize = 60;

/// One line of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    /// What the legend calls it.
    pub label: String,
    /// Number of its colour, from 0.
    pub color: usize,
    /// Drawn with gaps, to tell numbers of one run apart.
    pub is_dashed: bool,
    /// Its values.
    pub buckets: Vec<Bucket>,
}

/// What a chart shows.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// One line about what it means.
    pub explanation: String,
    /// Why it is flat or empty, where that is known.
    pub note: Option<String>,
    /// What is drawn upwards, with its unit.
    pub y_label: String,
    /// What is drawn to the right.
    pub x_label: &'static str,
    /// How values are mapped.
    pub scale: Scale,
    /// Whether the axis begins at zero.
    pub from_zero: bool,
    /// Areas on top of each other instead of lines.
    pub is_stacked: bool,
    /// The lines.
    pub series: Vec<Series>,
}

/// The range of both axes.
struct Frame {
    x: Axis,
    y: Axis,
}

/// Whether steps, versions and groups can be so many.
fn is_count(value: f64) -> bool {
    value >= 0.0 && value.fract() == 0.0
}

impl Frame {
    fn of(chart: &Chart) -> Self {
        let buckets = || chart.series.iter().flat_map(|series| &series.buckets);
        let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let greatest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
        let (x0, x1) = (least(&mut buckets().map(|b| b.first)), greatest(&mut buckets().map(|b| b.at)));
        let (mut y0, mut y1) =
            (least(&mut buckets().map(|b| b.low)), greatest(&mut buckets().map(|b| b.high)));
        if chart.is_stacked {
            let num = chart.series.iter().map(|series| series.buckets.len()).max().unwrap_or(0);
            let sum = |at: usize| chart.series.iter().filter_map(|s| s.buckets.get(at)).map(|b| b.mean).sum();
            (y0, y1) = (0.0, greatest(&mut (0..num).map(sum)));
        }
        if chart.from_zero && chart.scale == Scale::Linear && (y1 > 0.0 || y0 > 0.0) {
            y0 = y0.min(0.0);
        } else if chart.from_zero && y0 == 0.0 && y1 == 0.0 {
            y1 = 1.0;
        }
        let mut x = Axis::new(x0, x1, Scale::Linear, 6);
        if chart.is_stacked {
            // A bar's middle stands over its step, so the axis has half a bar beyond the first and the last.
            let num = chart.series.iter().map(|series| series.buckets.len()).max().unwrap_or(0);
            let (x0, x1) = (least(&mut buckets().map(|b| b.at)), x1);
            let half = if num > 1 { (x1 - x0) / (num - 1) as f64 / 2.0 } else { 0.5 };
            (x.low, x.high) = (x0 - half, x1 + half);
        } else if x1 > x0 {
            // The curve fills the width; only the marks are round.
            (x.low, x.high) = (x0, x1);
        }
        let mut y = Axis::new(y0, y1, chart.scale, 4);
        let is_seen = |mark: &f64| (x.low..=x.high).contains(mark);
        x.marks = x.marks.iter().copied().filter(is_seen).collect();
        if ["training step", "policy version"].contains(&chart.x_label) {
            x.marks.retain(|mark| is_count(*mark));
        }
        if ["versions", "groups"].contains(&chart.y_label.as_str()) {
            y.marks.retain(|mark| is_count(*mark));
        }
        Self { x, y }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.y.place(value) * (BOTTOM - TOP)
    }
}

impl Chart {
    /// The chart as a figure; nothing without a value.
    pub fn figure(&self) -> Markup {
        let series: Vec<&Series> = self.series.iter().filter(|series| !series.buckets.is_empty()).collect();
        if series.is_empty() {
            return html! {};
        }
        let frame = Frame::of(self);
        let newest = series[0].buckets.last().map_or(0.0, |bucket| bucket.mean);
        let summary =
            format!("{}: from {} to {}", self.title, short(series[0].buckets[0].mean), short(newest));
        html! {
            figure.card.chart {
                figcaption {
                    h3 { (self.title) }
                    p.explain {
                        (self.explanation)
                        @if let Some(note) = &self.note { " " b { (note) } }
                    }
                }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(summary) {
                    (grid(&frame))
                    @if self.is_stacked { (stack(&frame, &series)) }
                    @else { @for line in &series { (curve(&frame, line)) } }
                    text.axis x=(f64::midpoint(LEFT, RIGHT)) y=(HEIGHT - 8.0) text-anchor="middle" { (self.x_label) }
                    text.axis transform=(format!("translate(12 {}) rotate(-90)", f64::midpoint(TOP, BOTTOM)))
                        text-anchor="middle" { (self.y_label) }
                    line.cursor x1=(LEFT) x2=(LEFT) y1=(TOP) y2=(BOTTOM) {}
                }
                (legend(&series, self.is_stacked))
                (self.numbers(&frame, &series))
            }
        }
    }

    /// What the page's script needs for the values under the pointer.
    fn numbers(&self, frame: &Frame, series: &[&Series]) -> Markup {
        let row = |b: &Bucket| {
            if (b.high - b.low).abs() > 0.0 {
                json!([rounded(b.at), rounded(b.mean), rounded(b.low), rounded(b.high)])
            } else {
                json!([rounded(b.at), rounded(b.mean)])
            }
        };
        let lines: Vec<_> = series
            .iter()
            .map(|s| json!({"label": s.label, "color": s.color, "rows": s.buckets.iter().map(row).collect::<Vec<_>>()}))
            .collect();
        script_json(
            "numbers",
            &json!({"x": [frame.x.low, frame.x.high], "left": LEFT, "right": RIGHT, "width": WIDTH,
                    "name": self.x_label, "series": lines}),
        )
    }
}

/// Five digits are more than a pixel shows.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

fn grid(frame: &Frame) -> Markup {
    html! {
        @for mark in &frame.y.marks {
            @let y = format!("{:.1}", frame.y(*mark));
            line.grid x1=(LEFT) x2=(RIGHT) y1=(y) y2=(y) {}
            text.mark x=(LEFT - 6.0) y=(y) dy="0.32em" text-anchor="end" { (short(*mark)) }
        }
        @for mark in &frame.x.marks {
            text.mark x=(format!("{:.1}", frame.x(*mark))) y=(BOTTOM + 15.0) text-anchor="middle" { (short(*mark)) }
        }
    }
}

/// The mean as a line, the range of each bucket as an area around it.
fn curve(frame: &Frame, series: &Series) -> Markup {
    let buckets = &series.buckets;
    let points = |value: fn(&Bucket) -> f64| -> Vec<String> {
        buckets.iter().map(|b| format!("{:.1},{:.1}", frame.x(b.at), frame.y(value(b)))).collect()
    };
    let has_range = buckets.iter().any(|b| b.high > b.low);
    let mut around = points(|b| b.high);
    around.extend(points(|b| b.low).into_iter().rev());
    html! {
        g class=(format!("c{}", series.color % 8)) {
            @if has_range { polygon.range points=(around.join(" ")) {} }
            polyline.line.dashed[series.is_dashed] points=(points(|b| b.mean).join(" ")) {}
            @if buckets.len() <= MAX_DOTS {
                @for b in buckets {
                    circle.dot cx=(format!("{:.1}", frame.x(b.at))) cy=(format!("{:.1}", frame.y(b.mean))) r="2.4" {}
                }
            }
        }
    }
}

/// Each series as bars on top of those before it.
fn stack(frame: &Frame, series: &[&Series]) -> Markup {
    let num = series.iter().map(|s| s.buckets.len()).max().unwrap_or(0);
    let width = (RIGHT - LEFT) / num.max(1) as f64;
    let gap = if num <= MAX_DOTS { width * 0.15 } else { 0.0 };
    let mut floor = vec![0.0; num];
    let paths: Vec<(usize, String)> = series
        .iter()
        .map(|s| {
            let bar = |(at, b): (usize, &Bucket)| {
                let (from, to) = (frame.y(floor[at]), frame.y(floor[at] + b.mean));
                floor[at] += b.mean;
                let x = frame.x(b.at) - (width - gap) / 2.0;
                format!("M{x:.1} {from:.1}h{:.2}V{to:.1}h-{:.2}z", width - gap, width - gap)
            };
            (s.color, s.buckets.iter().enumerate().map(bar).collect())
        })
        .collect();
    html! { @for (color, path) in paths { path class=(format!("bar c{}", color % 8)) d=(PreEscaped(path)) {} } }
}

fn legend(series: &[&Series], is_stacked: bool) -> Markup {
    html! {
        ul.legend {
            @for s in series {
                li {
                    span class=(format!("key c{}{}", s.color % 8, if s.is_dashed { " dashed" } else { "" })) {}
                    (s.label)
                    @if !is_stacked && let Some(last) = s.buckets.last() { b { (short(last.mean)) } }
                }
            }
        }
    }
}

/// A curve without axes, for cards and tables.
pub fn sparkline(points: &[(f64, f64)]) -> Markup {
    let buckets = crate::downsample::downsample(points, 80);
    if buckets.len() < 2 {
        return html! {};
    }
    let low = buckets.iter().map(|b| b.mean).fold(f64::INFINITY, f64::min);
    let high = buckets.iter().map(|b| b.mean).fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = crate::axis::widened(low, high);
    let num = (buckets.len() - 1) as f64;
    let point = |(at, b): (usize, &Bucket)| {
        format!("{:.1},{:.1}", 1.0 + at as f64 / num * 98.0, 23.0 - (b.mean - low) / (high - low) * 22.0)
    };
    let points: Vec<String> = buckets.iter().enumerate().map(point).collect();
    html! {
        svg.spark viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true" {
            polyline points=(points.join(" ")) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downsample::downsample;

    fn chart(points: &[(f64, f64)], is_stacked: bool) -> String {
        let series = |label: &str, color| Series {
            label: label.to_owned(),
            color,
            is_dashed: false,
            buckets: downsample(points, 100),
        };
        let chart = Chart {
            title: "Reward".to_owned(),
            explanation: "more is better".to_owned(),
            y_label: "reward".to_owned(),
            x_label: "training step",
            note: None,
            scale: Scale::Linear,
            from_zero: true,
            is_stacked,
            series: vec![series("a<b>", 0), series("c", 1)],
        };
        chart.figure().into_string()
    }

    #[test]
    fn curve_rises_to_the_upper_right_and_labels_are_escaped() {
        let svg = chart(&[(0.0, 0.0), (1.0, 1.0)], false);
        assert!(svg.contains("points=\"64.0,196.0 548.0,14.0\""), "{svg}");
        assert!(svg.contains("a&lt;b&gt;") && !svg.contains("a<b>"), "{svg}");
        assert!(
            svg.contains("more is better") && svg.contains("aria-label=\"Reward: from 0 to 1\""),
            "{svg}"
        );
    }

    #[test]
    fn stacked_bars_stand_on_each_other() {
        let svg = chart(&[(0.0, 1.0), (1.0, 1.0)], true);
        // Both reach 2 together: the first ends in the middle, where the second begins.
        assert!(svg.contains("V105.0") && svg.contains(" 105.0h"), "{svg}");
        assert!(chart(&[], false).is_empty());
    }

    #[test]
    fn bars_stand_over_their_ticks_and_steps_are_whole() {
        let svg = chart(&[(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)], true);
        let width = (RIGHT - LEFT) / 3.0;
        for step in 0..3 {
            let middle = LEFT + (f64::from(step) + 0.5) * width;
            let tick = format!(
                "<text class=\"mark\" x=\"{middle:.1}\" y=\"211\" text-anchor=\"middle\">{step}</text>"
            );
            assert!(svg.contains(&tick), "{tick} in {svg}");
            let bar = format!("M{:.1} 196.0h{:.2}V", middle - width * 0.425, width * 0.85);
            assert!(svg.contains(&bar), "{bar} in {svg}");
        }
        assert!(!svg.contains("y=\"211\" text-anchor=\"middle\">0.5"), "half a step");
    }
}
