//! Medians and paired ratios. Nothing here knows what was measured.

/// The middle and the ends of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Spread {
    /// Half of the values are not above it.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// Of a series; `None` if it is empty. Of an even number of values the median is the mean of the middle two.
    ///
    /// ```
    /// use segchain_throughput::stats::Spread;
    /// let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
    /// assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
    /// ```
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), min, max })
    }

    /// Of the ratios of two series, round by round: what disturbed both methods of a round falls out.
    pub fn of_ratios(values: &[f64], baseline: &[f64]) -> Option<Self> {
        Self::of(values.iter().zip(baseline).map(|(value, base)| value / base))
    }

    /// Of the inverses: the ratio seen from the other method.
    ///
    /// ```
    /// use segchain_throughput::stats::Spread;
    /// let spread = Spread::of([2.0, 4.0, 5.0]).unwrap().inverse();
    /// assert_eq!((spread.median, spread.min, spread.max), (0.25, 0.2, 0.5));
    /// ```
    #[must_use]
    pub fn inverse(self) -> Self {
        Self { median: 1.0 / self.median, min: 1.0 / self.max, max: 1.0 / self.min }
    }

    /// Of the values times a positive number: another unit.
    #[must_use]
    pub fn times(self, by: f64) -> Self {
        Self { median: self.median * by, min: self.min * by, max: self.max * by }
    }

    /// One exact number.
    pub fn exact(value: f64) -> Self {
        Self { median: value, min: value, max: value }
    }
}
