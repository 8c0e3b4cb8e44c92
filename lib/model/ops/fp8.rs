//! Products in fp8: both matrices as codes with scales, sums in f32. Suffixes: n and m rows, k what is summed over, b matrices.
//!
//! On CUDA that is libtorch's `_scaled_mm` and `_scaled_grouped_mm`, elsewhere the definition: codes times scales in f32.

use slime_config::Fp8Scaling;
use slime_kernel::fp8_cast::{Cast, Codes, Copies, Format, SIDE, Scaling, cast, scales_of};
use tch::{Kind, Tensor};

use super::grouped_product::{Groups, grouped};
use crate::{Error, Result};

/// What a matrix is to a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The activations that come in.
    Input,
    /// The parameter.
    Weight,
    /// The gradient of what comes out.
    Gradient,
}

/// Number of roles.
pub const NUM_ROLES: usize = 3;

/// Elements from one role to the next in [`Fp8`]'s tensors: scales begin at multiples of 16 bytes, as cuBLAS takes them.
pub const STEP: usize = 4;

/// Which values have one scale, in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Activations and gradients in lines of 128, weights in blocks of 128 x 128; of experts, each row.
    Block,
    /// The whole tensor, by its own largest magnitude: before anything is known of earlier steps.
    Own,
    /// The whole tensor, by the largest magnitudes of earlier steps.
    Delayed,
}

/// How one product computes: with scales of the whole tensor, `scales` and `largest` `[12]` f32 hold by role, [`STEP`] apart, what a
/// code is times and the largest magnitude of the step that runs.
#[derive(Debug)]
pub struct Fp8 {
    /// Which values have one scale.
    pub mode: Mode,
    /// None in [`Mode::Block`].
    pub state: Option<[Tensor; 2]>,
}

impl Fp8 {
    /// The state, as the operations take it among their inputs.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.state.iter().flatten().collect()
    }
}

/// The format of a matrix in a product of its own; among experts everything is e4m3.
///
/// e5m2 has the range that gradients under one scale need (Micikevicius et al., arXiv 2209.05433); with scales for lines e4m3 has the
/// range too (DeepSeek-V3, arXiv 2412.19437, section 3.3.2).
pub fn format_of(scaling: Fp8Scaling, role: Role, is_expert: bool) -> Format {
    match (scaling, role) {
        (Fp8Scaling::Tensor, Role::Gradient) if !is_expert => Format::E5m2,
        _ => Format::E4m3,
    }
}

/// The matrices of one kind of product as codes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caster<'a> {
    mode: Mode,
    state: Option<[&'a Tensor; 2]>,
    is_expert: bool,
}

impl<'a> Caster<'a> {
    /// From what [`Fp8::tensors`] gave.
    pub fn new(mode: Mode, state: &'a [Tensor], is_expert: bool) -> Result<Self> {
        let state = match (mode, state) {
            (Mode::Block, []) => None,
            (Mode::Own | Mode::Delayed, [scales, largest]) => Some([scales, largest]),
            _ => {
                let (expected, got) = (usize::from(mode != Mode::Block) * 2, state.len());
                return Err(Error::Context { what: "scales of a product in fp8", expected, got });
            }
        };
        Ok(Self { mode, state, is_expert })
    }

    /// Codes along rows and along columns of `x` `[n, k]` or `[b, n, k]`, rows made up with zeros to a multiple of 16 or 128.
    pub fn codes(&self, x: &Tensor, role: Role, copies: Copies) -> Result<[Option<Codes>; 2]> {
        let x = x.f_contiguous()?;
        let scaling = if self.state.is_some() { Fp8Scaling::Tensor } else { Fp8Scaling::Block };
        let format = format_of(scaling, role, self.is_expert);
        let mut of = Cast { format, scaling: Scaling::Lines, copies, row_multiple: SIDE, largest: None };
        let Some([scales, largest]) = self.state else {
            if self.is_expert {
                let scales = |is_wanted: bool, dim| {
                    if is_wanted {
                        line_scales(&x, dim, format)
                    } else {
                        Ok(Tensor::f_empty([0], (Kind::Float, x.device()))?)
                    }
                };
                let (rows, columns) =
                    (scales(copies != Copies::Columns, -1)?, scales(copies != Copies::Rows, -2)?);
                return Ok(cast(
                    &x,
                    &Cast { scaling: Scaling::Given(&rows, &columns), row_multiple: 16, ..of },
                )?);
            }
            if role == Role::Weight {
                of.scaling = Scaling::Blocks;
            }
            return Ok(cast(&x, &of)?);
        };
        let largest = largest.f_narrow(0, role as i64 * STEP as i64, 1)?;
        let scale = match self.mode {
            Mode::Own if x.numel() > 0 => scales_of(&magnitude(&x, None)?.f_view([1])?, format)?,
            Mode::Own => largest.f_ones_like()?,
            _ => scales.f_narrow(0, role as i64 * STEP as i64, 1)?,
        };
        let largest = (role != Role::Weight).then_some(&largest);
        let scaling = Scaling::Given(&scale, &scale);
        Ok(cast(&x, &Cast { scaling, row_multiple: 16, largest, ..of })?)
    }

