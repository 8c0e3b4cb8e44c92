//! The rows of a micro-batch where ranks have its tokens between them: each computes the log-probs of those that its tokens
//! predict, and all of them see all. Suffixes: r all rows, o rows of this rank.

use slime_model::{ContextRanks, Segment, TokenShares};
use slime_torch::Group;
use slime_torch::split_rows::{Readers, gather_rows};
use tch::{Device, Tensor};

use crate::Result;

/// Which rows this rank has. Alone it has all, and nothing here copies.
#[derive(Debug)]
pub(crate) struct RowShare {
    /// The fed tokens of every rank, by their numbers in the micro-batch.
    shares: TokenShares,
    rank: usize,
    /// Rows of this rank, by their numbers among all.
    rows: Vec<usize>,
    /// For each of them, the fed token of this rank that predicts it.
    sources: Vec<i64>,
    split: Option<Split>,
}

/// The ranks, where there are several.
#[derive(Debug)]
struct Split {
    group: Group,
    /// Rows of each.
    counts: Vec<usize>,
    /// Where each row is behind a gather.
    order_r: Tensor,
    own_o: Tensor,
}

impl RowShare {
    /// The share of this rank of `cp` in the rows `rows` (fed tokens) of a packed batch.
    pub fn new(
        segments: &[Segment],
        rows: &[i64],
        cp: Option<&ContextRanks>,
        device: Device,
    ) -> Result<Self> {
        let group = cp.map(|cp| &cp.group);
        let (rank, size) = group.map_or((0, 1), |group| (group.rank(), group.size()));
        let shares = TokenShares::new(segments, size);
        let num_tokens = segments.last().map_or(0, |last| last.start + last.len);
        // Of each token, the rank that has it and its place there.
        let mut owner = vec![(0, 0); num_tokens];
        for of_rank in 0..size {
            for (at, token) in shares.of(of_rank).iter().enumerate() {
                owner[*token] = (of_rank, at as i64);
            }
        }
        let owners: Vec<(usize, i64)> = rows.iter().map(|row| owner[*row as usize]).collect();
        let of_rank = |rank: usize| {
            let rows = owners.iter().enumerate().filter(move |(_, (owner, _))| *owner == rank);
            rows.map(|(row, (_, at))| (row, *at))
        };
        let (own, sources): (Vec<usize>, Vec<i64>) = of_rank(rank).unzip();
        let index = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
        let split = group.map(|group| {
            let mut order = vec![0; rows.len()];
            let gathered = (0..size).flat_map(of_rank).map(|(row, _)| row);
            gathered.enumerate().for_each(|(at, row)| order[row] = at as i64);
            let counts = (0..size).map(|rank| of_rank(rank).count()).collect();
            let own: Vec<i64> = own.iter().map(|row| *row as i64).collect();
            Ok::<_, crate::Error>(Split {
                group: group.clone(),
                counts,
                order_r: index(&order)?,
                own_o: index(&own)?,
            })
        });
        Ok(Self { shares, rank, rows: own, sources, split: split.transpose()? })
    }

    /// Whether ranks have the rows between them.
    pub fn is_split(&self) -> bool {
        self.split.is_some()
    }

    /// Whether this rank counts what every rank computes of all rows.
    pub fn counts_all(&self) -> bool {
        self.split.as_ref().is_none_or(|split| split.group.rank() == 0)
    }

    /// This rank's fed tokens, by their numbers in the micro-batch.
    pub fn tokens(&self) -> &[usize] {
        self.shares.of(self.rank)
    }

    /// This rank's rows.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// This rank's rows of the hidden states `[t, d]` of its tokens.
    pub fn of_hidden(&self, hidden_td: &Tensor) -> Result<Tensor> {
        let sources_o = Tensor::f_from_slice(&self.sources)?.f_to_device(hidden_td.device())?;
        Ok(hidden_td.f_index_select(0, &sources_o)?)
    }

    /// The rows `[T, ..]` of all fed tokens from those `[t, ..]` of this rank's, without gradient.
    pub fn all_tokens(&self, x_t: &Tensor) -> Result<Tensor> {
        let Some(Split { group, .. }) = &self.split else { return Ok(x_t.f_detach()?) };
        let gathered = group.gather_rows(x_t, &self.shares.counts())?;
        let places_t = Tensor::f_from_slice(&self.shares.places())?.f_to_device(x_t.device())?;
        Ok(gathered.f_index_select(0, &places_t)?)
    }

    /// This rank's part of what is known of all rows.
    pub fn own(&self, x_r: &Tensor) -> Result<Tensor> {
        match &self.split {
            None => Ok(x_r.shallow_clone()),
            Some(split) => Ok(x_r.f_index_select(0, &split.own_o)?),
        }
    }

    /// All rows from this rank's; every rank computes all of what follows, so that gradients are not added up.
    pub fn all(&self, x_o: &Tensor) -> Result<Tensor> {
        let Some(Split { group, counts, order_r, .. }) = &self.split else { return Ok(x_o.shallow_clone()) };
        let gathered_r = gather_rows(x_o, group, counts.clone(), Readers::Same)?;
        Ok(gathered_r.f_index_select(0, order_r)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slime_comm::Threads;
    use slime_config::CpCommType;
    use tch::Kind;

    use super::*;

    #[test]
    fn rows_come_back_in_order_and_gradients_to_their_ranks() {
        let segments = [Segment::alone(0, 7), Segment::after((0, 7), 7, 5), Segment::after((0, 7), 12, 1)];
        let rows = [6_i64, 7, 8, 10, 6, 12];
        for size in 1..=4 {
            let seen = Threads::spawn(size, |comm| {
                let group = Group::new(Arc::new(comm), Device::Cpu).unwrap();
                let cp = ContextRanks { group, comm_type: CpCommType::AllGather };
                let share = RowShare::new(&segments, &rows, Some(&cp), Device::Cpu).unwrap();
                let own: Vec<i64> = share.tokens().iter().map(|token| *token as i64).collect();
                // The number of the token stands for its hidden state.
                let hidden = Tensor::from_slice(&own).to_kind(Kind::Double).view([-1, 1]);
                let hidden = hidden.set_requires_grad(true);
                let of_rows = share.of_hidden(&hidden).unwrap();
                let all = share.all(&of_rows).unwrap();
                let weight = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).view([6, 1]);
                (&all * &weight).sum(Kind::Double).backward();
                let all = Vec::<f64>::try_from(all.view([-1])).unwrap();
                let grad = Vec::<f64>::try_from(hidden.grad().view([-1])).unwrap();
                (all, own.into_iter().zip(grad).collect::<Vec<_>>())
            });
            let seen = seen.unwrap();
            let mut grads: Vec<(i64, f64)> = seen.iter().flat_map(|(_, grads)| grads.clone()).collect();
            grads.sort_by_key(|(token, _)| *token);
            for (all, _) in &seen {
                assert_eq!(all, &[6.0, 7.0, 8.0, 10.0, 6.0, 12.0]);
            }
            let expected = |token: i64| match token {
                6 | 12 => 6.0,
                7 => 2.0,
                8 => 3.0,
                10 => 4.0,
                _ => 0.0,
            };
            assert_eq!(grads, (0..13).map(|token| (token, expected(token))).collect::<Vec<_>>());
        }
    }
}
