//! What a low-rank adapter adds to a product: `s (x A^T) B^T` (Hu et al., arXiv 2106.09685). Suffixes: t tokens, i inputs, o
//! outputs, r rank.

use tch::Tensor;

use crate::{Error, Result};

/// Which outputs of a product an adapter adds to, and how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outputs {
    /// The first of them.
    pub start: i64,
    /// How many.
    pub len: i64,
    /// `s`.
    pub scale: f64,
}

/// The adapter of some outputs of a product.
#[derive(Debug)]
pub struct Adapter {
    outputs: Outputs,
    a_ri: Tensor,
    b_or: Tensor,
}

impl Adapter {
    /// Of `outputs`; both matrices stay shared with their owner.
    pub fn new(outputs: Outputs, a_ri: Tensor, b_or: Tensor) -> Self {
        Self { outputs, a_ri, b_or }
    }

    /// What it adds to.
    pub fn outputs(&self) -> Outputs {
        self.outputs
    }

    /// `A` and `B`.
    pub fn matrices(&self) -> [&Tensor; 2] {
        [&self.a_ri, &self.b_or]
    }
}

/// `out_to` with what the adapters of `outputs` add, whose matrices are `A`, `B`, `A`, `B` and so on; under autograd.
///
/// # Errors
/// The shapes do not fit.
pub fn add(out_to: Tensor, x_ti: &Tensor, outputs: &[Outputs], matrices: &[&Tensor]) -> Result<Tensor> {
    let (pairs, rest) = matrices.as_chunks::<2>();
    if pairs.len() != outputs.len() || !rest.is_empty() {
        let (what, expected, got) = ("matrices of adapters", 2 * outputs.len(), matrices.len());
        return Err(Error::Context { what, expected, got });
    }
    for (Outputs { start, len, scale }, [a_ri, b_or]) in outputs.iter().zip(pairs) {
        let down_tr = x_ti.f_linear(a_ri, None::<&Tensor>)?.f_mul_scalar(*scale)?;
        let delta_to = down_tr.f_linear(b_or, None::<&Tensor>)?;
        // Into the product's own memory, which its backward pass does not read.
        let _ = out_to.f_narrow(1, *start, *len)?.f_add_(&delta_to)?;
    }
    Ok(out_to)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn wave(size: [i64; 2], step: f64) -> Tensor {
        (Tensor::arange(size[0] * size[1], (Kind::Double, Device::Cpu)) * step).sin().view(size)
    }

    /// The second and third of five outputs, and the last.
    const OUTPUTS: [Outputs; 2] =
        [Outputs { start: 1, len: 2, scale: 0.5 }, Outputs { start: 4, len: 1, scale: 2.0 }];

    #[test]
    fn product_and_gradients_are_those_of_the_merged_matrix() {
        let leaves = || {
            let sizes = [[3, 4], [2, 4], [2, 2], [2, 4], [1, 2]];
            let leaf = |(at, size): (usize, [i64; 2])| wave(size, 0.7 + at as f64).set_requires_grad(true);
            sizes.into_iter().enumerate().map(leaf).collect::<Vec<_>>()
        };
        let weight = wave([5, 4], 1.3);
        let of = |is_merged: bool| {
            let leaves = leaves();
            let [x, a, b, c, d] = leaves.as_slice() else { unreachable!() };
            let out = if is_merged {
                let zeros = |rows| Tensor::zeros([rows, 4], (Kind::Double, Device::Cpu));
                let delta = Tensor::cat(&[zeros(1), b.matmul(a) * 0.5, zeros(1), d.matmul(c) * 2.0], 0);
                x.linear(&(&weight + delta), None::<&Tensor>)
            } else {
                add(x.linear(&weight, None::<&Tensor>), x, &OUTPUTS, &[a, b, c, d]).unwrap()
            };
            (&out * wave([3, 5], 2.1)).sum(None).backward();
            let grads = leaves.iter().map(Tensor::grad);
            std::iter::once(out.detach()).chain(grads).collect::<Vec<_>>()
        };
        for (at, (got, expected)) in of(false).iter().zip(of(true)).enumerate() {
            let diff = (got - expected).abs().max().double_value(&[]);
            assert!(diff < 1e-12, "{at} differs by {diff}");
        }
    }

    #[test]
    fn product_without_a_gradient_of_its_own_gets_that_of_its_adapter() {
        let x = wave([3, 4], 0.3);
        let b = wave([2, 2], 0.9).set_requires_grad(true);
        let out = x.linear(&wave([5, 4], 1.3), None::<&Tensor>);
        let out = add(out, &x, &OUTPUTS[..1], &[&wave([2, 4], 0.2), &b]).unwrap();
        out.sum(None).backward();
        assert!(b.grad().abs().min().double_value(&[]) > 0.0);
    }
}
