//! Long series in few buckets, each with its smallest, mean and largest value.

/// What one bucket says of its points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// The first position in it.
    pub first: f64,
    /// The middle between its first and last position.
    pub at: f64,
    /// The smallest value.
    pub low: f64,
    /// The mean value.
    pub mean: f64,
    /// The largest value.
    pub high: f64,
}

/// At most `num` buckets of as many points each; what is not finite is left out.
pub fn downsample(points: &[(f64, f64)], num: usize) -> Vec<Bucket> {
    let points: Vec<(f64, f64)> = points.iter().copied().filter(|(_, value)| value.is_finite()).collect();
    let num = num.min(points.len());
    let bucket = |at: usize| {
        let part = &points[at * points.len() / num..(at + 1) * points.len() / num];
        let values = part.iter().map(|(_, value)| *value);
        let (first, last) = (part[0].0, part[part.len() - 1].0);
        Bucket {
            first,
            at: f64::midpoint(first, last),
            low: values.clone().fold(f64::INFINITY, f64::min),
            mean: values.clone().sum::<f64>() / part.len() as f64,
            high: values.fold(f64::NEG_INFINITY, f64::max),
        }
    };
    (0..num).map(bucket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_keep_extremes_and_mean() {
        let points: Vec<(f64, f64)> = (0..1000).map(|i| (f64::from(i), f64::from(i % 10))).collect();
        let buckets = downsample(&points, 100);
        assert_eq!(buckets.len(), 100);
        assert!(buckets.iter().all(|b| (b.low, b.mean, b.high) == (0.0, 4.5, 9.0)));
        assert_eq!((buckets[1].first, buckets[1].at), (10.0, 14.5));
        let few = downsample(&[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)], 100);
        assert_eq!(few.iter().map(|b| (b.at, b.mean)).collect::<Vec<_>>(), [(0.0, 1.0), (2.0, 3.0)]);
        assert!(downsample(&[], 5).is_empty());
    }
}
