//! Readings of running and completed jobs for the statistical method, one for each configuration.
//!
//! Bounded: at most [`READINGS_PER_JOB`] for a job and [`JOBS_MAX`] jobs for a GPU type. Beyond, the
//! oldest job of the class with the most jobs is dropped, so that a frequent class does not displace
//! rare ones. A reading is about 150 bytes, a GPU type at most 0.7 MB. Readings are not stored: a
//! restart restores them from the stored windows and the history of classes.

use std::collections::BTreeMap;

use wattle_common::id::{JobId, WorkloadId};
use wattle_common::numerics::{mean, median_high};
use wattle_common::observation::{Observation, Setting};
use wattle_common::{Frequency, Power, Timestamp};

use crate::configurations::Configuration;
use crate::gpu_types::GPU_TYPES_MAX;
use crate::history::{Profile, Summary};
use crate::job::{Job, Profiles};
use crate::method::crude::{Place, Quantity, Traits};
use crate::model::cap::{self, GpuSpec};
use crate::prior;

/// Configurations kept of one job.
pub const READINGS_PER_JOB: usize = 16;
/// Jobs kept for each GPU type.
pub const JOBS_MAX: usize = 256;

/// Prior standard deviation of ln rate between two jobs of one class: single runs repeat within
/// 1-3 %, runs of one class may differ in their data.
const RATE_CLASS_SD: f64 = 0.08;
/// The same for ln power.
const POWER_CLASS_SD: f64 = 0.08;
/// Prior standard deviation of ln power between any two jobs: from an embedding model to a saturated
/// GPU.
const POWER_ANY_SD: f64 = 0.7;

/// One configuration of one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The configuration.
    pub place: Place,
    /// High median of ln steps/s.
    pub ln_rate: Option<f64>,
    /// High median of ln watts of one GPU.
    pub ln_power: Option<f64>,
}

impl Reading {
    /// The measured logarithm of `what`.
    #[must_use]
    pub fn seen(&self, what: Quantity) -> Option<f64> {
        match what {
            Quantity::Rate => self.ln_rate,
            Quantity::Power => self.ln_power,
        }
    }

    /// Residual of the crude formula for `what`.
    #[must_use]
    pub fn residual(&self, what: Quantity) -> Option<f64> {
        Some(self.seen(what)? - self.place.crude(what))
    }
}

/// A job's traits and readings.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenJob {
    /// Its class, where declared.
    pub class: Option<WorkloadId>,
    /// Time of its last update.
    pub updated_at_us: Timestamp,
    /// Its traits.
    pub traits: Traits,
    /// Whether its rates are inferred, so that they do not count steps.
    pub inferred: bool,
    /// Its configurations, newest first.
    pub readings: Vec<Reading>,
}

/// The most frequent global batch, the smallest of equally frequent ones; `None` where none is stated.
fn usual_batch(batches: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for batch in batches.flatten() {
        *counts.entry(batch).or_insert(0) += 1;
    }
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(batch, _)| batch)
}

impl SeenJob {
    /// Readings from the windows of `job`; missing traits are those of its `class`.
    #[must_use]
    pub fn of(job: &Job, gpu: &GpuSpec, class: &Profile, profiles: &Profiles) -> Self {
        let windows = job.windows();
        let exclusive = || windows.iter().filter(|w| w.is_exclusive());
        let uncapped = exclusive()
            .filter_map(|w| Some((w, w.gpu_power_w?)))
            .filter(|(w, watts)| cap::is_free(gpu, *watts, w.setting()));
        let power_w = median_high(uncapped.map(|(_, watts)| watts))
            .or(class.ln_power.map(|p| p.mean.exp()))
            .or_else(|| {
                let most = exclusive().filter_map(|w| w.gpu_power_w).max_by(f64::total_cmp)?;
                Some((most * 0.97 * gpu.cap_default_w).sqrt().max(most))
            })
            .unwrap_or_else(|| {
                let name = job.workload.as_ref().map(WorkloadId::as_str);
                let (share, _) = prior::power_share(name, gpu.power_carried);
                share.mean.exp() * gpu.cap_default_w
            });
        let busy = median_high(exclusive().filter_map(|w| w.busy))
            .or(class.busy.map(|b| b.mean))
            .or_else(|| median_high(windows.iter().filter_map(|w| w.busy_job)));
        let traits = Traits {
            busy: busy.unwrap_or(prior::UTILIZATION.mean),
            memory_busy: median_high(exclusive().filter_map(|w| w.memory_busy))
                .or(class.memory_busy)
                .unwrap_or(0.5 * prior::UTILIZATION.mean),
            power_w,
            // A queued job is expected to use the batch of its class.
            global_batch: match windows {
                [] => usual_batch(class.levels.keys().map(|shape| shape.batch)),
                _ => windows.iter().rev().find_map(|w| w.global_batch),
            },
        };
        // Inferred rates do not count steps, so they are not mixed with reported ones.
        let rated =
            |inferred| move |w: &Observation| w.rate.is_some() && w.rate_inferred == inferred;
        let inferred = !windows.iter().any(rated(false)) && windows.iter().any(rated(true));
        let mut groups: Vec<(Place, Vec<f64>, Vec<f64>)> = Vec::new();
        // Other readings are relative to exclusive GPUs at the default setting, so that reading is kept
        // among the newest regardless of its age.
        let newest = || windows.iter().rev().filter(|w| w.is_exclusive());
        let reference =
            newest().find(|w| cap::is_default(gpu, w.setting())).or_else(|| newest().next());
        let reference = reference.map(|w| Place::of_window(w, gpu, &traits, profiles));
        for window in windows.iter().rev() {
            let place = Place::of_window(window, gpu, &traits, profiles);
            let pending =
                reference.is_some_and(|r| r != place && !groups.iter().any(|(p, ..)| *p == r));
            let room = READINGS_PER_JOB - usize::from(pending);
            let i = match groups.iter().position(|(p, ..)| *p == place) {
                Some(i) => i,
                None if groups.len() < room => {
                    groups.push((place, Vec::new(), Vec::new()));
                    groups.len() - 1
                }
                None => continue,
            };
            groups[i].1.extend(window.rate.filter(|_| window.rate_inferred == inferred));
            groups[i].2.extend(window.gpu_power_w);
        }
        let ln = |seen: Vec<f64>| median_high(seen.into_iter()).map(f64::ln);
        Self {
            class: job.workload.clone(),
            updated_at_us: job.updated_at_us,
            traits,
            inferred,
            readings: groups
                .into_iter()
                .map(|(place, rate, power)| Reading {
                    place,
                    ln_rate: ln(rate),
                    ln_power: ln(power),
                })
                .collect(),
        }
    }

