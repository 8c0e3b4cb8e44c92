//! Products of rows that belong to groups, each group with its own matrix. Suffixes: n rows sorted by group, e groups, i and
//! o widths.
//!
//! On CUDA in bf16 that is one kernel, `at::_grouped_mm`; elsewhere a product for each group, whose sizes the host reads.

use tch::{Kind, Tensor};

use crate::Result;

/// Where the rows of each group are.
#[derive(Debug)]
pub(super) struct Groups {
    /// The end of each group, `[e]` i32 on the device of the rows.
    ends_e: Tensor,
    /// The ends on the host, where products are made one by one.
    host_ends: Option<Vec<i64>>,
}

impl Groups {
    /// The groups of rows with the sorted group numbers `sorted_n` (i64), for products of `kind` with matrices whose rows
    /// and columns are of `widths`.
    pub fn new(sorted_n: &Tensor, num_groups: i64, kind: Kind, widths: [i64; 2]) -> Result<Self> {
        let device = sorted_n.device();
        let numbers_e = Tensor::f_arange(num_groups, (Kind::Int64, device))?;
        let ends_e = numbers_e.f_searchsorted(sorted_n, true, true, "right", None::<&Tensor>)?;
        Self::of_ends(ends_e, kind, widths)
    }

    /// The groups with the ends `ends_e` (i32), for the same products.
    pub fn of_ends(ends_e: Tensor, kind: Kind, widths: [i64; 2]) -> Result<Self> {
        // The kernel loads 16 bytes of a row at a time.
        let is_aligned = widths.iter().all(|width| width % 8 == 0);
        let is_one_kernel = ends_e.device().is_cuda() && kind == Kind::BFloat16 && is_aligned;
        let host_ends =
            if is_one_kernel { None } else { Some(Vec::try_from(ends_e.f_to_kind(Kind::Int64)?)?) };
        Ok(Self { ends_e, host_ends })
    }

    /// The end of each group, as [`Self::of_ends`] takes it.
    pub fn ends(&self) -> &Tensor {
        &self.ends_e
    }
}

/// First row and number of rows of each group.
fn ranges(ends: &[i64]) -> impl Iterator<Item = (i64, i64)> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| (start, end - start))
}

/// `x_n W_e` for every row, `[n, o]`, of `x_ni` and `weight_eio`.
pub(super) fn grouped(x_ni: &Tensor, weight_eio: &Tensor, groups: &Groups) -> Result<Tensor> {
    let Some(ends) = &groups.host_ends else {
        return Ok(x_ni.f_internal_grouped_mm(weight_eio, Some(&groups.ends_e), None, None)?);
    };
    let out_no = Tensor::f_empty([x_ni.size2()?.0, weight_eio.size3()?.2], (x_ni.kind(), x_ni.device()))?;
    for (e, (start, len)) in ranges(ends).enumerate().filter(|(_, (_, len))| *len > 0) {
        let rows = x_ni.f_narrow(0, start, len)?;
        let _ = rows.f_mm_out(&out_no.f_narrow(0, start, len)?, &weight_eio.f_select(0, e as i64)?)?;
    }
    Ok(out_no)
}

/// The sums `[e, i, o]` of the outer products of each group's rows.
pub(super) fn grouped_outer(a_ni: &Tensor, b_no: &Tensor, groups: &Groups) -> Result<Tensor> {
    let Some(ends) = &groups.host_ends else {
        return Ok(a_ni.f_tr()?.f_internal_grouped_mm(b_no, Some(&groups.ends_e), None, None)?);
    };
    let size = [ends.len() as i64, a_ni.size2()?.1, b_no.size2()?.1];
    let sums_eio = Tensor::f_zeros(size, (a_ni.kind(), a_ni.device()))?;
    for (e, (start, len)) in ranges(ends).enumerate().filter(|(_, (_, len))| *len > 0) {
        let (a, b) = (a_ni.f_narrow(0, start, len)?, b_no.f_narrow(0, start, len)?);
        let _ = a.f_tr()?.f_mm_out(&sums_eio.f_select(0, e as i64)?, &b)?;
    }
    Ok(sums_eio)
}
