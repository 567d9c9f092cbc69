//! What outlives a job: how jobs of each workload class ran on each kind of card.
//!
//! Each class keeps a summary of its last few jobs; a job's summary is replaced as the job is
//! better known, so no window counts twice. From them a new job of the class starts, and its
//! neighbours know what to expect of it. Bounded in classes, jobs for each class, and entries for
//! each job: stored, a full class of usual names takes up to 104 kB, of the longest names 320 kB.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::observation::{JobShape, Setting};

use crate::model::{interference, throughput, transfer};
use crate::statistics::regression::Gaussian;
use crate::workload_name::WorkloadName;

pub mod colocation;
pub mod similarity;

use colocation::ColocationHistory;

/// Jobs kept of each class.
pub const JOBS_MAX: usize = 8;
/// Sets of neighbours kept of each job.
pub const SETS_MAX: usize = 16;
/// Configurations kept of each job.
pub const LEVELS_MAX: usize = 12;
/// Caps and clocks kept of each job, together.
pub const SETTINGS_MAX: usize = 16;

/// Deviation between two jobs of one class, of logarithms of rate and power: single runs of one
/// configuration repeat within 1-3 %, two runs of one class may differ a little in their data.
const JOB_SD: f64 = 0.04;
/// The same of a busy share.
const BUSY_JOB_SD: f64 = 0.03;
/// The same of what a setting does: it is the class's own, and mostly repeats.
const SETTING_JOB_SD: f64 = 0.015;

/// A configuration's step rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// GPUs in all.
    pub gpus: u32,
    /// Nodes.
    pub nodes: u32,
    /// Global batch size, where it was reported.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// The logarithm of steps a second, alone at the default.
    pub ln_rate: Gaussian,
}

impl Level {
    /// Where it was.
    #[must_use]
    pub fn shape(&self) -> JobShape {
        JobShape { gpus: self.gpus, nodes: self.nodes, batch: self.global_batch }
    }
}

/// What a job's cards drew on so many GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerLevel {
    /// GPUs in all.
    pub gpus: u32,
    /// The logarithm of one card's power alone at the default, watts.
    pub ln_power: Gaussian,
}

/// What a job showed under a cap or a locked clock, relative to the default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtSetting {
    /// The cap or the clock; one of them.
    pub setting: Setting,
    /// The logarithm of what its card drew at the default there, watts: the same cap bites deeper
    /// where that is more.
    #[serde(default)]
    pub ln_power: Option<f64>,
    /// The logarithm of its slow-down.
    pub slow: Option<Gaussian>,
    /// The logarithm of its power relative to the default.
    pub power: Option<Gaussian>,
}

/// What a job did beside others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedSet {
    /// The neighbours' classes, sorted.
    pub neighbours: Vec<WorkloadId>,
    /// The logarithm of its slow-down.
    pub slow: Option<Gaussian>,
    /// The logarithm of the card's power above idle over the tenants' added up.
    pub power: Option<Gaussian>,
}

/// What is kept of one job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Step rates by configuration.
    pub levels: Vec<Level>,
    /// Busy share alone, 0 to 1.
    pub busy: Option<Gaussian>,
    /// Memory traffic share alone, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Peak device memory, MiB.
    pub memory_mib: Option<u64>,
    /// The logarithm of one card's power alone at the default, watts.
    pub ln_power: Option<Gaussian>,
    /// The same by the GPUs it had.
    #[serde(default)]
    pub powers: Vec<PowerLevel>,
    /// What it showed under caps and clocks, by its own readings alone.
    #[serde(default)]
    pub settings: Vec<AtSetting>,
    /// What it did beside others.
    pub shared: Vec<SharedSet>,
    /// What it did beside one other at a time, all of it: goes into its class's table.
    #[serde(skip)]
    pub singles: Vec<(WorkloadId, Gaussian)>,
    /// What it showed of how jobs scale.
    #[serde(default)]
    pub scaling: Option<throughput::Constants>,
}

/// The summaries of a class's last jobs, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// When it was last heard of.
    pub updated_at_us: Timestamp,
    /// Its jobs.
    pub jobs: Vec<(JobId, Summary)>,
    /// What they did beside one other job.
    #[serde(default)]
    pub beside: ColocationHistory,
}

