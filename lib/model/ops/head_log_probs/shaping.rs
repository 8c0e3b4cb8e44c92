//! How logits become the distribution that a token was sampled from: penalties, then temperature, then the kept ids.

use std::ops::Range;

use tch::Tensor;

use super::refused;
use crate::Result;

/// What stands between the logits and the softmax of the log-prob, in this order.
///
/// The log-prob is that of the distribution after all three. The entropy is that after penalties and temperature: over the
/// whole vocabulary, whatever ids were kept, as slime has it (its training masks a copy of the logits for the log-prob
/// alone). Otherwise a bonus on it would reward wide nuclei and not wide distributions.
#[derive(Debug, Clone, Copy)]
pub struct Shaping<'a> {
    /// The logits are divided by it; above 0.
    pub temperature: f64,
    /// The ids that truncation (top-k, top-p, min-p) left to each row.
    pub kept: Option<&'a KeptIds>,
    /// Penalties on ids that were seen.
    pub penalties: Option<&'a Penalties>,
}

impl Shaping<'_> {
    /// The plain softmax at `temperature`.
    pub fn at(temperature: f64) -> Self {
        Self { temperature, kept: None, penalties: None }
    }

    /// Whether the temperature is one and the lists are of `num_rows` rows and of ids of a vocabulary of `vocab`.
    pub(super) fn check(&self, num_rows: usize, vocab: i64) -> Result<()> {
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return Err(refused("temperature", "a number above 0", self.temperature.to_string()));
        }
        if let Some(kept) = self.kept {
            check_lists("rows of kept ids", num_rows, &kept.offsets)?;
            check_ids("kept id", vocab, kept.ids.iter().copied())?;
        }
        if let Some(penalties) = self.penalties {
            check_lists("rows of penalties", num_rows, &penalties.offsets)?;
            check_ids("penalised id", vocab, penalties.seen.iter().map(|seen| seen.id))?;
        }
        Ok(())
    }
}

/// For each row the ids that its token was sampled from; the logits of all others are taken as minus infinity before the
/// softmax of the log-prob. The target is always kept, so a row without an id gives it a log-prob of 0.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptIds {
    offsets: Vec<i64>,
    ids: Vec<i64>,
    is_recorded: Vec<bool>,
}

impl KeptIds {
    /// Row r keeps `ids[offsets[r]..offsets[r + 1]]` (in any order, also repeated); where `is_recorded` is false it was not
    /// recorded what was kept, and the row keeps all.
    ///
    /// # Errors
    /// The offsets do not rise from 0 to the number of ids, or there is another number of flags than of rows.
    pub fn new(offsets: Vec<i64>, ids: Vec<i64>, is_recorded: Vec<bool>) -> Result<Self> {
        check_offsets("offsets of kept ids", &offsets, ids.len())?;
        check_lists("flags of kept ids", is_recorded.len(), &offsets)?;
        Ok(Self { offsets, ids, is_recorded })
    }

    /// Which rows keep only some ids.
    pub(super) fn is_recorded(&self) -> &[bool] {
        &self.is_recorded
    }

    /// `(row - rows.start, id)` of every kept id of the recorded ones among `rows`, the target among them, each once.
    pub(super) fn entries(&self, rows: Range<usize>, targets: &[i64]) -> Vec<(i64, i64)> {
        let mut entries = Vec::new();
        let mut row_ids = Vec::new();
        let all = lists(&self.offsets, &self.ids).zip(targets).zip(&self.is_recorded);
        for (at, ((ids, target), _)) in
            all.skip(rows.start).take(rows.len()).enumerate().filter(|(_, (_, is_recorded))| **is_recorded)
        {
            row_ids.clear();
            row_ids.extend(ids.iter().copied().chain([*target]));
            row_ids.sort_unstable();
            row_ids.dedup();
            entries.extend(row_ids.iter().map(|id| (at as i64, *id)));
        }
        entries
    }
}

/// An id that stands in the text before a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The token id.
    pub id: i64,
    /// How often it stands in the response so far.
    pub count: i64,
    /// It stands in the prompt.
    pub is_in_prompt: bool,
}

/// Penalties on the logits of seen ids, before the temperature: repetition (Keskar et al. 2019, arXiv 1909.05858, as
/// transformers has it for negative logits) on ids of prompt and response, then frequency and presence (of `OpenAI`'s
/// interface) on ids of the response. The order is vLLM's.
#[derive(Debug, Clone, PartialEq)]
pub struct Penalties {
    /// A seen id's logit is divided by it above 0 and multiplied below; 1 changes nothing.
    pub repetition: f64,
    /// Taken off once for each time that the id stands in the response.
    pub frequency: f64,
    /// Taken off once if it stands there at all.
    pub presence: f64,
    offsets: Vec<i64>,
    seen: Vec<Seen>,
}

impl Penalties {
    /// Before the token of row r stands `seen[offsets[r]..offsets[r + 1]]`. All penalties do nothing until they are set.
    ///
    /// # Errors
    /// The offsets do not rise from 0 to the number of ids; an id stands twice in a row.
    pub fn new(offsets: Vec<i64>, seen: Vec<Seen>) -> Result<Self> {
        check_offsets("offsets of penalties", &offsets, seen.len())?;
        let mut ids = Vec::new();
        for list in lists(&offsets, &seen) {
            ids.clear();
            ids.extend(list.iter().map(|seen| seen.id));
            ids.sort_unstable();
            if let Some([id, ..]) = ids.windows(2).find(|pair| pair.first() == pair.last()) {
                return Err(refused("penalised ids of a row", "each id once", format!("{id} twice")));
            }
        }
        Ok(Self { repetition: 1.0, frequency: 0.0, presence: 0.0, offsets, seen })
    }

