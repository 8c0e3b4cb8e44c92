//! Collectives over rows under autograd: each with the one that takes its gradients back. Every rank of the group makes the
//! same calls in the same order, forward and backward, also with no rows of its own.

use slime_comm::Op;
use tch::Tensor;

use crate::custom_function::{CustomFunction, Forward, custom_function};
use crate::error::{Error, Result};
use crate::group::Group;

type Text<T> = std::result::Result<T, String>;

/// What readers of gathered rows do with them, which decides about gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Every rank computes a part of what follows: gradients of a row are summed over the ranks.
    Part,
    /// Every rank computes all of what follows: each has the whole gradient, and keeps that of its rows.
    Same,
}

/// All ranks' rows `x` in rank order, `counts[r]` of rank r.
///
/// # Errors
/// A failed collective.
pub fn gather_rows(x: &Tensor, group: &Group, counts: Vec<usize>, readers: Readers) -> Result<Tensor> {
    only(custom_function(&[x], Gather { group: group.clone(), counts, readers })?)
}

/// This rank's rows, `counts[rank]` of them, of the sum of all ranks' `x`.
///
/// # Errors
/// A failed collective.
pub fn sum_and_scatter_rows(x: &Tensor, group: &Group, counts: Vec<usize>) -> Result<Tensor> {
    only(custom_function(&[x], Scatter { group: group.clone(), counts })?)
}

/// The rows that other ranks send to this one: `sent[r]` rows of `x` go to rank r, `received[r]` come from there.
///
/// # Errors
/// A failed collective.
pub fn exchange_rows(x: &Tensor, group: &Group, sent: Vec<usize>, received: Vec<usize>) -> Result<Tensor> {
    only(custom_function(&[x], Exchange { group: group.clone(), sent, received })?)
}

/// The sum of all ranks' `x` on every rank, where each computes a part of what follows.
///
/// # Errors
/// A failed collective.
pub fn sum_over_ranks(x: &Tensor, group: &Group) -> Result<Tensor> {
    only(custom_function(&[x], Sum { group: group.clone() })?)
}

fn only(outputs: Vec<Tensor>) -> Result<Tensor> {
    let mut outputs = outputs;
    let missing = || Error::Torch { operation: "rows of a group", message: "no result".to_owned() };
    outputs.pop().ok_or_else(missing)
}

/// The collective applied to the only input.
fn forward(inputs: &[Tensor], apply: impl FnOnce(&Tensor) -> Result<Tensor>) -> Text<Forward> {
    let [x] = inputs else { return Err("a collective takes one tensor".to_owned()) };
    let output = apply(x).map_err(|error| error.to_string())?;
    Ok(Forward { outputs: vec![output], saved: vec![] })
}

