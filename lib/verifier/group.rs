//! `group_norm:TYPE` and `group_rank:TYPE`: a reward compared with those of the same group.

use std::collections::HashMap;

use crate::error::Result;
use crate::nested::inner;
use crate::options::Options;
use crate::spec::Spec;
use crate::{Row, Verdict, Verifier};

/// Added to a standard deviation, so that equal rewards give 0 (as in slime and TRL).
const EPSILON: f64 = 1e-6;

/// What becomes of the rewards of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mode {
    /// (r - mean) / (std + 1e-6), std with n - 1; without the division where `std=off`.
    Norm {
        /// Whether to divide.
        divides: bool,
    },
    /// The share of the others that are worse, ties half: from 0 to 1.
    Rank,
}

/// A type whose rewards are compared within groups.
pub(crate) struct Group {
    inner: Spec,
    mode: Mode,
}

impl Group {
    pub(crate) fn norm(options: &mut Options) -> Result<Self> {
        let divides = match options.text("std")?.as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => return Err(options.wrong("std", "on or off", other)),
        };
        Ok(Self { inner: inner(options)?, mode: Mode::Norm { divides } })
    }

    pub(crate) fn rank(options: &mut Options) -> Result<Self> {
        Ok(Self { inner: inner(options)?, mode: Mode::Rank })
    }
}

/// The places of the rows of each group, in the order of the groups' first rows.
pub(crate) fn groups(rows: &[Row<'_>]) -> Vec<Vec<usize>> {
    let mut place: HashMap<Option<(u64, u64)>, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let group = *place.entry(row.group).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(members) => members.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

impl Mode {
    fn apply(self, rewards: &[f64]) -> Vec<f64> {
        let num = rewards.len() as f64;
        match self {
            Self::Norm { divides } => {
                let mean = rewards.iter().sum::<f64>() / num;
                let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
                let std =
                    if divides && rewards.len() > 1 { (squares / (num - 1.0)).sqrt() + EPSILON } else { 1.0 };
                rewards.iter().map(|reward| (reward - mean) / std).collect()
            }
            Self::Rank => {
                let points = |own: f64, other: &f64| match own.total_cmp(other) {
                    std::cmp::Ordering::Greater => 1.0,
                    std::cmp::Ordering::Equal => 0.5,
                    std::cmp::Ordering::Less => 0.0,
                };
                // Each compares equal with itself, which is taken off again.
                let sum = |own: &f64| rewards.iter().map(|other| points(*own, other)).sum::<f64>() - 0.5;
                rewards
                    .iter()
                    .map(|own| if rewards.len() > 1 { sum(own) / (num - 1.0) } else { 0.5 })
                    .collect()
            }
        }
    }
}

impl Verifier for Group {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let mut verdicts = self.inner.score(rows);
        for members in groups(rows) {
            let own: Vec<f64> = members
                .iter()
                .filter_map(|at| verdicts.get(*at)?.as_ref().ok().map(|verdict| verdict.reward))
                .collect();
            // A group with a row that cannot be judged is compared without it.
            let mut compared = self.mode.apply(&own).into_iter();
            for at in members {
                if let Some(Ok(verdict)) = verdicts.get_mut(at)
                    && let Some(reward) = compared.next()
                {
                    verdict.reason = format!("{} among {}: {}", verdict.reward, own.len(), verdict.reason);
                    verdict.reward = reward;
                    verdict.token_rewards.clear();
                }
            }
        }
        verdicts
    }

    fn inner(&self) -> Option<&Spec> {
        Some(&self.inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::{RewardSet, Row};

    fn rewards(spec: &str, answers: &[(&'static str, u64)]) -> Vec<f64> {
        let rows: Vec<Row<'_>> = answers
            .iter()
            .map(|(response, group)| Row {
                response,
                label: Some("1"),
                group: Some((0, *group)),
                ..Row::default()
            })
            .collect();
        let scored = RewardSet::parse(&[spec]).unwrap().score(&rows).unwrap();
        scored.iter().map(|scored| (scored.reward * 1e4).round() / 1e4).collect()
    }

    #[test]
    fn rewards_are_compared_within_their_group() {
        let answers = [("1", 0), ("0", 0), ("0", 0), ("1", 0), ("1", 1), ("1", 1)];
        assert_eq!(rewards("group_norm:number", &answers), [0.866, -0.866, -0.866, 0.866, 0.0, 0.0]);
        assert_eq!(rewards("group_norm:number std=off", &answers), [0.5, -0.5, -0.5, 0.5, 0.0, 0.0]);
        assert_eq!(rewards("group_rank:number", &answers), [0.8333, 0.1667, 0.1667, 0.8333, 0.5, 0.5]);
        assert_eq!(rewards("group_rank:number", &[("1", 0)]), [0.5]);
        let set = RewardSet::parse(&["group_norm:number"]).unwrap();
        assert!(set.compares_groups());
        let error = set.score(&[Row { response: "1", label: Some("1"), ..Row::default() }]).unwrap_err();
        assert!(error.to_string().contains("compares a group"), "{error}");
    }
}
