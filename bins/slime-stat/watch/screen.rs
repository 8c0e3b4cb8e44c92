//! Draws the live view: progress, curves, phases, replicas, warnings and the newest samples.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis as AxisOf, Block, BorderType, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table, Wrap,
};

use crate::axis::{Axis, Scale, short};
use crate::downsample::downsample;
use crate::names::{REWARD, STEP_TIME, number, phases};
use crate::read_engines::Engine;
use crate::read_metrics::Metrics;
use crate::read_steps::ShownGroup;
use crate::read_warnings::{Warning, grouped, is_grave, title};
use crate::standing::standing;

/// Points of a curve; a terminal has few columns.
const NUM_BUCKETS: usize = 200;
const COLORS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::LightBlue, Color::LightRed];

/// What is drawn.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The run.
    pub name: String,
    /// Whether it is over.
    pub is_done: bool,
    /// What it does now.
    pub phase: String,
    /// How long it will still take.
    pub left: String,
    /// How many steps it shall have.
    pub num_steps: Option<u64>,
    /// What it measured.
    pub metrics: Metrics,
    /// The newest states of the replicas.
    pub engines: Vec<Engine>,
    /// What was warned of.
    pub warnings: Vec<Warning>,
    /// Samples of the newest step.
    pub samples: Vec<ShownGroup>,
}

/// Draws everything that has room.
pub fn draw(frame: &mut Frame, view: &View) {
    let has_room = frame.area().height >= 30;
    let samples = if has_room { Constraint::Length(9) } else { Constraint::Length(0) };
    let [top, middle, bottom, keys] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(8), samples, Constraint::Length(1)])
            .areas(frame.area());
    progress(frame, top, view);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(60), Constraint::Percentage(40)]).areas(middle);
    let [rewards, others] =
        Layout::vertical([Constraint::Percentage(58), Constraint::Percentage(42)]).areas(left);
    reward_chart(frame, rewards, view);
    let [lengths, entropy] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(others);
    let metrics = &view.metrics;
    chart(
        frame,
        lengths,
        "length of answers",
        &[("tokens", points(&metrics.series("rollout/response_len/mean")))],
    );
    chart(frame, entropy, "entropy", &[("nats", points(&metrics.series("train/entropy_loss")))]);
    let replicas = (view.engines.len() as u16 + 3).clamp(4, 10);
    let [phases, engines, warnings] =
        Layout::vertical([Constraint::Length(8), Constraint::Length(replicas), Constraint::Min(3)])
            .areas(right);
    phase_bars(frame, phases, metrics);
    engine_table(frame, engines, &view.engines);
    warning_list(frame, warnings, view);
    if has_room {
        sample_list(frame, bottom, &view.samples);
    }
    let hint = Line::from(vec![" q ".bold(), "leaves; the run goes on".dim()]);
    frame.render_widget(Paragraph::new(hint), keys);
}

fn block(title: &str) -> Block<'_> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().dark_gray())
        .title(title.bold())
}

fn progress(frame: &mut Frame, area: Rect, view: &View) {
    let done = view.metrics.num_trained();
    let ratio = view.num_steps.map_or(0.0, |all| done as f64 / all.max(1) as f64);
    let of = view.num_steps.map(|all| format!("/{all}")).unwrap_or_default();
    let label = format!("{done}{of} steps, {}{}", view.phase, view.left);
    let color = if view.is_done { Color::Green } else { Color::Cyan };
    let gauge = Gauge::default()
        .block(block(&view.name))
        .gauge_style(Style::new().fg(color).bg(Color::Black))
        .ratio(ratio.clamp(0.0, 1.0))
        .label(Span::styled(label, Style::new().add_modifier(Modifier::BOLD).fg(Color::White)))
        .use_unicode(true);
    frame.render_widget(gauge, area);
}

fn points(series: &[(u64, f64)]) -> Vec<(f64, f64)> {
    series.iter().map(|(step, value)| (*step as f64, *value)).collect()
}

fn reward_chart(frame: &mut Frame, area: Rect, view: &View) {
    let metrics = &view.metrics;
    let mut lines = vec![("training", points(&metrics.series(REWARD)))];
    lines.extend(
        metrics.sets().into_iter().map(|set| (set, points(&metrics.eval_series(set, "reward_mean")))),
    );
    chart(frame, area, "reward", &lines);
}

