//! What a pass says at its end: means and distributions of the rewards, failures, and rows that were skipped.

use std::collections::BTreeMap;
use std::fmt;

use slime_verifier::Scored;

/// Rows whose numbers are told one by one.
const MAX_TOLD: usize = 20;
/// Values that are counted one by one; more are counted in ranges.
const MAX_VALUES: usize = 8;

/// What was seen so far.
pub struct Stats {
    /// The sum, then each type.
    columns: Vec<Column>,
    skipped: Vec<usize>,
    num_skipped: usize,
}

/// The values of one type.
struct Column {
    name: String,
    values: Vec<f64>,
    num_failures: usize,
}

impl Stats {
    /// Nothing seen of these types.
    pub fn new(names: &[String]) -> Self {
        let names = std::iter::once("reward").chain(names.iter().map(String::as_str));
        let columns = names.map(|name| Column { name: name.to_owned(), values: Vec::new(), num_failures: 0 });
        Self { columns: columns.collect(), skipped: Vec::new(), num_skipped: 0 }
    }

    /// A row that was scored.
    pub fn add(&mut self, scored: &Scored) {
        let failures = scored.parts.iter().map(|part| usize::from(part.failure.is_some()));
        let values = std::iter::once((scored.reward, 0));
        let values = values.chain(scored.parts.iter().map(|part| part.reward).zip(failures));
        for (column, (value, failures)) in self.columns.iter_mut().zip(values) {
            column.values.push(value);
            column.num_failures += failures;
        }
    }

    /// A row that was skipped; whether it is one of those to be told.
    pub fn skip(&mut self, number: usize) -> bool {
        self.num_skipped += 1;
        let is_told = self.skipped.len() < MAX_TOLD;
        if is_told {
            self.skipped.push(number);
        }
        is_told
    }

    /// Rows that were scored.
    pub fn num_rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }

    /// What was skipped, in words; `None` when nothing was.
    pub fn skipped(&self, unit: &str) -> Option<String> {
        let numbers: Vec<String> = self.skipped.iter().map(ToString::to_string).collect();
        let more = if self.num_skipped > numbers.len() { ", .." } else { "" };
        (self.num_skipped > 0)
            .then(|| format!("{} {unit}s skipped: {}{more}", self.num_skipped, numbers.join(", ")))
    }

    /// How often a type failed and its default stood in, in words; `None` when none did.
    pub fn failures(&self) -> Option<String> {
        let failed = self.columns.iter().filter(|column| column.num_failures > 0);
        let told: Vec<String> =
            failed.map(|column| format!("{} failed for {} rows", column.name, column.num_failures)).collect();
        (!told.is_empty()).then(|| format!("{}; the default stands for them", told.join(", ")))
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} rows, {} skipped", self.num_rows(), self.num_skipped)?;
        for column in &self.columns {
            let num = column.values.len() as f64;
            let mean = column.values.iter().sum::<f64>() / num;
            let std = (column.values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / num).sqrt();
            let Column { name, num_failures, .. } = column;
            writeln!(
                f,
                "{name}: mean {mean:.4}, std {std:.4}, failed {num_failures}; {}",
                column.distribution()
            )?;
        }
        Ok(())
    }
}

impl Column {
    /// How often each value came, or values of each of so many equal ranges.
    fn distribution(&self) -> String {
        let mut counts: BTreeMap<u64, (f64, usize)> = BTreeMap::new();
        for value in &self.values {
            // Bits in the order of the numbers.
            let bits = value.to_bits();
            let key = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
            counts.entry(key).or_insert((*value, 0)).1 += 1;
        }
        let (least, most) = match (counts.first_key_value(), counts.last_key_value()) {
            (Some((_, (least, _))), Some((_, (most, _)))) => (*least, *most),
            _ => return String::new(),
        };
        if counts.len() <= MAX_VALUES {
            let told = counts.values().map(|(value, num)| format!("{value}: {num}"));
            return told.collect::<Vec<_>>().join(", ");
        }
        let width = (most - least) / MAX_VALUES as f64;
        let mut bins = [0_usize; MAX_VALUES];
        for (value, num) in counts.values() {
            if let Some(bin) = bins.get_mut((((value - least) / width) as usize).min(MAX_VALUES - 1)) {
                *bin += num;
            }
        }
        let edge = |at: usize| least + at as f64 * width;
        let told =
            bins.iter().enumerate().map(|(at, num)| format!("{:.3}..{:.3}: {num}", edge(at), edge(at + 1)));
        told.collect::<Vec<_>>().join(", ")
    }
}
