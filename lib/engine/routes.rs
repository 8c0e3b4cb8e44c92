//! The experts that a sequence's tokens went to while it was generated.

/// Stands in rows of tokens that were not computed under the recording (`Sample::routed_experts`).
const NOT_RECORDED: u16 = u16::MAX;

/// One row of `width` experts for each token, from the first on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RouteRows {
    ids: Vec<u16>,
    width: usize,
}

impl RouteRows {
    /// Keeps the rows of the tokens from `start` on; what was computed again counts as computed last.
    pub fn keep(&mut self, start: usize, rows: &[u16], width: usize) {
        self.width = width;
        let (begin, end) = (start * width, start * width + rows.len());
        if self.ids.len() < end {
            self.ids.resize(end, NOT_RECORDED);
        }
        self.ids[begin..end].copy_from_slice(rows);
    }

    /// The rows of the first `len` tokens, for a sequence that shares them.
    pub fn first(&self, len: usize) -> Self {
        let end = (len * self.width).min(self.ids.len());
        Self { ids: self.ids[..end].to_vec(), width: self.width }
    }

    /// Exactly `len` rows; none at all where no row was ever kept.
    pub fn into_ids(mut self, len: usize) -> Vec<u16> {
        self.ids.resize(len * self.width, NOT_RECORDED);
        self.ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_replaced_filled_and_cut() {
        let mut rows = RouteRows::default();
        rows.keep(1, &[1, 2, 3, 4], 2);
        rows.keep(2, &[5, 6, 7, 8], 2);
        assert_eq!(rows.first(2).into_ids(3), [65535, 65535, 1, 2, 65535, 65535]);
        assert_eq!(rows.into_ids(3), [65535, 65535, 1, 2, 5, 6]);
        assert_eq!(RouteRows::default().into_ids(5), [0u16; 0]);
    }
}