/// Lines over the steps with their newest values in the title.
fn chart(frame: &mut Frame, area: Rect, name: &str, lines: &[(&str, Vec<(f64, f64)>)]) {
    let drawn: Vec<(&str, Vec<(f64, f64)>)> = lines
        .iter()
        .map(|(label, points)| {
            (*label, downsample(points, NUM_BUCKETS).iter().map(|b| (b.at, b.mean)).collect())
        })
        .collect();
    let mut title = vec![Span::from(format!("{name} ")).bold()];
    for (at, (label, points)) in drawn.iter().enumerate() {
        if let Some((_, last)) = points.last() {
            title.push(Span::styled(
                format!("{label} {} ", short(*last)),
                Style::new().fg(COLORS[at % COLORS.len()]),
            ));
        }
    }
    let block = block("").title(Line::from(title));
    let all = || drawn.iter().flat_map(|(_, points)| points);
    if all().next().is_none() {
        frame.render_widget(Paragraph::new("nothing measured yet".dim()).block(block), area);
        return;
    }
    let least = |value: fn(&(f64, f64)) -> f64| all().map(value).fold(f64::INFINITY, f64::min);
    let greatest = |value: fn(&(f64, f64)) -> f64| all().map(value).fold(f64::NEG_INFINITY, f64::max);
    let (x0, x1) = (least(|p| p.0), greatest(|p| p.0));
    let y = Axis::new(least(|p| p.1), greatest(|p| p.1), Scale::Linear, 3);
    let x1 = if x1 > x0 { x1 } else { x0 + 1.0 };
    let datasets = drawn.iter().enumerate().map(|(at, (_, points))| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(COLORS[at % COLORS.len()]))
            .data(points)
    });
    let soft = Style::new().dark_gray();
    let chart = Chart::new(datasets.collect())
        .block(block)
        .x_axis(AxisOf::default().bounds([x0, x1]).labels([short(x0), short(x1)]).style(soft))
        .y_axis(AxisOf::default().bounds([y.low, y.high]).labels([short(y.low), short(y.high)]).style(soft))
        .legend_position(None);
    frame.render_widget(chart, area);
}

/// Where the newest step's seconds went.
fn phase_bars(frame: &mut Frame, area: Rect, metrics: &Metrics) {
    let newest = metrics.steps.iter().rev().find(|(_, numbers)| number(numbers, STEP_TIME).is_some());
    let Some((step, numbers)) = newest else {
        frame.render_widget(Paragraph::new("no step yet".dim()).block(block("time of a step")), area);
        return;
    };
    let total = number(numbers, STEP_TIME).unwrap_or(0.0).max(1e-9);
    let mut parts = phases(numbers);
    let rest = total - parts.iter().map(|(_, seconds)| seconds).sum::<f64>();
    if rest > 0.01 * total {
        parts.push(("everything else", rest));
    }
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let width = usize::from(area.width).saturating_sub(36).clamp(4, 30);
    let line = |(at, (label, seconds)): (usize, &(&str, f64))| {
        let bar = "█".repeat(((seconds / total).clamp(0.0, 1.0) * width as f64).round() as usize);
        Line::from(vec![
            Span::from(format!("{label:<20}")),
            Span::from(format!("{seconds:>7.1} s ")),
            Span::styled(bar, Style::new().fg(COLORS[at % COLORS.len()])),
        ])
    };
    let lines: Vec<Line> = parts.iter().enumerate().map(line).collect();
    let title = format!("time of step {step}: {total:.1} s");
    frame.render_widget(Paragraph::new(lines).block(block(&title)), area);
}

fn engine_table(frame: &mut Frame, area: Rect, engines: &[Engine]) {
    if engines.is_empty() {
        let text = Paragraph::new("they have told nothing of themselves".dim());
        frame.render_widget(text.block(block("replicas")), area);
        return;
    }
    let row = |engine: &Engine| {
        let state = engine.states.last().cloned().unwrap_or_default();
        Row::new([
            engine.replica.clone(),
            format!("{:.0}", state.num_running),
            format!("{:.0}", state.num_waiting),
            short(state.tokens_per_s),
            format!("{:.0}%", 100.0 * state.kv_used),
            format!("{:.0}%", 100.0 * state.busy),
            format!("{:.0}", state.version),
        ])
    };
    let head = Row::new(["replica", "running", "queue", "tokens/s", "KV", "busy", "ver"]).dim();
    let widths = [7, 7, 5, 8, 4, 4, 5].map(Constraint::Length);
    let table = Table::new(engines.iter().map(row), widths).header(head).block(block("replicas"));
    frame.render_widget(table, area);
}