    /// Readings of a completed job from the history.
    #[must_use]
    pub fn of_summary(
        class: &WorkloadId,
        updated_at_us: Timestamp,
        kept: &Summary,
        gpu: &GpuSpec,
        profiles: &Profiles,
    ) -> Self {
        let traits = Traits {
            busy: kept.busy.map_or(prior::UTILIZATION.mean, |b| b.mean.clamp(0.0, 1.0)),
            memory_busy: kept.memory_busy.unwrap_or(0.5 * prior::UTILIZATION.mean),
            power_w: kept
                .ln_power
                .map_or(0.5 * gpu.cap_default_w, |p| p.mean.clamp(0.0, 9.0).exp()),
            global_batch: usual_batch(kept.levels.iter().map(|level| level.global_batch)),
        };
        // A missing batch is the job's usual one.
        let at = |(gpus, nodes, global_batch), setting: Setting, neighbours: &[WorkloadId]| {
            let at = Configuration {
                gpus,
                nodes,
                cap: setting.cap_w.map(Power::from_w_f64),
                clock_max: setting.clock_mhz_max.map(|f| Frequency::from_mhz(f as u32)),
                global_batch,
                neighbours: neighbours.to_vec(),
            };
            Place::of(&at, gpu, &traits, profiles)
        };
        let free = Setting::default();
        let ln_power = kept.ln_power.map(|p| p.mean);
        let mut readings: Vec<Reading> = kept
            .levels
            .iter()
            .map(|l| (at((l.gpus, l.nodes, l.global_batch), free, &[]), Some(l.ln_rate.mean)))
            .map(|(place, ln_rate)| Reading { place, ln_rate, ln_power })
            .collect();
        if let Some(level) = kept.levels.first() {
            let shape = (level.gpus, level.nodes, level.global_batch);
            readings.extend(kept.settings.iter().map(|capped| Reading {
                place: at(shape, capped.setting, &[]),
                ln_rate: capped.slow.map(|slow| level.ln_rate.mean - slow.mean),
                ln_power: ln_power.zip(capped.power).map(|(default, power)| default + power.mean),
            }));
            readings.extend(kept.shared.iter().filter_map(|set| {
                let ln_rate = Some(level.ln_rate.mean - set.slow?.mean);
                let place = at(shape, free, &set.neighbours);
                Some(Reading { place, ln_rate, ln_power: None })
            }));
        } else if ln_power.is_some() {
            readings.push(Reading { place: at((1, 1, None), free, &[]), ln_rate: None, ln_power });
        }
        readings.truncate(READINGS_PER_JOB);
        Self { class: Some(class.clone()), updated_at_us, traits, inferred: false, readings }
    }
}

/// All readings, by GPU type and job.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    gpu_types: BTreeMap<String, BTreeMap<JobId, SeenJob>>,
}

impl Readings {
    /// The jobs seen on a GPU type.
    pub fn jobs(&self, gpu_type: &str) -> impl Iterator<Item = (&JobId, &SeenJob)> + Clone {
        self.gpu_types.get(gpu_type).into_iter().flatten()
    }

    /// Whether it has readings of `job`.
    #[must_use]
    pub fn knows(&self, gpu_type: &str, job: &JobId) -> bool {
        self.gpu_types.get(gpu_type).is_some_and(|jobs| jobs.contains_key(job))
    }

