//! The Euclidean norm of gradients that ranks hold in shares.

use rayon::prelude::*;
use slime_comm::{Collectives, Op};
use slime_kernel::adamw;
use slime_torch::{Group, floats, global_norm};
use tch::{Device, Kind, Tensor};

use super::Gradients;
use super::share::BLOCK;
use super::state::own_range;
use crate::Result;

/// The norm over all elements of all ranks' shares, in f64, each element of a split model once. On a CPU and of a model that
/// is not split the squares of a block are summed by the rank that has
/// it and the sums of all blocks by every rank in the order of the elements, so the result does not depend on the number of
/// ranks or threads; on GPUs each rank sums its share.
///
/// # Errors
/// A failed collective.
pub(super) fn norm(grads: &Gradients) -> Result<f64> {
    if let Some(world) = grads.groups.world() {
        let mut square = [norm_of(&counted(grads)?)?.powi(2)];
        world.comm().all_reduce(&mut square, Op::Sum)?;
        return Ok(square[0].sqrt());
    }
    let Some(first) = grads.all.first() else { return Ok(0.0) };
    let (group, shares) = (grads.groups.of(&first.spec), grads.shares()?);
    if grads.device() != Device::Cpu {
        let mut square = [norm_of(&shares)?.powi(2)];
        group.comm().all_reduce(&mut square, Op::Sum)?;
        return Ok(square[0].sqrt());
    }
    let own = shares.iter().map(block_sums).collect::<Result<Vec<_>>>()?;
    let sums = in_order(group, grads, &own)?;
    Ok(sums.iter().sum::<f64>().sqrt())
}

/// The norm of tensors of one device.
fn norm_of(tensors: &[Tensor]) -> Result<f64> {
    if !tensors.is_empty() && tensors.iter().all(adamw::is_supported) {
        return Ok(adamw::global_norm(tensors).map_err(slime_model::Error::from)?);
    }
    Ok(global_norm(tensors)?)
}

/// The elements of this rank's shares that no other rank counts.
fn counted(grads: &Gradients) -> Result<Vec<Tensor>> {
    let mut own = Vec::new();
    for grad in &grads.all {
        let range = own_range(&grad.counts, grads.groups.of(&grad.spec).rank());
        for view in grad.spec.views.iter().filter(|view| grads.groups.is_first(&grad.spec, view)) {
            let of_view = grad.spec.range(view);
            let (start, end) = (range.start.max(of_view.start), range.end.min(of_view.end));
            if start < end {
                own.push(grad.flat_n.f_narrow(0, start as i64, (end - start) as i64)?);
            }
        }
    }
    Ok(own)
}

/// The sum of squares of every block of a flat tensor of the host, f32 or f64.
fn block_sums(share_n: &Tensor) -> Result<Vec<f64>> {
    if share_n.kind() == Kind::Double {
        let values = Vec::<f64>::try_from(share_n)?;
        return Ok(values.chunks(BLOCK).map(|block| block.iter().map(|x| x * x).sum()).collect());
    }
    Ok(floats(share_n)?.par_chunks(BLOCK).map(sum_of_squares).collect())
}

/// In eight lanes, so it vectorises; squares of f32 are exact in f64.
fn sum_of_squares(block: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    for values in block.chunks(8) {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    }
    lanes.iter().sum()
}

/// The sums of the blocks of all ranks, storage by storage in the order of the blocks.
fn in_order(group: &Group, grads: &Gradients, own: &[Vec<f64>]) -> Result<Vec<f64>> {
    if group.size() == 1 {
        return Ok(own.concat());
    }
    let num_blocks = |rank: usize| grads.all.iter().map(move |grad| grad.counts[rank].div_ceil(BLOCK));
    let counts: Vec<usize> = (0..group.size()).map(|rank| num_blocks(rank).sum()).collect();
    let mut gathered = vec![0.0; counts.iter().sum()];
    group.comm().all_gather_v(&own.concat(), &counts, &mut gathered)?;
    let mut rest: Vec<&[f64]> = Vec::with_capacity(counts.len());
    let mut behind = gathered.as_slice();
    for count in counts {
        let (of_rank, after) = behind.split_at(count);
        rest.push(of_rank);
        behind = after;
    }
    let mut ordered = Vec::with_capacity(gathered.len());
    for grad in &grads.all {
        for (of_rank, count) in rest.iter_mut().zip(&grad.counts) {
            let (sums, after) = of_rank.split_at(count.div_ceil(BLOCK));
            ordered.extend_from_slice(sums);
            *of_rank = after;
        }
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slime_comm::Threads;
    use slime_weights::StorageSpec;

    use super::*;
    use crate::gradient_groups::GradientGroups;
    use crate::optimizer::gradients::Gradient;
    use crate::optimizer::share::shares;

    #[test]
    fn norm_has_the_same_bits_on_any_number_of_ranks() {
        let lens = [3, 70_001, 1024, 5000];
        let values = |len: usize, seed: i64| {
            let at = Tensor::arange(len as i64, (Kind::Double, Device::Cpu)) + seed as f64;
            (at * 0.37).sin().to_kind(Kind::Float)
        };
        let of = |size: usize| {
            let ranks = Threads::spawn(size, |comm| {
                let group = Group::new(Arc::new(comm), Device::Cpu).unwrap();
                let groups = Arc::new(GradientGroups::unsplit(&group));
                let counts = shares(lens, size);
                let grad = |(at, counts): (usize, Vec<usize>)| {
                    let flat_n = values(lens[at], at as i64);
                    let spec = StorageSpec::single(at.to_string(), at.to_string(), &[lens[at]]);
                    Gradient { spec, size: vec![lens[at] as i64], counts, flat_n }
                };
                let all = counts.into_iter().enumerate().map(grad).collect();
                norm(&Gradients { groups, all }).unwrap()
            });
            let ranks = ranks.unwrap();
            assert!(ranks.iter().all(|norm| norm.to_bits() == ranks[0].to_bits()));
            ranks[0]
        };
        let all: Vec<Tensor> = lens.iter().enumerate().map(|(at, len)| values(*len, at as i64)).collect();
        let expected = global_norm(&all).unwrap();
        let one = of(1);
        assert!((one - expected).abs() < 1e-12 * expected, "{one} and {expected}");
        for size in 2..=5 {
            assert_eq!(of(size).to_bits(), one.to_bits(), "{size} ranks");
        }
    }
}
