//! Boxes of tensors: what a rank holds, sends or saves of a global tensor.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A box of a row-major tensor: along every dimension a start and a length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorBox {
    /// The first index along every dimension.
    pub start: Vec<usize>,
    /// How many indices along every dimension.
    pub shape: Vec<usize>,
}

/// Elements that lie side by side in two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first element in the one buffer.
    pub from: usize,
    /// The first element in the other.
    pub to: usize,
    /// How many.
    pub len: usize,
}

impl TensorBox {
    /// The whole tensor.
    pub fn whole(shape: &[usize]) -> Self {
        Self { start: vec![0; shape.len()], shape: shape.to_vec() }
    }

    /// The same box, cut down to `range` of its own indices along `dim`.
    #[must_use]
    pub fn narrow(&self, dim: usize, range: Range<usize>) -> Self {
        let mut part = self.clone();
        part.start[dim] += range.start;
        part.shape[dim] = range.len();
        part
    }

    /// Elements of the box.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// What both boxes of one tensor cover; nothing where they do not meet.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let ends = |of: &Self, dim: usize| of.start[dim] + of.shape[dim];
        let mut both = self.clone();
        for dim in 0..self.start.len() {
            let start = self.start[dim].max(other.start[dim]);
            let end = ends(self, dim).min(ends(other, dim));
            if start >= end {
                return None;
            }
            (both.start[dim], both.shape[dim]) = (start, end - start);
        }
        Some(both)
    }

    /// The longest runs of what two boxes of one tensor share: `from` in a buffer that holds this box, `to` in one that
    /// holds `other`, both row-major; in the order of the tensor's elements.
    pub fn runs(&self, other: &Self) -> Vec<Run> {
        let Some(both) = self.intersect(other) else { return Vec::new() };
        let num_dims = both.shape.len();
        // Dimensions from `inner` on are whole in both buffers, so they and the one before them are one run.
        let is_whole = |dim: usize| both.shape[dim] == self.shape[dim] && both.shape[dim] == other.shape[dim];
        let inner = (0..num_dims).rev().find(|dim| !is_whole(*dim)).unwrap_or(0);
        let len = both.shape[inner.min(num_dims)..].iter().product();
        let mut runs = Vec::new();
        let mut at = both.start.clone();
        loop {
            runs.push(Run { from: self.offset(&at), to: other.offset(&at), len });
            let Some(dim) = (0..inner).rev().find(|dim| at[*dim] + 1 < both.start[*dim] + both.shape[*dim])
            else {
                return runs;
            };
            at[dim] += 1;
            at[dim + 1..inner].copy_from_slice(&both.start[dim + 1..inner]);
        }
    }

    /// The place of the element `at` of the tensor in a buffer that holds this box.
    fn offset(&self, at: &[usize]) -> usize {
        let places = at.iter().zip(&self.start).zip(&self.shape);
        places.fold(0, |offset, ((at, start), len)| offset * len + at - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(start: &[usize], shape: &[usize]) -> TensorBox {
        TensorBox { start: start.to_vec(), shape: shape.to_vec() }
    }

    #[test]
    fn runs_move_every_shared_element_once_and_to_its_place() {
        let tensor = [4, 3, 5];
        let value = |at: [usize; 3]| (at[0] * 3 + at[1]) * 5 + at[2];
        let fill = |of: &TensorBox| {
            let mut buffer = Vec::new();
            for i in 0..of.shape[0] {
                for j in 0..of.shape[1] {
                    for k in 0..of.shape[2] {
                        buffer.push(value([of.start[0] + i, of.start[1] + j, of.start[2] + k]));
                    }
                }
            }
            buffer
        };
        let whole = TensorBox::whole(&tensor);
        let boxes = [
            whole.clone(),
            whole.narrow(0, 1..3),
            whole.narrow(1, 1..3),
            whole.narrow(2, 2..5),
            boxed(&[1, 0, 1], &[3, 2, 3]),
            boxed(&[0, 2, 4], &[1, 1, 1]),
            whole.narrow(0, 0..2).narrow(1, 0..1),
        ];
        for from in &boxes {
            for to in &boxes {
                let (source, mut target) = (fill(from), vec![usize::MAX; to.num_elements()]);
                let runs = from.runs(to);
                for run in &runs {
                    for i in 0..run.len {
                        assert_eq!(target[run.to + i], usize::MAX, "written twice");
                        target[run.to + i] = source[run.from + i];
                    }
                }
                let shared = from.intersect(to);
                for (got, want) in target.iter().zip(fill(to)) {
                    let at = [want / 15, want / 5 % 3, want % 5];
                    let is_shared = shared.as_ref().is_some_and(|shared| {
                        (0..3).all(|d| (shared.start[d]..shared.start[d] + shared.shape[d]).contains(&at[d]))
                    });
                    assert_eq!(*got, if is_shared { want } else { usize::MAX });
                }
            }
        }
    }

    #[test]
    fn whole_boxes_are_one_run_and_vectors_too() {
        let whole = TensorBox::whole(&[4, 6]);
        assert_eq!(whole.runs(&whole), [Run { from: 0, to: 0, len: 24 }]);
        assert_eq!(whole.narrow(0, 1..3).runs(&whole), [Run { from: 0, to: 6, len: 12 }]);
        assert_eq!(whole.narrow(1, 3..6).runs(&whole).len(), 4);
        assert_eq!(TensorBox::whole(&[]).runs(&TensorBox::whole(&[])), [Run { from: 0, to: 0, len: 1 }]);
        let vector = TensorBox::whole(&[7]);
        assert_eq!(vector.narrow(0, 2..5).runs(&vector.narrow(0, 4..7)), [Run { from: 2, to: 0, len: 1 }]);
        assert!(vector.narrow(0, 0..2).runs(&vector.narrow(0, 2..4)).is_empty());
    }
}
