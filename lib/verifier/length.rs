//! The `length`, `overlong` and `repetition` rewards: how long a response is, and how much of it is said twice.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::{Row, RowVerifier, Verdict};

/// What a length counts.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Tokens,
    Words,
    Characters,
}

impl Unit {
    fn read(options: &mut Options) -> Result<Self> {
        match options.text("unit")?.as_deref() {
            None | Some("tokens") => Ok(Self::Tokens),
            Some("words") => Ok(Self::Words),
            Some("characters") => Ok(Self::Characters),
            Some(other) => Err(options.wrong("unit", "tokens, words or characters", other)),
        }
    }

    fn len(self, row: &Row<'_>, name: &'static str) -> Result<usize> {
        match self {
            Self::Words => Ok(row.response.split_whitespace().count()),
            Self::Characters => Ok(row.response.chars().count()),
            Self::Tokens => row.num_tokens.ok_or_else(|| Error::BadRow {
                name,
                problem:
                    "the row does not say how many tokens it has\nhint: give rows `loss_mask`, or unit=words"
                        .to_owned(),
            }),
        }
    }
}

/// The `length` reward: 1 from `min` to `max`, outside falling to 0 within `slack`.
#[derive(Debug)]
pub(crate) struct Length {
    min: f64,
    max: f64,
    slack: f64,
    unit: Unit,
}

impl Length {
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let min = options.number("min", 0.0)?;
        let max: Option<f64> = options.optional_number("max")?;
        let slack = options.number("slack", 0.0)?;
        let unit = Unit::read(options)?;
        let max = max.unwrap_or(f64::INFINITY);
        if min > max || (max.is_infinite() && min <= 0.0) {
            return Err(options.problem("expected min=.., max=.. or both, min not above max"));
        }
        Ok(Self { min, max, slack: slack.max(0.0), unit })
    }
}

impl RowVerifier for Length {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let len = self.unit.len(row, "length")?;
        let off = (self.min - len as f64).max(len as f64 - self.max).max(0.0);
        let reward = if off == 0.0 { 1.0 } else { (1.0 - off / self.slack).max(0.0) };
        Ok(Verdict::new(reward, format!("{len} long, {off} off")))
    }
}

/// The `overlong` penalty: DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).
///
/// 0 up to `max - cache`, falling to -1 at `max`, -1 beyond.
#[derive(Debug)]
pub(crate) struct Overlong {
    max: f64,
    cache: f64,
    unit: Unit,
}

impl Overlong {
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let (max, cache) = (options.optional_number("max")?, options.optional_number("cache")?);
        let unit = Unit::read(options)?;
        let (max, cache) = (options.needed("max", max)?, options.needed("cache", cache)?);
        if cache <= 0.0 || cache > max {
            return Err(options.wrong("cache", "more than 0 and at most max", cache));
        }
        Ok(Self { max, cache, unit })
    }
}

impl RowVerifier for Overlong {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let len = self.unit.len(row, "overlong")?;
        let over = len as f64 - (self.max - self.cache);
        Ok(Verdict::new(
            0.0 - (over / self.cache).clamp(0.0, 1.0),
            format!("{len} long, {} allowed", self.max),
        ))
    }
}

/// The `repetition` penalty: minus the share of runs of `n` words that were there before.
#[derive(Debug)]
pub(crate) struct Repetition {
    n: usize,
}

impl Repetition {
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        Ok(Self { n: options.count("n", 4)? })
    }
}

impl RowVerifier for Repetition {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let text = row.response.to_lowercase();
        let mut known: HashMap<&str, u64> = HashMap::new();
        let number = |word| {
            let next = known.len() as u64;
            *known.entry(word).or_insert(next)
        };
        let words: Vec<u64> = text.split_whitespace().map(number).collect();
        let runs = fingerprints(&words, self.n);
        let num = runs.len();
        let repeated = num - runs.into_iter().collect::<HashSet<u64>>().len();
        let share = if num == 0 { 0.0 } else { repeated as f64 / num as f64 };
        Ok(Verdict::new(0.0 - share, format!("{repeated} of {num} runs of {} words repeat", self.n)))
    }
}

