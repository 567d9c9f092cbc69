//! The identity of an accepted submission.
//!
//! A job's id is a name that a person chooses, and may be chosen again once its record is gone: after the loss
//! of the store, a restored backup, or when old records are forgotten. So the placer gives each submission that
//! it accepts an [`AdmissionId`], and a run is identified by (admission, attempt). An admission id begins with
//! the time and ends with a random number, so that it never returns, whatever is lost, and sorts by time.

use crate::bounds::CLOCK_TOLERANCE;
use crate::id::{AdmissionId, JobId};
use crate::time::Timestamp;

/// Hexadecimal digits of the time: microseconds until the year 4253.
const TIME_DIGITS: usize = 14;

impl AdmissionId {
    /// The id of a submission that is accepted at `at`. `random` differs between submissions and between
    /// processes.
    #[must_use]
    pub fn accepted(at: Timestamp, random: u64) -> Self {
        let text = format!("{:0TIME_DIGITS$x}{random:016x}", at.as_us());
        Self::new(&text).expect("hexadecimal digits")
    }

    /// When the submission was accepted, by the placer's clock; `None` for a text of another form.
    #[must_use]
    pub fn accepted_at(&self) -> Option<Timestamp> {
        u64::from_str_radix(self.as_str().get(..TIME_DIGITS)?, 16).ok().map(Timestamp::from_us)
    }

    /// Whether a run is one of the submission `known`. Before this field existed, runs and records had no
    /// admission: such a run belongs to a submission that is not newer than `since`, when the run entered its
    /// state.
    #[must_use]
    pub fn has_run(known: Option<&Self>, run: Option<&Self>, since: Timestamp) -> bool {
        match (known, run) {
            (Some(known), None) => {
                known.accepted_at().is_none_or(|accepted| since + CLOCK_TOLERANCE >= accepted)
            }
            (None, _) => true,
            (Some(known), Some(run)) => known == run,
        }
    }

    /// Whether two values may be of one submission: they are not where both are known and differ.
    #[must_use]
    pub fn may_be(known: Option<&Self>, other: Option<&Self>) -> bool {
        known.zip(other).is_none_or(|(known, other)| known == other)
    }

    /// Whether `new` is known to be of a later submission than `known`.
    #[must_use]
    pub fn replaces(new: Option<&Self>, known: Option<&Self>) -> bool {
        new.zip(known).is_some_and(|(new, known)| new > known)
    }

    /// The name of what belongs to a submission of `job`, such as a folder: `train-7.063a…`. Ids have no dot,
    /// so no two submissions have the same. That of a submission without an admission is the job's id.
    #[must_use]
    pub fn name_of(job: &JobId, admission: Option<&Self>) -> String {
        admission.map_or_else(|| job.to_string(), |admission| format!("{job}.{admission}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_time_and_sort_by_it() {
        let id = |s, random| AdmissionId::accepted(Timestamp::from_s(s), random);
        assert_eq!(id(1_700_000_000, 7).accepted_at(), Some(Timestamp::from_s(1_700_000_000)));
        assert!(id(1, u64::MAX) < id(2, 0) && id(2, 0) < id(1_700_000_000, 0));
        assert_ne!(id(1, 1), id(1, 2));
        let farthest = AdmissionId::accepted(Timestamp::from_us(u64::MAX), u64::MAX);
        assert!(farthest.as_str().len() <= crate::id::ID_LEN_MAX);
        assert_eq!(AdmissionId::new("other").unwrap().accepted_at(), None);
        assert_eq!(AdmissionId::new(&"é".repeat(9)).ok().and_then(|id| id.accepted_at()), None);
    }

    #[test]
    fn a_run_is_of_the_submission_that_it_names() {
        let (old, new) = (Timestamp::from_s(10_000), Timestamp::from_s(20_000));
        let [first, second] = [old, new].map(|at| AdmissionId::accepted(at, 1));
        let has = |known, run, since| AdmissionId::has_run(known, run, since);
        assert!(has(Some(&first), Some(&first), old));
        assert!(!has(Some(&second), Some(&first), new), "another submission of the same name");
        assert!(has(Some(&first), None, new), "a run that an earlier version started");
        assert!(!has(Some(&second), None, old), "and that ended before the submission");
        assert!(has(None, Some(&first), old) && has(None, None, old));
    }

    #[test]
    fn submissions_are_compared_where_both_are_known() {
        let [first, second] = [1, 2].map(|s| AdmissionId::accepted(Timestamp::from_s(s), 1));
        assert!(!AdmissionId::may_be(Some(&first), Some(&second)));
        assert!(AdmissionId::may_be(Some(&first), Some(&first)));
        assert!(AdmissionId::may_be(Some(&first), None) && AdmissionId::may_be(None, Some(&first)));
        assert!(AdmissionId::replaces(Some(&second), Some(&first)));
        assert!(!AdmissionId::replaces(Some(&first), Some(&second)));
        assert!(!AdmissionId::replaces(Some(&first), Some(&first)));
        assert!(!AdmissionId::replaces(Some(&second), None));
    }

    #[test]
    fn names_differ_by_submission() {
        let job = JobId::new("train-7").unwrap();
        let first = AdmissionId::accepted(Timestamp::from_s(1), 1);
        assert_eq!(AdmissionId::name_of(&job, None), "train-7");
        assert_eq!(AdmissionId::name_of(&job, Some(&first)), format!("train-7.{first}"));
    }
}
