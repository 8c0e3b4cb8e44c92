//! The experts of a mixture that several ranks have between them: every pair of a token and one of its experts goes to the
//! rank that holds the expert, none is dropped, and what the expert gives comes back.
//!
//! Ranks that share the width of experts gather the pairs of each other and add up their parts. Suffixes: t tokens of this
//! rank, k experts of a token, n pairs (t k) in the order of their experts, m pairs that came in, d hidden size.

use slime_comm::Collectives;
use slime_torch::Group;
use slime_torch::split_rows::{Readers, exchange_rows, gather_rows, sum_and_scatter_rows};
use tch::{Kind, Tensor};

use super::experts::{self, Experts};
use super::route::Routed;
use crate::{Parallel, Result};

/// The ranks that the experts of a layer are on.
#[derive(Debug)]
pub struct Dispatch {
    groups: Option<Groups>,
    num_experts: usize,
}

#[derive(Debug)]
struct Groups {
    ep: Group,
    etp: Group,
}

impl Dispatch {
    /// Of a layer with `num_experts` experts over all ranks.
    pub fn new(parallel: Option<&Parallel>, num_experts: usize) -> Self {
        let is_split = |parallel: &&Parallel| parallel.ep.size() * parallel.etp.size() > 1;
        let groups = parallel
            .filter(is_split)
            .map(|parallel| Groups { ep: parallel.ep.clone(), etp: parallel.etp.clone() });
        Self { groups, num_experts }
    }

    /// The weighted sum `[t, d]` of what the experts of each token give.
    ///
    /// # Errors
    /// The shapes do not fit, or a failed collective.
    pub fn run(&self, experts: &Experts, x_td: &Tensor, routed: &Routed) -> Result<Tensor> {
        let Some(groups) = &self.groups else { return experts::train(experts, x_td, routed) };
        let (t, k) = routed.ids_tk.size2()?;
        let flat_n = routed.ids_tk.f_reshape([t * k])?;
        // Stable, as within a rank: the sums of an expert's gradients run over tokens in order.
        let pair_n = flat_n.f_argsort_stable(true, 0, false)?;
        let row_n = pair_n.f_argsort_stable(true, 0, false)?;
        let token_n = pair_n.f_div_scalar_mode(k, "floor")?;
        let counts = flat_n.f_bincount(None::<Tensor>, self.num_experts as i64)?;
        let counts = Vec::<i64>::try_from(counts.f_to_device(tch::Device::Cpu)?)?;
        let trip = Trip::new(&groups.ep, &counts)?;
        let x_md = exchange_rows(
            &x_td.f_index_select(0, &token_n)?,
            &groups.ep,
            trip.sent.clone(),
            trip.received.clone(),
        )?;
        let out_md = groups.over_width(experts, &x_md, &trip.experts)?;
        let out_nd = exchange_rows(&out_md, &groups.ep, trip.received, trip.sent)?;
        let out_tkd = out_nd.f_index_select(0, &row_n)?.f_view((t, k, x_td.size2()?.1))?;
        let weights_tk1 = routed.weights_tk.f_to_kind(x_td.kind())?.f_unsqueeze(2)?;
        Ok(out_tkd.f_mul(&weights_tk1)?.f_sum_dim_intlist(1, false, None::<Kind>)?)
    }
}

impl Groups {
    /// What this rank's experts `ids` give for the pairs `x_md`, summed over the ranks that share their width.
    fn over_width(&self, experts: &Experts, x_md: &Tensor, ids: &[i64]) -> Result<Tensor> {
        let all = |x_md: &Tensor, ids_m: &Tensor| {
            let m = ids_m.numel() as i64;
            let weights_tk = Tensor::f_ones([m, 1], (weights_kind(x_md.kind()), x_md.device()))?;
            let routed = Routed { ids_tk: ids_m.f_view((m, 1))?, weights_tk };
            experts::train(experts, x_md, &routed)
        };
        let ids_m = Tensor::f_from_slice(ids)?.f_to_device(x_md.device())?;
        if self.etp.size() == 1 {
            return all(x_md, &ids_m);
        }
        let mut rows = vec![0u64; self.etp.size()];
        self.etp.comm().all_gather(&[ids.len() as u64], &mut rows)?;
        let rows: Vec<usize> = rows.into_iter().map(|rows| rows as usize).collect();
        let ids_m = self.etp.gather_rows(&ids_m, &rows)?;
        let x_md = gather_rows(x_md, &self.etp, rows.clone(), Readers::Part)?;
        Ok(sum_and_scatter_rows(&all(&x_md, &ids_m)?, &self.etp, rows)?)
    }
}

fn weights_kind(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// How many pairs go where.
struct Trip {
    /// To each rank.
    sent: Vec<usize>,
    /// From each rank.
    received: Vec<usize>,
    /// The expert, counted from this rank's first, of each pair that came in.
    experts: Vec<i64>,
}

impl Trip {
    /// Collective over `ep`; `counts` are this rank's pairs of every expert.
    fn new(ep: &Group, counts: &[i64]) -> Result<Self> {
        let own = counts.len() / ep.size();
        let sent: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
        let mut came = vec![0u64; counts.len()];
        let each = vec![own; ep.size()];
        ep.comm().all_to_all_v(&sent, &each, &mut came, &each)?;
        let per_rank =
            |counts: &[u64]| counts.chunks(own).map(|of| of.iter().sum::<u64>() as usize).collect();
        let experts = came.iter().enumerate();
        let experts = experts.flat_map(|(at, count)| vec![(at % own) as i64; *count as usize]).collect();
        Ok(Self { sent: per_rank(&sent), received: per_rank(&came), experts })
    }
}
