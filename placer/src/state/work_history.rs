//! How much work past jobs turned out to be, for judging those whose end nobody knows.
//!
//! A job that has run for long is likely to run for longer still. What a job has left is taken to be
//! the median size of the past jobs larger than what it has attained, less what it has attained; a
//! job larger than nearly all of them has as much left as it has attained. Sizes are work: seconds
//! alone on one GPU at default cap and clock.

/// Sizes kept; the oldest go first.
pub const SIZES_MAX: usize = 4_096;

/// Larger past jobs that a median is taken of, at least.
const LARGER_MIN: usize = 5;

/// The sizes of past jobs.
#[derive(Clone, Debug, Default)]
pub struct SizeHistory {
    /// In the order they ended, as a ring.
    recent: Vec<f64>,
    next: usize,
    /// Ascending.
    sorted: Vec<f64>,
}

impl SizeHistory {
    /// A job has ended, and was so much work.
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

    /// How many jobs it rests on.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether no job has ended yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The mean size; `None` while no job has ended.
    #[must_use]
    pub fn mean_s(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.sorted.iter().sum::<f64>() / self.sorted.len() as f64)
    }

    /// What a job that has done `attained_s` of work likely has left; `None` while nothing is known
    /// of any job.
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
    fn who_ran_long_is_taken_to_run_longer() {
        let mut sizes = SizeHistory::default();
        assert_eq!(sizes.remaining_s(0.0), None);
        assert_eq!(sizes.remaining_s(7.0), Some(7.0));
        assert_eq!(sizes.mean_s(), None);
        (1..=100).for_each(|size| sizes.ended(f64::from(size)));
        assert_eq!((sizes.remaining_s(0.0), sizes.mean_s()), (Some(51.0), Some(50.5)));
        assert_eq!(sizes.remaining_s(50.0), Some(26.0));
        // Beyond nearly all of them: as much again.
        assert_eq!(sizes.remaining_s(99.0), Some(99.0));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut sizes = SizeHistory::default();
        (0..SIZES_MAX).for_each(|_| sizes.ended(1.0));
        (0..SIZES_MAX).for_each(|_| sizes.ended(9.0));
        assert_eq!((sizes.len(), sizes.remaining_s(0.0)), (SIZES_MAX, Some(9.0)));
        sizes.ended(f64::NAN);
        assert_eq!(sizes.len(), SIZES_MAX);
    }
}
