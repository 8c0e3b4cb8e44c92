//! Parts of tensors: a range of the elements of a box, which is what a rank that shares its state holds of a tensor.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::TensorBox;
use crate::tensor_box::Run;

/// Elements of a named tensor that lie side by side in a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorPart {
    /// The tensor.
    pub tensor: String,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// The box that the elements are taken from.
    pub bounds: TensorBox,
    /// Which of the box's elements, row-major.
    pub range: Range<usize>,
}

impl TensorPart {
    /// The whole tensor.
    pub fn whole(tensor: impl Into<String>, shape: &[usize]) -> Self {
        let bounds = TensorBox::whole(shape);
        let range = 0..bounds.num_elements();
        Self { tensor: tensor.into(), shape: shape.to_vec(), bounds, range }
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The longest runs of what two parts of one tensor share: `from` in a buffer that holds this part, `to` in one that
    /// holds `other`; by rising `from`.
    pub fn runs(&self, other: &Self) -> Vec<Run> {
        let cut = |run: Run| {
            let start = run.from.max(self.range.start);
            let start = start.max((run.from + other.range.start).saturating_sub(run.to));
            let end = (run.from + run.len).min(self.range.end);
            let end = end.min((run.from + other.range.end).saturating_sub(run.to));
            (start < end).then(|| Run {
                from: start - self.range.start,
                to: start - run.from + run.to - other.range.start,
                len: end - start,
            })
        };
        self.bounds.runs(&other.bounds).into_iter().filter_map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_layouts_move_every_element_to_its_place() {
        let shape = [5, 6];
        let whole = TensorBox::whole(&shape);
        let boxes = [vec![whole.clone()], vec![whole.narrow(1, 0..2), whole.narrow(1, 2..6)]];
        let layouts: Vec<Vec<TensorPart>> = (1..=4)
            .flat_map(|cuts| {
                boxes.iter().map(move |boxes| {
                    let of_box = |bounds: &TensorBox| {
                        let len = bounds.num_elements();
                        let bounds = bounds.clone();
                        (0..cuts).map(move |i| TensorPart {
                            tensor: "t".into(),
                            shape: shape.to_vec(),
                            bounds: bounds.clone(),
                            range: len * i / cuts..len * (i + 1) / cuts,
                        })
                    };
                    boxes.iter().flat_map(of_box).collect()
                })
            })
            .collect();
        let all: Vec<usize> = (0..30).collect();
        let tensor = TensorPart::whole("t", &shape);
        let copy = |from: &TensorPart, source: &[usize], to: &TensorPart, target: &mut [usize]| {
            for run in from.runs(to) {
                target[run.to..run.to + run.len].copy_from_slice(&source[run.from..run.from + run.len]);
            }
        };
        for saved in &layouts {
            let files: Vec<Vec<usize>> = saved
                .iter()
                .map(|part| {
                    let mut values = vec![99; part.len()];
                    copy(&tensor, &all, part, &mut values);
                    values
                })
                .collect();
            for wanted in layouts.iter().flatten() {
                let (mut expected, mut got) = (vec![99; wanted.len()], vec![98; wanted.len()]);
                copy(&tensor, &all, wanted, &mut expected);
                for (part, values) in saved.iter().zip(&files) {
                    copy(part, values, wanted, &mut got);
                }
                assert_eq!(got, expected, "{wanted:?}");
                assert!(!expected.contains(&99));
            }
        }
    }
}
