//! Slowdowns of a class's jobs, co-located with one job of another class; kept after the jobs end.
//!
//! Each class keeps a table by the partner's class, with the last co-located jobs. A job's entry is
//! replaced as its estimate improves, so that no window counts twice. Bounded in partners and jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::observation::UNKNOWN;

use crate::history::Gaussian;

/// Partners kept of each class; beyond, the least recently updated one is dropped.
pub const PARTNERS_MAX: usize = 64;
/// Jobs kept of each pair.
const JOBS_MAX: usize = 3;
/// Standard deviation between two jobs of the same classes sharing a GPU, of a logarithm.
const JOB_SD: f64 = 0.02;
/// A change of more than this share of an entry's standard deviation counts as news.
const NEWS: f64 = 0.5;

/// Observations co-located with one partner class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Partner {
    updated_at_us: Timestamp,
    /// Natural logarithm of each job's slowdown, oldest first.
    jobs: Vec<(JobId, Gaussian)>,
}

impl Partner {
    fn pooled(&self) -> Option<Gaussian> {
        let (mut precision, mut weighted) = (0.0, 0.0);
        for (_, stored) in &self.jobs {
            let weight = 1.0 / (stored.sd * stored.sd + JOB_SD * JOB_SD);
            precision += weight;
            weighted += weight * stored.mean;
        }
        let pooled = || Gaussian { mean: weighted / precision, sd: (1.0 / precision).sqrt() };
        (precision > 0.0).then(pooled)
    }
}

/// Observations by the partner's class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ColocationHistory {
    partners: BTreeMap<WorkloadId, Partner>,
}

impl ColocationHistory {
    /// Updates the slowdowns of `job` co-located with single partners; returns the number of new or
    /// changed entries. A partner without a class is not kept.
    pub fn update(
        &mut self,
        now: Timestamp,
        job: &JobId,
        singles: impl Iterator<Item = (WorkloadId, Gaussian)>,
    ) -> u64 {
        let mut news = 0;
        for (class, stored) in singles.filter(|(class, _)| class.as_str() != UNKNOWN) {
            let new = || Partner { updated_at_us: now, jobs: Vec::new() };
            let partner = self.partners.entry(class).or_insert_with(new);
            match partner.jobs.iter_mut().find(|(id, _)| id == job) {
                Some((_, kept)) if *kept == stored => continue,
                Some((_, kept)) => {
                    news += u64::from((kept.mean - stored.mean).abs() > NEWS * kept.sd);
                    *kept = stored;
                }
                None => {
                    news += 1;
                    partner.jobs.push((job.clone(), stored));
                    if partner.jobs.len() > JOBS_MAX {
                        partner.jobs.remove(0);
                    }
                }
            }
            partner.updated_at_us = now;
        }
        while self.partners.len() > PARTNERS_MAX {
            let oldest = self.partners.iter().min_by_key(|(_, p)| p.updated_at_us);
            if let Some(class) = oldest.map(|(class, _)| class.clone()) {
                self.partners.remove(&class);
            }
        }
        news
    }

    /// By partner: the time of the last update, and the precision-weighted mean of ln slowdown over its
    /// jobs.
    pub fn iter(&self) -> impl Iterator<Item = (&WorkloadId, Timestamp, Gaussian)> {
        self.partners.iter().filter_map(|(class, partner)| {
            partner.pooled().map(|pooled| (class, partner.updated_at_us, pooled))
        })
    }

    /// Pooled ln slowdown co-located with `partner`.
    #[must_use]
    pub fn of(&self, partner: &WorkloadId) -> Option<Gaussian> {
        self.partners.get(partner)?.pooled()
    }

    /// Number of partners.
    #[must_use]
    pub fn len(&self) -> usize {
        self.partners.len()
    }

    /// Whether there is no partner.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partners.is_empty()
    }

    /// Whether values read from storage are valid.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        let fine = |s: &Gaussian| s.mean.is_finite() && s.sd.is_finite() && s.sd > 0.0;
        self.partners.len() <= PARTNERS_MAX
            && self
                .partners
                .values()
                .all(|p| p.jobs.len() <= JOBS_MAX && p.jobs.iter().all(|(_, stored)| fine(stored)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_counts_once_and_the_oldest_partners_are_dropped() {
        let class = |i: usize| WorkloadId::new(&format!("c{i:03}")).unwrap();
        let job = |i: usize| JobId::new(&format!("j{i}")).unwrap();
        let stored = |mean| Gaussian { mean, sd: 0.03 };
        let one = |i, mean| std::iter::once((class(i), stored(mean)));
        let (mut history, at) = (ColocationHistory::default(), Timestamp::from_s);
        assert_eq!(history.update(at(1), &job(0), one(0, 0.5)), 1);
        assert_eq!(history.update(at(2), &job(0), one(0, 0.51)), 0, "hardly moved");
        assert_eq!(history.update(at(3), &job(0), one(0, 0.7)), 1);
        assert!((history.iter().next().unwrap().2.mean - 0.7).abs() < 1e-9);
        for i in 1..9 {
            history.update(at(4), &job(i), one(0, 0.1));
        }
        let (_, _, pooled) = history.iter().next().unwrap();
        assert!((pooled.mean - 0.1).abs() < 1e-9 && pooled.sd < 0.03, "{pooled:?}");
        for i in 0..2 * PARTNERS_MAX {
            history.update(at(10 + i as u64), &job(0), one(i, 0.2));
        }
        assert!(history.len() == PARTNERS_MAX && history.is_sane());
        assert!(history.iter().all(|(c, _, _)| *c >= class(PARTNERS_MAX)));
        let unknown = WorkloadId::new(UNKNOWN).unwrap();
        assert_eq!(history.update(at(999), &job(0), std::iter::once((unknown, stored(0.1)))), 0);
    }
}
