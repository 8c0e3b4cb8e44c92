//! `x W^T + b` with a weight that was laid out for oneDNN once, instead of again in every product.
#![expect(unsafe_code, reason = "calls into the shim")]

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::ffi::{self, RawTensor, Sink};

/// Rows of inputs the layout is chosen for; others give the same numbers, at most somewhat slower.
const ROWS: i64 = 32;

/// A copy of an f32 weight in oneDNN's own blocks; it does not follow changes of the weight.
#[derive(Debug)]
pub struct PackedLinear {
    packed: Tensor,
}

fn raw(tensor: &Tensor) -> *const RawTensor {
    tensor.as_ptr().cast()
}

fn only(sink: Sink, operation: &'static str) -> Result<Tensor> {
    let missing = || Error::Torch { operation, message: "no result".to_owned() };
    sink.into_tensors().pop().ok_or_else(missing)
}

impl PackedLinear {
    /// Packs `weight_oi` where that is possible: f32 on a CPU, and a libtorch with oneDNN. Otherwise `None`.
    ///
    /// # Errors
    /// There is no room.
    pub fn new(weight_oi: &Tensor) -> Result<Option<Self>> {
        // SAFETY: takes nothing and reads libtorch's settings.
        let has_onednn = unsafe { ffi::slime_has_packed_linear() } == 1;
        if !has_onednn || weight_oi.kind() != Kind::Float || weight_oi.device() != Device::Cpu {
            return Ok(None);
        }
        let mut sink = Sink::new();
        ffi::checked("packing of a weight", |error| {
            // SAFETY: the weight outlives the call, and the sink is alive.
            unsafe { ffi::slime_pack_linear(raw(weight_oi), ROWS, sink.as_mut_ptr(), error) }
        })?;
        Ok(Some(Self { packed: only(sink, "packing of a weight")? }))
    }

    /// `x_ti W_oi^T + b_o`, `[t, o]`, without gradient.
    ///
    /// # Errors
    /// The shapes do not fit, or `x_ti` is not f32.
    pub fn forward(&self, x_ti: &Tensor, bias_o: Option<&Tensor>) -> Result<Tensor> {
        let mut sink = Sink::new();
        let bias = bias_o.map_or(std::ptr::null(), raw);
        ffi::checked("product with a packed weight", |error| {
            // SAFETY: all tensors outlive the call, a missing bias is null, and the sink is alive.
            unsafe { ffi::slime_packed_linear(raw(x_ti), raw(&self.packed), bias, sink.as_mut_ptr(), error) }
        })?;
        only(sink, "product with a packed weight")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_product_is_the_plain_one_for_any_number_of_rows() {
        tch::manual_seed(5);
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        for (o, i) in [(48, 32), (7, 5), (960, 576)] {
            let (weight, bias) = (random(&[o, i]), random(&[o]));
            let packed = PackedLinear::new(&weight).unwrap().unwrap();
            for rows in [1, 3, 32, 200] {
                let x = random(&[rows, i]);
                for bias in [None, Some(&bias)] {
                    let (got, want) = (packed.forward(&x, bias).unwrap(), x.linear(&weight, bias));
                    assert_eq!(got.size(), want.size());
                    assert!((got - want).abs().max().double_value(&[]) < 1e-4, "{rows} rows of {i} to {o}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_packed_says_so() {
        let double = Tensor::zeros([4, 4], (Kind::Double, Device::Cpu));
        assert!(PackedLinear::new(&double).unwrap().is_none());
        let packed = PackedLinear::new(&double.to_kind(Kind::Float)).unwrap().unwrap();
        assert!(packed.forward(&Tensor::zeros([2, 5], (Kind::Float, Device::Cpu)), None).is_err());
    }
}
