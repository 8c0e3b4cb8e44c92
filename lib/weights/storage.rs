//! What memory really is: one contiguous buffer with an ordered list of named views; it knows no file and no device.

use crate::{Dtype, Error, Result, WeightDir, first_not_finite};

/// How the bytes of a view relate to the tensor of that name in a Hugging Face directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    /// The rows of the view are the rows of the tensor.
    Identity,
}

/// One Hugging Face tensor as a box of rows of its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewSpec {
    /// The Hugging Face name of the tensor.
    pub name: String,
    /// First row of the storage that belongs to the view (an element for one-dimensional storages).
    pub offset_rows: usize,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// How the tensor of the file becomes the rows of the view.
    pub transform: Transform,
}

/// One contiguous buffer of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageSpec {
    /// The name of the buffer inside the product, such as `layers.3.qkv`.
    pub name: String,
    /// Shape of the buffer; views divide its first dimension.
    pub shape: Vec<usize>,
    /// The views in the order of their rows, without gaps.
    pub views: Vec<ViewSpec>,
    /// The name and shape under which some directories hold the whole storage as one tensor, in place of the views.
    pub fused: Option<ViewSpec>,
    /// Whether it is never trained: it has no gradient and no state of an optimizer.
    pub is_frozen: bool,
    /// Whether it is kept in f32 whatever the type of the model is.
    pub is_f32: bool,
}

impl StorageSpec {
    /// A storage that is exactly one tensor.
    pub fn single(name: impl Into<String>, hf_name: impl Into<String>, shape: &[usize]) -> Self {
        Self::stacked(name, &[(hf_name.into(), shape[..1].iter().product())], &shape[1..])
    }

    /// A storage whose rows are the rows of several tensors; `parts` are (name, rows), `rest` the dimensions below.
    pub fn stacked(name: impl Into<String>, parts: &[(String, usize)], rest: &[usize]) -> Self {
        let shape_of = |rows: usize| std::iter::once(rows).chain(rest.iter().copied()).collect::<Vec<_>>();
        let mut offset_rows = 0;
        let views = parts
            .iter()
            .map(|(name, rows)| {
                let view = ViewSpec {
                    name: name.clone(),
                    offset_rows,
                    shape: shape_of(*rows),
                    transform: Transform::Identity,
                };
                offset_rows += rows;
                view
            })
            .collect();
        let shape = shape_of(offset_rows);
        Self { name: name.into(), shape, views, fused: None, is_frozen: false, is_f32: false }
    }

    /// The same, of which some directories hold all elements in this order as one tensor called `name`.
    #[must_use]
    pub fn fused_as(self, name: String, shape: &[usize]) -> Self {
        let fused = ViewSpec { name, offset_rows: 0, shape: shape.to_vec(), transform: Transform::Identity };
        Self { fused: Some(fused), ..self }
    }

    /// The tensors of `weights` that make up this storage, in order: the fused one where it is there in place of the
    /// views, else the views.
    pub fn views_in(&self, weights: &WeightDir) -> &[ViewSpec] {
        let is_there = |view: &ViewSpec| weights.info(&view.name).is_ok();
        match &self.fused {
            Some(fused) if is_there(fused) && !self.views.iter().any(is_there) => std::slice::from_ref(fused),
            _ => &self.views,
        }
    }

    /// Number of elements of the buffer.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of elements of one row of the buffer.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// The elements `start..end` of the flat buffer that `view` covers.
    pub fn range(&self, view: &ViewSpec) -> std::ops::Range<usize> {
        let start = view.offset_rows * self.row_len();
        start..start + view.shape.iter().product::<usize>()
    }

    /// The buffer of this storage in `dtype`, little-endian, filled from the tensors of `weights`.
    ///
    /// # Errors
    /// A tensor is absent, has another shape, is not of a floating dtype, or holds NaN or an infinity in `dtype`.
    pub fn read(&self, weights: &WeightDir, dtype: Dtype) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.num_elements() * dtype.num_bytes());
        for view in self.views_in(weights) {
            let tensor = weights.tensor(&view.name)?;
            if tensor.shape != view.shape {
                return Err(Error::Shape {
                    path: weights.path().to_owned(),
                    tensor: view.name.clone(),
                    expected: view.shape.clone(),
                    got: tensor.shape.to_vec(),
                });
            }
            let elements = match view.transform {
                Transform::Identity => tensor.cast(dtype)?,
            };
            if let Some(index) = first_not_finite(&elements, dtype) {
                let path = weights.path().to_owned();
                return Err(Error::NotFinite { path, tensor: view.name.clone(), index });
            }
            bytes.extend_from_slice(&elements);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_a_stacked_storage_follow_each_other() {
        let parts = [("q".to_owned(), 4), ("k".to_owned(), 2), ("v".to_owned(), 2)];
        let storage = StorageSpec::stacked("qkv", &parts, &[3]);
        assert_eq!((storage.shape.as_slice(), storage.num_elements()), ([8, 3].as_slice(), 24));
        let ranges: Vec<_> = storage.views.iter().map(|v| storage.range(v)).collect();
        assert_eq!(ranges, [0..12, 12..18, 18..24]);
    }

    #[test]
    fn single_vector_has_rows_of_one_element() {
        let storage = StorageSpec::single("final_norm", "model.norm.weight", &[5]);
        assert_eq!((storage.row_len(), storage.range(&storage.views[0])), (1, 0..5));
    }
}
