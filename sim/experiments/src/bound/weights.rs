//! Weights of energy over time, such as the grid's carbon intensity over its mean, and prices of a joule.
//!
//! Optimal options depend on a bucket's weight. To compute them once for many buckets, buckets of
//! similar weight are grouped and get the least weight of the group: a number of groups by rank, and
//! more where weights of a group would differ too much. Rounding weights down makes a bound looser
//! but keeps it valid.

use super::BoundError;

/// Number of groups by rank, and largest ratio of weights within a group.
type Resolution = (usize, f64);
/// Of weights. For weights that vary by half, the mean rounding error is below 2 % (tested below).
const OF_WEIGHTS: Resolution = (48, 1.1);
/// Of prices of power, which a search refines: on 876 jobs at half their peak power the bound is 1 to 4 %
/// higher than with the resolution of weights.
const OF_POWER: Resolution = (200, 1.02);

/// The weight of each bucket, and of the time after the last one.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    /// The group of each bucket.
    group: Vec<usize>,
    /// Buckets by group.
    sorted: Vec<usize>,
    /// The weight of each group, ascending, and its end in `sorted`.
    levels: Vec<(f64, usize)>,
    /// The least weight, including the time after the last bucket.
    least: f64,
    /// The weight after the last bucket.
    after: f64,
}

impl Weights {
    /// `weight` is the least weight between two times, in seconds.
    pub(super) fn over(
        (origin_s, bucket_s, buckets): (f64, f64, usize),
        weight: &dyn Fn(f64, f64) -> f64,
    ) -> Result<Self, BoundError> {
        let start = |bucket: usize| origin_s + bucket as f64 * bucket_s;
        let mut values: Vec<f64> =
            (0..buckets).map(|bucket| weight(start(bucket), start(bucket + 1))).collect();
        let after = weight(start(buckets), f64::INFINITY);
        values.push(after);
        if let Some(&value) = values.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
            let what = "what a joule counts as";
            return Err(BoundError::Setting {
                what,
                value,
                remedy: "give a finite number above zero",
            });
        }
        values.pop();
        Ok(Self::rounded(&values, after, OF_WEIGHTS))
    }

    /// Groups the weights of the buckets and rounds them down; `after` is the weight after the last one.
    fn rounded(values: &[f64], after: f64, (groups, near): Resolution) -> Self {
        let buckets = values.len();
        let least = values.iter().copied().fold(after, f64::min);
        let mut sorted: Vec<usize> = (0..buckets).collect();
        sorted.sort_by(|&a, &b| values[a].total_cmp(&values[b]).then(a.cmp(&b)));
        let mut group = vec![0; buckets];
        let mut levels: Vec<(f64, usize)> = Vec::new();
        let each = buckets.div_ceil(groups).max(1);
        for (rank, &bucket) in sorted.iter().enumerate() {
            let value = values[bucket];
            match levels.last_mut() {
                Some((least, end))
                    if *least >= value || (rank % each != 0 && near * *least > value) =>
                {
                    *end = rank + 1;
                }
                _ => levels.push((value, rank + 1)),
            }
            group[bucket] = levels.len() - 1;
        }
        Self { group, sorted, levels, least, after }
    }

    /// All weights are one.
    pub(super) fn one(buckets: usize) -> Self {
        let levels = vec![(1.0, buckets)];
        Self {
            group: vec![0; buckets],
            sorted: (0..buckets).collect(),
            levels,
            least: 1.0,
            after: 1.0,
        }
    }

    /// Prices of a joule: all weights times `lambda`.
    pub(super) fn times(&self, lambda: f64) -> Self {
        let levels = self.levels.iter().map(|&(weight, end)| (weight * lambda, end)).collect();
        let (least, after) = (self.least * lambda, self.after * lambda);
        Self { levels, least, after, ..self.clone() }
    }

    /// Prices of a joule with a price of power in each bucket, rounded down: at most `lambda` times the
    /// weight + the price of power. After the last bucket power is free.
    pub(super) fn with_power(&self, lambda: f64, power: &[f64]) -> Self {
        let buckets = power.iter().enumerate();
        let values: Vec<f64> = buckets.map(|(b, price)| lambda * self.at(b) + price).collect();
        Self::rounded(&values, lambda * self.after, OF_POWER)
    }

    /// The weight of a bucket.
    pub(super) fn at(&self, bucket: usize) -> f64 {
        self.levels[self.group[bucket]].0
    }

    /// The least weight.
    pub(super) const fn least(&self) -> f64 {
        self.least
    }

    /// The largest weight.
    pub(super) fn most(&self) -> f64 {
        self.levels.last().map_or(self.least, |(weight, _)| weight.max(self.least))
    }

    /// The weight of each group.
    pub(super) fn levels(&self) -> impl ExactSizeIterator<Item = f64> {
        self.levels.iter().map(|(weight, _)| *weight)
    }

    /// The group of a bucket.
    pub(super) fn group(&self, bucket: usize) -> usize {
        self.group[bucket]
    }

    /// All buckets, by group.
    pub(super) fn by_group(&self) -> &[usize] {
        &self.sorted
    }

    /// The range of a group in that order.
    pub(super) fn range(&self, group: usize) -> std::ops::Range<usize> {
        let start = group.checked_sub(1).map_or(0, |before| self.levels[before].1);
        start..self.levels[group].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_rounded_down() {
        let true_weight = |hour: f64| 1.0 + 0.5 * (hour / 3.0).sin() + 0.001 * hour;
        let weight = |from: f64, until: f64| {
            if until.is_finite() { true_weight(from) } else { 0.6 }
        };
        let weights = Weights::over((0.0, 1.0, 500), &weight).unwrap();
        let levels: Vec<f64> = weights.levels().collect();
        assert!((40..60).contains(&levels.len()) && levels.is_sorted());
        let (mut sum, mut counted) = (0.0, 0.0);
        for bucket in 0..500 {
            let (is, counts) = (true_weight(bucket as f64), levels[weights.group(bucket)]);
            assert!(counts <= is, "{bucket}: {counts} of {is}");
            let range = weights.range(weights.group(bucket));
            assert!(weights.by_group()[range].contains(&bucket));
            (sum, counted) = (sum + is, counted + counts);
        }
        assert!(counted > 0.98 * sum, "{counted} of {sum}");
        assert!(weights.least() <= 0.6 && weights.most() >= 1.9, "{weights:?}");
        let mut all = weights.by_group().to_vec();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..500));
    }

    #[test]
    fn equal_buckets_are_one_group() {
        let weights = Weights::over((0.0, 1.0, 300), &|_, _| 1.0).unwrap();
        assert_eq!((weights.levels().len(), weights.range(0)), (1, 0..300));
        assert!(Weights::over((0.0, 1.0, 3), &|_, _| 0.0).is_err());
    }
}
