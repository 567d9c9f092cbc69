//! Jobs without a declared class: the class they match, and what they leave behind.
//!
//! An undeclared job uses the history of the class that it matches with confidence
//! ([`crate::similarity`]), and neighbours refer to it by that class. It does not contribute to a
//! declared class, because a match may be wrong. A job that ends without a match founds an
//! `anonymous-<n>` class; later undeclared jobs that match it contribute to it, so that recurring
//! jobs without a name are recognised.

use std::borrow::Cow;

use wattle_common::id::{JobId, WorkloadId};

use super::Predictor;
use crate::history::Class;
use crate::history::similarity::{self, ClassMatch, ObservedTraits};
use crate::job::Job;

/// Anonymous classes kept for each GPU type; beyond, the least recently updated one is replaced.
const ANONYMOUS_MAX: usize = 32;
/// Exclusive windows from which on a job may found an anonymous class.
const WINDOWS_MIN: usize = 3;
/// Above this probability of matching a known class, a job founds none.
const MATCH_MIN: f64 = 0.5;
const PREFIX: &str = "anonymous-";

impl Predictor {
    /// Best matching class of `job` if it declared none.
    pub(super) fn match_of(&self, id: &JobId, job: &Job) -> Option<ClassMatch> {
        if job.workload.is_some() || job.windows().is_empty() {
            return None;
        }
        match self.matches.get(id) {
            Some(known) => known.clone(),
            // Restored from storage without a window since.
            None => self.find_match(job),
        }
    }

    fn find_match(&self, job: &Job) -> Option<ClassMatch> {
        let gpu_type = self.gpu_type_of(job);
        let gpu = self.gpu_types.spec(gpu_type);
        similarity::best_match(&ObservedTraits::of(job, &gpu), &gpu, self.history.classes(gpu_type))
    }

    /// Class of a job: the declared one, else a confident match.
    pub(super) fn class_of(&self, id: &JobId, job: &Job) -> Option<WorkloadId> {
        let matched =
            || self.match_of(id, job).filter(|found| found.confident).map(|found| found.class);
        job.workload.clone().or_else(matched)
    }

    /// History of the class of `job`. An undeclared job's own readings are added, since its class
    /// does not contain them.
    pub(super) fn class_seen(
        &self,
        id: &JobId,
        job: &Job,
        gpu_type: &str,
        class: Option<&WorkloadId>,
    ) -> Option<Cow<'_, Class>> {
        let kept = self.history.class(gpu_type, class?)?;
        let own = self.models.get(id).filter(|_| job.workload.is_none());
        let Some(own) = own else { return Some(Cow::Borrowed(kept)) };
        let mut kept = kept.clone();
        kept.jobs.push((id.clone(), own.summary(job)));
        Some(Cow::Owned(kept))
    }

    /// Class of a window's neighbour where the window does not contain it.
    pub(super) fn neighbour_class(&self, id: &JobId) -> Option<WorkloadId> {
        let matched = || self.matches.get(id)?.as_ref().filter(|found| found.confident);
        let declared = self.jobs.get(id).and_then(|job| job.workload.clone());
        declared.or_else(|| matched().map(|found| found.class.clone()))
    }

    /// Matches a job again after a window.
    pub(super) fn update_match(&mut self, id: &JobId) {
        let found = match self.jobs.get(id) {
            Some(job) if job.workload.is_none() => Some(self.find_match(job)),
            _ => None,
        };
        let confident = |matched: &Option<ClassMatch>| {
            matched.as_ref().filter(|found| found.confident).map(|found| found.class.clone())
        };
        let after = found.as_ref().and_then(confident);
        let before = match found {
            Some(found) => self.matches.insert(id.clone(), found),
            None => self.matches.remove(id),
        };
        let before = before.as_ref().and_then(confident);
        if before != after {
            self.uncount(before.as_ref());
            self.count(after.as_ref());
        }
    }

    /// Keeps the readings of an undeclared job that ends, for its anonymous class.
    pub(super) fn retain_for_class(&mut self, id: &JobId) {
        let (Some(job), Some(model)) = (self.jobs.get(id), self.models.get(id)) else { return };
        let exclusive = job.windows().iter().filter(|w| w.is_exclusive()).count();
        let (None, Some(gpu_type)) = (&job.workload, &job.gpu_type) else { return };
        if exclusive < WINDOWS_MIN {
            return;
        }
        let matched = self.match_of(id, job);
        let known = matched.as_ref().filter(|found| found.probability > MATCH_MIN);
        let class = match known {
            Some(found) if found.confident && found.class.as_str().starts_with(PREFIX) => {
                found.class.clone()
            }
            Some(_) => return,
            None => self.new_anonymous(gpu_type),
        };
        let summary = model.summary(job);
        let (at, gpu_type) = (job.updated_at_us, gpu_type.clone());
        let founded = known.is_none();
        if founded {
            self.history.remove(&gpu_type, &class);
        }
        let max = self.config.classes_max as usize;
        self.history.remember(at, &gpu_type, &class, id, summary, max);
    }

    /// A free anonymous name, or that of the least recently updated anonymous class.
    fn new_anonymous(&self, gpu_type: &str) -> WorkloadId {
        let name = |n: usize| {
            WorkloadId::new(&format!("{PREFIX}{n}")).expect("letters, a dash and digits")
        };
        let free =
            (1..=ANONYMOUS_MAX).map(name).find(|n| self.history.class(gpu_type, n).is_none());
        let oldest = || {
            (1..=ANONYMOUS_MAX)
                .map(name)
                .min_by_key(|n| self.history.class(gpu_type, n).map(|class| class.updated_at_us))
        };
        free.or_else(oldest).unwrap_or_else(|| name(1))
    }
}
