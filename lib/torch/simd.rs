//! Runs plain loops over slices compiled for the vector unit this machine has, and an exponential that vectorises.
#![expect(unsafe_code, reason = "calls of functions compiled for a CPU that was asked for first")]

/// A loop over plain memory. `run` and what it calls should be `#[inline(always)]`, so that it is compiled once for every
/// vector unit.
pub trait Kernel {
    /// Does the work.
    fn run(self);
}

/// Runs `kernel` with the widest vector unit this machine has.
pub fn dispatch<K: Kernel>(kernel: K) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the CPU has the features the function was compiled for.
            return unsafe { with_avx512(kernel) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { with_avx2(kernel) };
        }
    }
    kernel.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl")]
fn with_avx512<K: Kernel>(kernel: K) {
    kernel.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<K: Kernel>(kernel: K) {
    kernel.run();
}

/// `e^x` within 2 units in the last place, 0 below -87.3, NaN for NaN; up to 88. The polynomial is that of Cephes' `expf`.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the digits of the source")]
pub fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_375;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_15e-4_f32;
    for c in [1.398_199_95e-3, 8.333_451_9e-3, 4.166_579_6e-2, 1.666_666_55e-1, 5.000_000_1e-1] {
        p = p * r + c;
    }
    let y = p * r * r + r + 1.0;
    let scale = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { y * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ExpAll<'a>(&'a [f32], &'a mut Vec<f32>);

    impl Kernel for ExpAll<'_> {
        #[inline(always)]
        #[expect(clippy::inline_always, reason = "compiled for every vector unit")]
        fn run(self) {
            self.1.extend(self.0.iter().map(|x| exp(*x)));
        }
    }

    #[test]
    fn exp_is_that_of_the_library_to_two_units_on_every_vector_unit() {
        let inputs: Vec<f32> = (0..200_000).map(|i| i as f32 * 8.75e-4 - 87.2).collect();
        let mut dispatched = Vec::new();
        dispatch(ExpAll(&inputs, &mut dispatched));
        for (x, wide) in inputs.iter().zip(dispatched) {
            let exact = f64::from(*x).exp();
            for got in [exp(*x), wide] {
                assert!((f64::from(got) - exact).abs() <= exact * 2.4e-7, "exp({x}) = {exact}, got {got}");
            }
        }
    }

    #[test]
    fn exp_of_the_ends() {
        assert_eq!((exp(0.0).to_bits(), exp(f32::NEG_INFINITY).to_bits()), (1.0f32.to_bits(), 0));
        assert!(exp(f32::NAN).is_nan());
    }
}
