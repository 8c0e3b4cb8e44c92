//! A series of numbers as a curve of characters.

use crate::axis::{short, widened};

/// Lines of a curve.
const HEIGHT: usize = 8;
/// Points across; longer series are averaged.
const WIDTH: usize = 72;

/// A curve with its title and scale; nothing for fewer than two points.
pub fn curve(title: &str, series: &[(u64, f64)]) -> String {
    let points: Vec<(u64, f64)> = series.iter().copied().filter(|(_, value)| value.is_finite()).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return String::new() };
    if points.len() < 2 {
        return String::new();
    }
    let averages = averaged(&points);
    let low = averages.iter().copied().fold(f64::INFINITY, f64::min);
    let high = averages.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = widened(low, high);
    let span = high - low;
    let row_of = |value: f64| ((value - low) / span * (HEIGHT - 1) as f64).round() as usize;
    let stretch = (WIDTH / averages.len()).clamp(1, 6);

    let mut text = format!("{title}\n");
    for row in (0..HEIGHT).rev() {
        let label = match row {
            0 => label(low),
            _ if row == HEIGHT - 1 => label(high),
            _ => String::new(),
        };
        let mut line = format!("{label:>9} |");
        for value in &averages {
            let mark = if row_of(*value) == row { '*' } else { ' ' };
            line.push(mark);
            line.extend(std::iter::repeat_n(' ', stretch - 1));
        }
        text += line.trim_end();
        text.push('\n');
    }
    let across = averages.len() * stretch;
    let (left, right) = (first.0.to_string(), last.0.to_string());
    text.extend([format!("{:>9} +{}\n", "", "-".repeat(across))]);
    let gap = across.saturating_sub(left.len()).max(right.len() + 1);
    text.extend([format!("{:>11}{left}{right:>gap$}\n\n", "")]);
    text
}

/// Three decimals, or what smaller numbers need.
fn label(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-3 { format!("{value:.3}") } else { short(value) }
}

/// The series in at most [`WIDTH`] buckets, each the mean of its points.
fn averaged(points: &[(u64, f64)]) -> Vec<f64> {
    let buckets = points.len().min(WIDTH);
    (0..buckets)
        .map(|bucket| {
            let from = bucket * points.len() / buckets;
            let to = (bucket + 1) * points.len() / buckets;
            points[from..to].iter().map(|(_, value)| value).sum::<f64>() / (to - from) as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_rises_from_bottom_left_to_top_right() {
        let text = curve("reward", &[(0, 0.1), (1, 0.5), (2, 0.9)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("0.900 |") && lines[1].ends_with('*'), "{text}");
        assert!(lines[HEIGHT].contains("0.100 |*"), "{text}");
        assert!(curve("reward", &[(0, 1.0)]).is_empty());
    }

    #[test]
    fn constant_curve_lies_in_the_middle_of_its_axis() {
        let text = curve("lr", &[(0, 2e-5), (1, 2e-5)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("3e-5 |") && lines[HEIGHT].contains("1e-5 |"), "{text}");
        assert!(lines[4].contains('*') || lines[5].contains('*'), "{text}");
    }

    #[test]
    fn long_series_are_averaged() {
        let points: Vec<(u64, f64)> = (0..1000).map(|step| (step, step as f64)).collect();
        let averages = averaged(&points);
        assert_eq!(averages.len(), WIDTH);
        assert!(averages.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
