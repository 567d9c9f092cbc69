//! What the learned methods remember: readings of jobs, alive or gone, one for each configuration.
//!
//! Bounded: at most [`READINGS_PER_JOB`] for a job and [`JOBS_MAX`] jobs for a kind of card, where
//! the class with the most jobs loses its oldest first, so that one daily class does not push out
//! the rare ones. A reading is about 150 bytes, so a kind of card holds 0.7 MB at most. It is not
//! stored: after a restart it is filled again from the stored jobs' windows and from what the
//! history keeps of classes.

use std::collections::BTreeMap;

use wattle_common::id::{JobId, WorkloadId};
use wattle_common::observation::{Observation, Setting};
use wattle_common::{Frequency, Power, Timestamp};

use crate::gpu_types::GPU_TYPES_MAX;
use crate::history::{Profile, Summary};
use crate::job::{Job, Profiles};
use crate::method::crude::{Place, Quantity, Traits};
use crate::model::cap::{self, GpuSpec};
use crate::prior;
use crate::surface::Configuration;

/// Configurations kept of one job.
pub const READINGS_PER_JOB: usize = 16;
/// Jobs kept for each kind of card.
pub const JOBS_MAX: usize = 256;

/// How far two jobs of one class are believed to differ in their rate's level, as a deviation of
/// the logarithm: single runs repeat within 1-3 %, runs of one class may differ in their data.
const RATE_CLASS_SD: f64 = 0.08;
/// The same of power.
const POWER_CLASS_SD: f64 = 0.08;
/// How far the power of any two jobs differs: from an embedding model's to a saturated card's.
const POWER_ANY_SD: f64 = 0.7;

/// One configuration of one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Where it was seen.
    pub place: Place,
    /// The median logarithm of steps a second.
    pub ln_rate: Option<f64>,
    /// The median logarithm of one card's watts.
    pub ln_power: Option<f64>,
}

impl Reading {
    /// What was seen of `what`.
    #[must_use]
    pub fn seen(&self, what: Quantity) -> Option<f64> {
        match what {
            Quantity::Rate => self.ln_rate,
            Quantity::Power => self.ln_power,
        }
    }

    /// What was seen of `what` beyond the crude formula.
    #[must_use]
    pub fn left(&self, what: Quantity) -> Option<f64> {
        Some(self.seen(what)? - self.place.crude(what))
    }
}

/// A job, as far as the methods know it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenJob {
    /// Its class, where declared.
    pub class: Option<WorkloadId>,
    /// When it was last heard of.
    pub updated_at_us: Timestamp,
    /// Itself.
    pub traits: Traits,
    /// Whether its rates are inferred, and so no steps.
    pub inferred: bool,
    /// Its configurations, newest first.
    pub readings: Vec<Reading>,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The global batch of most levels, the smallest of those; `None` where none names one.
fn usual_batch(batches: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for batch in batches.flatten() {
        *counts.entry(batch).or_insert(0) += 1;
    }
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(batch, _)| batch)
}

