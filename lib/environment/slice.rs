//! `path@[a:b]`: a part of a file's rows, as Python slices it.

use crate::{Error, Result};
use std::ops::Range;

/// The bounds of a slice; negative ones count from the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slice {
    /// The first row.
    pub start: Option<i64>,
    /// The row after the last.
    pub end: Option<i64>,
}

impl Slice {
    /// The rows it means in a file of `len`; empty when it lies outside.
    pub fn range(self, len: usize) -> Range<usize> {
        let place = |bound: i64| {
            let from_end = if bound < 0 { bound.saturating_add(len as i64) } else { bound };
            from_end.clamp(0, len as i64) as usize
        };
        let start = self.start.map_or(0, place);
        start..self.end.map_or(len, place).max(start)
    }
}

/// Splits a path from its slice.
///
/// # Errors
/// [`Error::Slice`] when what follows `@[` is no slice.
pub fn split_spec(spec: &str) -> Result<(&str, Slice)> {
    let Some((path, slice)) = spec.strip_suffix(']').and_then(|rest| rest.rsplit_once("@[")) else {
        return Ok((spec, Slice::default()));
    };
    let wrong = || Error::Slice { spec: spec.to_owned() };
    let (start, end) = slice.split_once(':').ok_or_else(wrong)?;
    let bound = |text: &str| match text.trim() {
        "" => Ok(None),
        number => number.parse().map(Some).map_err(|_| wrong()),
    };
    Ok((path, Slice { start: bound(start)?, end: bound(end)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_mean_what_python_means() {
        for (spec, range) in [
            ("p", 0..10),
            ("p@[2:5]", 2..5),
            ("p@[:3]", 0..3),
            ("p@[7:]", 7..10),
            ("p@[-2:]", 8..10),
            ("p@[:-4]", 0..6),
            ("p@[5:99]", 5..10),
            ("p@[8:3]", 8..8),
        ] {
            let (path, slice) = split_spec(spec).unwrap();
            assert_eq!((path, slice.range(10)), ("p", range), "{spec}");
        }
    }

    #[test]
    fn what_is_no_slice_is_refused() {
        for spec in ["p@[3]", "p@[a:b]", "p@[1:2:3]"] {
            assert_eq!(split_spec(spec).unwrap_err().exit_code(), 78, "{spec}");
        }
        assert_eq!(split_spec("odd]name").unwrap().0, "odd]name");
    }
}
