//! Matrices as fp8 codes with scales: `value = scale * code`, along rows and, transposed, along columns. Suffixes: b matrices,
//! r rows, c columns.
//!
//! Codes are rounded to nearest even and cut off at the largest number of their format, infinite values become NaN. A scale
//! that is not given is the largest magnitude of its values over the largest number of the format, as in the fp8 weights of
//! DeepSeek-V3 (arXiv 2412.19437, section 3.3); of zeros, or of values so small that their scale is no normal number, it is 1.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Kind, Tensor};

use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};
use crate::{Error, Result};

const NAME: &str = "fp8_cast";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("fp8_cast.cu"));

/// Values of a line, and rows and columns of a block, that have one scale.
pub const SIDE: i64 = 128;

/// A format of eight bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Four bits of exponent, three of mantissa; up to 448.
    E4m3,
    /// Five bits of exponent, two of mantissa; up to 57344.
    E5m2,
}

impl Format {
    /// The largest number.
    pub fn largest(self) -> f64 {
        match self {
            Self::E4m3 => 448.0,
            Self::E5m2 => 57344.0,
        }
    }

    /// Its elements in libtorch.
    pub fn kind(self) -> Kind {
        match self {
            Self::E4m3 => Kind::Float8e4m3fn,
            Self::E5m2 => Kind::Float8e5m2,
        }
    }
}

/// Which values have one scale.
#[derive(Debug, Clone, Copy)]
pub enum Scaling<'a> {
    /// Those of a row, and of a column of the transposed codes: f32, `[b r]` and `[b c]`, or `[1]` for all.
    Given(&'a Tensor, &'a Tensor),
    /// Each [`SIDE`] neighbours in a row, or in a column.
    Lines,
    /// Each [`SIDE`] rows of [`SIDE`] columns.
    Blocks,
}

/// Which of the two are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// Codes along rows.
    Rows,
    /// Transposed codes, along columns.
    Columns,
    /// Both.
    Both,
}

impl Copies {
    fn has_rows(self) -> bool {
        self != Self::Columns
    }

    fn has_columns(self) -> bool {
        self != Self::Rows
    }
}

/// Codes `[.., n, k]`, side by side along `k`, with their scales as libtorch's `_scaled_mm` takes them: given ones as they are, of
/// lines `[n, k / 128]` with neighbours in a column side by side, of blocks `[n / 128, k / 128]` with rows a multiple of four apart.
#[derive(Debug)]
pub struct Codes {
    /// fp8.
    pub codes: Tensor,
    /// f32.
    pub scales: Tensor,
}

/// What [`cast`] takes beside the values.
#[derive(Debug, Clone, Copy)]
pub struct Cast<'a> {
    /// The format of the codes.
    pub format: Format,
    /// Which values have one scale.
    pub scaling: Scaling<'a>,
    /// Which copies are made; the others are none.
    pub copies: Copies,
    /// Rows of zeros are added up to a multiple of this.
    pub row_multiple: i64,
    /// `[1]` f32, not negative: grows to the largest magnitude of the values, where scales are given.
    pub largest: Option<&'a Tensor>,
}

/// Whether [`cast`] has a kernel for these elements there; elsewhere it goes by the definition.
pub fn is_supported(x: &Tensor) -> bool {
    is_element(x.kind(), x.device()) && x.is_contiguous()
}

/// Codes of `x` `[r, c]` or `[b, r, c]`; `r` is made up to a multiple with zeros. Lines and blocks are of one matrix whose columns,
/// and rows so made up, are a multiple of [`SIDE`].
///
/// # Errors
/// Sizes or scales that do not fit; no compiler or driver; a GPU older than `sm_89`.
pub fn cast(x: &Tensor, of: &Cast<'_>) -> Result<[Option<Codes>; 2]> {
    if is_supported(x) { launched(x, of) } else { reference(x, of) }
}

/// Matrices, rows, columns, and rows with the zeros behind them.
fn sizes(x: &Tensor, of: &Cast<'_>) -> Result<[i64; 4]> {
    let (b, r, c) = match *x.size() {
        [r, c] => (1, r, c),
        [b, r, c] => (b, r, c),
        _ => return Err(refused(NAME, "values", "[r, c] or [b, r, c]", format!("{x:?}"))),
    };
    let padded = (r + of.row_multiple - 1) / of.row_multiple * of.row_multiple;
    let is_whole = |side: i64| padded % side == 0 && c % side == 0 && of.row_multiple % 16 == 0;
    let fits = match of.scaling {
        Scaling::Given(..) => is_whole(16),
        Scaling::Lines | Scaling::Blocks => is_whole(SIDE) && b == 1,
    };
    if fits {
        return Ok([b, r, c, padded]);
    }
    Err(refused(
        NAME,
        "values",
        "rows and columns in multiples of 16, for lines and blocks of 128",
        format!("{x:?}"),
    ))
}

