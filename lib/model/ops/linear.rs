//! `x W^T + b`. Suffixes: t tokens, i inputs, o outputs.

use slime_torch::PackedLinear;
use tch::Tensor;

use super::adapter::{self, Adapter, Outputs};
use super::fp8::{Fp8, Mode};
use super::fp8_linear;
use crate::{Result, Workspace};

/// A weight with its bias and, while serving, its packed copy.
#[derive(Debug)]
pub struct Linear {
    weight_oi: Tensor,
    bias_o: Option<Tensor>,
    packed: Option<PackedLinear>,
    /// How the product computes, where that is in fp8.
    fp8: Option<Fp8>,
    adapters: Vec<Adapter>,
    /// Whether the adapters add to the product.
    is_adapted: bool,
}

impl Linear {
    /// The product with `weight_oi`; both tensors stay shared with their owner.
    pub fn new(weight_oi: Tensor, bias_o: Option<Tensor>) -> Self {
        Self { weight_oi, bias_o, packed: None, fp8: None, adapters: Vec::new(), is_adapted: true }
    }

    /// The same with adapters.
    #[must_use]
    pub fn with_adapters(self, adapters: Vec<Adapter>) -> Self {
        Self { adapters, ..self }
    }

    /// Whether the adapters add to the product from now on.
    pub fn set_adapted(&mut self, is_adapted: bool) {
        self.is_adapted = is_adapted;
    }

    /// From now on the product is computed in fp8, with gradients, unless it is packed; of adapters the products stay as they are.
    pub fn set_fp8(&mut self, fp8: Option<Fp8>) {
        self.fp8 = fp8;
    }

    /// How the product computes, where that is in fp8, and its scales.
    pub fn fp8(&self) -> (Option<Mode>, Vec<&Tensor>) {
        (self.fp8.as_ref().map(|fp8| fp8.mode), self.fp8.as_ref().map(Fp8::tensors).unwrap_or_default())
    }

    /// What the adapters add to now, and their matrices as [`adapter::add`] takes them.
    pub fn adapters(&self) -> (Vec<Outputs>, Vec<&Tensor>) {
        let active = if self.is_adapted { self.adapters.as_slice() } else { &[] };
        (active.iter().map(Adapter::outputs).collect(), active.iter().flat_map(Adapter::matrices).collect())
    }

    /// The weight, `[o, i]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight_oi
    }

    /// Copies the weight as it is now into the layout of [`serve`], where there is one for its dtype and device.
    ///
    /// # Errors
    /// There is no room.
    pub fn pack(&mut self) -> Result<()> {
        self.packed = PackedLinear::new(&self.weight_oi)?;
        Ok(())
    }

    /// Forgets the packed copy.
    pub fn unpack(&mut self) {
        self.packed = None;
    }

    /// `[t, o]` of `x_ti`; under autograd unless packed or into fixed memory.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, workspace: &Workspace, x_ti: &Tensor) -> Result<Tensor> {
        let out_to = self.product(workspace, x_ti)?;
        let (outputs, matrices) = self.adapters();
        adapter::add(out_to, x_ti, &outputs, &matrices)
    }

    fn product(&self, workspace: &Workspace, x_ti: &Tensor) -> Result<Tensor> {
        match &self.packed {
            Some(packed) => serve(x_ti, packed, self.bias_o.as_ref()),
            None if workspace.is_fixed() => {
                let size = [x_ti.size2()?.0, self.weight_oi.size2()?.0];
                let out_to = workspace.empty(&size, (x_ti.kind(), x_ti.device()))?;
                let mut out_to = x_ti.f_mm_out(&out_to, &self.weight_oi.f_tr()?)?;
                // A product that adds a bias itself may take memory that a graph does not own.
                match &self.bias_o {
                    Some(bias_o) => Ok(out_to.f_add_(bias_o)?),
                    None => Ok(out_to),
                }
            }
            None => {
                let (fp8, scales) = self.fp8();
                train(x_ti, (&self.weight_oi, self.bias_o.as_ref()), fp8, &scales)
            }
        }
    }
}

/// `x_ti W_oi^T + b_o`, `[t, o]`, under autograd; in fp8 with the scales that [`Linear::fp8`] gave.
///
/// # Errors
/// The shapes do not fit.
pub fn train(
    x_ti: &Tensor,
    (weight_oi, bias_o): (&Tensor, Option<&Tensor>),
    fp8: Option<Mode>,
    scales: &[&Tensor],
) -> Result<Tensor> {
    let Some(mode) = fp8 else { return reference(x_ti, weight_oi, bias_o) };
    let out_to = fp8_linear::train(x_ti, weight_oi, mode, scales)?;
    match bias_o {
        Some(bias_o) => Ok(out_to.f_add(bias_o)?),
        None => Ok(out_to),
    }
}

/// `x_ti W_oi^T + b_o`, `[t, o]`.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(x_ti: &Tensor, weight_oi: &Tensor, bias_o: Option<&Tensor>) -> Result<Tensor> {
    Ok(x_ti.f_linear(weight_oi, bias_o)?)
}

/// The same without gradient, from a packed weight.
///
/// # Errors
/// The shapes do not fit.
pub fn serve(x_ti: &Tensor, packed: &PackedLinear, bias_o: Option<&Tensor>) -> Result<Tensor> {
    Ok(packed.forward(x_ti, bias_o)?)
}
