//! The jobs that ended last, so that what arrives late of one is recognised.
//!
//! Windows, records and proposals of a job come from different sources and may arrive after its end. A name may
//! be submitted again, so an end is that of a submission.

use std::collections::VecDeque;

use crate::id::{AdmissionId, JobId};

/// Ended jobs remembered: what is late arrives within seconds of the end.
const ENDED_MAX: usize = 4_096;

/// The jobs that ended last, each with its last submission.
#[derive(Clone, Debug, Default)]
pub struct EndedJobs {
    /// The oldest first.
    jobs: VecDeque<(JobId, Option<AdmissionId>)>,
}

impl EndedJobs {
    /// Adds a job; `admission`: its submission, as far as it is known. Beyond the limit the oldest is forgotten.
    pub fn insert(&mut self, job: JobId, admission: Option<AdmissionId>) {
        if let Some((_, known)) = self.jobs.iter_mut().find(|(known, _)| *known == job) {
            *known = admission.max(known.take());
            return;
        }
        self.jobs.push_back((job, admission));
        if self.jobs.len() > ENDED_MAX {
            self.jobs.pop_front();
        }
    }

    /// Whether the submission `of` of a job has ended; `None`: not known, so that the name decides.
    #[must_use]
    pub fn has(&self, job: &JobId, of: Option<&AdmissionId>) -> bool {
        let known = self.jobs.iter().find(|(known, _)| known == job);
        known.is_some_and(|(_, ended)| {
            of.is_none_or(|of| ended.as_ref().is_some_and(|ended| of <= ended))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn a_name_that_is_submitted_again_has_not_ended() {
        let job = JobId::new("train-7").unwrap();
        let [first, second, third] =
            [1, 2, 3].map(|s| Some(AdmissionId::accepted(Timestamp::from_s(s), 1)));
        let mut ended = EndedJobs::default();
        assert!(!ended.has(&job, first.as_ref()) && !ended.has(&job, None));
        ended.insert(job.clone(), second.clone());
        assert!(ended.has(&job, first.as_ref()) && ended.has(&job, second.as_ref()));
        assert!(!ended.has(&job, third.as_ref()));
        assert!(ended.has(&job, None), "an earlier version names no submission");
        // Its record was deleted.
        ended.insert(job.clone(), None);
        assert!(ended.has(&job, second.as_ref()) && !ended.has(&job, third.as_ref()));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let job = |n: usize| JobId::new(&format!("j{n}")).unwrap();
        let mut ended = EndedJobs::default();
        (0..=ENDED_MAX).for_each(|n| ended.insert(job(n), None));
        assert!(!ended.has(&job(0), None) && ended.has(&job(1), None));
        assert_eq!(ended.jobs.len(), ENDED_MAX);
    }
}