/// What a class is expected to be.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// How many of its jobs were seen.
    pub jobs: usize,
    /// Busy share alone.
    pub busy: Option<Gaussian>,
    /// Memory traffic share alone.
    pub memory_busy: Option<f64>,
    /// Peak device memory, MiB: the largest seen.
    pub memory_mib: Option<u64>,
    /// The logarithm of one card's power alone, watts.
    pub ln_power: Option<Gaussian>,
    /// The same by GPUs.
    pub powers: BTreeMap<u32, Gaussian>,
    /// Step rates by configuration.
    pub levels: BTreeMap<JobShape, Gaussian>,
    /// What its jobs showed under caps and clocks.
    pub settings: Vec<AtSetting>,
}

/// Pools what several jobs showed into what another one will: each weighted by how sure it is and
/// by how much jobs differ.
fn pool(seen: impl Iterator<Item = Gaussian>, between_sd: f64) -> Option<Gaussian> {
    let (mut precision, mut weighted) = (0.0, 0.0);
    for stored in seen {
        let weight = 1.0 / (stored.sd * stored.sd + between_sd * between_sd);
        precision += weight;
        weighted += weight * stored.mean;
    }
    (precision > 0.0).then(|| Gaussian {
        mean: weighted / precision,
        sd: (1.0 / precision + between_sd * between_sd).sqrt(),
    })
}

/// What several jobs showed under caps and clocks, pooled by whole watts and megahertz.
fn pool_settings<'a>(seen: impl Iterator<Item = &'a AtSetting>) -> Vec<AtSetting> {
    let whole = |v: Option<f64>| v.map(|v| v.round() as u64);
    let mut groups: BTreeMap<_, Vec<&AtSetting>> = BTreeMap::new();
    for at in seen {
        let key = (whole(at.setting.cap_w), whole(at.setting.clock_mhz_max));
        groups.entry(key).or_default().push(at);
    }
    let pool = |group: &[&AtSetting], of: fn(&AtSetting) -> Option<Gaussian>| {
        pool(group.iter().filter_map(|at| of(at)), SETTING_JOB_SD)
    };
    groups
        .into_values()
        .map(|group| AtSetting {
            setting: group[0].setting,
            ln_power: mean(group.iter().filter_map(|at| at.ln_power)),
            slow: pool(&group, |at| at.slow),
            power: pool(&group, |at| at.power),
        })
        .collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

impl Class {
    /// What another job of this class is expected to be; `but` is left out.
    #[must_use]
    pub fn profile(&self, but: Option<&JobId>) -> Profile {
        let jobs = || self.jobs.iter().filter(|(id, _)| Some(id) != but).map(|(_, s)| s);
        let mut by_level: BTreeMap<JobShape, Vec<Gaussian>> = BTreeMap::new();
        for level in jobs().flat_map(|s| &s.levels) {
            by_level.entry(level.shape()).or_default().push(level.ln_rate);
        }
        let levels = by_level
            .into_iter()
            .filter_map(|(at, seen)| Some((at, pool(seen.into_iter(), JOB_SD)?)))
            .collect();
        let mut by_count: BTreeMap<u32, Vec<Gaussian>> = BTreeMap::new();
        for power in jobs().flat_map(|s| &s.powers) {
            by_count.entry(power.gpus).or_default().push(power.ln_power);
        }
        let powers = by_count
            .into_iter()
            .filter_map(|(gpus, seen)| Some((gpus, pool(seen.into_iter(), JOB_SD)?)))
            .collect();
        Profile {
            jobs: jobs().count(),
            busy: pool(jobs().filter_map(|s| s.busy), BUSY_JOB_SD),
            memory_busy: mean(jobs().filter_map(|s| s.memory_busy)),
            memory_mib: jobs().filter_map(|s| s.memory_mib).max(),
            ln_power: pool(jobs().filter_map(|s| s.ln_power), JOB_SD),
            powers,
            levels,
            settings: pool_settings(jobs().flat_map(|s| &s.settings)),
        }
    }

    /// Whether every number in it is one.
    fn is_sane(&self) -> bool {
        let fine = |s: &Gaussian| s.mean.is_finite() && s.sd.is_finite() && s.sd > 0.0;
        self.jobs.len() <= JOBS_MAX
            && self.beside.is_sane()
            && self.jobs.iter().all(|(_, s)| {
                s.levels.len() <= LEVELS_MAX
                    && s.shared.len() <= SETS_MAX
                    && s.levels.iter().all(|l| l.gpus > 0 && l.nodes > 0 && fine(&l.ln_rate))
                    && s.busy.iter().chain(&s.ln_power).all(fine)
                    && s.powers.len() <= LEVELS_MAX
                    && s.powers.iter().all(|p| p.gpus > 0 && fine(&p.ln_power))
                    && s.scaling.iter().all(throughput::Constants::is_sane)
                    && s.memory_busy.is_none_or(f64::is_finite)
                    && s.settings.len() <= SETTINGS_MAX
                    && s.settings.iter().all(|at| {
                        let setting = at.setting.cap_w.iter().chain(&at.setting.clock_mhz_max);
                        setting.clone().count() == 1
                            && setting.into_iter().all(|v| v.is_finite() && *v > 1.0)
                            && at.ln_power.is_none_or(f64::is_finite)
                            && at.slow.iter().chain(&at.power).all(fine)
                    })
                    && s.shared.iter().all(|set| set.slow.iter().chain(&set.power).all(fine))
            })
    }
}

/// A class, and its profile over all its jobs once somebody asked: every surface asks for those of
/// its neighbours.
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

/// All classes, by kind of card and class.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// No kind is here without a class.
    kinds: BTreeMap<String, BTreeMap<WorkloadId, Kept>>,
    changed: BTreeSet<(String, WorkloadId)>,
    /// By kind of card, how much was learned of pairs so far.
    pair_news: BTreeMap<String, u64>,
}