/// The collective applied to the gradient.
fn backward(
    grads: &[Option<Tensor>],
    apply: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Text<Vec<Option<Tensor>>> {
    let [Some(grad)] = grads else { return Ok(vec![None]) };
    Ok(vec![Some(apply(grad).map_err(|error| error.to_string())?)])
}

struct Gather {
    group: Group,
    counts: Vec<usize>,
    readers: Readers,
}

impl CustomFunction for Gather {
    fn forward(&self, inputs: &[Tensor]) -> Text<Forward> {
        forward(inputs, |x| self.group.gather_rows(x, &self.counts))
    }

    fn backward(&self, _: &[Tensor], grads: &[Option<Tensor>]) -> Text<Vec<Option<Tensor>>> {
        let rank = self.group.rank();
        let start: usize = self.counts[..rank].iter().sum();
        backward(grads, |grad| match self.readers {
            Readers::Part => self.group.reduce_scatter_rows(grad, &self.counts),
            Readers::Same => grad
                .f_narrow(0, start as i64, self.counts[rank] as i64)
                .map_err(|error| Error::Torch { operation: "rows of a group", message: error.to_string() }),
        })
    }
}

struct Scatter {
    group: Group,
    counts: Vec<usize>,
}

impl CustomFunction for Scatter {
    fn forward(&self, inputs: &[Tensor]) -> Text<Forward> {
        forward(inputs, |x| self.group.reduce_scatter_rows(x, &self.counts))
    }

    fn backward(&self, _: &[Tensor], grads: &[Option<Tensor>]) -> Text<Vec<Option<Tensor>>> {
        backward(grads, |grad| self.group.gather_rows(grad, &self.counts))
    }
}

struct Exchange {
    group: Group,
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl CustomFunction for Exchange {
    fn forward(&self, inputs: &[Tensor]) -> Text<Forward> {
        forward(inputs, |x| self.group.exchange_rows(x, &self.sent, &self.received))
    }

    fn backward(&self, _: &[Tensor], grads: &[Option<Tensor>]) -> Text<Vec<Option<Tensor>>> {
        backward(grads, |grad| self.group.exchange_rows(grad, &self.received, &self.sent))
    }
}

struct Sum {
    group: Group,
}

impl Sum {
    fn of(&self, x: &Tensor) -> Result<Tensor> {
        let torch =
            |error: tch::TchError| Error::Torch { operation: "sum over ranks", message: error.to_string() };
        let mut sum = x.f_detach_copy().and_then(|x| x.f_contiguous()).map_err(torch)?;
        self.group.all_reduce(&mut sum, Op::Sum).map(|()| sum)
    }
}

impl CustomFunction for Sum {
    fn forward(&self, inputs: &[Tensor]) -> Text<Forward> {
        forward(inputs, |x| self.of(x))
    }

    fn backward(&self, _: &[Tensor], grads: &[Option<Tensor>]) -> Text<Vec<Option<Tensor>>> {
        backward(grads, |grad| self.of(grad))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slime_comm::Threads;
    use tch::{Device, Kind};

    use super::*;

    fn wave(rows: usize, seed: f64) -> Tensor {
        let size = [rows as i64, 3];
        (Tensor::arange(size[0] * 3, (Kind::Double, Device::Cpu)) * 12.9898 + seed).sin().view(size)
    }

    /// On every rank `<grad_out, f(x)>` and `<grad_in, x>` of `f`, summed over the ranks: they are equal where the backward
    /// of the linear `f` is its adjoint.
    fn is_adjoint(
        counts: &[usize],
        in_rows: impl Fn(usize) -> usize + Sync,
        f: impl Fn(&Tensor, &Group) -> Tensor + Sync,
    ) {
        let sums = Threads::spawn(counts.len(), |comm| {
            let group = Group::new(Arc::new(comm), Device::Cpu).unwrap();
            let x = wave(in_rows(group.rank()), group.rank() as f64).set_requires_grad(true);
            let out = f(&x, &group);
            let slope = wave(out.size()[0] as usize, 0.5 + group.rank() as f64);
            let value = (&out * slope).sum(Kind::Double);
            value.backward();
            [value.double_value(&[]), (x.grad() * &x).sum(Kind::Double).double_value(&[])]
        })
        .unwrap();
        let total = |at: usize| sums.iter().map(|sums| sums[at]).sum::<f64>();
        assert!((total(0) - total(1)).abs() < 1e-12, "{counts:?}: {} and {}", total(0), total(1));
    }

    #[test]
    fn backward_is_the_adjoint_also_on_ranks_without_rows() {
        for counts in [vec![2], vec![2, 1], vec![1, 0, 4]] {
            let (all, own): (usize, &Vec<usize>) = (counts.iter().sum(), &counts);
            is_adjoint(
                own,
                |rank| own[rank],
                |x, group| gather_rows(x, group, own.clone(), Readers::Part).unwrap(),
            );
            is_adjoint(own, |_| all, |x, group| sum_and_scatter_rows(x, group, own.clone()).unwrap());
            is_adjoint(own, |_| all, |x, group| sum_over_ranks(x, group).unwrap());
            is_adjoint(
                own,
                |_| all,
                |x, group| {
                    let received = vec![own[group.rank()]; own.len()];
                    exchange_rows(x, group, own.clone(), received).unwrap()
                },
            );
        }
    }

    #[test]
    fn rows_come_in_rank_order_in_every_kind() {
        for kind in [Kind::Float, Kind::Double, Kind::BFloat16] {
            let counts = [2, 0, 1];
            let ranks = Threads::spawn(3, |comm| {
                let group = Group::new(Arc::new(comm), Device::Cpu).unwrap();
                let whole = wave(3, 0.0).to_kind(kind);
                let start: usize = counts[..group.rank()].iter().sum();
                let own = whole.narrow(0, start as i64, counts[group.rank()] as i64);
                let gathered = group.gather_rows(&own, &counts).unwrap();
                let thirds = group.reduce_scatter_rows(&whole, &counts).unwrap();
                let mut sum = whole.copy();
                group.all_reduce(&mut sum, Op::Sum).unwrap();
                let close = |a: &Tensor, b: &Tensor| a.allclose(b, 1e-2, 1e-6, false);
                gathered.equal(&whole) && close(&thirds, &(own * 3)) && close(&sum, &(whole * 3))
            })
            .unwrap();
            assert_eq!(ranks, [true; 3], "{kind:?}");
        }
    }

    #[test]
    fn rows_that_all_ranks_read_alike_keep_their_own_gradient() {
        let grads = Threads::spawn(2, |comm| {
            let group = Group::new(Arc::new(comm), Device::Cpu).unwrap();
            let x = wave(1, 0.0).set_requires_grad(true);
            let all = gather_rows(&x, &group, vec![1, 1], Readers::Same).unwrap();
            (all * Tensor::from_slice(&[2.0, 3.0]).view([2, 1])).sum(Kind::Double).backward();
            Vec::<f64>::try_from(x.grad().view([-1])).unwrap()
        })
        .unwrap();
        assert_eq!(grads, [[2.0; 3], [3.0; 3]]);
    }
}
