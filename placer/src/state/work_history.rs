//! The work of completed jobs, from which the remaining work of a job of unknown length is estimated.
//!
//! The estimate is the median size of the completed jobs larger than the job's attained work, minus
//! the attained work. With fewer than five larger jobs, the remaining work equals the attained work.
//! A size is work: seconds on one GPU without co-tenants at default cap and clock.

/// Number of sizes kept; the oldest are dropped.
pub const SIZES_MAX: usize = 4_096;

/// Smallest number of larger jobs for a median.
const LARGER_MIN: usize = 5;

/// The sizes of completed jobs, seconds.
#[derive(Clone, Debug, Default)]
pub struct SizeHistory {
    /// In order of completion, as a ring buffer.
    recent: Vec<f64>,
    next: usize,
    /// Ascending.
    sorted: Vec<f64>,
}

impl SizeHistory {
    /// A job of this work completed.
    pub fn ended(&mut self, work_s: f64) {
        if !work_s.is_finite() || work_s <= 0.0 {
            return;
        }
        if self.recent.len() < SIZES_MAX {
            self.recent.push(work_s);
        } else {
            let old = std::mem::replace(&mut self.recent[self.next], work_s);
            self.next = (self.next + 1) % SIZES_MAX;
            let at = self.sorted.partition_point(|size| *size < old);
            self.sorted.remove(at);
        }
        let at = self.sorted.partition_point(|size| *size < work_s);
        self.sorted.insert(at, work_s);
    }

    /// Number of sizes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether no job has completed yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The mean size; `None` before the first completed job.
    #[must_use]
    pub fn mean_s(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.sorted.iter().sum::<f64>() / self.sorted.len() as f64)
    }

    /// The estimated remaining work of a job with `attained_s` of work, seconds; `None` without any
    /// completed job or attained work.
    #[must_use]
    pub fn remaining_s(&self, attained_s: f64) -> Option<f64> {
        if self.is_empty() {
            return (attained_s > 0.0).then_some(attained_s);
        }
        let larger = &self.sorted[self.sorted.partition_point(|size| *size <= attained_s)..];
        if larger.len() < LARGER_MIN && attained_s > 0.0 {
            return Some(attained_s);
        }
        larger.get(larger.len() / 2).map(|median| median - attained_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_work_grows_with_attained_work() {
        let mut sizes = SizeHistory::default();
        assert_eq!(sizes.remaining_s(0.0), None);
        assert_eq!(sizes.remaining_s(7.0), Some(7.0));
        assert_eq!(sizes.mean_s(), None);
        (1..=100).for_each(|size| sizes.ended(f64::from(size)));
        assert_eq!((sizes.remaining_s(0.0), sizes.mean_s()), (Some(51.0), Some(50.5)));
        assert_eq!(sizes.remaining_s(50.0), Some(26.0));
        // Fewer than five larger jobs: equal to the attained work.
        assert_eq!(sizes.remaining_s(99.0), Some(99.0));
    }

    #[test]
    fn oldest_sizes_are_dropped() {
        let mut sizes = SizeHistory::default();
        (0..SIZES_MAX).for_each(|_| sizes.ended(1.0));
        (0..SIZES_MAX).for_each(|_| sizes.ended(9.0));
        assert_eq!((sizes.len(), sizes.remaining_s(0.0)), (SIZES_MAX, Some(9.0)));
        sizes.ended(f64::NAN);
        assert_eq!(sizes.len(), SIZES_MAX);
    }
}