fn launched(x: &Tensor, of: &Cast<'_>) -> Result<[Option<Codes>; 2]> {
    let [b, r, c, padded] = sizes(x, of)?;
    let device = x.device();
    let f32s = |size: [i64; 2]| Tensor::f_empty(size, (Kind::Float, device));
    let four = |n: i64| (n + 3) / 4 * 4;
    let (scaling, [rows, columns], steps) = match of.scaling {
        Scaling::Given(rows, columns) => {
            let step = |what, scales: &Tensor, len| {
                let size = [if scales.numel() == 1 { 1 } else { len }];
                is_as(NAME, what, scales, (Kind::Float, &size, device))?;
                Ok::<_, Error>(i64::from(scales.numel() > 1))
            };
            let row_step = if of.copies.has_rows() { step("scales of rows", rows, b * r)? } else { 0 };
            let column_step =
                if of.copies.has_columns() { step("scales of columns", columns, b * c)? } else { 0 };
            (0, [rows.shallow_clone(), columns.shallow_clone()], [row_step, column_step])
        }
        Scaling::Lines => (1, [f32s([c / SIDE, padded])?, f32s([padded / SIDE, c])?], [0, 0]),
        Scaling::Blocks => {
            let steps = [four(c / SIDE), four(padded / SIDE)];
            (2, [f32s([padded / SIDE, steps[0]])?, f32s([c / SIDE, steps[1]])?], steps)
        }
    };
    if let Some(largest) = of.largest {
        is_as(NAME, "largest magnitude", largest, (Kind::Float, &[1], device))?;
    }
    let sized = |last: [i64; 2]| if x.dim() == 2 { last.to_vec() } else { vec![b, last[0], last[1]] };
    let codes = |is_wanted: bool, last| {
        is_wanted.then(|| Tensor::f_empty(sized(last), (of.format.kind(), device))).transpose()
    };
    let (of_rows, of_columns) =
        (codes(of.copies.has_rows(), [padded, c])?, codes(of.copies.has_columns(), [c, padded])?);
    if b * padded * c > 0 {
        let arguments = Arguments::default()
            .tensor(x)
            .optional(of_rows.as_ref())
            .optional(of_columns.as_ref())
            .tensor(&rows)
            .tensor(&columns)
            .optional(of.largest);
        let arguments =
            [r, c, padded, steps[0], steps[1]].into_iter().fold(arguments, |list, n| list.int(n as i32));
        let defines = [bf16(x.kind()), ("E5M2", i64::from(of.format == Format::E5m2)), ("SCALING", scaling)];
        let program = Program { name: "fp8_cast.cu", source: SOURCE, defines: &defines };
        let grid = [((c + SIDE - 1) / SIDE) as u32, ((padded + SIDE - 1) / SIDE) as u32, b as u32];
        // SAFETY: the arguments are those of the kernel, checked above.
        unsafe { arguments.launch(device_of(NAME, x)?, (&program, NAME), (grid, 256))? };
    }
    let [rows, columns] = match of.scaling {
        Scaling::Given(..) => [rows, columns],
        Scaling::Lines => [rows.f_tr()?, columns.f_tr()?],
        Scaling::Blocks => [rows.f_narrow(1, 0, c / SIDE)?, columns.f_narrow(1, 0, padded / SIDE)?],
    };
    let with = |codes: Option<Tensor>, scales| codes.map(|codes| Codes { codes, scales });
    Ok([with(of_rows, rows), with(of_columns, columns)])
}

