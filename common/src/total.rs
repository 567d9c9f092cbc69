//! Sums of readings that count what is missing.
//!
//! A sum over GPUs or jobs of which one has no reading is a lower bound. [`Total`] carries the number of parts
//! that are missing, so that a sum cannot be stated without them.

use std::ops::AddAssign;

/// A sum of readings, with the number of its parts and of those that are not complete.
///
/// ```
/// use wattle_common::{Power, total::Total};
///
/// let drawn: Total<Power> = [Some(Power::from_w(223)), None].into_iter().collect();
/// assert_eq!(drawn.known(), Some(Power::from_w(223)));
/// assert_eq!(drawn.stated(|power| power.to_string()).as_deref(), Some("at least 223 W"));
/// assert_eq!(drawn.missing("GPU").as_deref(), Some("1 of 2 GPUs has no reading"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total<T> {
    sum: Option<T>,
    parts: usize,
    incomplete: usize,
}

impl<T: Copy + AddAssign> Total<T> {
    /// Adds a part; `None`: it has no reading.
    pub fn add(&mut self, part: Option<T>) {
        self.parts += 1;
        let Some(part) = part else {
            self.incomplete += 1;
            return;
        };
        match &mut self.sum {
            Some(sum) => *sum += part,
            none => *none = Some(part),
        }
    }

    /// Adds a part of which only this much is known.
    pub fn add_at_least(&mut self, part: Option<T>) {
        self.add(part);
        self.incomplete += usize::from(part.is_some());
    }

    /// Adds the parts of another sum.
    pub fn merge(&mut self, other: Self) {
        let (parts, incomplete) = (self.parts + other.parts, self.incomplete + other.incomplete);
        if let Some(sum) = other.sum {
            self.add(Some(sum));
        }
        (self.parts, self.incomplete) = (parts, incomplete);
    }

    /// The sum of the parts with a reading; `None`: no part has a reading.
    #[must_use]
    pub const fn known(&self) -> Option<T> {
        self.sum
    }

    /// Whether every part has a complete reading.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.incomplete == 0
    }

    /// The sum in words, `at least ...` if a part is missing; `None`: no part has a reading.
    #[must_use]
    pub fn stated(&self, format: impl FnOnce(T) -> String) -> Option<String> {
        let sum = format(self.sum?);
        Some(if self.is_complete() { sum } else { format!("at least {sum}") })
    }

    /// The missing parts, such as `1 of 8 GPUs has no reading`; `None`: none is missing.
    #[must_use]
    pub fn missing(&self, part: &str) -> Option<String> {
        let s = if self.parts == 1 { "" } else { "s" };
        let has = if self.incomplete == 1 { "has" } else { "have" };
        (!self.is_complete())
            .then(|| format!("{} of {} {part}{s} {has} no reading", self.incomplete, self.parts))
    }
}

impl<T: Copy + AddAssign + Default> FromIterator<Option<T>> for Total<T> {
    fn from_iter<I: IntoIterator<Item = Option<T>>>(parts: I) -> Self {
        let mut total = Self::default();
        parts.into_iter().for_each(|part| total.add(part));
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Energy;
    use proptest::prelude::*;

    fn stated(total: &Total<Energy>) -> (Option<String>, Option<String>) {
        (total.stated(|energy| format!("{} J", energy.as_j())), total.missing("GPU"))
    }

    #[test]
    fn a_sum_of_nothing_is_no_zero() {
        assert_eq!(stated(&Total::default()), (None, None));
        let none = "2 of 2 GPUs have no reading".to_owned();
        assert_eq!(stated(&[None, None].into_iter().collect()), (None, Some(none)));
        let zero = Some("0 J".to_owned());
        assert_eq!(stated(&[Some(Energy::ZERO)].into_iter().collect()), (zero, None));
    }

    #[test]
    fn a_part_that_is_known_in_part_counts_as_missing() {
        let mut total = Total::default();
        total.add(Some(Energy::from_j(4)));
        total.add_at_least(Some(Energy::from_j(3)));
        total.add_at_least(None);
        let missing = "2 of 3 GPUs have no reading".to_owned();
        assert_eq!(stated(&total), (Some("at least 7 J".to_owned()), Some(missing)));
    }

    #[test]
    fn merged_sums_keep_what_is_missing() {
        let of = |parts: &[Option<u64>]| -> Total<Energy> {
            parts.iter().map(|j| j.map(Energy::from_j)).collect()
        };
        let merged = |a: &[Option<u64>], b: &[Option<u64>]| {
            let mut sum = of(a);
            sum.merge(of(b));
            assert_eq!(sum, of(&[a, b].concat()));
            stated(&sum)
        };
        let missing = Some("1 of 3 GPUs has no reading".to_owned());
        assert_eq!(
            merged(&[Some(4), None], &[Some(3)]),
            (Some("at least 7 J".to_owned()), missing)
        );
        assert_eq!(merged(&[], &[None]).0, None);
        assert_eq!(merged(&[Some(0)], &[]).0.as_deref(), Some("0 J"));
    }

    proptest! {
        /// A sum that lacks a part states it, whatever the parts.
        #[test]
        fn no_part_is_missing_without_a_word(parts in prop::collection::vec(prop::option::of(0u64..1_000), 0..12)) {
            let total: Total<Energy> = parts.iter().map(|mj| mj.map(Energy::from_mj)).collect();
            let (sum, missing) = stated(&total);
            prop_assert_eq!(missing.is_some(), parts.contains(&None));
            prop_assert_eq!(sum.is_some(), parts.iter().any(Option::is_some));
            prop_assert_eq!(sum.is_some_and(|sum| sum.starts_with("at least")), missing.is_some() && total.known().is_some());
        }
    }
}
