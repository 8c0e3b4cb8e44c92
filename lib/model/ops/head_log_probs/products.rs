//! The products of the head: logits from hidden states, and the two that take their gradient on.
//!
//! For f32 on a CPU oneDNN computes logits faster than the BLAS that libtorch takes for matrices, even though it lays out the
//! weight anew each time; on a GPU products of bf16 leave their sums in f32.

use slime_torch::PackedLinear;
use tch::{Device, Kind, Tensor};

use super::wide;
use crate::Result;

/// Rows from which a new layout of the weight pays.
const PACKED_ROWS: i64 = 256;
/// Ids that are laid out at a time: 16 MB for a hidden size of 1,024.
const PACKED_IDS: i64 = if cfg!(test) { 40 } else { 4096 };

/// `hidden_rd W_vd^T` in f32 or f64. Logits of bf16 factors that were rounded to bf16 would be off by a hundredth and more:
/// where the product can give its sums in f32, it does.
///
/// # Errors
/// The shapes do not fit.
pub fn product(hidden_rd: &Tensor, weight_vd: &Tensor) -> Result<Tensor> {
    if gives_wide_sums(hidden_rd) {
        return Ok(hidden_rd.f_mm_dtype(&weight_vd.f_tr()?, Kind::Float)?);
    }
    Ok(hidden_rd.f_linear(weight_vd, None::<&Tensor>)?.f_to_kind(wide(hidden_rd.kind()))?)
}

/// [`product`] into memory of the caller, f32, on a GPU; without gradient.
///
/// # Errors
/// The shapes do not fit.
pub fn product_to(out_rv: &Tensor, hidden_rd: &Tensor, weight_vd: &Tensor) -> Result<()> {
    let weight_dv = weight_vd.f_tr()?;
    let _ = if gives_wide_sums(hidden_rd) {
        hidden_rd.f_mm_dtype_out(out_rv, &weight_dv, Kind::Float)?
    } else {
        hidden_rd.f_mm_out(out_rv, &weight_dv)?
    };
    Ok(())
}

/// Whether a product of bf16 matrices can leave its sums in f32.
pub(super) fn gives_wide_sums(factor: &Tensor) -> bool {
    factor.kind() == Kind::BFloat16 && factor.device().is_cuda()
}

/// Memory that chunks of at most its first size share.
#[derive(Default)]
pub(super) struct Buffer(Option<Tensor>);

impl Buffer {
    /// `[r, n]`, contiguous, with whatever was there.
    fn get(&mut self, [r, n]: [i64; 2], options: (Kind, Device)) -> Result<Tensor> {
        let buffer = match self.0.take() {
            Some(buffer) if buffer.numel() as i64 >= r * n => buffer,
            _ => Tensor::f_empty([r * n], options)?,
        };
        let view = buffer.f_narrow(0, 0, r * n)?.f_view((r, n))?;
        self.0 = Some(buffer);
        Ok(view)
    }
}

/// [`product`] into memory that is used again; without gradient.
pub(super) fn product_into(buffer: &mut Buffer, hidden_rd: &Tensor, weight_nd: &Tensor) -> Result<Tensor> {
    let (kind, device) = (wide(hidden_rd.kind()), hidden_rd.device());
    let [r, n] = [hidden_rd.size2()?.0, weight_nd.size2()?.0];
    if gives_wide_sums(hidden_rd) {
        let out_rn = buffer.get([r, n], (kind, device))?;
        return Ok(hidden_rd.f_mm_dtype_out(&out_rn, &weight_nd.f_tr()?, kind)?);
    }
    if hidden_rd.kind() != kind {
        return product(hidden_rd, weight_nd);
    }
    let out_rn = buffer.get([r, n], (kind, device))?;
    if !pays_to_pack(hidden_rd) {
        return Ok(hidden_rd.f_mm_out(&out_rn, &weight_nd.f_tr()?)?);
    }
    for (first, len) in id_slices(n) {
        let slice_nd = weight_nd.f_narrow(0, first, len)?;
        let mut slice_rn = out_rn.f_narrow(1, first, len)?;
        match PackedLinear::new(&slice_nd)? {
            Some(packed) => slice_rn.f_copy_(&packed.forward(hidden_rd, None)?)?,
            None => slice_rn.f_copy_(&hidden_rd.f_mm(&slice_nd.f_tr()?)?)?,
        }
    }
    Ok(out_rn)
}

/// Adds the product of two matrices of one kind to `sum`, in f32 or f64.
pub(super) fn add_product(sum: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    if sum.kind() == a.kind() {
        let _ = sum.f_addmm_(a, b)?;
    } else if gives_wide_sums(a) {
        let before = sum.shallow_clone();
        let _ = before.f_addmm_dtype_out(sum, a, b, sum.kind())?;
    } else {
        let _ = sum.f_add_(&a.f_mm(b)?)?;
    }
    Ok(())
}

/// Elements of a slice of the weight in its new layout and of its product, for `r` rows of width `d` and `n` ids.
pub(super) fn packed_elements([r, d, n]: [i64; 3]) -> i64 {
    if r >= PACKED_ROWS { PACKED_IDS.min(n) * (r + d) } else { 0 }
}

fn pays_to_pack(rows: &Tensor) -> bool {
    rows.kind() == Kind::Float && rows.device() == Device::Cpu && rows.size()[0] >= PACKED_ROWS
}

fn id_slices(num_ids: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..num_ids).step_by(PACKED_IDS as usize).map(move |first| (first, PACKED_IDS.min(num_ids - first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_over_new_layouts_are_the_plain_ones() {
        let wave = |rows: i64, columns: i64| {
            (Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)) * 12.9898).sin().view((rows, columns))
        };
        for num_rows in [PACKED_ROWS - 1, PACKED_ROWS + 3] {
            let (hidden_rd, weight_nd) = (wave(num_rows, 24), wave(90, 24));
            let logits_rn = product_into(&mut Buffer::default(), &hidden_rd, &weight_nd).unwrap();
            let error = (logits_rn - hidden_rd.matmul(&weight_nd.tr())).abs().max().double_value(&[]);
            assert!(error < 1e-4, "{num_rows}: {error}");
        }
    }
}