/// A number for each run of `n` words, carried from run to run: the value of the polynomial of the words at a fixed point
/// modulo the prime 2^61 - 1 (Karp and Rabin 1987). Of 500,000 different runs two are alike with a probability below 1e-7
/// times `n`, and then count as repeated.
fn fingerprints(words: &[u64], n: usize) -> Vec<u64> {
    const PRIME: u64 = (1 << 61) - 1;
    const POINT: u64 = 1_303_515_645_827_194_937;
    let times = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64;
    let leading = (1..n.min(words.len())).fold(1, |power, _| times(power, POINT));
    let mut runs = Vec::with_capacity((words.len() + 1).saturating_sub(n));
    let mut value = 0;
    for (at, word) in words.iter().enumerate() {
        if let Some(gone) = at.checked_sub(n).and_then(|gone| words.get(gone)) {
            value = (value + PRIME - times(gone + 1, leading)) % PRIME;
        }
        value = (times(value, POINT) + word + 1) % PRIME;
        if at + 1 >= n {
            runs.push(value);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(spec: &str, response: &str, num_tokens: Option<usize>) -> f64 {
        let row = Row { response, num_tokens, ..Row::default() };
        crate::RewardSet::parse(&[spec]).unwrap().score(&[row]).unwrap()[0].reward
    }

    #[test]
    fn overlong_falls_within_the_cache() {
        let rewards: Vec<f64> =
            [0, 80, 90, 100, 120].map(|num| reward("overlong:max=100 cache=20", "", Some(num))).to_vec();
        assert_eq!(rewards, [0.0, 0.0, -0.5, -1.0, -1.0]);
    }

    #[test]
    fn length_is_a_range_with_slack() {
        let spec = "length:min=2 max=4 slack=2 unit=words";
        let rewards: Vec<f64> = [0, 1, 2, 4, 5, 6].map(|num| reward(spec, &"a ".repeat(num), None)).to_vec();
        assert_eq!(rewards, [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]);
        assert!(reward("length:max=2 unit=characters", "éé", None) > 0.5);
        for wrong in [
            "length",
            "length:min=3 max=2",
            "length:max=2 unit=miles",
            "overlong:max=3",
            "overlong:max=3 cache=4",
        ] {
            assert_eq!(crate::RewardSet::parse(&[wrong]).unwrap_err().exit_code(), 64, "{wrong}");
        }
        let row = Row { response: "a", ..Row::default() };
        let error = crate::RewardSet::parse(&["length:max=2"]).unwrap().score(&[row]).unwrap_err();
        assert!(error.to_string().contains("how many tokens"), "{error}");
    }

    #[test]
    fn fingerprints_are_alike_where_runs_are() {
        let words: Vec<u64> = (0..3000_u64).map(|at| at * at % 7 + at % 2).collect();
        for n in [1, 2, 3, 10, 2999, 3000, 3001] {
            let exact: HashSet<&[u64]> = words.windows(n).collect();
            let found = fingerprints(&words, n);
            assert_eq!(found.len(), words.windows(n).len(), "{n}");
            assert_eq!(found.into_iter().collect::<HashSet<u64>>().len(), exact.len(), "{n}");
        }
    }

    #[test]
    fn repetition_is_the_share_of_runs_that_repeat() {
        assert!((reward("repetition:n=2", "a b a b a b", None) + 3.0 / 5.0).abs() < 1e-9);
        assert!(reward("repetition", "a b c", None).abs() < 1e-9);
        assert_eq!(
            reward("repetition", "a b c", None).to_bits(),
            0.0_f64.to_bits(),
            "no minus before nothing"
        );
        assert!(reward("repetition", "one two three four five six", None).abs() < 1e-9);
    }
}