    /// `(row - rows.start, id)` of every seen id of `rows`.
    pub(super) fn entries(&self, rows: Range<usize>) -> Vec<(i64, Seen)> {
        let lists = lists(&self.offsets, &self.seen).skip(rows.start).take(rows.len()).enumerate();
        lists.flat_map(|(at, list)| list.iter().map(move |seen| (at as i64, *seen))).collect()
    }

    /// Factors `(above 0, below 0)` of the logit of a seen id, and what is taken off it then.
    pub(super) fn of(&self, seen: Seen) -> ([f64; 2], f64) {
        let is_in_response = seen.count > 0;
        let factors = if seen.is_in_prompt || is_in_response {
            [1.0 / self.repetition, self.repetition]
        } else {
            [1.0, 1.0]
        };
        (factors, self.frequency * seen.count as f64 + if is_in_response { self.presence } else { 0.0 })
    }
}

/// The targets `[r]` on the host, each inside a vocabulary of `vocab`.
pub(super) fn check_targets(targets_r: &Tensor, num_rows: usize, vocab: i64) -> Result<()> {
    if targets_r.kind() != tch::Kind::Int64 || targets_r.size() != [num_rows as i64] {
        return Err(refused("targets", format!("i64 [{num_rows}]"), format!("{targets_r:?}")));
    }
    if num_rows > 0 {
        check_ids(
            "target",
            vocab,
            [targets_r.f_min()?, targets_r.f_max()?].iter().map(|x| x.int64_value(&[])),
        )?;
    }
    Ok(())
}

fn lists<'a, T>(offsets: &'a [i64], items: &'a [T]) -> impl Iterator<Item = &'a [T]> {
    let ends = offsets.iter().skip(1);
    offsets.iter().zip(ends).map(|(start, end)| items.get(*start as usize..*end as usize).unwrap_or_default())
}

fn check_offsets(what: &'static str, offsets: &[i64], len: usize) -> Result<()> {
    let is_rising = offsets.is_sorted();
    if is_rising && offsets.first() == Some(&0) && offsets.last() == Some(&(len as i64)) {
        return Ok(());
    }
    let got = match offsets {
        [first, .., last] => format!("{first} to {last}{}", if is_rising { "" } else { ", falling between" }),
        short => format!("{short:?}"),
    };
    Err(refused(what, format!("0 rising to {len}"), got))
}

fn check_lists(what: &'static str, num_rows: usize, offsets: &[i64]) -> Result<()> {
    if offsets.len() == num_rows + 1 {
        return Ok(());
    }
    Err(refused(what, num_rows.to_string(), offsets.len().saturating_sub(1).to_string()))
}

fn check_ids(what: &'static str, vocab: i64, mut ids: impl Iterator<Item = i64>) -> Result<()> {
    match ids.find(|id| !(0..vocab).contains(id)) {
        Some(id) => Err(refused(what, format!("0 to {}", vocab - 1), id.to_string())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_do_not_fit_are_refused_with_what_was_expected() {
        let message = |result: Result<KeptIds>| result.unwrap_err().to_string();
        let kept = |offsets: &[i64], ids: usize, rows: usize| {
            KeptIds::new(offsets.to_vec(), vec![0; ids], vec![true; rows])
        };
        assert_eq!(
            message(kept(&[0, 3, 2], 2, 2)),
            "offsets of kept ids: expected 0 rising to 2, got 0 to 2, falling between"
        );
        assert_eq!(message(kept(&[0, 1], 2, 1)), "offsets of kept ids: expected 0 rising to 2, got 0 to 1");
        assert_eq!(message(kept(&[], 0, 0)), "offsets of kept ids: expected 0 rising to 0, got []");
        assert_eq!(message(kept(&[0, 2], 2, 3)), "flags of kept ids: expected 3, got 1");
        let seen = Seen { id: 4, count: 1, is_in_prompt: false };
        let error = Penalties::new(vec![0, 2], vec![seen, seen]).unwrap_err();
        assert_eq!(error.to_string(), "penalised ids of a row: expected each id once, got 4 twice");
    }

    #[test]
    fn ids_outside_the_vocabulary_and_odd_temperatures_are_refused() {
        let kept = KeptIds::new(vec![0, 1], vec![9], vec![true]).unwrap();
        let shaping = Shaping { kept: Some(&kept), ..Shaping::at(1.0) };
        assert_eq!(shaping.check(1, 9).unwrap_err().to_string(), "kept id: expected 0 to 8, got 9");
        assert_eq!(shaping.check(2, 10).unwrap_err().to_string(), "rows of kept ids: expected 2, got 1");
        let penalties =
            Penalties::new(vec![0, 1], vec![Seen { id: -1, count: 1, is_in_prompt: true }]).unwrap();
        let shaping = Shaping { penalties: Some(&penalties), ..Shaping::at(1.0) };
        assert_eq!(shaping.check(1, 9).unwrap_err().to_string(), "penalised id: expected 0 to 8, got -1");
        for temperature in [0.0, -1.0, f64::NAN] {
            assert!(Shaping::at(temperature).check(0, 9).is_err(), "{temperature}");
        }
    }

    #[test]
    fn a_recorded_row_keeps_its_target_and_each_id_once() {
        let kept = KeptIds::new(vec![0, 3, 4, 4], vec![5, 2, 5, 7], vec![true, false, true]).unwrap();
        assert_eq!(kept.entries(0..3, &[3, 1, 8]), [(0, 2), (0, 3), (0, 5), (2, 8)]);
        assert_eq!(kept.entries(1..3, &[3, 1, 8]), [(1, 8)]);
    }
}
