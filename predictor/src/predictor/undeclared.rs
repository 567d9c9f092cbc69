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
use crate::job::Job;
use crate::likeness::{self, Like, Traits};

/// Anonymous classes kept for each GPU type; beyond, the least recently updated one is replaced.
const ANONYMOUS_MAX: usize = 32;
/// Exclusive windows from which on a job may found an anonymous class.
const WINDOWS_MIN: usize = 3;
/// Above this probability of matching a known class, a job founds none.
const LIKE_NONE: f64 = 0.5;
const PREFIX: &str = "anonymous-";

impl Predictor {
    /// Best matching class of `job` if it declared none.
    pub(super) fn like_of(&self, id: &JobId, job: &Job) -> Option<Like> {
        if job.workload.is_some() || job.windows().is_empty() {
            return None;
        }
        match self.likes.get(id) {
            Some(known) => known.clone(),
            // Restored from storage without a window since.
            None => self.find_like(job),
        }
    }

    fn find_like(&self, job: &Job) -> Option<Like> {
        let kind = self.kind_of(job);
        let card = self.cards.card(kind);
        likeness::like(&Traits::of(job, &card), &card, self.history.classes(kind))
    }

    /// Class of a job: the declared one, else a confident match.
    pub(super) fn class_of(&self, id: &JobId, job: &Job) -> Option<WorkloadId> {
        let like = || self.like_of(id, job).filter(|like| like.sure).map(|like| like.class);
        job.workload.clone().or_else(like)
    }

    /// History of the class of `job`. An undeclared job's own readings are added, since its class
    /// does not contain them.
    pub(super) fn class_seen(
        &self,
        id: &JobId,
        job: &Job,
        kind: &str,
        class: Option<&WorkloadId>,
    ) -> Option<Cow<'_, Class>> {
        let kept = self.history.class(kind, class?)?;
        let own = self.models.get(id).filter(|_| job.workload.is_none());
        let Some(own) = own else { return Some(Cow::Borrowed(kept)) };
        let mut kept = kept.clone();
        kept.jobs.push((id.clone(), own.summary(job)));
        Some(Cow::Owned(kept))
    }

    /// Class of a window's neighbour where the window does not contain it.
    pub(super) fn neighbour_class(&self, id: &JobId) -> Option<WorkloadId> {
        let like = || self.likes.get(id)?.as_ref().filter(|like| like.sure);
        let declared = self.jobs.get(id).and_then(|job| job.workload.clone());
        declared.or_else(|| like().map(|like| like.class.clone()))
    }

    /// Matches a job again after a window.
    pub(super) fn liken(&mut self, id: &JobId) {
        let found = match self.jobs.get(id) {
            Some(job) if job.workload.is_none() => Some(self.find_like(job)),
            _ => None,
        };
        let sure = |like: &Option<Like>| {
            like.as_ref().filter(|like| like.sure).map(|like| like.class.clone())
        };
        let after = found.as_ref().and_then(sure);
        let before = match found {
            Some(found) => self.likes.insert(id.clone(), found),
            None => self.likes.remove(id),
        };
        let before = before.as_ref().and_then(sure);
        if before != after {
            self.uncount(before.as_ref());
            self.count(after.as_ref());
        }
    }

    /// Keeps the readings of an undeclared job that ends, for its anonymous class.
    pub(super) fn bequeath(&mut self, id: &JobId) {
        let (Some(job), Some(model)) = (self.jobs.get(id), self.models.get(id)) else { return };
        let alone = job.windows().iter().filter(|w| w.alone()).count();
        let (None, Some(kind)) = (&job.workload, &job.gpu_type) else { return };
        if alone < WINDOWS_MIN {
            return;
        }
        let like = self.like_of(id, job);
        let known = like.as_ref().filter(|like| like.probability > LIKE_NONE);
        let class = match known {
            Some(like) if like.sure && like.class.as_str().starts_with(PREFIX) => {
                like.class.clone()
            }
            Some(_) => return,
            None => self.new_anonymous(kind),
        };
        let summary = model.summary(job);
        let (heard, kind) = (job.heard_at_us, kind.clone());
        let founded = known.is_none();
        if founded {
            self.history.remove(&kind, &class);
        }
        let max = self.config.classes_max as usize;
        self.history.remember(heard, &kind, &class, id, summary, max);
    }

    /// A free anonymous name, or that of the least recently updated anonymous class.
    fn new_anonymous(&self, kind: &str) -> WorkloadId {
        let name = |n: usize| {
            WorkloadId::new(&format!("{PREFIX}{n}")).expect("letters, a dash and digits")
        };
        let free = (1..=ANONYMOUS_MAX).map(name).find(|n| self.history.class(kind, n).is_none());
        let oldest = || {
            (1..=ANONYMOUS_MAX)
                .map(name)
                .min_by_key(|n| self.history.class(kind, n).map(|class| class.heard_at_us))
        };
        free.or_else(oldest).unwrap_or_else(|| name(1))
    }
}
