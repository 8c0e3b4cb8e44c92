//! What memory really is: one contiguous buffer with an ordered list of named views; it knows no file and no device.

use slime_config::TensorBox;

use crate::{Dtype, Error, Result, WeightDir, first_not_finite};

/// How the bytes of a view relate to the tensor of that name in a Hugging Face directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    /// The rows of the view are the rows of the tensor.
    Identity,
}

/// A box of one Hugging Face tensor as rows of its storage; of a model that is not split the whole tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewSpec {
    /// The Hugging Face name of the tensor.
    pub name: String,
    /// First row of the storage that belongs to the view (an element for one-dimensional storages).
    pub offset_rows: usize,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// What the view has of the tensor.
    pub part: TensorBox,
    /// Tensor-parallel ranks that follow each other and hold the same part; each sees its share of the tokens or heads, so
    /// the gradient is the sum of theirs.
    pub copies: usize,
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
    /// The views of one tensor as which some directories hold the whole storage, in place of the views above; or none.
    pub fused: Vec<ViewSpec>,
    /// Whether it belongs to experts: other ranks hold copies of it than of the rest of the model.
    pub is_expert: bool,
    /// Whether it is never trained: it has no gradient and no state of an optimizer.
    pub is_frozen: bool,
    /// Whether it is kept in f32 whatever the type of the model is.
    pub is_f32: bool,
}

impl ViewSpec {
    /// All of a tensor of `shape`, from row `offset_rows` of its storage on.
    pub fn whole(name: String, offset_rows: usize, shape: &[usize]) -> Self {
        let (part, transform) = (TensorBox::whole(shape), Transform::Identity);
        Self { name, offset_rows, shape: shape.to_vec(), part, copies: 1, transform }
    }

    /// The number in the whole tensor of element `index` of the part.
    fn index_in_tensor(&self, index: usize) -> usize {
        let runs = self.part.runs(&TensorBox::whole(&self.shape));
        let run = runs.iter().find(|run| (run.from..run.from + run.len).contains(&index));
        run.map_or(index, |run| run.to + index - run.from)
    }
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
                let view = ViewSpec::whole(name.clone(), offset_rows, &shape_of(*rows));
                offset_rows += rows;
                view
            })
            .collect();
        let (name, shape) = (name.into(), shape_of(offset_rows));
        Self { name, shape, views, fused: vec![], is_expert: false, is_frozen: false, is_f32: false }
    }

    /// The same, of which some directories hold all elements in this order as one tensor called `name`.
    #[must_use]
    pub fn fused_as(self, name: String, shape: &[usize]) -> Self {
        Self { fused: vec![ViewSpec::whole(name, 0, shape)], ..self }
    }

    /// The tensors of `weights` that make up this storage, in order: the fused one where it is there in place of the
    /// views, else the views.
    pub fn views_in(&self, weights: &WeightDir) -> &[ViewSpec] {
        let is_there = |view: &ViewSpec| weights.info(&view.name).is_ok();
        match self.fused.first() {
            Some(fused) if is_there(fused) && !self.views.iter().any(is_there) => &self.fused,
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
        start..start + view.part.num_elements()
    }

    /// Rows of the buffer that `view` covers.
    pub fn num_rows(&self, view: &ViewSpec) -> usize {
        view.part.num_elements() / self.row_len().max(1)
    }

    /// The buffer of this storage in `dtype`, little-endian, filled from the tensors of `weights`.
    ///
    /// # Errors
    /// A tensor is absent, has another shape, is not of a floating dtype, or holds NaN or an infinity in `dtype`.
    pub fn read(&self, weights: &WeightDir, dtype: Dtype) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.num_elements() * dtype.num_bytes()];
        self.read_into(weights, dtype, &mut bytes)?;
        Ok(bytes)
    }

    /// The same in `buffer`, which has room for just that.
    ///
    /// # Errors
    /// As [`Self::read`], and a buffer of another size; part of it is overwritten then.
    pub fn read_into(&self, weights: &WeightDir, dtype: Dtype, buffer: &mut [u8]) -> Result<()> {
        let expected = self.num_elements() * dtype.num_bytes();
        if buffer.len() != expected {
            let (expected, got) = (format!("{expected} bytes"), format!("{} bytes", buffer.len()));
            return Err(Error::Dtype { tensor: self.name.clone(), expected, got });
        }
        let mut rest = buffer;
        for view in self.views_in(weights) {
            let got = &weights.info(&view.name)?.shape;
            if *got != view.shape {
                return Err(Error::Shape {
                    path: weights.path().to_owned(),
                    tensor: view.name.clone(),
                    expected: view.shape.clone(),
                    got: got.clone(),
                });
            }
            let elements = match view.transform {
                Transform::Identity => weights.part(&view.name, &view.part, dtype)?,
            };
            if let Some(index) = first_not_finite(&elements, dtype) {
                let (path, index) = (weights.path().to_owned(), view.index_in_tensor(index));
                return Err(Error::NotFinite { path, tensor: view.name.clone(), index });
            }
            let (of_view, after) = rest.split_at_mut(elements.len());
            of_view.copy_from_slice(&elements);
            rest = after;
        }
        Ok(())
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