impl History {
    fn kept<'a>(&'a self, kind: &str) -> impl Iterator<Item = (&'a WorkloadId, &'a Kept)> + 'a {
        self.kinds.get(kind).into_iter().flatten()
    }

    /// The class, where it was ever seen on this kind of card.
    #[must_use]
    pub fn class(&self, kind: &str, class: &WorkloadId) -> Option<&Class> {
        Some(&self.kinds.get(kind)?.get(class)?.class)
    }

    /// What a job of `class` is expected to be, where the class was ever seen on this kind of card;
    /// what `but` itself showed is left out.
    #[must_use]
    pub fn profile(
        &self,
        kind: &str,
        class: &WorkloadId,
        but: Option<&JobId>,
    ) -> Option<Arc<Profile>> {
        let kept = self.kinds.get(kind)?.get(class)?;
        let among = kept.class.jobs.iter().any(|(id, _)| Some(id) == but);
        Some(if among { Arc::new(kept.class.profile(but)) } else { Arc::clone(kept.profile()) })
    }

    /// All classes seen on a kind of card.
    pub fn classes<'a>(
        &'a self,
        kind: &str,
    ) -> impl Iterator<Item = (&'a WorkloadId, &'a Class)> + 'a {
        self.kept(kind).map(|(name, kept)| (name, &kept.class))
    }

    /// Forgets a class.
    pub fn remove(&mut self, kind: &str, class: &WorkloadId) {
        if let Some(classes) = self.kinds.get_mut(kind) {
            classes.remove(class);
            if classes.is_empty() {
                self.kinds.remove(kind);
            }
        }
    }

    /// How many classes it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kinds.values().map(BTreeMap::len).sum()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Replaces what is kept of `job`.
    pub fn remember(
        &mut self,
        now: Timestamp,
        kind: &str,
        class: &WorkloadId,
        job: &JobId,
        mut summary: Summary,
        classes_max: usize,
    ) {
        let kept = self.kinds.entry(kind.to_owned()).or_default().entry(class.clone()).or_default();
        kept.profile.take();
        let entry = &mut kept.class;
        entry.updated_at_us = now;
        let news = entry.beside.take(now, job, std::mem::take(&mut summary.singles).into_iter());
        *self.pair_news.entry(kind.to_owned()).or_insert(0) += news;
        match entry.jobs.iter_mut().find(|(id, _)| id == job) {
            Some((_, kept)) => *kept = summary,
            None => entry.jobs.push((job.clone(), summary)),
        }
        if entry.jobs.len() > JOBS_MAX {
            entry.jobs.remove(0);
        }
        self.changed.insert((kind.to_owned(), class.clone()));
        self.shrink(classes_max);
    }

    /// Takes in a class as it was stored; false where it is not such as this version stores.
    pub fn restore(&mut self, kind: &str, class: WorkloadId, stored: Class, max: usize) -> bool {
        let fine = stored.is_sane() && wattle_common::id::check(kind).is_ok();
        if fine {
            *self.pair_news.entry(kind.to_owned()).or_insert(0) += stored.beside.len() as u64;
            let kept = Kept { class: stored, profile: OnceLock::new() };
            self.kinds.entry(kind.to_owned()).or_default().insert(class, kept);
            self.shrink(max);
        }
        fine
    }

    /// Classes changed since the last call, to be stored.
    pub fn take_changed(&mut self) -> Vec<(String, WorkloadId, Class)> {
        std::mem::take(&mut self.changed)
            .into_iter()
            .filter_map(|(kind, name)| {
                let class = self.class(&kind, &name)?.clone();
                Some((kind, name, class))
            })
            .collect()
    }

    /// The class not heard of for longest makes room.
    fn shrink(&mut self, max: usize) {
        while self.len() > max {
            let all = self.kinds.iter().flat_map(|(kind, classes)| {
                classes.iter().map(move |(name, kept)| (kind, name, kept.class.updated_at_us))
            });
            let oldest = all.min_by_key(|(_, _, heard)| *heard);
            let Some((kind, name)) = oldest.map(|(kind, name, _)| (kind.clone(), name.clone()))
            else {
                break;
            };
            self.remove(&kind, &name);
        }
    }

    /// What each job seen on a kind of card showed of how jobs scale.
    pub fn scaling<'a>(
        &'a self,
        kind: &str,
    ) -> impl Iterator<Item = (&'a JobId, &'a throughput::Constants)> + 'a {
        let jobs = self.classes(kind).flat_map(|(_, class)| &class.jobs);
        jobs.filter_map(|(id, summary)| Some((id, summary.scaling.as_ref()?)))
    }

    /// What each class showed under caps on a kind of card, for the pooled curves; and the families
    /// they are of, each as often as it has classes.
    #[must_use]
    pub fn capped(&self, kind: &str) -> (Vec<transfer::CapObservation>, Vec<&str>) {
        let (mut seen, mut families) = (Vec::new(), Vec::new());
        for (class, kept) in self.kept(kind) {
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

    /// How much was learned of pairs on a kind of card: it only grows.
    #[must_use]
    pub fn pair_news(&self, kind: &str) -> u64 {
        self.pair_news.get(kind).copied().unwrap_or(0)
    }

    /// Every set seen on a kind of card, for the pooled curve: speeds, then powers.
    #[must_use]
    pub fn seen(
        &self,
        kind: &str,
    ) -> (Vec<interference::SetObservation>, Vec<interference::SetObservation>) {
        let (mut slow, mut power) = (Vec::new(), Vec::new());
        let busy: BTreeMap<&WorkloadId, f64> = self
            .kept(kind)
            .filter_map(|(class, kept)| Some((class, kept.profile().busy?.mean)))
            .collect();
        for (class, kept) in self.classes(kind) {
            let Some(own) = busy.get(class) else { continue };
            for set in kept.jobs.iter().flat_map(|(_, s)| &s.shared) {
                let others: Option<f64> = set.neighbours.iter().map(|n| busy.get(n)).sum();
                // A set with a neighbour of unknown busy share teaches the curve nothing.
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
    fn a_job_counts_once_and_the_oldest_make_room() {
        let mut history = History::default();
        for i in 0..40u32 {
            let job = JobId::new(&format!("j{}", i % 20)).unwrap();
            let at = Timestamp::from_s(u64::from(i));
            history.remember(at, "v100", &id("a"), &job, busy(f64::from(i) / 100.0), 2);
        }
        let class = history.class("v100", &id("a")).unwrap();
        assert_eq!(class.jobs.len(), JOBS_MAX);
        // Jobs 12 to 19 are left, with their newest shares 0.32 to 0.39.
        assert!((class.profile(None).busy.unwrap().mean - 0.355).abs() < 1e-9);
        for name in ["b", "c"] {
            let job = JobId::new("x").unwrap();
            history.remember(Timestamp::from_s(99), "v100", &id(name), &job, busy(0.1), 2);
        }
        assert!(history.len() == 2 && history.class("v100", &id("a")).is_none());
    }

    #[test]
    fn what_is_stored_comes_back_and_nonsense_does_not() {
        let mut history = History::default();
        let job = JobId::new("x").unwrap();
        history.remember(Timestamp::EPOCH, "v100", &id("a"), &job, busy(0.2), 9);
        let changed = history.take_changed();
        assert!(changed.len() == 1 && history.take_changed().is_empty());
        let mut other = History::default();
        let (kind, class, kept) = changed[0].clone();
        assert!(other.restore(&kind, class.clone(), kept.clone(), 9));
        assert_eq!(other.class("v100", &class), Some(&kept));
        let mut bad = kept;
        bad.jobs[0].1.busy = Some(Gaussian { mean: f64::NAN, sd: 0.1 });
        assert!(!other.restore(&kind, class, bad, 9));
    }
}
