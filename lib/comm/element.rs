//! Element types that travel between ranks, and how two of them combine.

use bytemuck::Pod;
use half::bf16;

/// Element type of a buffer whose type is known at run time only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// bfloat16, reduced as f32 and rounded once.
    Bf16,
    /// Byte; a sum wraps.
    U8,
    /// 64-bit unsigned; a sum wraps.
    U64,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 | Self::U64 => 8,
        }
    }
}

/// How elements of all ranks become one. A mean is a sum the caller divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Addition in rank order.
    Sum,
    /// Least; NaN if any is NaN.
    Min,
    /// Greatest; NaN if any is NaN.
    Max,
}

/// An element that can be reduced.
pub trait Element: Pod + Send + Sync {
    /// The type a reduction runs in.
    type Accumulator: Copy;
    /// The run-time name.
    const DTYPE: Dtype;
    /// To the accumulator, exactly.
    fn widen(self) -> Self::Accumulator;
    /// From the accumulator, rounded to nearest even.
    fn narrow(value: Self::Accumulator) -> Self;
    /// `left` of the lower ranks with `right` of the next rank.
    fn combine(op: Op, left: Self::Accumulator, right: Self::Accumulator) -> Self::Accumulator;
}

macro_rules! float {
    ($($name:ty, $accumulator:ty, $dtype:ident, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $name {
            type Accumulator = $accumulator;
            const DTYPE: Dtype = Dtype::$dtype;
            fn widen(self) -> $accumulator {
                $widen(self)
            }
            fn narrow(value: $accumulator) -> Self {
                $narrow(value)
            }
            fn combine(op: Op, left: $accumulator, right: $accumulator) -> $accumulator {
                match op {
                    Op::Sum => left + right,
                    Op::Min if left.is_nan() || left < right => left,
                    Op::Max if left.is_nan() || left > right => left,
                    Op::Min | Op::Max => right,
                }
            }
        }
    )*};
}

float! {
    f32, f32, F32, std::convert::identity, std::convert::identity;
    f64, f64, F64, std::convert::identity, std::convert::identity;
    bf16, f32, Bf16, bf16::to_f32, bf16::from_f32;
}

macro_rules! unsigned {
    ($($name:ty, $dtype:ident;)*) => {$(
        impl Element for $name {
            type Accumulator = $name;
            const DTYPE: Dtype = Dtype::$dtype;
            fn widen(self) -> $name {
                self
            }
            fn narrow(value: $name) -> Self {
                value
            }
            fn combine(op: Op, left: $name, right: $name) -> $name {
                match op {
                    Op::Sum => left.wrapping_add(right),
                    Op::Min => left.min(right),
                    Op::Max => left.max(right),
                }
            }
        }
    )*};
}

unsigned! {
    u8, U8;
    u64, U64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_survives_min_and_max_on_either_side() {
        for op in [Op::Min, Op::Max, Op::Sum] {
            assert!(f32::combine(op, f32::NAN, 1.0).is_nan());
            assert!(f32::combine(op, 1.0, f32::NAN).is_nan());
        }
    }

    #[test]
    fn unsigned_sum_wraps() {
        assert_eq!(u8::combine(Op::Sum, 255, 2), 1);
    }
}