/// What [`cast`] gives, on any device: the definition.
///
/// # Errors
/// As [`cast`].
pub fn reference(x: &Tensor, of: &Cast<'_>) -> Result<[Option<Codes>; 2]> {
    let [_, r, _, padded] = sizes(x, of)?;
    let x = x.f_to_kind(Kind::Float)?;
    if let Some(largest) = of.largest.filter(|_| x.numel() > 0) {
        // Beside autograd, which may keep the tensor for a backward pass.
        largest.f_data()?.f_copy_(&largest.f_maximum(&x.f_abs()?.f_max()?.f_view(1)?)?)?;
    }
    let x = x.f_constant_pad_nd([0, 0, 0, padded - r])?;
    let along = |x: &Tensor, given: Option<&Tensor>| match (of.scaling, given) {
        (Scaling::Given(..), Some(scales)) => given_scales(x, scales, of.format),
        (Scaling::Blocks, _) => blocks(x, of.format),
        _ => lines(x, of.format),
    };
    let (rows, columns) = match of.scaling {
        Scaling::Given(rows, columns) => (Some(rows), Some(columns)),
        Scaling::Lines | Scaling::Blocks => (None, None),
    };
    let of_rows = of.copies.has_rows().then(|| along(&x, rows)).transpose()?;
    let turned = || along(&x.f_transpose(-1, -2)?.f_contiguous()?, columns);
    Ok([of_rows, of.copies.has_columns().then(turned).transpose()?])
}

/// `[.., n, k]` of one scale, or of one for each row that was not added.
fn given_scales(x: &Tensor, scales: &Tensor, format: Format) -> Result<Codes> {
    let size = x.size();
    let (b, n) = (if size.len() == 2 { 1 } else { size[0] }, size[size.len() - 2]);
    let divisor = if scales.numel() == 1 {
        scales.f_view([1])?
    } else {
        let of_rows = scales.f_view([b, -1])?;
        let added = Tensor::f_ones([b, n - of_rows.size2()?.1], (Kind::Float, x.device()))?;
        let of_all = Tensor::f_cat(&[of_rows, added], 1)?;
        if size.len() == 2 { of_all.f_view([n, 1])? } else { of_all.f_view([b, n, 1])? }
    };
    Ok(Codes { codes: codes(&x.f_div(&divisor)?, format)?, scales: scales.shallow_clone() })
}

fn lines(x_nk: &Tensor, format: Format) -> Result<Codes> {
    let (n, k) = x_nk.size2()?;
    let x = x_nk.f_view([n, k / SIDE, SIDE])?;
    let scales = scales_of(&x.f_abs()?.f_amax([2], true)?, format)?;
    let codes = codes(&x.f_div(&scales)?, format)?.f_view([n, k])?;
    // Neighbours in a column side by side.
    Ok(Codes { codes, scales: scales.f_view([n, k / SIDE])?.f_tr()?.f_contiguous()?.f_tr()? })
}

fn blocks(x_nk: &Tensor, format: Format) -> Result<Codes> {
    let (n, k) = x_nk.size2()?;
    let x = x_nk.f_view([n / SIDE, SIDE, k / SIDE, SIDE])?;
    let scales = scales_of(&x.f_abs()?.f_amax([1, 3], true)?, format)?;
    let codes = codes(&x.f_div(&scales)?, format)?.f_view([n, k])?;
    let (scales, missing) = (scales.f_view([n / SIDE, k / SIDE])?, (4 - k / SIDE % 4) % 4);
    Ok(Codes { codes, scales: scales.f_constant_pad_nd([0, missing])?.f_narrow(1, 0, k / SIDE)? })
}

/// Scales from largest magnitudes.
///
/// # Errors
/// No room.
pub fn scales_of(largest: &Tensor, format: Format) -> Result<Tensor> {
    // By a tensor: a GPU takes a number's inverse.
    let largest = largest.f_to_kind(Kind::Float)?;
    let scales = largest.f_div(&largest.f_full_like(format.largest())?)?;
    let is_normal = scales.f_ge(f64::from(f32::MIN_POSITIVE))?.f_logical_and(&scales.f_lt(f64::INFINITY)?)?;
    Ok(scales.f_where_self(&is_normal, &scales.f_ones_like()?)?)
}

