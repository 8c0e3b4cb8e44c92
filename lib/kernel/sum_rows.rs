//! Sums of rows that lie apart: what the experts of a token give, or the gradients of keys that several sequences see. Suffixes:
//! n rows, l lists, i ids of all lists, w width.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};

const NAME: &str = "sum_rows";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("sum_rows.cu"));
const THREADS: i64 = 128;

/// Whether [`sum_rows`] takes rows of this width and kind there.
pub fn is_supported(kind: Kind, width: i64, device: Device) -> bool {
    is_element(kind, device) && width % 8 == 0 && width > 0
}

/// Which rows belong to each list.
#[derive(Debug, Clone, Copy)]
pub enum Lists<'a> {
    /// As many each.
    Even(i64),
    /// From each offset to the next, `[l + 1]` i64.
    Offsets(&'a Tensor),
}

/// The sum `[l, w]` of each list's rows of `rows_nw`, times `weights_i` (f32) where there are weights. `ids_i` (i64) are numbers
/// of rows, the caller's to be right.
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn sum_rows(
    rows_nw: &Tensor,
    lists: Lists<'_>,
    ids_i: &Tensor,
    weights_i: Option<&Tensor>,
) -> Result<Tensor> {
    let ((num_rows, width), num_ids) = (rows_nw.size2()?, ids_i.size1()?);
    let (kind, device) = (rows_nw.kind(), rows_nw.device());
    if !is_supported(kind, width, device) {
        return Err(refused(NAME, "rows", "f32 or bf16 on a GPU, a multiple of 8", format!("{rows_nw:?}")));
    }
    is_as(NAME, "rows", rows_nw, (kind, &[num_rows, width], device))?;
    is_as(NAME, "ids", ids_i, (Kind::Int64, &[num_ids], device))?;
    if let Some(weights_i) = weights_i {
        is_as(NAME, "weights", weights_i, (Kind::Float, &[num_ids], device))?;
    }
    let (offsets, per_list, num_lists) = match lists {
        Lists::Even(per_list) if per_list > 0 && num_ids % per_list == 0 => {
            (None, per_list, num_ids / per_list)
        }
        Lists::Even(per_list) => {
            return Err(refused(NAME, "ids", format!("a multiple of {per_list}"), num_ids.to_string()));
        }
        Lists::Offsets(offsets) => {
            let num_lists = offsets.size1()? - 1;
            is_as(NAME, "offsets", offsets, (Kind::Int64, &[num_lists + 1], device))?;
            (Some(offsets), 0, num_lists)
        }
    };
    let out_lw = Tensor::f_empty([num_lists, width], (kind, device))?;
    if num_lists == 0 {
        return Ok(out_lw);
    }
    let arguments = Arguments::default()
        .tensor(rows_nw)
        .optional(offsets)
        .tensor(ids_i)
        .optional(weights_i)
        .tensor(&out_lw)
        .int(per_list as i32)
        .int(width as i32);
    let defines = [bf16(kind), ("THREADS", THREADS)];
    let program = Program { name: "sum_rows.cu", source: SOURCE, defines: &defines };
    let grid = [num_lists as u32, ((width / 8 + THREADS - 1) / THREADS) as u32, 1];
    // SAFETY: the arguments are those of the kernel, checked above; ids and offsets are the caller's.
    unsafe { arguments.launch(device_of(NAME, rows_nw)?, (&program, NAME), (grid, THREADS))? };
    Ok(out_lw)
}

/// What [`sum_rows`] gives, on any device: the definition.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(
    rows_nw: &Tensor,
    lists: Lists<'_>,
    ids_i: &Tensor,
    weights_i: Option<&Tensor>,
) -> Result<Tensor> {
    let mut picked_iw = rows_nw.f_index_select(0, ids_i)?;
    if let Some(weights_i) = weights_i {
        picked_iw = picked_iw.f_mul(&weights_i.f_unsqueeze(1)?)?;
    }
    let (num_ids, width) = picked_iw.size2()?;
    match lists {
        Lists::Even(per_list) => {
            Ok(picked_iw.f_view((-1, per_list, width))?.f_sum_dim_intlist(1, false, None::<Kind>)?)
        }
        Lists::Offsets(offsets) => {
            let at = Tensor::f_arange(num_ids, (Kind::Int64, ids_i.device()))?;
            let ends_l = offsets.f_narrow(0, 1, offsets.size1()? - 1)?;
            let list_i = at.f_searchsorted(&ends_l, false, true, "right", None::<&Tensor>)?;
            let out_lw =
                Tensor::f_zeros([offsets.size1()? - 1, width], (picked_iw.kind(), picked_iw.device()))?;
            Ok(out_lw.f_index_add(0, &list_i, &picked_iw)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernel_compiles_for_every_supported_gpu() {
        for kind in [Kind::Float, Kind::BFloat16] {
            compiles(NAME, SOURCE, &[bf16(kind), ("THREADS", THREADS)]);
        }
    }

    #[test]
    fn definition_adds_up_the_rows_of_every_list() {
        let rows = Tensor::from_slice(&[1.0f64, 2.0, 10.0, 20.0, 100.0, 200.0]).view([3, 2]);
        let (ids, offsets) = (Tensor::from_slice(&[2i64, 0, 1, 1]), Tensor::from_slice(&[0i64, 1, 1, 4]));
        let weights = Tensor::from_slice(&[1.0f64, 1.0, 0.5, 2.0]);
        let sums = reference(&rows, Lists::Offsets(&offsets), &ids, Some(&weights)).unwrap();
        assert_eq!(Vec::<f64>::try_from(sums.view(-1)).unwrap(), [100.0, 200.0, 0.0, 0.0, 26.0, 52.0]);
        let sums = reference(&rows, Lists::Even(2), &ids, None).unwrap();
        assert_eq!(Vec::<f64>::try_from(sums.view(-1)).unwrap(), [101.0, 202.0, 20.0, 40.0]);
    }
}