    /// Whether sums of a product may be kept in the fewer bits of the tensor cores: forward, where errors do not add up over
    /// steps.
    pub fn is_fast(&self) -> bool {
        self.state.is_some()
    }
}

/// The largest magnitude along a dimension, or of all.
pub(crate) fn magnitude(x: &Tensor, dim: Option<i64>) -> Result<Tensor> {
    let dims = dim.map_or_else(Vec::new, |dim| vec![dim]);
    Ok(x.f_norm_scalaropt_dim(f64::INFINITY, dims.as_slice(), false)?.f_to_kind(Kind::Float)?)
}

/// Scales of the rows, or columns, of every matrix, one after the other.
fn line_scales(x: &Tensor, dim: i64, format: Format) -> Result<Tensor> {
    if x.numel() == 0 {
        let mut size = x.size();
        size.remove((x.dim() as i64 + dim) as usize);
        return Ok(Tensor::f_ones([size.iter().product::<i64>()], (Kind::Float, x.device()))?);
    }
    Ok(scales_of(&magnitude(x, Some(dim))?.f_reshape([-1])?, format)?)
}

/// The only codes that were asked for.
pub(super) fn one([rows, columns]: [Option<Codes>; 2]) -> Result<Codes> {
    rows.or(columns).ok_or(Error::Context { what: "codes of a matrix", expected: 1, got: 0 })
}

/// `A B^T` `[m, n]` of `A` `[m, k]` and `B` `[n, k]`, as elements of `kind`.
pub(super) fn product(a: &Codes, b: &Codes, kind: Kind, is_fast: bool) -> Result<Tensor> {
    if a.codes.device().is_cuda() {
        let scales = if b.scales.dim() == 2 { aligned(b)?.f_tr()? } else { b.scales.shallow_clone() };
        let none = None::<&Tensor>;
        return Ok(a.codes.f_internal_scaled_mm(
            &b.codes.f_tr()?,
            &a.scales,
            &scales,
            none,
            none,
            kind,
            is_fast,
        )?);
    }
    let wide = if kind == Kind::Double { kind } else { Kind::Float };
    Ok(values(a, wide)?.f_mm(&values(b, wide)?.f_tr()?)?.f_to_kind(kind)?)
}

/// Scales of blocks as they are where four of them, side by side, divide a row; else, since versions of libtorch differ in how
/// they lie then, those of the lines of each block.
fn aligned(of: &Codes) -> Result<Tensor> {
    let ((n, _), (rows, columns)) = (of.codes.size2()?, of.scales.size2()?);
    if rows == n || columns % 4 == 0 {
        return Ok(of.scales.shallow_clone());
    }
    Ok(of.scales.f_tr()?.f_contiguous()?.f_repeat_interleave_self_int(SIDE, 1, None)?.f_tr()?)
}

/// `[n, o]` of rows `[n, i]` that belong to groups and the matrices `[b, o, i]` of these.
pub(super) fn grouped_product(a: &Codes, b: &Codes, groups: &Groups, kind: Kind) -> Result<Tensor> {
    let (n, (num, o, _)) = (a.codes.size2()?.0, b.codes.size3()?);
    if a.codes.device().is_cuda() {
        let (scales_n, scales_bo) = (
            a.scales.f_expand([n], false)?.f_contiguous()?,
            of_rows(b)?.f_expand([num, o], false)?.f_contiguous()?,
        );
        let (matrices, none) = (b.codes.f_transpose(1, 2)?, None::<&Tensor>);
        let ends = Some(groups.ends());
        return Ok(a
            .codes
            .f_internal_scaled_grouped_mm(&matrices, &scales_n, &scales_bo, ends, none, none, kind, true)?);
    }
    let wide = if kind == Kind::Double { kind } else { Kind::Float };
    let matrices = values(b, wide)?.f_transpose(1, 2)?;
    Ok(grouped(&values(a, wide)?, &matrices, groups)?.f_to_kind(kind)?)
}

/// Scales of the rows of every matrix, `[b, o]` or `[1]`.
fn of_rows(of: &Codes) -> Result<Tensor> {
    let (b, o, _) = of.codes.size3()?;
    Ok(if of.scales.numel() == 1 { of.scales.shallow_clone() } else { of.scales.f_view([b, o])? })
}

/// The values that codes stand for.
fn values(of: &Codes, kind: Kind) -> Result<Tensor> {
    let Codes { codes, scales } = of;
    let x = codes.f_to_kind(kind)?;
    let scales = match (codes.dim(), scales.dim()) {
        _ if scales.numel() == 1 => scales.f_view([1])?,
        (3, _) => of_rows(of)?.f_unsqueeze(-1)?,
        (_, 1) => scales.f_unsqueeze(-1)?,
        _ => {
            let ((n, k), (rows, columns)) = (codes.size2()?, scales.size2()?);
            let down = if rows == 0 { 1 } else { n / rows };
            let right = if columns == 0 { 1 } else { k / columns };
            scales
                .f_repeat_interleave_self_int(down, 0, None)?
                .f_repeat_interleave_self_int(right, 1, None)?
        }
    };
    Ok(x.f_mul(&scales.f_to_kind(kind)?)?)
}
