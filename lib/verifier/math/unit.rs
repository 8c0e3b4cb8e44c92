//! Units of measure: names to dimension and size, so that equal quantities in different units are equal.

use num_bigint::BigInt;

use crate::math::rational::Rational;

/// A unit as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unit {
    /// The name in lower case, singular, words separated by one blank.
    pub(crate) name: String,
    /// Its dimension and size, where the unit is known.
    pub(crate) known: Option<(Dimension, Rational)>,
}

/// What a unit measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    /// A share of one; the number alone may stand for the percentage.
    Percent,
    /// An angle in degrees; the size is in degrees, not radians.
    Angle,
    Length,
    Area,
    Volume,
    Mass,
    Time,
    Speed,
    Money,
}

/// Names, dimension, and size as a fraction of whole numbers. Sizes are the international definitions
/// (an inch is 2.54 cm, a pound 453.59237 g, a US gallon 231 cubic inches).
const UNITS: &[(&[&str], Dimension, i64, i64)] = &[
    (&["%", "percent", "pct", "per cent"], Dimension::Percent, 1, 100),
    (&["°", "degree", "deg"], Dimension::Angle, 1, 1),
    (&["mm", "millimeter", "millimetre"], Dimension::Length, 1, 1000),
    (&["cm", "centimeter", "centimetre"], Dimension::Length, 1, 100),
    (&["dm", "decimeter", "decimetre"], Dimension::Length, 1, 10),
    (&["m", "meter", "metre"], Dimension::Length, 1, 1),
    (&["km", "kilometer", "kilometre"], Dimension::Length, 1000, 1),
    (&["in", "inch", "inche"], Dimension::Length, 254, 10_000),
    (&["ft", "foot", "feet"], Dimension::Length, 3048, 10_000),
    (&["yd", "yard"], Dimension::Length, 9144, 10_000),
    (&["mi", "mile"], Dimension::Length, 1_609_344, 1000),
    (&["l", "liter", "litre"], Dimension::Volume, 1, 1000),
    (&["ml", "milliliter", "millilitre"], Dimension::Volume, 1, 1_000_000),
    (&["gallon", "gal"], Dimension::Volume, 3_785_411_784, 1_000_000_000_000),
    (&["mg", "milligram"], Dimension::Mass, 1, 1000),
    (&["g", "gram", "gm"], Dimension::Mass, 1, 1),
    (&["kg", "kilogram"], Dimension::Mass, 1000, 1),
    (&["tonne", "metric ton"], Dimension::Mass, 1_000_000, 1),
    (&["lb", "pound"], Dimension::Mass, 45_359_237, 100_000),
    (&["oz", "ounce"], Dimension::Mass, 45_359_237, 1_600_000),
    (&["ms", "millisecond"], Dimension::Time, 1, 1000),
    (&["s", "sec", "second"], Dimension::Time, 1, 1),
    (&["min", "minute"], Dimension::Time, 60, 1),
    (&["h", "hr", "hour"], Dimension::Time, 3600, 1),
    (&["day"], Dimension::Time, 86_400, 1),
    (&["week"], Dimension::Time, 604_800, 1),
    (&["mph", "mile per hour"], Dimension::Speed, 1_609_344, 3_600_000),
    (&["km/h", "kmh", "kph", "kilometer per hour"], Dimension::Speed, 1000, 3600),
    (&["m/s", "meter per second"], Dimension::Speed, 1, 1),
    (&["cent", "¢"], Dimension::Money, 1, 100),
    (&["dollar", "usd", "buck"], Dimension::Money, 1, 1),
];

impl Unit {
    /// The unit of a name; words that name nothing known are a unit too, one that compares with nothing.
    pub(crate) fn named(text: &str) -> Self {
        let words: Vec<String> = text
            .split(|c: char| c.is_whitespace() || c == '.')
            .filter(|word| !word.is_empty())
            .map(|word| singular(&word.to_lowercase()))
            .collect();
        let name = words.join(" ");
        let known = known(&name);
        Self { name, known }
    }

    /// Whether `text` names a known unit that cannot be mistaken for a product of variables.
    pub(crate) fn is_known(text: &str) -> bool {
        text.len() >= 2 && known(&singular(&text.to_lowercase())).is_some()
    }

    /// Whether the unit is that of bare angles.
    pub(crate) fn is_radian(&self) -> bool {
        matches!(self.name.as_str(), "rad" | "radian")
    }

    /// The unit raised to a power, as in `cm^2`.
    pub(crate) fn power(self, exponent: i64) -> Self {
        let known = self.known.as_ref().and_then(|(dimension, size)| raised(*dimension, size, exponent));
        Self { name: format!("{}^{exponent}", self.name), known }
    }
}

fn known(name: &str) -> Option<(Dimension, Rational)> {
    for (word, exponent) in [("square ", 2), ("cubic ", 3), ("sq ", 2)] {
        if let Some(rest) = name.strip_prefix(word) {
            let (dimension, size) = known(rest)?;
            return raised(dimension, &size, exponent);
        }
    }
    let (_, dimension, above, below) = UNITS.iter().find(|(names, ..)| names.contains(&name))?;
    Some((*dimension, Rational::new(BigInt::from(*above), BigInt::from(*below))))
}

fn raised(dimension: Dimension, size: &Rational, exponent: i64) -> Option<(Dimension, Rational)> {
    match (dimension, exponent) {
        (_, 1) => Some((dimension, size.clone())),
        (Dimension::Length, 2) => Some((Dimension::Area, size * size)),
        (Dimension::Length, 3) => Some((Dimension::Volume, size * size * size)),
        _ => None,
    }
}

/// `miles` to `mile`; what ends in two s stays.
fn singular(word: &str) -> String {
    match word.strip_suffix('s') {
        Some(stem) if stem.len() > 1 && !stem.ends_with(['s', '/']) => stem.to_owned(),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_names_and_powers() {
        let size = |name: &str| Unit::named(name).known.map(|(_, size)| size);
        assert_eq!(size("Miles").unwrap(), size("yards").unwrap() * BigInt::from(1760));
        assert_eq!(Unit::named("cm").power(2).known, Unit::named("square centimeters").known);
        assert_eq!(size("gallons").unwrap(), size("cubic inches").unwrap() * BigInt::from(231));
        assert_eq!(size("km/h").unwrap() * BigInt::from(18), size("m/s").unwrap() * BigInt::from(5));
        assert_eq!(size("apples"), None);
        assert_eq!(Unit::named("liters").known.unwrap().0, Dimension::Volume);
        assert!(Unit::is_known("cm") && !Unit::is_known("m") && !Unit::is_known("xy"));
    }
}
