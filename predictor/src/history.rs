//! History: summaries of the jobs of each workload class on each GPU type, kept after the jobs end.
//!
//! Each class keeps a summary of its last jobs. A job's summary is replaced as its estimates improve, so
//! that no window counts twice. The summaries are the prior of new jobs of the class and the profile
//! of co-tenants. Bounded in classes, jobs per class and entries per job: a full class takes up to
//! 104 kB of storage with names of usual length, 320 kB with the longest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use wattle_common::Timestamp;
use wattle_common::id::{JobId, WorkloadId};

use crate::model::{interference, throughput, transfer};
use crate::statistics::regression::Gaussian;
use crate::workload_name::WorkloadName;

mod class;
pub mod colocation;
pub mod similarity;
mod summary;

pub use class::{Class, Profile};
pub use summary::{AtSetting, Level, PowerLevel, SharedSet, Summary};

/// Jobs kept of each class.
pub const JOBS_MAX: usize = 8;
/// Sets of neighbours kept of each job.
pub const SETS_MAX: usize = 16;
/// Shapes (GPUs, nodes, batch) kept of each job.
pub const LEVELS_MAX: usize = 12;
/// Caps and clocks kept of each job, together.
pub const SETTINGS_MAX: usize = 16;

/// A class with the cached profile over all its jobs, which every surface with this neighbour reads.
#[derive(Clone, Debug, Default)]
struct Kept {
    class: Class,
    profile: OnceLock<Arc<Profile>>,
}

impl Kept {
    fn profile(&self) -> &Arc<Profile> {
        self.profile.get_or_init(|| Arc::new(self.class.profile(None)))
    }
}

/// All classes, by GPU type and class.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Without empty entries.
    gpu_types: BTreeMap<String, BTreeMap<WorkloadId, Kept>>,
    changed: BTreeSet<(String, WorkloadId)>,
    /// By GPU type, the number of changes of pairs so far.
    pair_news: BTreeMap<String, u64>,
}

