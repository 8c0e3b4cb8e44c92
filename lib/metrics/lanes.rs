//! Rows of a trace for spans that overlap: each takes the lowest free one.

/// Which rows are taken.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    /// The end of the last span of each row, in microseconds.
    ends: Vec<u64>,
}

impl Lanes {
    /// The lowest row without a span between `begin_us` and `end_us`, which it takes; spans come in the order of their
    /// ends, so a row whose last one ended before the begin is free.
    pub fn take(&mut self, begin_us: u64, end_us: u64) -> u64 {
        let free = self.ends.iter().position(|end| *end <= begin_us).unwrap_or(self.ends.len());
        if free == self.ends.len() {
            self.ends.push(0);
        }
        self.ends[free] = end_us;
        free as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_overlap_lie_in_different_rows() {
        let mut lanes = Lanes::default();
        assert_eq!([lanes.take(0, 5), lanes.take(2, 6), lanes.take(5, 9), lanes.take(7, 9)], [0, 1, 0, 1]);
    }
}