fn warning_list(frame: &mut Frame, area: Rect, view: &View) {
    let groups = grouped(&view.warnings);
    let line = |group: &crate::read_warnings::WarningGroup| {
        let color = if is_grave(&group.kind) { Color::Red } else { Color::Yellow };
        let standing = match standing(group, &view.metrics).words() {
            words if words.is_empty() => words,
            words => format!(" ({words})"),
        };
        let said = format!("{standing}: step {}, {}", group.newest.step, clean(&group.newest.message));
        Line::from(vec![Span::styled(title(&group.kind), Style::new().fg(color)), Span::from(said)])
    };
    let lines: Vec<Line> =
        if groups.is_empty() { vec!["none".green().into()] } else { groups.iter().map(line).collect() };
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(block("warnings")), area);
}

/// Question, then the best and the worst answer of each group.
fn sample_list(frame: &mut Frame, area: Rect, groups: &[ShownGroup]) {
    let mut lines = Vec::new();
    for group in groups {
        let question = group.prompt.last().map(|(_, text)| clean(text)).unwrap_or_default();
        lines.push(Line::from(vec!["? ".cyan(), question.into()]));
        let reward = |answer: &&crate::read_steps::Shown| answer.reward.unwrap_or(0.0);
        let best = group.answers.iter().max_by(|a, b| reward(a).total_cmp(&reward(b)));
        let worst = group.answers.iter().min_by(|a, b| reward(a).total_cmp(&reward(b)));
        for answer in
            [best, worst.filter(|w| best.is_some_and(|b| b.reward != w.reward))].into_iter().flatten()
        {
            let color = if reward(&answer) > 0.0 { Color::Green } else { Color::Red };
            let told = answer.reward.map_or("  -   ".to_owned(), |reward| format!("{reward:>5.2} "));
            lines.push(Line::from(vec![
                Span::styled(told, Style::new().fg(color)),
                clean(&answer.response).into(),
            ]));
        }
    }
    if lines.is_empty() {
        lines.push("none yet".dim().into());
    }
    frame.render_widget(Paragraph::new(lines).block(block("newest samples")), area);
}

/// One line without what a terminal would obey.
fn clean(text: &str) -> String {
    text.trim()
        .chars()
        .take(400)
        .map(|c| {
            if c == '\n' {
                '⏎'
            } else if c.is_control() {
                ' '
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_engines::EngineState;
    use crate::read_steps::Shown;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
    }

    fn view() -> View {
        let mut metrics = Metrics::default();
        for step in 0..5_u64 {
            let text = format!(
                "{{\"train/loss\":0,\"rollout/raw_reward\":0.{step},\"train/entropy_loss\":1.5,\
                 \"perf/step_time\":20,\"perf/actor_train_time\":15,\"perf/train_wait_time\":5}}"
            );
            metrics.steps.insert(step, serde_json::from_str(&text).unwrap());
        }
        let state = EngineState {
            num_running: 12.0,
            num_waiting: 3.0,
            tokens_per_s: 2130.0,
            kv_used: 0.4,
            ..EngineState::default()
        };
        let warning = Warning {
            kind: "entropy_collapse".into(),
            message: "entropy fell by 80 %".into(),
            step: 3,
            ..Warning::default()
        };
        let answer =
            |text: &str, reward| Shown { response: text.into(), reward: Some(reward), ..Shown::default() };
        let group = ShownGroup {
            prompt: vec![("user".into(), "Compute 9 + 7.\u{1b}[31m".into())],
            answers: vec![answer("it is 16", 1.0), answer("about\n20", 0.0)],
            ..ShownGroup::default()
        };
        View {
            name: "quickstart".into(),
            phase: "generating step 5".into(),
            left: ", about 1:20 left".into(),
            num_steps: Some(12),
            metrics,
            engines: vec![Engine { replica: "0".into(), states: vec![state] }],
            warnings: vec![warning],
            samples: vec![group],
            ..View::default()
        }
    }

    #[test]
    fn everything_that_happens_is_on_the_screen() {
        let text = drawn(&view(), 120, 40);
        for part in [
            "quickstart",
            "5/12 steps, generating step 5, about 1:20 left",
            "training 0.4",
            "time of step 4: 20.0 s",
            "wait for samples",
            "2130",
            "40%",
            "The policy has become too sure of itself",
            "entropy fell by 80 %",
            "Compute 9 + 7. [31m",
            "1.00 it is 16",
            "0.00 about⏎20",
            "leaves; the run goes on",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "a sample does not control the terminal");
    }

    #[test]
    fn small_and_empty_screens_are_drawn_too() {
        assert!(drawn(&view(), 80, 24).contains("5/12 steps"));
        assert!(drawn(&View::default(), 80, 24).contains("nothing measured yet"));
        drawn(&view(), 20, 5);
        drawn(&view(), 1, 1);
    }
}
