//! Judging finished groups: joining their columns, and asking the filter.

use std::collections::BTreeMap;

use slime_record::{GroupEntry, SampleEntry};

use super::scan::Found;
use super::{FinishedGroup, Group, GroupId, Order, Standing, State, StepBuilder, StepPolicy, Verdict};
use crate::{ColumnRow, Error, Format, Lineage, Result, SampleDigest, Store};

/// Files of one column over one segment that may be about something else before the builder gives up: then it is no
/// accident.
const MAX_REFUSED_COLUMNS: u32 = 3;

enum Validity {
    Valid,
    Void,
    NotKnown,
}

enum Judgement {
    /// A column is missing.
    Waiting,
    /// A column is about other samples, or about other tokens.
    Foreign {
        column: String,
        problem: String,
    },
    Judged(State),
}

impl<F: Format> StepBuilder<F> {
    /// Accepts or refuses every group whose samples and columns are there.
    pub(super) fn judge(&mut self, store: &mut dyn Store, policy: &mut dyn StepPolicy) -> Result<()> {
        let waiting: Vec<GroupId> = self
            .groups
            .iter()
            .filter(|(id, group)| matches!(group.state, State::Waiting) && self.found.contains_key(id))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            while let Some((segment, column, problem)) = self.judge_group(id, policy)? {
                self.refuse_column(store, &segment, &column, &problem)?;
            }
        }
        self.check_refused()
    }

    fn check_refused(&self) -> Result<()> {
        let max_refused = (self.config.max_groups as usize).saturating_sub(self.config.num_groups);
        let in_step = |id: &GroupId| self.config.order == Order::Arrival || id.0 == self.step;
        let mut histogram: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, group) in self.groups.iter().filter(|(id, _)| in_step(id)) {
            if let State::Refused { reason, .. } = &group.state {
                *histogram.entry(reason).or_default() += 1;
            }
        }
        let refused = histogram.values().sum();
        if refused > max_refused {
            let parts: Vec<String> =
                histogram.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
            return Err(Error::TooManyRefused {
                step: self.step,
                refused,
                histogram: parts.join(", "),
                max_groups: self.config.max_groups,
            });
        }
        Ok(())
    }

    /// A column file about something else does not count; another one may.
    fn refuse_column(
        &mut self,
        store: &mut dyn Store,
        segment: &str,
        column: &str,
        problem: &str,
    ) -> Result<()> {
        let found = self.columns.get_mut(segment).and_then(|columns| columns.get_mut(column));
        let Some(found) = found else { return Ok(()) };
        let Some(path) = found.files.front().map(|(reference, _)| reference.path.clone()) else {
            return Ok(());
        };
        self.owner.check(store)?;
        store.quarantine(&path, problem)?;
        found.files.pop_front();
        found.num_refused += 1;
        if found.num_refused >= MAX_REFUSED_COLUMNS {
            let num_refused = found.num_refused;
            let problem = format!("{problem} (as {num_refused} files of this column over this segment)");
            return Err(Error::Broken { path, problem });
        }
        Ok(())
    }

    /// Judges one group; gives back a column that is not about the segment it names: segment, column and problem.
    fn judge_group(
        &mut self,
        id: GroupId,
        policy: &mut dyn StepPolicy,
    ) -> Result<Option<(String, String, String)>> {
        let group = &self.groups[&id];
        let mut num_lost = None;
        let mut outcome = None;
        for found in &self.found[&id] {
            let is_whole = found.rows.len() == group.prompt.num_samples as usize
                && found.rows.iter().enumerate().all(|(i, row)| {
                    row.id.index == i as u32 && !row.failed && row.prompt_id == group.prompt.prompt_id
                });
            let validity = self.validity(id.0, found);
            if !is_whole || matches!(validity, Validity::Void) {
                // Only the newest attempt matters: an older one has been asked for again already.
                if found.attempt == group.attempt {
                    num_lost = Some(num_tokens(&found.rows));
                }
                continue;
            }
            if !matches!(validity, Validity::Valid) {
                continue;
            }
            match self.verdict(id, found, group, policy)? {
                Judgement::Waiting => {}
                Judgement::Foreign { column, problem } => {
                    return Ok(Some((found.segment.path.clone(), column, problem)));
                }
                Judgement::Judged(state) => {
                    outcome = Some((state, found.attempt, found.rows[0].id.part));
                    break;
                }
            }
        }
        if let Some((state, attempt, part)) = outcome {
            self.num_replaced_tokens += self.unused_parts(id, part);
            if matches!(state, State::Accepted(_)) {
                self.accepted.push(id);
            }
            let is_elsewhere = attempt != self.groups[&id].attempt;
            if is_elsewhere {
                self.cancel(id);
            }
            if let Some(group) = self.groups.get_mut(&id) {
                group.state = state;
            }
        } else if let Some(num_tokens) = num_lost {
            // What it went on with is of no use either.
            self.num_replaced_tokens += num_tokens;
            self.parts.remove(&id);
            self.ask_again(id);
        }
        Ok(None)
    }

    fn validity(&self, step: u64, found: &Found) -> Validity {
        let epoch = found.segment.epoch;
        if self.lineage.living().is_none_or(|living| living < epoch) {
            return Validity::NotKnown;
        }
        let mut versions = found.rows.iter().flat_map(|row| &row.trained).map(|run| run.version);
        let wanted = self.config.version_of(step);
        let is_valid = |lineage: &Lineage, version| {
            lineage.is_valid(version, epoch) && (self.config.order == Order::Arrival || version == wanted)
        };
        if versions.all(|version| is_valid(&self.lineage, version)) {
            Validity::Valid
        } else {
            Validity::Void
        }
    }

    /// Joins the columns by place, identity and tokens, and asks the filter.
    fn verdict(
        &self,
        id: GroupId,
        found: &Found,
        group: &Group,
        policy: &mut dyn StepPolicy,
    ) -> Result<Judgement> {
        let mut values = BTreeMap::new();
        let mut references = Vec::new();
        for name in &self.config.columns {
            let columns = self.columns.get(&found.segment.path).and_then(|columns| columns.get(name));
            let Some((reference, rows)) = columns.and_then(|columns| columns.files.front()) else {
                return Ok(Judgement::Waiting);
            };
            let first = found.first_row as usize;
            let rows = rows.get(first..first + found.rows.len()).unwrap_or_default();
            let difference = difference(rows, &found.rows);
            #[cfg(test)]
            let difference = difference.filter(|_| self.owner.fault != crate::simulator::Fault::JoinBlindly);
            if let Some(problem) = difference {
                let problem = format!("{problem} of {}", found.segment.path);
                return Ok(Judgement::Foreign { column: name.clone(), problem });
            }
            values.insert(name.clone(), rows.iter().map(|row| row.value).collect());
            references.push(reference.clone());
        }
        let finished = FinishedGroup {
            step: id.0,
            group: id.1,
            stages: self.history.stages(),
            prompt: &group.prompt.body,
            rows: &found.rows,
            columns: &values,
        };
        let Standing { priority, stratum, scores } = policy.standing(&finished)?;
        let spare = match policy.judge(&finished)? {
            Verdict::Keep => None,
            Verdict::Spare(reason) => Some(reason),
            Verdict::Refuse(reason) => {
                let (num_tokens, pass_rate) = (num_tokens(&found.rows), scores.pass_rate);
                return Ok(Judgement::Judged(State::Refused { reason, num_tokens, pass_rate }));
            }
        };
        let sample = |row: &SampleDigest| SampleEntry {
            index: row.id.index,
            part: row.id.part,
            tokens_hash: row.tokens_hash,
            response_len: row.response_len,
            num_trained: 0,
            num_masked: 0,
            oldest_version: 0,
            versions: row.trained.clone(),
        };
        Ok(Judgement::Judged(State::Accepted(Box::new(GroupEntry {
            step: id.0,
            group: id.1,
            attempt: found.attempt,
            cursor: group.cursor,
            chosen: group.chosen,
            prompt_id: group.prompt.prompt_id.clone(),
            segment: found.segment.clone(),
            first_row: found.first_row,
            columns: references,
            samples: found.rows.iter().map(sample).collect(),
            priority,
            stratum,
            spare,
            num_uses: 0,
            scores,
        }))))
    }

    /// The first column that finished groups wait for, and how many do.
    pub fn unscored(&self) -> Option<(&str, usize)> {
        let waiting = || self.groups.iter().filter(|(_, group)| matches!(group.state, State::Waiting));
        self.config.columns.iter().find_map(|name| {
            let lacks = |found: &Found| {
                let columns = self.columns.get(&found.segment.path);
                columns.and_then(|columns| columns.get(name)).is_none_or(|column| column.files.is_empty())
            };
            let is_unscored = |id| self.found.get(id).is_some_and(|found| found.iter().any(lacks));
            let num = waiting().filter(|(id, _)| is_unscored(*id)).count();
            (num > 0).then_some((name.as_str(), num))
        })
    }
}

fn num_tokens(rows: &[SampleDigest]) -> u64 {
    rows.iter().map(|row| u64::from(row.response_len)).sum()
}

/// Why rows of a column are not about these samples.
fn difference(rows: &[ColumnRow], samples: &[SampleDigest]) -> Option<String> {
    if rows.len() != samples.len() {
        return Some(format!("expected {} rows, got {}, about samples", samples.len(), rows.len()));
    }
    let (row, sample) = rows
        .iter()
        .zip(samples)
        .find(|(row, sample)| row.id != sample.id || row.tokens_hash != sample.tokens_hash)?;
    Some(if row.id == sample.id {
        format!("computed for other tokens than those of sample {}", sample.id)
    } else {
        format!("expected a row about sample {}, got one about {}", sample.id, row.id)
    })
}