impl SeenJob {
    /// `job`'s windows as readings; `class` says what is expected of its class.
    #[must_use]
    pub fn of(job: &Job, card: &GpuSpec, class: &Profile, profiles: &Profiles) -> Self {
        let windows = job.windows();
        let alone = || windows.iter().filter(|w| w.alone());
        let free = alone()
            .filter_map(|w| Some((w, w.gpu_power_w?)))
            .filter(|(w, watts)| cap::is_free(card, *watts, w.setting()));
        let power_w = median(free.map(|(_, watts)| watts).collect())
            .or(class.ln_power.map(|p| p.mean.exp()))
            .or_else(|| {
                let most = alone().filter_map(|w| w.gpu_power_w).max_by(f64::total_cmp)?;
                Some((most * 0.97 * card.cap_default_w).sqrt().max(most))
            })
            .unwrap_or_else(|| {
                let name = job.workload.as_ref().map(WorkloadId::as_str);
                let (share, _) = prior::power_share(name, card.power_carried);
                share.mean.exp() * card.cap_default_w
            });
        let busy = median(alone().filter_map(|w| w.busy).collect())
            .or(class.busy.map(|b| b.mean))
            .or_else(|| median(windows.iter().filter_map(|w| w.busy_job).collect()));
        let traits = Traits {
            busy: busy.unwrap_or(prior::UTILIZATION.mean),
            memory_busy: median(alone().filter_map(|w| w.memory_busy).collect())
                .or(class.memory_busy)
                .unwrap_or(0.5 * prior::UTILIZATION.mean),
            power_w,
            // A job that has not run yet is expected to run as its class does.
            global_batch: match windows {
                [] => usual_batch(class.levels.keys().map(|shape| shape.batch)),
                _ => windows.iter().rev().find_map(|w| w.global_batch),
            },
        };
        // A rate that was inferred counts something else than steps: the two do not mix.
        let rated =
            |inferred| move |w: &Observation| w.rate.is_some() && w.rate_inferred == inferred;
        let inferred = !windows.iter().any(rated(false)) && windows.iter().any(rated(true));
        let mut groups: Vec<(Place, Vec<f64>, Vec<f64>)> = Vec::new();
        // All else is relative to the job alone at the default, so that has a place among the newest
        // however long ago it was.
        let newest = || windows.iter().rev().filter(|w| w.alone());
        let home =
            newest().find(|w| cap::is_default(card, w.setting())).or_else(|| newest().next());
        let home = home.map(|w| Place::of_window(w, card, &traits, profiles));
        for window in windows.iter().rev() {
            let place = Place::of_window(window, card, &traits, profiles);
            let waits = home.is_some_and(|h| h != place && !groups.iter().any(|(p, ..)| *p == h));
            let room = READINGS_PER_JOB - usize::from(waits);
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
        let ln = |seen| median(seen).map(f64::ln);
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

    /// What the history kept of a job that is gone.
    #[must_use]
    pub fn of_summary(
        class: &WorkloadId,
        updated_at_us: Timestamp,
        kept: &Summary,
        card: &GpuSpec,
        profiles: &Profiles,
    ) -> Self {
        let traits = Traits {
            busy: kept.busy.map_or(prior::UTILIZATION.mean, |b| b.mean.clamp(0.0, 1.0)),
            memory_busy: kept.memory_busy.unwrap_or(0.5 * prior::UTILIZATION.mean),
            power_w: kept
                .ln_power
                .map_or(0.5 * card.cap_default_w, |p| p.mean.clamp(0.0, 9.0).exp()),
            global_batch: usual_batch(kept.levels.iter().map(|level| level.global_batch)),
        };
        // Where no batch stands, it was the job's usual one.
        let at = |(gpus, nodes, global_batch), setting: Setting, neighbours: &[WorkloadId]| {
            let at = Configuration {
                gpus,
                nodes,
                cap: setting.cap_w.map(Power::from_w_f64),
                clock_max: setting.clock_mhz_max.map(|f| Frequency::from_mhz(f as u32)),
                global_batch,
                neighbours: neighbours.to_vec(),
            };
            Place::of(&at, card, &traits, profiles)
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
            readings.extend(kept.settings.iter().map(|held| Reading {
                place: at(shape, held.setting, &[]),
                ln_rate: held.slow.map(|slow| level.ln_rate.mean - slow.mean),
                ln_power: ln_power.zip(held.power).map(|(alone, power)| alone + power.mean),
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

    /// The job's own level of `what` beyond the crude formula, alone at the default on the GPUs it
    /// was last seen on, and its variance.
    #[must_use]
    pub fn level(&self, what: Quantity) -> Option<(f64, f64)> {
        let reference = self.readings.first()?.place.reference(&self.traits);
        let seen = self.readings.iter().filter_map(|r| Some((r, r.left(what)?)));
        let (mut precision, mut sum) = (0.0, 0.0);
        for (reading, left) in seen {
            let weight = 1.0 / reading.place.reach(&reference, what).0;
            precision += weight;
            sum += weight * left;
        }
        (precision > 0.0).then(|| (sum / precision, 1.0 / precision))
    }
}

/// All readings, by kind of card and job.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    kinds: BTreeMap<String, BTreeMap<JobId, SeenJob>>,
}

impl Readings {
    /// The jobs seen on a kind of card.
    pub fn jobs(&self, kind: &str) -> impl Iterator<Item = (&JobId, &SeenJob)> + Clone {
        self.kinds.get(kind).into_iter().flatten()
    }

    /// Whether a job is there.
    #[must_use]
    pub fn knows(&self, kind: &str, job: &JobId) -> bool {
        self.kinds.get(kind).is_some_and(|jobs| jobs.contains_key(job))
    }

    /// Replaces what is kept of `job`; true where a configuration of it is new.
    pub fn put(&mut self, kind: &str, job: &JobId, seen: SeenJob) -> bool {
        if self.kinds.len() >= GPU_TYPES_MAX && !self.kinds.contains_key(kind) {
            return false;
        }
        let jobs = self.kinds.entry(kind.to_owned()).or_default();
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

/// The mean of what jobs of one class, or of any, are at, and the variance of another one's.
/// `alone_sd` is believed of the spread where a single one is known.
#[must_use]
pub fn spread(levels: &[f64], alone_sd: f64) -> Option<(f64, f64)> {
    let n = levels.len() as f64;
    let mean = levels.iter().sum::<f64>() / n;
    // The belief counts as two jobs more.
    let squares: f64 = levels.iter().map(|l| (l - mean).powi(2)).sum();
    let variance = (squares + 2.0 * alone_sd * alone_sd) / (n - 1.0 + 2.0);
    (!levels.is_empty()).then_some((mean, variance * (1.0 + 1.0 / n)))
}

impl Readings {
    /// What is expected of the level of a job that was never seen: of its class, for power else of
    /// any job. For power it is the level beyond the traits' own, so its mean is zero.
    #[must_use]
    pub fn unseen(
        &self,
        kind: &str,
        class: Option<&WorkloadId>,
        what: Quantity,
        level_of: impl Fn(&SeenJob) -> Option<f64>,
    ) -> Option<(f64, f64)> {
        let jobs = || self.jobs(kind).map(|(_, seen)| seen);
        let like = || jobs().filter(|seen| class.is_some() && seen.class.as_ref() == class);
        match what {
            Quantity::Rate => {
                let levels: Vec<f64> =
                    like().filter(|s| !s.inferred).filter_map(level_of).collect();
                spread(&levels, RATE_CLASS_SD)
            }
            Quantity::Power => {
                let logs = |seen: &SeenJob| seen.traits.power_w.max(1.0).ln();
                let of_class: Vec<f64> = like().map(logs).collect();
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
    fn a_daily_class_does_not_push_out_the_rare_ones_and_all_is_bounded() {
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
            readings.put(&format!("kind{i}"), &JobId::new("x").unwrap(), seen("a", i));
        }
        assert_eq!(readings.kinds.len(), GPU_TYPES_MAX);
    }

    #[test]
    fn one_job_tells_little_of_another_and_many_tell_their_spread() {
        let (mean, variance) = spread(&[1.0], 0.1).unwrap();
        assert!((mean - 1.0).abs() < 1e-12 && (variance - 0.02).abs() < 1e-12);
        let (mean, variance) = spread(&[0.0, 1.0, 0.0, 1.0], 0.1).unwrap();
        assert!((mean - 0.5).abs() < 1e-12 && variance > 0.2);
        assert_eq!(spread(&[], 0.1), None);
    }
}
