//! Ranges and marks of axes that a reader finds natural, also for constant and for very small numbers.

/// An end this part of a step from a mark goes on to it.
const NEAR: f64 = 0.4;
/// How far, as a part of the range, an end goes beyond the values otherwise.
const PAD: f64 = 0.04;

/// How an axis maps values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal factors; values at or below zero lie on its lower end.
    Log,
}

/// An axis: its range and its marks.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Where it begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// How it maps values.
    pub scale: Scale,
    /// Values that get a mark.
    pub marks: Vec<f64>,
}

impl Axis {
    /// An axis for values between `low` and `high` with about `num` marks.
    pub fn new(low: f64, high: f64, scale: Scale, num: usize) -> Self {
        if scale == Scale::Log && high > 0.0 {
            return Self::log(if low > 0.0 { low } else { high / 1e3 }, high);
        }
        let (low, high) = widened(low, high);
        let step = nice_step((high - low) / num as f64);
        // An end goes on to the next mark where that is near, else a little beyond the values.
        let near = |value: f64, mark: f64| (value - mark).abs() < NEAR * step;
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let start =
            if low >= 0.0 || near(low, first * step) { first * step } else { low - PAD * (high - low) };
        let end = if near(high, last * step) { last * step } else { high + PAD * (high - low) };
        // Rounding leaves 0.30000000000000004 otherwise.
        let mark = |i: usize| format!("{:.12e}", (first + i as f64) * step).parse().unwrap_or(0.0);
        let marks = (0..=(last - first) as usize).map(mark).filter(|mark| (start..=end).contains(mark));
        Self { low: start, high: end, scale: Scale::Linear, marks: marks.collect() }
    }

    /// Marks at powers of ten.
    fn log(low: f64, high: f64) -> Self {
        let (first, last) = (low.log10().floor(), high.log10().ceil());
        let last = if last > first { last } else { first + 1.0 };
        let every = ((last - first) / 5.0).ceil().max(1.0) as usize;
        let marks =
            (0..=(last - first) as usize).step_by(every).map(|i| 10f64.powf(first + i as f64)).collect();
        Self { low: 10f64.powf(first), high: 10f64.powf(last), scale: Scale::Log, marks }
    }

    /// Where a value lies: 0 at the lower end, 1 at the upper.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        share.clamp(0.0, 1.0)
    }
}

/// The same range, or one around a constant.
pub fn widened(low: f64, high: f64) -> (f64, f64) {
    if high > low && high - low > high.abs() * 1e-12 {
        return (low, high);
    }
    let half = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
    (low - half, low + half)
}

/// The nearest of 1, 2, 5 and 10, times a power of ten.
fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factor = match step / power {
        ..1.5 => 1.0,
        ..3.0 => 2.0,
        ..7.0 => 5.0,
        _ => 10.0,
    };
    power * factor
}

/// A number as short as a reader needs it: about three digits.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let trimmed = |text: String| {
        let has_point = text.contains('.');
        if has_point { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match size {
        0.0 => "0".to_owned(),
        1e9.. => format!("{}G", trimmed(format!("{:.1}", value / 1e9))),
        1e6.. => format!("{}M", trimmed(format!("{:.1}", value / 1e6))),
        1e4.. => format!("{}k", trimmed(format!("{:.1}", value / 1e3))),
        100.0.. => trimmed(format!("{value:.1}")),
        1e-3.. => trimmed(format!("{value:.*}", if size >= 1.0 { 2 } else { 4 })),
        _ => {
            let text = format!("{value:.1e}");
            text.replace(".0e", "e")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_cover_the_values() {
        let axis = Axis::new(0.13, 0.8, Scale::Linear, 4);
        assert_eq!(axis.marks, [0.0, 0.2, 0.4, 0.6, 0.8]);
        assert_eq!((axis.place(0.0), axis.place(0.4), axis.place(9.0)), (0.0, 0.5, 1.0));
        let over = Axis::new(0.0, 20.5, Scale::Linear, 4);
        assert_eq!(over.marks, [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert!(over.high > 20.5 && over.high < 22.0, "no empty fifth above the values");
        let wide = Axis::new(-3.0, 1234.0, Scale::Linear, 5);
        assert!(wide.low <= -3.0 && wide.high >= 1234.0 && wide.marks.contains(&0.0), "{wide:?}");
        let log = Axis::new(2e-7, 3e-3, Scale::Log, 5);
        assert!((log.low - 1e-7).abs() < 1e-12 && (log.high - 1e-2).abs() < 1e-9, "{log:?}");
        assert!(Axis::new(0.0, 1e-3, Scale::Log, 5).place(0.0) == 0.0);
        // Nothing above zero has no logarithm.
        assert_eq!(Axis::new(0.0, 0.0, Scale::Log, 5).scale, Scale::Linear);
    }

    #[test]
    fn constants_lie_in_the_middle() {
        let axis = Axis::new(0.03, 0.03, Scale::Linear, 4);
        assert!((0.3..0.7).contains(&axis.place(0.03)), "{axis:?}");
        assert!((Axis::new(0.0, 0.0, Scale::Linear, 4).place(0.0) - 0.5).abs() < 1e-9);
        assert_eq!(widened(2.0, 2.0), (1.0, 3.0));
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.5, 12.0, 123.45, 21_300.0, 2.5e6, 2e-5, 1.25e-7].map(short);
        assert_eq!(texts, ["0", "0.5", "12", "123.5", "21.3k", "2.5M", "2e-5", "1.2e-7"]);
    }
}