impl History {
    fn kept<'a>(&'a self, gpu_type: &str) -> impl Iterator<Item = (&'a WorkloadId, &'a Kept)> + 'a {
        self.gpu_types.get(gpu_type).into_iter().flatten()
    }

    /// A class on a GPU type.
    #[must_use]
    pub fn class(&self, gpu_type: &str, class: &WorkloadId) -> Option<&Class> {
        Some(&self.gpu_types.get(gpu_type)?.get(class)?.class)
    }

    /// Profile of `class` on a GPU type without the job `but`; `None` for an unknown class.
    #[must_use]
    pub fn profile(
        &self,
        gpu_type: &str,
        class: &WorkloadId,
        but: Option<&JobId>,
    ) -> Option<Arc<Profile>> {
        let kept = self.gpu_types.get(gpu_type)?.get(class)?;
        let among = kept.class.jobs.iter().any(|(id, _)| Some(id) == but);
        Some(if among { Arc::new(kept.class.profile(but)) } else { Arc::clone(kept.profile()) })
    }

    /// Classes on a GPU type.
    pub fn classes<'a>(
        &'a self,
        gpu_type: &str,
    ) -> impl Iterator<Item = (&'a WorkloadId, &'a Class)> + 'a {
        self.kept(gpu_type).map(|(name, kept)| (name, &kept.class))
    }

    /// Removes a class.
    pub fn remove(&mut self, gpu_type: &str, class: &WorkloadId) {
        if let Some(classes) = self.gpu_types.get_mut(gpu_type) {
            classes.remove(class);
            if classes.is_empty() {
                self.gpu_types.remove(gpu_type);
            }
        }
    }

    /// Number of classes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.gpu_types.values().map(BTreeMap::len).sum()
    }

    /// Whether it has no class.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpu_types.is_empty()
    }

    /// Replaces the summary of `job`.
    pub fn remember(
        &mut self,
        now: Timestamp,
        gpu_type: &str,
        class: &WorkloadId,
        job: &JobId,
        mut summary: Summary,
        classes_max: usize,
    ) {
        let kept = self
            .gpu_types
            .entry(gpu_type.to_owned())
            .or_default()
            .entry(class.clone())
            .or_default();
        kept.profile.take();
        let entry = &mut kept.class;
        entry.updated_at_us = now;
        let news =
            entry.colocated.update(now, job, std::mem::take(&mut summary.singles).into_iter());
        *self.pair_news.entry(gpu_type.to_owned()).or_insert(0) += news;
        match entry.jobs.iter_mut().find(|(id, _)| id == job) {
            Some((_, kept)) => *kept = summary,
            None => entry.jobs.push((job.clone(), summary)),
        }
        if entry.jobs.len() > JOBS_MAX {
            entry.jobs.remove(0);
        }
        self.changed.insert((gpu_type.to_owned(), class.clone()));
        self.shrink(classes_max);
    }

    /// Restores a stored class; false where it is invalid.
    pub fn restore(
        &mut self,
        gpu_type: &str,
        class: WorkloadId,
        stored: Class,
        max: usize,
    ) -> bool {
        let fine = stored.is_sane() && wattle_common::id::check(gpu_type).is_ok();
        if fine {
            *self.pair_news.entry(gpu_type.to_owned()).or_insert(0) +=
                stored.colocated.len() as u64;
            let kept = Kept { class: stored, profile: OnceLock::new() };
            self.gpu_types.entry(gpu_type.to_owned()).or_default().insert(class, kept);
            self.shrink(max);
        }
        fine
    }

    /// Classes changed since the last call, to be stored.
    pub fn take_changed(&mut self) -> Vec<(String, WorkloadId, Class)> {
        std::mem::take(&mut self.changed)
            .into_iter()
            .filter_map(|(gpu_type, name)| {
                let class = self.class(&gpu_type, &name)?.clone();
                Some((gpu_type, name, class))
            })
            .collect()
    }

    /// Drops the least recently updated classes beyond `max`.
    fn shrink(&mut self, max: usize) {
        while self.len() > max {
            let all = self.gpu_types.iter().flat_map(|(gpu_type, classes)| {
                classes.iter().map(move |(name, kept)| (gpu_type, name, kept.class.updated_at_us))
            });
            let oldest = all.min_by_key(|(_, _, updated_at)| *updated_at);
            let Some((gpu_type, name)) =
                oldest.map(|(gpu_type, name, _)| (gpu_type.clone(), name.clone()))
            else {
                break;
            };
            self.remove(&gpu_type, &name);
        }
    }

    /// Throughput constants of each job on a GPU type.
    pub fn scaling<'a>(
        &'a self,
        gpu_type: &str,
    ) -> impl Iterator<Item = (&'a JobId, &'a throughput::Constants)> + 'a {
        let jobs = self.classes(gpu_type).flat_map(|(_, class)| &class.jobs);
        jobs.filter_map(|(id, summary)| Some((id, summary.scaling.as_ref()?)))
    }

    /// Effects of caps by class on a GPU type, for the pooled curves, and the family of each of these
    /// classes.
    #[must_use]
    pub fn capped(&self, gpu_type: &str) -> (Vec<transfer::CapObservation>, Vec<&str>) {
        let (mut seen, mut families) = (Vec::new(), Vec::new());
        for (class, kept) in self.kept(gpu_type) {
            let profile = kept.profile();
            let settings = &profile.settings;
            let Some(ln_power) = profile.ln_power.filter(|_| !settings.is_empty()) else {
                continue;
            };
            let pair = |s: Gaussian| (s.mean, s.sd);
            let name = WorkloadName::of(class.as_str()).family;
            families.push(name);
            let family = families.iter().position(|f| *f == name).unwrap_or(0) as u16;
            seen.extend(settings.iter().filter_map(|at| {
                Some(transfer::CapObservation {
                    class: (families.len() - 1) as u16,
                    family,
                    ln_power: at.ln_power.unwrap_or(ln_power.mean),
                    cap_w: at.setting.cap_w?,
                    slow: at.slow.map(pair),
                    power: at.power.map(pair),
                })
            }));
        }
        (seen, families)
    }

    /// Number of changes of pairs on a GPU type; it never decreases.
    #[must_use]
    pub fn pair_news(&self, gpu_type: &str) -> u64 {
        self.pair_news.get(gpu_type).copied().unwrap_or(0)
    }

    /// Observed sets of co-tenants on a GPU type, for the pooled curve: slowdowns, then power ratios.
    #[must_use]
    pub fn seen(
        &self,
        gpu_type: &str,
    ) -> (Vec<interference::SetObservation>, Vec<interference::SetObservation>) {
        let (mut slow, mut power) = (Vec::new(), Vec::new());
        let busy: BTreeMap<&WorkloadId, f64> = self
            .kept(gpu_type)
            .filter_map(|(class, kept)| Some((class, kept.profile().busy?.mean)))
            .collect();
        for (class, kept) in self.classes(gpu_type) {
            let Some(own) = busy.get(class) else { continue };
            for set in kept.jobs.iter().flat_map(|(_, s)| &s.shared) {
                let others: Option<f64> = set.neighbours.iter().map(|n| busy.get(n)).sum();
                // The curve needs the busy share of every neighbour.
                let Some(others) = others else { continue };
                let seen = |s: Gaussian| interference::SetObservation {
                    neighbours: set.neighbours.len(),
                    sum: own + others,
                    mean: s.mean,
                    variance: s.sd * s.sd,
                };
                slow.extend(set.slow.map(seen).filter(|_| slow.len() < interference::ROWS_MAX));
                power.extend(set.power.map(seen).filter(|_| power.len() < interference::ROWS_MAX));
            }
        }
        (slow, power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> WorkloadId {
        WorkloadId::new(text).unwrap()
    }

    fn busy(mean: f64) -> Summary {
        Summary { busy: Some(Gaussian { mean, sd: 0.01 }), ..Summary::default() }
    }

    #[test]
    fn job_counts_once_and_the_oldest_jobs_and_classes_are_dropped() {
        let mut history = History::default();
        for i in 0..40u32 {
            let job = JobId::new(&format!("j{}", i % 20)).unwrap();
            let at = Timestamp::from_s(u64::from(i));
            history.remember(at, "v100", &id("a"), &job, busy(f64::from(i) / 100.0), 2);
        }
        let class = history.class("v100", &id("a")).unwrap();
        assert_eq!(class.jobs.len(), JOBS_MAX);
        // Jobs 12 to 19 remain, with their newest shares 0.32 to 0.39.
        assert!((class.profile(None).busy.unwrap().mean - 0.355).abs() < 1e-9);
        for name in ["b", "c"] {
            let job = JobId::new("x").unwrap();
            history.remember(Timestamp::from_s(99), "v100", &id(name), &job, busy(0.1), 2);
        }
        assert!(history.len() == 2 && history.class("v100", &id("a")).is_none());
    }

    #[test]
    fn stored_classes_are_restored_and_invalid_ones_rejected() {
        let mut history = History::default();
        let job = JobId::new("x").unwrap();
        history.remember(Timestamp::EPOCH, "v100", &id("a"), &job, busy(0.2), 9);
        let changed = history.take_changed();
        assert!(changed.len() == 1 && history.take_changed().is_empty());
        let mut other = History::default();
        let (gpu_type, class, kept) = changed[0].clone();
        assert!(other.restore(&gpu_type, class.clone(), kept.clone(), 9));
        assert_eq!(other.class("v100", &class), Some(&kept));
        let mut bad = kept;
        bad.jobs[0].1.busy = Some(Gaussian { mean: f64::NAN, sd: 0.1 });
        assert!(!other.restore(&gpu_type, class, bad, 9));
    }
}
