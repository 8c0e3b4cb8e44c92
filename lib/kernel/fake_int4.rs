//! A matrix as it is behind codes of four bits: `scale * (code - 8)`, with a scale for each group of neighbours in a row. The codes are
//! those of `slime-convert --dtype int4_ct`: a scale is twice the largest magnitude of its group over 15, rounded up in bf16, a code
//! the nearest, halves away from zero, and the value is rounded to bf16.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_element, refused};

const NAME: &str = "fake_int4";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("fake_int4.cu"));
const WARPS: i64 = 8;

/// `[.., k]` as its engine has it, of the same kind and shape; groups of `group_size` divide `k`.
///
/// # Errors
/// Groups that do not divide a row; no compiler or driver.
pub fn fake_int4(weight: &Tensor, group_size: i64) -> Result<Tensor> {
    let size = weight.size();
    let columns = size.last().copied().unwrap_or(0);
    if group_size <= 0 || columns % group_size != 0 {
        return Err(refused(
            NAME,
            "columns",
            format!("a multiple of the group size {group_size}"),
            columns.to_string(),
        ));
    }
    let (kind, device) = (weight.kind(), weight.device());
    if !(is_element(kind, device) && weight.is_contiguous()) {
        return reference(weight, group_size);
    }
    let out = weight.f_empty_like()?;
    let num_groups = weight.numel() as i64 / group_size;
    if num_groups > 0 {
        let arguments =
            Arguments::default().tensor(weight).tensor(&out).long(num_groups).int(group_size as i32);
        let defines = [bf16(kind), ("WARPS", WARPS)];
        let program = Program { name: "fake_int4.cu", source: SOURCE, defines: &defines };
        let grid = [((num_groups + WARPS - 1) / WARPS) as u32, 1, 1];
        // SAFETY: the arguments are those of the kernel; both tensors have so many groups.
        unsafe { arguments.launch(device_of(NAME, weight)?, (&program, NAME), (grid, WARPS * 32))? };
    }
    Ok(out)
}

/// What [`fake_int4`] gives, on any device: the definition.
///
/// # Errors
/// As [`fake_int4`].
pub fn reference(weight: &Tensor, group_size: i64) -> Result<Tensor> {
    let x = weight.f_to_kind(Kind::Float)?.f_reshape([-1, group_size])?;
    let range = x.f_abs()?.f_amax([1], true)?.f_mul_scalar(2.0)?;
    // By a tensor: a GPU takes a number's inverse.
    let scale = rounded_up(&range.f_div(&range.f_full_like(15.0)?)?)?;
    let y = x.f_div(&scale)?.f_add_scalar(8.0)?;
    let whole = y.f_floor()?;
    let is_upper = y.f_sub(&whole)?.f_ge(0.5)?.f_to_kind(Kind::Float)?;
    let code = whole.f_add(&is_upper)?.f_clamp(0.0, 15.0)?;
    let value = scale.f_mul(&code.f_sub_scalar(8.0)?)?.f_to_kind(Kind::BFloat16)?;
    Ok(value.f_to_kind(weight.kind())?.f_view_as(weight)?)
}

/// The smallest positive bf16 numbers that are at least `x`, none of them subnormal, or the largest.
fn rounded_up(x: &Tensor) -> Result<Tensor> {
    let near = x.f_to_kind(Kind::BFloat16)?;
    let bits = near.f_view_dtype(Kind::Int16)?.f_to_kind(Kind::Int)?.f_clamp(0x80, 0x7f7f)?;
    let of =
        |bits: &Tensor| bits.f_to_kind(Kind::Int16)?.f_view_dtype(Kind::BFloat16)?.f_to_kind(Kind::Float);
    let near = of(&bits)?;
    let next = of(&bits.f_add_scalar(1)?.f_clamp_max(0x7f7f)?)?;
    Ok(next.f_where_self(&near.f_lt_tensor(x)?, &near)?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernel_compiles_for_every_supported_gpu() {
        for kind in [Kind::Float, Kind::BFloat16] {
            compiles(NAME, SOURCE, &[bf16(kind), ("WARPS", WARPS)]);
        }
    }

    #[test]
    fn values_are_steps_of_their_group() {
        let x = Tensor::from_slice(&[7.5f32, -7.5, 0.49, -0.5, 0.0, 3.0, 100.0, -1.0]).view([1, 8]);
        let got = Vec::<f32>::try_from(fake_int4(&x, 4).unwrap().view(-1)).unwrap();
        // Steps of 1, then of 200 / 15 rounded up in bf16; halves away from zero.
        assert_eq!(got, [7.0, -7.0, 0.0, 0.0, 0.0, 0.0, 93.5, 0.0]);
        assert!(fake_int4(&x, 3).unwrap_err().to_string().contains("multiple of the group size 3"));
    }

    #[test]
    fn zeros_stay_and_bf16_is_kept() {
        let zeros = Tensor::zeros([2, 3, 16], (Kind::BFloat16, Device::Cpu));
        let got = fake_int4(&zeros, 8).unwrap();
        assert!(got.equal(&zeros) && got.kind() == Kind::BFloat16);
    }
}