    /// Replaces the readings of `job`; true if their number grew.
    pub fn put(&mut self, gpu_type: &str, job: &JobId, seen: SeenJob) -> bool {
        if self.gpu_types.len() >= GPU_TYPES_MAX && !self.gpu_types.contains_key(gpu_type) {
            return false;
        }
        let jobs = self.gpu_types.entry(gpu_type.to_owned()).or_default();
        let count = seen.readings.len();
        let before = jobs.insert(job.clone(), seen).map_or(0, |b| b.readings.len());
        if jobs.len() > JOBS_MAX {
            let mut counts: BTreeMap<Option<&WorkloadId>, usize> = BTreeMap::new();
            for seen in jobs.values() {
                *counts.entry(seen.class.as_ref()).or_insert(0) += 1;
            }
            let most = counts.values().copied().max().unwrap_or(0);
            let fullest = |seen: &SeenJob| counts[&seen.class.as_ref()] == most;
            let oldest = jobs
                .iter()
                .filter(|(_, seen)| fullest(seen))
                .min_by_key(|(_, seen)| seen.updated_at_us)
                .map(|(id, _)| id.clone());
            if let Some(oldest) = oldest {
                jobs.remove(&oldest);
            }
        }
        count > before
    }
}

/// Mean level of some jobs, and the predictive variance of another one's. The prior standard
/// deviation `prior_sd` counts as two further jobs.
#[must_use]
pub fn spread(levels: &[f64], prior_sd: f64) -> Option<(f64, f64)> {
    let n = levels.len() as f64;
    let mean = mean(levels.iter().copied())?;
    let squares: f64 = levels.iter().map(|l| (l - mean).powi(2)).sum();
    let variance = (squares + 2.0 * prior_sd * prior_sd) / (n - 1.0 + 2.0);
    Some((mean, variance * (1.0 + 1.0 / n)))
}

impl Readings {
    /// Expected level of a job without readings, and its variance: from its class, for power
    /// otherwise from all jobs. The power level is relative to the traits, so its mean is zero.
    #[must_use]
    pub fn unseen(
        &self,
        gpu_type: &str,
        class: Option<&WorkloadId>,
        what: Quantity,
        level_of: impl Fn(&SeenJob) -> Option<f64>,
    ) -> Option<(f64, f64)> {
        let jobs = || self.jobs(gpu_type).map(|(_, seen)| seen);
        let same_class = || jobs().filter(|seen| class.is_some() && seen.class.as_ref() == class);
        match what {
            Quantity::Rate => {
                let levels: Vec<f64> =
                    same_class().filter(|s| !s.inferred).filter_map(level_of).collect();
                spread(&levels, RATE_CLASS_SD)
            }
            Quantity::Power => {
                let logs = |seen: &SeenJob| seen.traits.power_w.max(1.0).ln();
                let of_class: Vec<f64> = same_class().map(logs).collect();
                let variance = spread(&of_class, POWER_CLASS_SD)
                    .or_else(|| spread(&jobs().map(logs).collect::<Vec<_>>(), POWER_ANY_SD))
                    .map_or(POWER_ANY_SD * POWER_ANY_SD, |(_, variance)| variance);
                Some((0.0, variance))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(class: &str, at: u64) -> SeenJob {
        let traits = Traits { busy: 0.5, memory_busy: 0.2, power_w: 100.0, global_batch: None };
        SeenJob {
            class: Some(WorkloadId::new(class).unwrap()),
            updated_at_us: Timestamp::from_s(at),
            traits,
            inferred: false,
            readings: Vec::new(),
        }
    }

    #[test]
    fn readings_are_bounded_and_a_frequent_class_does_not_displace_rare_ones() {
        let mut readings = Readings::default();
        for i in 0..2_000u64 {
            let class = if i < 3 { "rare" } else { "daily" };
            readings.put("v100", &JobId::new(&format!("j{i}")).unwrap(), seen(class, i));
        }
        assert_eq!(readings.jobs("v100").count(), JOBS_MAX);
        let rare = |seen: &SeenJob| seen.class.as_ref().is_some_and(|c| c.as_str() == "rare");
        assert_eq!(readings.jobs("v100").filter(|(_, s)| rare(s)).count(), 3);
        assert!(readings.knows("v100", &JobId::new("j1999").unwrap()));
        for i in 0..2_000u64 {
            readings.put(&format!("gpu_type{i}"), &JobId::new("x").unwrap(), seen("a", i));
        }
        assert_eq!(readings.gpu_types.len(), GPU_TYPES_MAX);
    }

    #[test]
    fn predictive_variance_follows_the_prior_for_one_job_and_the_spread_for_many() {
        let (mean, variance) = spread(&[1.0], 0.1).unwrap();
        assert!((mean - 1.0).abs() < 1e-12 && (variance - 0.02).abs() < 1e-12);
        let (mean, variance) = spread(&[0.0, 1.0, 0.0, 1.0], 0.1).unwrap();
        assert!((mean - 0.5).abs() < 1e-12 && variance > 0.2);
        assert_eq!(spread(&[], 0.1), None);
    }
}