pub(crate) fn codes(x: &Tensor, format: Format) -> Result<Tensor> {
    let is_finite = x.f_isinf()?.f_logical_not()?;
    let kept = x.f_clamp(-format.largest(), format.largest())?;
    Ok(kept.f_where_self(&is_finite, &x.f_full_like(f64::NAN)?)?.f_to_kind(format.kind())?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::check::compiles_for;

    #[test]
    fn kernel_compiles_for_every_gpu_with_fp8() {
        for kind in [Kind::Float, Kind::BFloat16] {
            for (e5m2, scaling) in [(0, 0), (1, 0), (0, 1), (0, 2)] {
                let defines = [bf16(kind), ("E5M2", e5m2), ("SCALING", scaling)];
                compiles_for(&["sm_89", "sm_90", "sm_100"], NAME, SOURCE, &defines);
            }
        }
    }

    fn wave(size: [i64; 2]) -> Tensor {
        let at = Tensor::arange(size[0] * size[1], (Kind::Float, Device::Cpu));
        ((&at * 0.7).sin() * (&at * 0.013).cos().exp()).view(size)
    }

    fn of(scaling: Scaling<'_>) -> Cast<'_> {
        Cast { format: Format::E4m3, scaling, copies: Copies::Both, row_multiple: SIDE, largest: None }
    }

    /// The values again, from scales that are one for each so many rows and columns.
    fn values(of: &Codes, rows: i64, columns: i64) -> Tensor {
        let scales =
            of.scales.repeat_interleave_self_int(rows, 0, None).repeat_interleave_self_int(columns, 1, None);
        of.codes.to_kind(Kind::Float) * scales
    }

    #[test]
    fn lines_and_blocks_hold_the_values_along_rows_and_along_columns() {
        let x = wave([200, 384]);
        let padded = x.constant_pad_nd([0, 0, 0, 56]);
        for (scaling, rows) in [(Scaling::Lines, 1), (Scaling::Blocks, SIDE)] {
            let [Some(of_rows), Some(of_columns)] = cast(&x, &of(scaling)).unwrap() else { panic!() };
            for (got, expected) in [(of_rows, padded.shallow_clone()), (of_columns, padded.tr())] {
                let got = values(&got, rows, SIDE);
                // Half of the last of three bits of mantissa.
                let apart = ((got - &expected).abs() / (expected.abs() + 1e-2)).max().double_value(&[]);
                assert!(apart > 1e-3 && apart <= 1.0 / 16.0, "{apart}");
            }
        }
    }

    #[test]
    fn scales_lie_as_the_product_takes_them() {
        let [Some(rows), Some(columns)] = cast(&wave([256, 640]), &of(Scaling::Blocks)).unwrap() else {
            panic!()
        };
        assert_eq!((rows.scales.size(), rows.scales.stride()), (vec![2, 5], vec![8, 1]));
        assert_eq!((columns.scales.size(), columns.scales.stride()), (vec![5, 2], vec![4, 1]));
        let [Some(rows), Some(columns)] = cast(&wave([200, 640]), &of(Scaling::Lines)).unwrap() else {
            panic!()
        };
        assert_eq!((rows.scales.size(), rows.scales.stride()), (vec![256, 5], vec![1, 256]));
        assert_eq!((columns.scales.size(), columns.scales.stride()), (vec![640, 2], vec![1, 640]));
    }

    #[test]
    fn given_scales_cut_off_what_is_too_large_and_tell_of_it() {
        let x = Tensor::from_slice(&[0.5f32, -900.0, f32::NAN, f32::INFINITY]).view([1, 4]);
        let x = x.constant_pad_nd([0, 12]);
        let (two, largest) = (Tensor::from_slice(&[2.0f32]), Tensor::from_slice(&[3.0f32]));
        for (format, expected) in [(Format::E4m3, -448.0), (Format::E5m2, -448.0)] {
            let cast = Cast { format, row_multiple: 16, largest: None, ..of(Scaling::Given(&two, &two)) };
            let [Some(rows), Some(columns)] = reference(&x, &cast).unwrap() else { panic!() };
            let got = Vec::<f32>::try_from(rows.codes.to_kind(Kind::Float).view(-1)).unwrap();
            assert_eq!(got[..2], [0.25, expected]);
            assert!(got[2].is_nan() && got[3].is_nan() && got[4] == 0.0, "{:?}", &got[..5]);
            assert_eq!((rows.codes.size(), columns.codes.size()), (vec![16, 16], vec![16, 16]));
        }
        let finite = x.narrow(1, 0, 2).constant_pad_nd([0, 14]);
        let cast = Cast { row_multiple: 16, largest: Some(&largest), ..of(Scaling::Given(&two, &two)) };
        reference(&finite, &cast).unwrap();
        assert!(largest.equal(&Tensor::from_slice(&[900.0f32])), "{largest}");
    }

    #[test]
    fn zeros_and_values_below_every_scale_have_scale_one() {
        let x = Tensor::full([128, 128], 1e-42, (Kind::Float, Device::Cpu));
        let [Some(rows), _] = cast(&x, &of(Scaling::Lines)).unwrap() else { panic!() };
        assert!(
            rows.scales.equal(&rows.scales.ones_like())
                && rows.codes.to_kind(Kind::Float).equal(&x.zeros_like())
        );
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let error = cast(&wave([128, 136]), &of(Scaling::Lines)).unwrap_err().to_string();
        assert!(error.contains("128") && error.contains("136"), "{error}");
    }
}
