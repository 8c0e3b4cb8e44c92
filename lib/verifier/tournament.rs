//! The `tournament` reward: a judge compares the responses of a group in pairs.
//!
//! `round_robin` has each meet each (n (n - 1) / 2 pairs); the reward is the share of points won. `elimination` draws a
//! bracket from the seed and the group (n - 1 pairs); the reward is the share of the rounds survived. Each pair is asked
//! in both orders, so that a judge who likes the first answer does not decide.

use std::result::Result as StdResult;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Result;
use crate::group::groups;
use crate::judge::Judge;
use crate::options::Options;
use crate::{Row, Verdict, Verifier};

/// How pairs are chosen.
#[derive(Debug, Clone, Copy)]
enum Mode {
    RoundRobin,
    Elimination,
}

/// The tournament.
pub(crate) struct Tournament {
    judge: Judge,
    mode: Mode,
    seed: u64,
}

/// Why a pair has no result.
enum NoResult {
    Row(crate::Error),
    Judge(String),
}

impl Tournament {
    /// Reads `mode` and `seed`, and what [`Judge`] reads.
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let mode = match options.text("mode")?.as_deref() {
            None | Some("round_robin") => Mode::RoundRobin,
            Some("elimination") => Mode::Elimination,
            Some(other) => return Err(options.wrong("mode", "round_robin or elimination", other)),
        };
        let seed = options.value("seed", "a whole number")?.unwrap_or(0);
        Ok(Self { judge: Judge::new(options, true)?, mode, seed })
    }

    /// Points of the first against the second, from 0 to 1.
    fn play(&self, first: &Row<'_>, second: &Row<'_>) -> StdResult<f64, NoResult> {
        let ask = |row: &Row<'_>, other: &Row<'_>| match self.judge.ask(row, other.response) {
            Ok(Ok((points, _))) => Ok(points),
            Ok(Err(problem)) => Err(NoResult::Judge(problem)),
            Err(error) => Err(NoResult::Row(error)),
        };
        if first.response == second.response {
            return Ok(0.5);
        }
        Ok(f64::midpoint(ask(first, second)?, 1.0 - ask(second, first)?))
    }

    fn round_robin(&self, rows: &[Row<'_>]) -> StdResult<Vec<f64>, NoResult> {
        let pairs: Vec<(usize, usize)> = (0..rows.len())
            .flat_map(|first| (first + 1..rows.len()).map(move |second| (first, second)))
            .collect();
        let played =
            self.judge.client().map(&pairs, |(first, second)| self.play(&rows[*first], &rows[*second]));
        let mut points = vec![0.0; rows.len()];
        for ((first, second), result) in pairs.into_iter().zip(played) {
            let won = result?;
            points[first] += won;
            points[second] += 1.0 - won;
        }
        let num_others = (rows.len() - 1) as f64;
        Ok(points.into_iter().map(|points| points / num_others).collect())
    }

    fn elimination(&self, rows: &[Row<'_>]) -> StdResult<Vec<f64>, NoResult> {
        let mut left: Vec<usize> = (0..rows.len()).collect();
        let group = rows.first().and_then(|row| row.group).unwrap_or_default();
        left.sort_by_cached_key(|at| {
            let key = [self.seed, group.0, group.1, *at as u64].map(u64::to_le_bytes).concat();
            (xxh3_64(&key), *at)
        });
        let mut survived = vec![0.0; rows.len()];
        let mut num_rounds = 0.0;
        while left.len() > 1 {
            num_rounds += 1.0;
            let pairs: Vec<&[usize]> = left.chunks(2).collect();
            let played = self.judge.client().map(&pairs, |pair| match pair {
                // The first of the bracket wins a draw; one alone goes on.
                [first, second] => {
                    Ok(if self.play(&rows[*first], &rows[*second])? >= 0.5 { *first } else { *second })
                }
                pair => Ok(pair.first().copied().unwrap_or_default()),
            });
            left = played.into_iter().collect::<StdResult<Vec<usize>, NoResult>>()?;
            for winner in &left {
                survived[*winner] += 1.0;
            }
        }
        Ok(survived.into_iter().map(|rounds| rounds / num_rounds).collect())
    }

    fn score_group(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let points = match (rows.len(), self.mode) {
            (1, _) => Ok(vec![0.5]),
            (_, Mode::RoundRobin) => self.round_robin(rows),
            (_, Mode::Elimination) => self.elimination(rows),
        };
        let what = match self.mode {
            Mode::RoundRobin => "points",
            Mode::Elimination => "rounds",
        };
        match points {
            Ok(points) => points
                .into_iter()
                .map(|reward| Ok(Verdict::new(reward, format!("share of the {what} among {}", rows.len()))))
                .collect(),
            Err(NoResult::Judge(problem)) => {
                let failure = |problem| self.judge.client().failure(problem);
                rows.iter().map(|_| self.judge.on_error.verdict(problem.clone(), failure)).collect()
            }
            // The template wants what the rows of the group do not have.
            Err(NoResult::Row(error)) => {
                let problem = error.to_string();
                let bad = || crate::Error::BadRow { name: "tournament", problem: problem.clone() };
                rows.iter().map(|_| Err(bad())).collect()
            }
        }
    }
}

impl Verifier for Tournament {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let groups = groups(rows);
        let scored: Vec<Vec<Result<Verdict>>> = groups
            .iter()
            .map(|members| {
                let own: Vec<Row<'_>> = members.iter().filter_map(|at| rows.get(*at).copied()).collect();
                self.score_group(&own)
            })
            .collect();
        let mut verdicts: Vec<(usize, Result<Verdict>)> =
            groups.into_iter().zip(scored).flat_map(|(members, own)| members.into_iter().zip(own)).collect();
        verdicts.sort_by_key(|(at, _)| *at);
        verdicts.into_iter().map(|(_, verdict)| verdict).collect()
    }
}
